"""Updates are held against those of other nodes, or of rounds before."""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from logging import getLogger
from typing import Any, Final

from flwr.app import Array, ArrayRecord, Error, Message, MetricRecord, RecordDict

from espalier.clients.messages.train import NUM_EXAMPLES
from espalier.clients.shared.arrays import values_of
from espalier.clients.shared.records import records_in

from ..exchange import REJECTED
from ..outcomes import Failure
from ..replies import model_sent, number_of
from .activations import ActivationGuard
from .bounds import ABSURD, Guard
from .changes import Arrays, Change, change, shortened, size_of_statistics, size_of_weights
from .lengths import FEW, Lengths

logger = getLogger("espalier.guard")  # of its own: an edge that is served elsewhere is silent but for this

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

    Weights and running statistics have a bound each: statistics follow a client's data, which are as far from others'
    as they are, and large ones would hide what is done to weights.

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
        self._rates = Lengths()  # per local round of a plan, or per example
        self._statistics = Lengths()
        self._local_rounds: Mapping[int, int] = {}
        self.num_nodes = 1

    def count_nodes(self, num_nodes: int) -> None:
        """Take note of how many nodes the edge has, those that take no part in a round included."""
        self.num_nodes = self.activations.num_nodes = num_nodes

    def begin_round(self, local_rounds: Mapping[int, int] | None = None) -> None:
        """Begin a round of the edge.

        Parameters
        ----------
        local_rounds : Mapping[int, int], optional (default: None)
            What a plan tells each node to train. None: there is no plan.
        """
        self._local_rounds = local_rounds or {}
        self.activations.begin_round()

    def judge(
        self,
        models: Mapping[int, tuple[Arrays, Arrays]],
        rate: float | None = None,
        examples: Mapping[int, float] | None = None,
        length: float = 0.0,
    ) -> dict[int, Verdict]:
        """Return what is wrong with the models of a round, by node id; nothing for those that are good.

        Who trains more, by a plan's local rounds or else by its number of examples, may go farther, but not towards
        zero: its update is too long where it is too long as a whole and for what it trained.

        Parameters
        ----------
        models : Mapping[int, tuple]
            By node id, what was sent and what came back.
        rate : float, optional (default: None)
            None: models came back. A number: gradients did, which the model goes down at this rate.
        examples : Mapping[int, float], optional (default: None)
            How many examples nodes trained on; None: not known.
        length : float (default: 0.0)
            Stands in for the length of what was sent, where that is less.
        """
        if self.guard.mode == "off" or not models:
            return {}
        distinct = {id(sent): sent for sent, _ in models.values()}
        sizes = {key: size_of_weights(sent) for key, sent in distinct.items()}
        changes = {n: change(sent, model, sizes[id(sent)], rate) for n, (sent, model) in models.items()}
        work = self._work(examples or {}, changes)
        most = self._most(changes, max(length, *sizes.values()), max(map(size_of_statistics, distinct.values())))
        by_work = self._most_by_work({n: own.length for n, own in changes.items()}, work, max(sizes.values()))
        verdicts = {}
        for node_id, own in changes.items():
            allowed = Change(max(most.length, by_work.get(node_id, 0.0)), most.inward, most.statistics)
            if not self.guard.update_norm or own.inward < ERASED_SHARE * sizes[id(models[node_id][0])]:
                own = Change(own.length, 0.0, own.statistics)
            if fault := _fault(own, allowed):
                reason = f"{fault} is allowed ({'guard.update-norm' if self.guard.update_norm else 'guard.mode'})"
                verdicts[node_id] = Verdict(reason, self._instead(*models[node_id], own, allowed, rate))
        self._note({n: own for n, own in changes.items() if n not in verdicts}, work, verdicts)
        if self.guard.mode == "warn":
            for node_id, verdict in verdicts.items():
                logger.warning("%s: %s", self.node_name(node_id), verdict.reason)
            return {}
        return verdicts

    def _most(self, changes: Mapping[int, Change], size: float, size_of_statistics: float) -> Change:
        """Return how far replies may go, whatever they trained, where the model that was sent has these sizes."""
        norm = self.guard.update_norm
        usual = self._lengths.usual([own.length for own in changes.values()], size)
        length = norm * usual if norm else ABSURD * max(usual, size)
        # Where most have like data their statistics hardly change, and who has other data is no liar for that. Of fewer
        # than three it is not known how large data are.
        changed = [own.statistics for own in changes.values()]
        usual_change = self._statistics.usual(changed, size_of_statistics if len(changed) >= FEW else 0.0)
        statistics = max(usual_change, size_of_statistics)
        inward = length * (INWARD_SHARE if len(changes) >= FEW else INWARD_SHARE_OF_FEW)
        return Change(length, inward, (norm or ABSURD) * statistics)

    def _work(self, examples: Mapping[int, float], nodes: Collection[int]) -> Mapping[int, float]:
        """Return how much each node trained; nothing where that is not known of all."""
        if self._local_rounds:
            return {n: self._local_rounds.get(n, 1) for n in nodes}
        return examples if all(examples.get(n, 0.0) > 0 for n in nodes) else {}

    def _most_by_work(self, lengths: Mapping[int, float], work: Mapping[int, float], size: float) -> dict[int, float]:
        """Return how long updates may be by how much nodes trained; `size` is the model's own length.

        Where there are few updates, and of the rounds before it is not known, there is nothing to go by.
        """
        if not (work and self.guard.update_norm):
            return {}
        if self._lengths.are_known and not self._rates.are_known and len(lengths) < FEW:
            return {}
        rates = [length / work[n] for n, length in lengths.items()]
        of_one = self.guard.update_norm * self._rates.usual(rates, size / max(work.values()))
        return {n: much * of_one for n, much in work.items()}

    def _note(self, accepted: Mapping[int, Change], work: Mapping[int, float], refused: Collection[int]) -> None:
        """Remember the lengths of a round's updates for rounds with few."""
        names, own = [self.node_name(n) for n in refused], {self.node_name(n): c for n, c in accepted.items()}
        self._lengths.note({name: c.length for name, c in own.items()}, names, self.num_nodes)
        self._statistics.note({name: c.statistics for name, c in own.items()}, names, self.num_nodes)
        if work:
            rates = {self.node_name(n): c.length / work[n] for n, c in accepted.items()}
            self._rates.note(rates, names, self.num_nodes)

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
        models, places, examples = {}, {}, {}
        for place, (instruction, reply) in enumerate(zip(instructions, replies, strict=True)):
            if not reply.has_error() and (sent := model_sent(instruction)) is not None:
                (arrays,) = records_in(reply.content, ArrayRecord).values()
                if (key := tuple(map(id, sent.values()))) not in sent_as:
                    sent_as[key] = _values(sent)
                models[instruction.metadata.dst_node_id] = (sent_as[key], _values(arrays))
                places[instruction.metadata.dst_node_id] = place
                examples[instruction.metadata.dst_node_id] = _examples_of(reply)
        for node_id, verdict in self.judge(models, rate, examples).items():
            place = places[node_id]
            if verdict.instead is None:
                failures.append(Failure(node_id, verdict.reason))
                kept[place] = Message(Error(REJECTED, verdict.reason), reply_to=instructions[place])
            else:
                (name,) = records_in(replies[place].content, ArrayRecord)
                arrays = ArrayRecord({key: Array(values) for key, values in verdict.instead.items()})
                kept[place].content = RecordDict({**replies[place].content, name: arrays})
        return kept, failures

    def _instead(self, sent: Arrays, model: Arrays, own: Change, most: Change, rate: float | None) -> Arrays | None:
        """Return the model that changed in the same direction, and as far as may be; None: it is left out."""
        weights = max(1.0, _excess(own.length, most.length), _excess(own.inward, most.inward))
        statistics = max(1.0, _excess(own.statistics, most.statistics))
        if self.guard.mode != "clip" or not (math.isfinite(weights) and math.isfinite(statistics)):
            return None
        return shortened(sent, model, weights, statistics, rate)

    def state_dict(self) -> dict[str, Any]:
        """Return what must survive an interruption."""
        return {
            "updates": self._lengths.state_dict(),
            "rates": self._rates.state_dict(),
            "statistics": self._statistics.state_dict(),
            "activations": self.activations.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what `state_dict` returned."""
        self._lengths.load_state_dict(state.get("updates", ()))
        self.activations.load_state_dict(state.get("activations", {}))
        self._rates.load_state_dict(state.get("rates", state.get("per-local-round", ())))
        self._statistics.load_state_dict(state.get("statistics", ()))


def _fault(own: Change, most: Change) -> str:
    """Return in which way a reply goes too far, or an empty string."""
    if not math.isfinite(own.length):
        return "its update is too long to be measured, where a finite length"
    if _excess(own.length, most.length):
        return f"its update is {own.length:.3g} long, where {most.length:.3g}"
    # A model is erased in one local round or in fifty: who trains more may not do more of that.
    if _excess(own.inward, most.inward):
        return f"its update is {own.inward:.3g} long towards zero, where {most.inward:.3g}"
    if math.isnan(own.statistics):
        return "a running variance is below zero, where 0 or more"
    if _excess(own.statistics, most.statistics):
        return f"its running statistics are {own.statistics:.3g} from those sent, where {most.statistics:.3g}"
    return ""


def _excess(much: float, most: float) -> float:
    """Return how many times as much as is allowed it is; 0 where it is allowed."""
    excess = much / most
    return 0.0 if excess <= 1 else excess if excess > 1 else math.inf  # infinite by infinite is neither


def _examples_of(reply: Message) -> float:
    """Return how many examples a client says that it trained on; 0 where it does not say."""
    told = (number_of(record.get(NUM_EXAMPLES)) for record in records_in(reply.content, MetricRecord).values())
    return next((count for count in told if count is not None), 0.0)


def _values(record: ArrayRecord) -> Arrays:
    return {name: values_of(array) for name, array in record.items()}


def guard_state(guard: UpdateGuard | None) -> dict[str, dict[str, Any]]:
    """Return what an edge's state holds of its guard."""
    return {} if guard is None else {GUARD_STATE: guard.state_dict()}


def load_guard_state(guard: UpdateGuard | None, state: Mapping[str, Any]) -> None:
    """Give a guard back what `guard_state` returned; states of earlier editions have nothing."""
    if guard is not None:
        guard.load_state_dict(state.get(GUARD_STATE, {}))
