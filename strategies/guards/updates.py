"""Updates are held against those of other nodes, or of rounds before."""

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from logging import getLogger
from typing import Any, Final

import numpy as np
from flwr.app import Array, ArrayRecord, Error, Message, RecordDict

from espalier.clients.messages.arrays import values_of

from ..exchange import REJECTED
from ..screening import Failure, answers_in_kind
from .activations import ActivationGuard
from .bounds import Guard
from .lengths import FEW, Lengths

logger = getLogger("espalier.guard")  # of its own: an edge that is served elsewhere is silent but for this

Arrays = Mapping[str, np.ndarray]

# An update may go towards zero by this share of the allowed length, whatever its plan, since a short update can erase a
# model. The second share is for rounds of few replies, which are held against other rounds. A move towards zero that
# takes away less than `ERASED_SHARE` of the model is an honest step that happens to go that way.
INWARD_SHARE: Final = 0.2
INWARD_SHARE_OF_FEW: Final = 0.5
ERASED_SHARE: Final = 0.5
GUARD_STATE: Final = "espalier.guard"  # in an edge's state; no attribute of a strategy can have this name


@dataclass(frozen=True)
class Verdict:
    """What is wrong with a reply, and the model that is good enough instead; None: it is left out."""

    reason: str
    instead: Arrays | None


