"""What holds of every edge, whoever wrote it: `check_edge` says which of it does not hold of one.

A law is a question to new edges with new clients: what was seen that breaks it, or nothing.
"""

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from espalier.clients.messages.train import LOSS, NUM_EXAMPLES, SERVER_ROUND, TRAIN_LOSS
from espalier.clients.shared.generators import seeded_torch
from espalier.clients.shared.records import config_in, records_in

from .edge_base import EdgeRounds
from .edges import EdgeOfRounds, edge_of
from .exchange import UNREACHABLE, converse
from .laws import FAULTS, Broken, Law, broken_laws
from .outcomes import EVERYBODY, Evaluation, Update
from .randomness import seeded_globals
from .replies import is_training
from .views import MemberGrid


def plain_arrays() -> ArrayRecord:
    """Return a small model: two arrays of float32 and an integer, as BatchNorm's counter is."""
    rng = np.random.default_rng(7)
    weights = {"w": rng.normal(size=5), "b": rng.normal(size=(2, 3))}
    arrays = {name: Array(values.astype(np.float32)) for name, values in weights.items()}
    return ArrayRecord({**arrays, "count": Array(np.asarray(3, dtype=np.int64))})


def plain_client(message: Message, context: Context) -> Message:
    """Answer as a client does that any Flower strategy can average; for the nodes of a `Trial`.

    Client i, by its ``partition-id``, has 10 + 7 i examples. It goes half of the way to a point of its own, which
    depends on the round where the instruction tells that.
    """
    client = int(context.node_config["partition-id"])
    number = config_in(message.content).get(SERVER_ROUND, 1)
    metrics: dict[str, Any] = {NUM_EXAMPLES: 10 + 7 * client}
    records: dict[str, Any] = {}
    if is_training(message):
        target = math.sin(3 * client + float(number))  # type: ignore[arg-type]
        for name, record in records_in(message.content, ArrayRecord).items():
            records[name] = ArrayRecord({key: Array(_nearer(array.numpy(), target)) for key, array in record.items()})
        metrics[TRAIN_LOSS] = 1.0 + client
    else:
        metrics[LOSS] = 2.0 + client
    return Message(RecordDict({**records, "metrics": MetricRecord(metrics)}), reply_to=message)


def _nearer(values: np.ndarray, target: float) -> np.ndarray:
    return np.asarray(values + 0.5 * (target - values) if values.dtype.kind == "f" else values + 1, values.dtype)


@dataclass(frozen=True)
class Trial:
    """An edge and its clients, both new: nothing was asked of them before.

    Parameters
    ----------
    edge : Strategy | EdgeRounds
        The edge.
    grid : Grid
        Reaches the clients, such as ``InProcessGrid(plain_client, 4)`` of `espalier.sim.in_process_grid`.
    members : Sequence[int], optional (default: as the grid has them)
        Node ids of the edge's clients, in client order.
    arrays : ArrayRecord (default: `plain_arrays`)
        The model to train from.
    """

    edge: Strategy | EdgeRounds
    grid: Grid
    members: Sequence[int] = ()
    arrays: ArrayRecord = field(default_factory=plain_arrays)


NewTrial = Callable[[], Trial]


class _Line(MemberGrid):
    """The line to the clients: remembers whom it was asked to reach, and spoils the replies of some."""

    def __init__(self, grid: Grid, members: Sequence[int], failing: Collection[int], lying: Collection[int]) -> None:
        super().__init__(grid, members)
        self.asked: list[int] = []
        self.failing, self.lying = failing, lying
        self._pushed: dict[str, Message] = {}

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        messages = list(messages)
        self.asked += [message.metadata.dst_node_id for message in messages]
        ids = list(super().push_messages(messages))
        self._pushed |= {message.metadata.message_id: message for message in messages}
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return [self._spoilt(reply) for reply in super().pull_messages(message_ids)]

    def _spoilt(self, reply: Message) -> Message:
        message = self._pushed[reply.metadata.reply_to_message_id]
        if message.metadata.dst_node_id in self.failing:
            return Message(Error(UNREACHABLE, "the battery is empty"), reply_to=message)
        if message.metadata.dst_node_id in self.lying and not reply.has_error():
            lies = {name: _with_nan(record) for name, record in records_in(reply.content, ArrayRecord).items()}
            reply.content = RecordDict({**reply.content, **lies})
        return reply


