"""An edge goes by what it knows of its clients from the start, not by what each reply says."""

from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from operator import attrgetter
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import Strategy

from espalier.clients.messages import ends_round
from espalier.clients.messages.profile import Profile
from espalier.clients.messages.train import LOSS, NUM_EXAMPLES, PERSONAL, VALIDATION, is_own_figure
from espalier.clients.shared.records import records_in
from espalier.clients.shared.text import quoted

from .edge_base import EdgeRounds
from .edges import EdgeDecorator, answered_messages
from .exchange import REJECTED, Exchanges
from .outcomes import Evaluation, Update
from .profiles import profiles_by_node
from .replies import number_of
from .reply_faults import size_fault
from .views import MemberGrid


class KnownClients(EdgeDecorator):
    """An edge, of whatever kind, whose clients' replies are held against their profiles.

    A reply that tells of more examples than the client's profile did is left out, for averages are weighted by them.
    So is one without a metric that is asked for; a metric that nobody asked for is dropped.

    Parameters
    ----------
    edge : Strategy | EdgeRounds
        Trains. What else stands in front of it, such as `EqualWeights`, belongs inside.
    profiles : Iterable[Profile] | Mapping[int, Profile]
        The clients', as they were when the run began. Where data grow, they tell how many examples there will be. A
        mapping is by node id, and is not copied: many edges can share one.
    train_metrics, evaluate_metrics : Collection[str], optional (default: None)
        The metrics that a reply has beside its number of examples; None: not known.
    evaluates_more : bool (default: False)
        Evaluations may have figures of the task's own as well, one number each
        (`espalier.clients.messages.train.is_own_figure`), also of the examples held back and of clients' own models
        where the loss of these is asked for.
    """

    def __init__(
        self,
        edge: Strategy | EdgeRounds,
        profiles: Iterable[Profile] | Mapping[int, Profile],
        *,
        train_metrics: Collection[str] | None = None,
        evaluate_metrics: Collection[str] | None = None,
        evaluates_more: bool = False,
    ) -> None:
        super().__init__(edge)
        self._profiles = profiles if isinstance(profiles, Mapping) else profiles_by_node(profiles)
        self._train_metrics = train_metrics
        self._evaluate_metrics = evaluate_metrics
        self._evaluates_more = evaluates_more

    def train_round(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: MemberGrid
    ) -> Exchanges[Update]:
        """Run the edge's round; what its clients say of themselves is checked before it gets their replies."""
        most = partial(self._examples, attrgetter("num_train_examples"))
        check = partial(_checked, most=most, metrics=self._train_metrics)
        return answered_messages(self.edge.train_round(server_round, arrays, config, grid), check)

    def evaluate_round(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: MemberGrid
    ) -> Exchanges[Evaluation]:
        """Let the edge evaluate, with the same checks."""
        most = partial(self._examples, attrgetter("num_test_examples"))
        check = partial(_checked, most=most, metrics=self._evaluate_metrics, takes_more=self._evaluates_more)
        return answered_messages(self.edge.evaluate_round(server_round, arrays, config, grid), check)

    def _examples(self, told: Callable[[Profile], int], node_id: int) -> int:
        """Return how many examples the profile of a node told of, 0 if there is none."""
        return told(self._profiles[node_id]) if node_id in self._profiles else 0


def _checked(
    messages: list[Message],
    most: Callable[[int], int],
    metrics: Collection[str] | None,
    *,
    takes_more: bool = False,
) -> Exchanges[list[Message]]:
    """Pass messages on; replies that bring results are checked."""
    replies = yield messages
    return [_checked_reply(*pair, most, metrics, takes_more) for pair in zip(messages, replies, strict=True)]


def _checked_reply(
    message: Message, reply: Message, most: Callable[[int], int], metrics: Collection[str] | None, takes_more: bool
) -> Message:
    kind, node_id = message.metadata.message_type, message.metadata.dst_node_id
    if reply.has_error() or not (ends_round(kind) or kind.startswith("evaluate")) or size_fault(reply.content):
        return reply
    # A result of split training has the edge's own metrics, not the client's.
    asked = None if kind.startswith("train.split") else metrics
    wanted = {NUM_EXAMPLES, *(asked or ())}
    for name, record in records_in(reply.content, MetricRecord).items():
        count = number_of(record.get(NUM_EXAMPLES))
        if count is not None and count > most(node_id):
            told, known = quoted(record[NUM_EXAMPLES]), most(node_id)
            hint = "" if known else "; profile_reply takes num_train_examples and num_test_examples"
            return _refused(message, f"it says {told} examples, its profile said {known}{hint}")
        if asked is not None:
            if missing := sorted(name for name in asked if number_of(record.get(name)) is None):
                return _refused(
                    message, f"metric {missing[0]!r} is {quoted(record.get(missing[0]))}, expected a number"
                )
            kept = {
                key: value
                for key, value in record.items()
                if key in wanted or (takes_more and _is_figure(key, value, wanted))
            }
            if len(kept) < len(record):
                reply.content = RecordDict({**reply.content, name: MetricRecord(kept)})
    return reply


def _is_figure(name: str, value: Any, wanted: Collection[str]) -> bool:
    """Return whether a metric can be a figure of a task's own, of a set or a model whose loss is wanted too."""
    beginnings = (one for one in (VALIDATION, PERSONAL) if one + LOSS in wanted)
    beginning = next(filter(name.startswith, beginnings), "")
    return is_own_figure(name.removeprefix(beginning)) and number_of(value) is not None


def _refused(message: Message, reason: str) -> Message:
    return Message(Error(REJECTED, reason), reply_to=message)
