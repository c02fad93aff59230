"""Bounds on what one reply can do to a model: its update is held against the others', or those of rounds before."""

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from logging import getLogger
from statistics import median, median_high
from typing import Any, Final, Literal

import numpy as np
from flwr.app import Array, ArrayRecord, Error, Message, RecordDict

from espalier.clients.messages.arrays import values_of

from .exchange import REJECTED
from .screening import Failure, answers_in_kind

logger = getLogger("espalier.guard")  # of its own: an edge that is served elsewhere is silent but for this

Arrays = Mapping[str, np.ndarray]
Mode = Literal["leave-out", "clip", "warn", "off"]

# An update may go towards zero by this share of its allowed length, since a short update can erase a model. The second
# share is for rounds of few replies, which are held against other rounds. A move towards zero that takes away less than
# the third of the model is an honest step that happens to go that way.
INWARD_SHARE: Final = 0.2
INWARD_SHARE_OF_FEW: Final = 0.5
ERASED_SHARE: Final = 0.5
GUARD_STATE: Final = "espalier.guard"  # in an edge's state; no attribute of a strategy can have this name
FEW = 3  # fewer replies than these have no majority
KEPT = 8  # nodes, and lengths of each
ROUNDED: Final = 1.0 + 1e-6
WIDER: Final = 10.0  # so many times as long as what was usual may be usual where that no longer is


@dataclass(frozen=True)
class Guard:
    """What a reply may do.

    Parameters
    ----------
    mode : "leave-out", "clip", "warn" or "off" (default: "leave-out")
        What becomes of a reply beyond a bound: it is left out, made as small as the bound says, or only logged. One of
        infinite length can't be made smaller, and is left out.
    update_norm : float (default: 10.0)
        How many times the median length an update may have.
    activation_norm : float (default: 5.0)
        In split training: how many times the median length the activations of a sample may have.
    """

    mode: Mode = "leave-out"
    update_norm: float = 10.0
    activation_norm: float = 5.0