class _Members(MemberGrid):
    """The view of its clients that an edge gets: messages are yielded, not sent."""

    def get_node_ids(self) -> list[int]:
        return list(self._members)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        raise RuntimeError("it sends messages by the grid: a round has to yield them, and is resumed with the replies")

    pull_messages = push_messages  # type: ignore[assignment]
    send_and_receive = push_messages  # type: ignore[assignment]


def _with_nan(record: ArrayRecord) -> ArrayRecord:
    return ArrayRecord(
        {k: Array(np.asarray(v * np.nan)) if v.dtype.kind == "f" else Array(v) for k, v in _values(record).items()}
    )


class _Edge:
    """The edge of a trial, its rounds run one by one."""

    def __init__(self, trial: Trial, failing: Collection[int] = (), lying: Collection[int] = ()) -> None:
        self.edge = edge_of(trial.edge)
        self.edge.inner.use_seed(5, hides_noise=False)
        self.members = tuple(trial.members or trial.grid.get_node_ids())
        self.arrays = trial.arrays
        self.line = _Line(trial.grid, self.members, failing, lying)
        self.chance = 0  # seeds the generators of the whole process
        self._view = _Members(trial.grid, self.members)

    def train(self, number: int = 1, arrays: ArrayRecord | None = None) -> Any:
        """Return what a round of training gave."""
        arrays = arrays or self.arrays
        return self._run(self.edge.train_round(number, arrays, ConfigRecord(), self._view))

    def evaluate(self, number: int = 1) -> Any:
        """Return what an evaluation gave."""
        return self._run(self.edge.evaluate_round(number, self.arrays, ConfigRecord(), self._view))

    def _run(self, conversation: Any) -> Any:
        if not hasattr(conversation, "send"):
            kind = type(conversation).__name__
            raise TypeError(f"it returned a {kind} in the place of a generator that yields messages")
        with seeded_globals(self.chance), seeded_torch(self.chance, torch.device("cpu")):
            return converse(self.line, {"": conversation}, poll_seconds=0.001)[""]


def check_edge(new_trial: NewTrial) -> list[Broken]:
    """Return the laws of edges that one breaks; nothing where it fits.

    Each law is tried with new edges and new clients, of which one, or all, fail, or send NaN.

    Parameters
    ----------
    new_trial : Callable[[], Trial]
        Makes an edge and its clients, four of them, say; the same each time. An edge that needs a seed has a fixed one.

    Returns
    -------
    list[Broken]
        One for each law that does not hold. Where a round can't be run at all it is that alone.

    Examples
    --------
    ::

        for broken in check_edge(lambda: Trial(MyEdge(), InProcessGrid(plain_client, 4))):
            print(broken)
    """
    if not (no_rounds := broken_laws(LAWS[:1], new_trial)):
        return broken_laws(LAWS[1:], new_trial)
    if _has_own_rounds(new_trial):
        return no_rounds
    return [replace(one, advice="let a round give a model where every client answers") for one in no_rounds]


def _has_own_rounds(new_trial: NewTrial) -> bool:
    """Return whether an edge can be made, whose class has rounds that are none of this package's."""
    try:
        inner = edge_of(new_trial().edge).inner
    except FAULTS:
        return False
    kind = type(inner.rounds if isinstance(inner, EdgeOfRounds) else inner)
    package = __name__.partition(".")[0]
    return any(rounds.__module__.partition(".")[0] != package for rounds in (kind.train_round, kind.evaluate_round))


# What was seen, law by law.


def _no_rounds(new_trial: NewTrial) -> str:
    edge = _Edge(new_trial())
    if not isinstance(update := edge.train(), Update):
        return f"train_round returned a {type(update).__name__}"
    if not isinstance(evaluation := edge.evaluate(), Evaluation):
        return f"evaluate_round returned a {type(evaluation).__name__}"
    if update.arrays is None:
        return "there is no model where every client answered" + _why(update)
    return ""


def _shared(new_trial: NewTrial) -> str:
    one, other = (_Edge(new_trial()).edge.inner.own for _ in range(2))
    return f"two edges share one {type(one).__name__}" if one is other else ""


def _foreign(new_trial: NewTrial) -> str:
    edge = _Edge(new_trial())
    edge.train()
    edge.evaluate()
    foreign = set(edge.line.asked) - set(edge.members)
    return f"a message went to node {min(foreign)}, which is no client of its" if foreign else ""