class UpdateGuard:
    """Judges the models that come back to an edge, or to the cloud, by how far they are from the one sent.

    Parameters
    ----------
    guard : Guard
        What a reply may do.
    node_name : Callable[[int], str] (default: str)
        Name of a node in log lines.
    """

    def __init__(self, guard: Guard, node_name: Callable[[int], str] = str) -> None:
        self.guard = guard
        self.node_name = node_name
        self.activations = ActivationGuard(guard, node_name)
        self._lengths = Lengths()
        self._rates = Lengths()  # per local round
        self._local_rounds: Mapping[int, int] = {}
        self._num_nodes = 1

    def count_nodes(self, num_nodes: int) -> None:
        """Take note of how many nodes the edge has, those that take no part in a round included."""
        self._num_nodes = self.activations.num_nodes = num_nodes

    def begin_round(self, local_rounds: Mapping[int, int] | None = None) -> None:
        """Begin a round of the edge.

        Parameters
        ----------
        local_rounds : Mapping[int, int], optional (default: None)
            What a plan tells each node to train. One that is told more may go farther, but not towards zero: then an
            update is too long where it is too long as a whole and per local round. None: there is no plan.
        """
        self._local_rounds = local_rounds or {}
        self.activations.begin_round()

    def judge(self, models: Mapping[int, tuple[Arrays, Arrays]], rate: float | None = None) -> dict[int, Verdict]:
        """Return what is wrong with the models of a round, by node id; nothing for those that are good.

        Parameters
        ----------
        models : Mapping[int, tuple]
            By node id, what was sent and what came back.
        rate : float, optional (default: None)
            None: models came back. A number: gradients did, which the model goes down at this rate.
        """
        if self.guard.mode == "off" or not models:
            return {}
        distinct = {id(sent): sent for sent, _ in models.values()}
        sizes = {key: _length(sent) for key, sent in distinct.items()}
        found = {n: _measured(sent, model, sizes[id(sent)], rate) for n, (sent, model) in models.items()}
        lengths, size = {n: length for n, (length, _) in found.items()}, max(sizes.values())
        usual = self.guard.update_norm * self._lengths.usual(list(lengths.values()), size)
        by_plan = self._most_by_plan(lengths, size)
        inward_most = usual * (INWARD_SHARE if len(found) >= FEW else INWARD_SHARE_OF_FEW)
        verdicts = {}
        for node_id, (length, inward) in found.items():
            most = max(usual, by_plan.get(node_id, 0.0))
            if inward < ERASED_SHARE * sizes[id(models[node_id][0])]:
                inward = 0.0
            # A model is erased in one local round or in fifty: a plan does not allow more of that.
            if not (excess := max(length / most, inward / inward_most)) <= 1:  # infinite by infinite is neither
                what, much, allowed = "long", length, most
                if inward > inward_most and length <= most:
                    what, much, allowed = "long towards zero", inward, inward_most
                reason = f"its update is {much:.3g} {what}, where {allowed:.3g} is allowed (guard.update-norm)"
                verdicts[node_id] = Verdict(reason, self._instead(*models[node_id], excess, rate))
        self._note({n: length for n, length in lengths.items() if n not in verdicts}, verdicts)
        if self.guard.mode == "warn":
            for node_id, verdict in verdicts.items():
                logger.warning("%s: %s", self.node_name(node_id), verdict.reason)
            return {}
        return verdicts

    def _most_by_plan(self, lengths: Mapping[int, float], size: float) -> dict[int, float]:
        """Return how long updates may be by their local rounds, by node id; `size` is the model's own length.

        Where there are few updates, and the rounds before had no plan, there is nothing to go by.
        """
        if not self._local_rounds or (self._lengths.are_known and not self._rates.are_known and len(lengths) < FEW):
            return {}
        rounds = {n: self._local_rounds.get(n, 1) for n in lengths}
        rates = [length / rounds[n] for n, length in lengths.items()]
        of_one = self.guard.update_norm * self._rates.usual(rates, size / max(rounds.values()))
        return {n: count * of_one for n, count in rounds.items()}

    def _note(self, accepted: Mapping[int, float], refused: Collection[int]) -> None:
        """Remember the lengths of a round's updates for rounds with few."""
        names = [self.node_name(n) for n in refused]
        self._lengths.note({self.node_name(n): length for n, length in accepted.items()}, names, self._num_nodes)
        if self._local_rounds:
            each = {self.node_name(n): length / self._local_rounds.get(n, 1) for n, length in accepted.items()}
            self._rates.note(each, names, self._num_nodes)

    def keep_within(
        self, instructions: Sequence[Message], replies: Sequence[Message], rate: float | None = None
    ) -> tuple[list[Message], list[Failure]]:
        """Judge screened replies; return them with error replies for those left out, and a failure for each of these.

        Parameters
        ----------
        instructions, replies : Sequence[Message]
            What was sent, and one reply to each, in the same order.
        rate : float, optional (default: None)
            As for `judge`.
        """
        kept, failures = list(replies), list[Failure]()
        if self.guard.mode == "off":
            return kept, failures
        sent_as: dict[tuple[int, ...], Arrays] = {}  # most strategies send the same to all
        models, places = {}, {}
        for place, (instruction, reply) in enumerate(zip(instructions, replies, strict=True)):
            if answers_in_kind(instruction, reply):
                (sent,), (arrays,) = instruction.content.array_records.values(), reply.content.array_records.values()
                if (key := tuple(map(id, sent.values()))) not in sent_as:
                    sent_as[key] = _values(sent)
                models[instruction.metadata.dst_node_id] = (sent_as[key], _values(arrays))
                places[instruction.metadata.dst_node_id] = place
        for node_id, verdict in self.judge(models, rate).items():
            place = places[node_id]
            if verdict.instead is None:
                failures.append(Failure(node_id, verdict.reason))
                kept[place] = Message(Error(REJECTED, verdict.reason), reply_to=instructions[place])
            else:
                (name,) = replies[place].content.array_records
                arrays = ArrayRecord({key: Array(values) for key, values in verdict.instead.items()})
                kept[place].content = RecordDict({**replies[place].content, name: arrays})
        return kept, failures

    def _instead(self, sent: Arrays, model: Arrays, excess: float, rate: float | None) -> Arrays | None:
        """Return the model whose update has the direction of this one, and is as long as may be."""
        if self.guard.mode != "clip" or not math.isfinite(excess):
            return None
        clipped = {}
        for name, values in model.items():
            origin = sent[name] if rate is None else np.zeros_like(values)
            is_float = values.dtype.kind == "f"
            clipped[name] = (origin + (values - origin) / excess).astype(values.dtype) if is_float else values
        return clipped

    def state_dict(self) -> dict[str, Any]:
        """Return what must survive an interruption."""
        return {
            "updates": self._lengths.state_dict(),
            "per-local-round": self._rates.state_dict(),
            "activations": self.activations.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what `state_dict` returned."""
        self._lengths.load_state_dict(state.get("updates", ()))
        self.activations.load_state_dict(state.get("activations", {}))
        self._rates.load_state_dict(state.get("per-local-round", ()))


def _measured(sent: Arrays, model: Arrays, size: float, rate: float | None) -> tuple[float, float]:
    """Return how long an update is, and how far it goes towards zero."""
    square, along = 0.0, 0.0
    with np.errstate(over="ignore", invalid="ignore"):
        for name, origin in _floats(sent):
            update = (model[name] - origin if rate is None else model[name]).reshape(-1)
            square += float(np.einsum("i,i->", update, update))
            along += float(np.einsum("i,i->", update, origin.reshape(-1)))
    factor = 1.0 if rate is None else -rate
    inward = -factor * along / size if size > 0 else 0.0
    return abs(factor) * math.sqrt(square), inward if math.isfinite(inward) else 0.0


def _length(arrays: Arrays) -> float:
    with np.errstate(over="ignore"):
        flat = [values.reshape(-1) for _, values in _floats(arrays)]
        return math.sqrt(sum(float(np.einsum("i,i->", values, values)) for values in flat))


def _floats(arrays: Arrays) -> Iterator[tuple[str, np.ndarray]]:
    """Return the weights; counters, such as BatchNorm's, have no length."""
    for name, values in arrays.items():
        if values.dtype.kind == "f":
            yield name, values if values.itemsize > 2 else values.astype(np.float32)


def _values(record: ArrayRecord) -> Arrays:
    return {name: values_of(array) for name, array in record.items()}


def guard_state(guard: UpdateGuard | None) -> dict[str, dict[str, Any]]:
    """Return what an edge's state holds of its guard."""
    return {} if guard is None else {GUARD_STATE: guard.state_dict()}


def load_guard_state(guard: UpdateGuard | None, state: Mapping[str, Any]) -> None:
    """Give a guard back what `guard_state` returned; states of earlier editions have nothing."""
    if guard is not None:
        guard.load_state_dict(state.get(GUARD_STATE, {}))