class Lengths:
    """The lengths that are usual at an edge: of this round's replies, or of those that were accepted before.

    Of three replies or more, the median is that of an honest one, if most are. Where a round has fewer, it is the
    median over the last nodes of what each of them sent before: a node has one vote, however often it replies. If a
    round accepts nobody, and more than half of the edge's nodes have been refused, ten times as much becomes usual.
    When one of the refused nodes is then accepted, the lengths before it are forgotten. A node alone among others gains
    nothing by trying again.
    """

    def __init__(self) -> None:
        self._kept: dict[str, list[float]] = {}  # lengths that were accepted, by node, the last one last
        self._usual = 0.0  # by these; asked for at every mini-batch
        self._refused: set[str] = set()  # since they were accepted, and since it is wider
        self._waiting: set[str] = set()  # refused before it became wider
        self._wider = 1.0

    def usual(self, lengths: Sequence[float], otherwise: float = 0.0) -> float:
        """Return what lengths are held against; infinite if there is nothing.

        Parameters
        ----------
        lengths : Sequence[float]
            Those of this round.
        otherwise : float (default: 0.0)
            Stands in where there are few and none were before, unless there are several and all are longer; 0 is
            nothing.
        """
        if len(lengths) >= FEW and (middle := median_high(lengths)) > 0:
            return middle
        if self._usual > 0:
            return self._wider * self._usual
        if otherwise > 0 and lengths:
            return max(self._wider * otherwise, min(lengths) if len(lengths) > 1 else 0.0)
        return math.inf

    def note(self, accepted: Mapping[str, float], refused: Collection[str], num_nodes: int) -> None:
        """Remember who was accepted in a round, with what length, and who was refused, of so many nodes at the edge."""
        if self._waiting & accepted.keys():
            self._kept, self._waiting, self._wider = {}, set(), 1.0
        for node, length in sorted(accepted.items()):  # in no order of arrival
            if 0 < length < math.inf:
                self._kept[node] = [*self._kept.pop(node, []), length][-KEPT:]
        self._remember(list(self._kept.items())[-KEPT:])
        self._refused = (self._refused - accepted.keys()) | set(refused)
        if not accepted and 2 * len(self._refused) > max(num_nodes, len(refused)):
            self._wider *= WIDER
            self._waiting |= self._refused
            self._refused = set()

    @property
    def are_known(self) -> bool:
        """Whether there were rounds before."""
        return bool(self._kept)

    def state_dict(self) -> dict[str, Any]:
        """Return what must survive an interruption."""
        return {
            "kept": [(node, list(lengths)) for node, lengths in self._kept.items()],
            "refused": sorted(self._refused),
            "waiting": sorted(self._waiting),
            "wider": self._wider,
        }

    def load_state_dict(self, state: Mapping[str, Any] | Sequence[float]) -> None:
        """Take back what `state_dict` returned; earlier editions had one length for each of the last rounds."""
        if not isinstance(state, Mapping):
            state = {"kept": [(f"round {i}", [length]) for i, length in enumerate(state)]}
        self._remember(state["kept"])
        self._refused, self._waiting = set(state.get("refused", ())), set(state.get("waiting", ()))
        self._wider = state.get("wider", 1.0)

    def _remember(self, kept: Sequence[tuple[str, Sequence[float]]]) -> None:
        self._kept = {node: list(lengths) for node, lengths in kept}
        self._usual = median(map(median, self._kept.values())) if self._kept else 0.0


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
        self._num_nodes = 1

    def count_nodes(self, num_nodes: int) -> None:
        """Take note of how many nodes the edge has, those that take no part in a round included."""
        self._num_nodes = self.activations.num_nodes = num_nodes

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
        most = self.guard.update_norm * self._lengths.usual(
            [length for length, _ in found.values()], max(sizes.values())
        )
        share = INWARD_SHARE if len(found) >= FEW else INWARD_SHARE_OF_FEW
        verdicts = {}
        for node_id, (length, inward) in found.items():
            if inward < ERASED_SHARE * sizes[id(models[node_id][0])]:
                inward = 0.0
            if not (excess := max(length, inward / share) / most) <= 1:  # infinite by infinite is neither
                what, much, allowed = "long", length, most
                if length <= most:
                    what, much, allowed = "long towards zero", inward, most * share
                reason = f"its update is {much:.3g} {what}, where {allowed:.3g} is allowed (guard.update-norm)"
                verdicts[node_id] = Verdict(reason, self._instead(*models[node_id], excess, rate))
        accepted = {self.node_name(n): length for n, (length, _) in found.items() if n not in verdicts}
        self._lengths.note(accepted, [self.node_name(node_id) for node_id in verdicts], self._num_nodes)
        if self.guard.mode == "warn":
            for node_id, verdict in verdicts.items():
                logger.warning("%s: %s", self.node_name(node_id), verdict.reason)
            return {}
        return verdicts

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
        return {"updates": self._lengths.state_dict(), "activations": self.activations.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what `state_dict` returned."""
        self._lengths.load_state_dict(state.get("updates", ()))
        self.activations.load_state_dict(state.get("activations", {}))


class ActivationGuard:
    """Judges the activations that come to an edge by the length of the longest sample's in a mini-batch.

    Parameters
    ----------
    guard, node_name
        As for `UpdateGuard`.

    Attributes
    ----------
    num_nodes : int
        Nodes that the edge has, those that take no part in a round included.
    """

    def __init__(self, guard: Guard, node_name: Callable[[int], str] = str) -> None:
        self.num_nodes = 1
        self._guard = guard
        self._node_name = node_name
        self._lengths: dict[int, Lengths] = {}  # by the cut: other activations have other lengths
        self._longest: dict[int, tuple[int, float]] = {}  # the cut, and the longest of the round, by node id
        self._first: dict[int, tuple[int, float]] = {}  # likewise, of each client's first mini-batch
        self._refused: dict[int, int] = {}  # the cut, by node id

    @property
    def is_on(self) -> bool:
        """Whether anything is measured."""
        return self._guard.mode != "off"

    def begin_round(self) -> None:
        """Begin a round, or begin it anew."""
        self._longest, self._first, self._refused = {}, {}, {}

    def most(self, cut: int, lengths: Sequence[float] = ()) -> float:
        """Return how long activations may be.

        Parameters
        ----------
        cut : int
            Where the model is cut.
        lengths : Sequence[float] (default: none)
            Of all mini-batches that are served together. Fewer than three are held against rounds before; where there
            were none, `judge` says at the end of the round.
        """
        return self._guard.activation_norm * self._lengths.get(cut, Lengths()).usual(lengths)

    def admitted(self, node_id: int, cut: int, length: float, most: float | None = None) -> float:
        """Return by what to multiply a mini-batch's activations: 1, or less where they are to be clipped.

        Parameters
        ----------
        node_id, cut : int
            The client, and where its model is cut.
        length : float
            Of the longest sample's activations.
        most : float, optional (default: None)
            How long they may be, see `most`; None: as rounds before allow.

        Raises
        ------
        ValueError
            If they are longer than is allowed.
        """
        most, factor = self.most(cut) if most is None else most, 1.0
        if length > most and (self._guard.mode == "leave-out" or (self._guard.mode == "clip" and length == math.inf)):
            self._refused[node_id] = cut
            raise ValueError(_too_long(length, most))
        if length > most and self._guard.mode == "clip":
            factor = most / length
        self._first.setdefault(node_id, (cut, length))
        return factor

    def took(self, node_id: int, cut: int, length: float) -> None:
        """Note that the server block has made a step with activations so long."""
        self._longest[node_id] = cut, max(length, self._longest.get(node_id, (cut, 0.0))[1])

    def knows(self, cut: int) -> bool:
        """Return whether there were rounds before with this cut."""
        return cut in self._lengths and self._lengths[cut].are_known

    def judge(self, by_first: bool = False) -> dict[int, str]:
        """Return what is wrong with the activations that were sent in the round, by node id; remember the others.

        Parameters
        ----------
        by_first : bool (default: False)
            The clients shared a server block, so that one who spoils it spoils what the others send then: what each
            sent first is what is usual.
        """
        faults: dict[int, str] = {}
        for cut in sorted({*(cut for cut, _ in self._longest.values()), *self._refused.values()}):
            lengths = {n: length for n, (own, length) in self._longest.items() if own == cut}
            firsts = [length for own, length in self._first.values() if own == cut]
            most = self.most(cut, firsts if by_first else list(lengths.values()))
            # What was clipped to the bound may be beyond it by a rounding.
            beyond = {n: _too_long(length, most) for n, length in lengths.items() if length > most * ROUNDED}
            refused = {*beyond, *(n for n, own in self._refused.items() if own == cut)}
            accepted = {self._node_name(n): length for n, length in lengths.items() if n not in refused}
            known = self._lengths.setdefault(cut, Lengths())
            known.note(accepted, [self._node_name(n) for n in refused], self.num_nodes)
            if self._guard.mode == "warn":
                for node_id, reason in beyond.items():
                    logger.warning("%s: %s", self._node_name(node_id), reason)
            else:
                faults |= beyond
        return faults

    def before_jump(self, clients: Sequence[int], unfit: Collection[int]) -> int | None:
        """Return after whose turn most clients sent activations of quite another length; None: after nobody's.

        Where one model goes from client to client, it is this one that may have spoilt it: an honest client's part of a
        round changes lengths by a few per cent.

        Parameters
        ----------
        clients : Sequence[int]
            Node ids, in the order of their turns.
        unfit : Collection[int]
            Those whose activations were not finite.
        """
        firsts = {n: math.inf if n in unfit else self._first[n][1] for n in clients if n in unfit or n in self._first}
        if len(firsts) < FEW or self._guard.mode == "warn":
            return None
        order, norm = list(firsts), self._guard.activation_norm
        for place in range(len(order) - 1, 0, -1):
            before, after = firsts[order[place - 1]], firsts[order[place]]
            if 0 < before < math.inf and not before / norm <= after <= before * norm:
                return order[place - 1] if 2 * (len(order) - place) > len(order) else None
        return None

    def state_dict(self) -> dict[str, dict[str, Any]]:
        """Return what must survive an interruption."""
        return {str(cut): lengths.state_dict() for cut, lengths in self._lengths.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what `state_dict` returned."""
        self._lengths = {int(cut): Lengths() for cut in state}
        for cut, lengths in state.items():
            self._lengths[int(cut)].load_state_dict(lengths)


def _too_long(length: float, most: float) -> str:
    return f"a sample's activations are {length:.3g} long, where {most:.3g} is allowed (guard.activation-norm)"


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