def _misshapen(new_trial: NewTrial) -> str:
    edge = _Edge(new_trial())
    sent, made = _values(edge.arrays), _values(edge.train().arrays)
    if list(sent) != list(made):
        return f"the model came with {_named(sent)} and left with {_named(made)}"
    for name, values in sent.items():
        if (values.shape, values.dtype) != (made[name].shape, made[name].dtype):
            return f"{name!r} came as {_form(values)} and left as {_form(made[name])}"
        if made[name].dtype.kind == "f" and not np.isfinite(made[name]).all():
            return f"{name!r} has NaN or Inf"
    return ""


def _unweighed(new_trial: NewTrial) -> str:
    weight = _Edge(new_trial()).train().weight
    return "" if _is_positive(weight) else f"the weight is {weight!r}"


def _strange_participants(new_trial: NewTrial) -> str:
    edge = _Edge(new_trial())
    took_part = list(edge.train().participants)
    if unknown := [node_id for node_id in took_part if node_id not in edge.members]:
        return f"node {unknown[0]} took part and is no client of its"
    if took_part != [node_id for node_id in edge.members if node_id in took_part]:
        return f"{took_part} took part, and clients are in the order {list(edge.members)}"
    return ""


def _spoilt_arrays(new_trial: NewTrial) -> str:
    for phase in ("train", "evaluate"):
        edge = _Edge(new_trial())
        before = _bits(edge.arrays)
        getattr(edge, phase)()
        if changed := [name for name, bits in before.items() if _bits(edge.arrays).get(name) != bits]:
            return f"{phase}_round changed {changed[0]!r} in the arrays that it was given"
    return ""


def _failed(new_trial: NewTrial) -> str:
    asked = _asked(new_trial)
    if len(asked) < 2:
        return ""
    lost = asked[0]
    update = _Edge(new_trial(), failing={lost}).train()
    if update.arrays is None:
        return f"one of {len(asked)} clients failed, and there is no model" + _why(update)
    if lost in update.participants:
        return f"node {lost} failed, and is among the participants"
    if lost not in {failure.node_id for failure in update.failures}:
        return f"node {lost} failed, and no Failure names it"
    return ""


def _took_nan(new_trial: NewTrial) -> str:
    asked = _asked(new_trial)
    if len(asked) < 2:
        return ""
    failed, lied = (_Edge(new_trial(), **{how: {asked[0]}}).train() for how in ("failing", "lying"))
    if asked[0] in lied.participants:
        return f"node {asked[0]} sent NaN, and is among the participants"
    if difference := _difference(failed, lied):
        return f"a client that sent NaN changed {difference}, beside one that failed"
    return ""


def _made_of_nothing(new_trial: NewTrial) -> str:
    if not _asked(new_trial):
        return ""
    edge = _Edge(new_trial())
    edge.line.failing = edge.members
    update = edge.train()
    if update.arrays is not None and _bits(update.arrays) != _bits(edge.arrays):
        return "every client failed, and there is a new model"
    if update.participants:
        return f"every client failed, and {list(update.participants)} took part"
    return "" if update.failures else "every client failed, and there is no Failure"


def _chance(new_trial: NewTrial) -> str:
    updates = []
    for chance in (1, 2):
        edge = _Edge(new_trial())
        edge.chance = chance
        updates.append(edge.train())
    difference = _difference(*updates)
    return f"two edges of the same seed differ in {difference}" if difference else ""


def _forgets(new_trial: NewTrial) -> str:
    straight, stopped, resumed = (_Edge(new_trial()) for _ in range(3))
    first, same = straight.train().arrays, stopped.train().arrays
    state = stopped.edge.state_dict()
    resumed.edge.load_state_dict(state)
    resumed.line = stopped.line  # to the clients as the first round left them
    difference = _difference(straight.train(2, first), resumed.train(2, same))
    return f"round 2 after load_state_dict differs in {difference}" if difference else ""


def _misjudged(new_trial: NewTrial) -> str:
    whole = _Edge(new_trial())
    evaluation = whole.evaluate()
    order = [node_id for node_id in whole.members if node_id in evaluation.replies]
    if order != list(evaluation.replies):
        return f"replies are of {list(evaluation.replies)}, and clients are in the order {list(whole.members)}"
    asked = list(dict.fromkeys(whole.line.asked))
    if not asked:
        return ""
    if not _is_positive(evaluation.weight):
        return f"every client answered, and the weight is {evaluation.weight!r}"
    whole.line.failing = whole.members
    none = whole.evaluate()
    if none.weight or none.replies or not none.failures:
        return f"every client failed: {none.weight!r} is the weight, with {len(none.failures)} failures"
    if len(asked) < 2:
        return ""
    fewer = _Edge(new_trial(), failing={asked[0]}).evaluate()
    if asked[0] in fewer.replies or asked[0] not in {failure.node_id for failure in fewer.failures}:
        return f"node {asked[0]} failed, and no Failure names it"
    if not 0 < fewer.weight < evaluation.weight:
        return f"the weight is {evaluation.weight:g}, and {fewer.weight:g} where a client failed"
    return ""


LAWS: tuple[Law[NewTrial], ...] = (
    Law(
        "an edge has rounds",
        _no_rounds,
        "train_round and evaluate_round are generators: they yield lists of messages, get the replies, and return an "
        "Update and an Evaluation (espalier.strategies.EdgeRounds)",
    ),
    Law("every edge is an object of its own", _shared, "make a new edge, and a new strategy, in each call"),
    Law("messages go to the edge's own clients", _foreign, "ask those of grid.get_node_ids() alone"),
    Law(
        "a model keeps its names, shapes and data types",
        _misshapen,
        "return arrays like those that came: np.asarray(values, sent.dtype)",
    ),
    Law("a model has a weight above 0", _unweighed, "let Update.weight be the examples of those who took part"),
    Law(
        "participants are clients, in client order",
        _strange_participants,
        "list them in the order of grid.get_node_ids()",
    ),
    Law("what an edge is given stays as it is", _spoilt_arrays, "make a new ArrayRecord"),
    Law(
        "a client that fails is left out, and the others' model stands",
        _failed,
        "use the replies without has_error(), and add a Failure(node_id, reason) for each other",
    ),
    Law(
        "a client that sends NaN is left out like one that fails",
        _took_nan,
        "pass replies through espalier.strategies.screening.screen first",
    ),
    Law(
        "without a good reply there is no model, and a failure says why",
        _made_of_nothing,
        "return Update(failures=failures)",
    ),
    Law(
        "the same seed gives the same bits",
        _chance,
        "draw by the seed and server_round, not from generators of the whole process",
    ),
    Law(
        "an edge goes on from its state to the bit",
        _forgets,
        "let state_dict() return all that a round leaves behind, and load_state_dict() take it back",
    ),
    Law(
        "an evaluation weighs those who answered",
        _misjudged,
        "sum the examples of the replies without has_error() to the weight, and name the others as failures",
    ),
)


def _asked(new_trial: NewTrial) -> list[int]:
    """Return whom a round of training asks, each once."""
    edge = _Edge(new_trial())
    edge.train()
    return list(dict.fromkeys(edge.line.asked))


def _difference(one: Update, other: Update) -> str:
    """Return in what two rounds differ; failures may have other reasons."""
    for name, bits in _bits(one.arrays).items():
        if _bits(other.arrays).get(name) != bits:
            return f"the model's {name!r}"
    for what in ("metrics", "weight", "losses"):
        left, right = getattr(one, what), getattr(other, what)
        if repr(left) != repr(right):
            return what
    if list(one.participants) != list(other.participants):
        return "participants"
    return "the model" if (one.arrays is None) != (other.arrays is None) else ""


def _why(update: Update) -> str:
    of_all = [failure.reason for failure in update.failures if failure.node_id == EVERYBODY]
    reasons = [*of_all, *(failure.reason for failure in update.failures)]
    return f" ({reasons[0]})" if reasons else ""


def _is_positive(weight: Any) -> bool:
    return isinstance(weight, int | float) and math.isfinite(weight) and weight > 0


def _values(record: ArrayRecord | None) -> dict[str, np.ndarray]:
    return {name: array.numpy() for name, array in (record or {}).items()}


def _bits(record: ArrayRecord | None) -> dict[str, bytes]:
    return {name: np.ascontiguousarray(values).tobytes() for name, values in _values(record).items()}


def _named(values: Collection[str]) -> str:
    return ", ".join(map(repr, values)) or "no arrays"


def _form(values: np.ndarray) -> str:
    return f"{values.dtype} {values.shape}"
