"""Secure aggregation in front of an edge: its strategy gets the average in the place of every model."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from flwr.app import ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import Strategy

from espalier.clients.messages import begins_round, ends_round
from espalier.clients.messages.learned import start_in
from espalier.clients.messages.secure import MASKED, SECURE, digest_of
from espalier.clients.messages.split_names import CLIENT_BLOCK, STREAM_WITHDRAWN
from espalier.clients.messages.train import ARRAYS, CLIENT_HALF, METRICS, TRAIN, TRAIN_LOSS
from espalier.clients.shared.arrays import to_record
from espalier.clients.shared.privacy import with_possible_variances
from espalier.clients.shared.secure.fixed_point import Form, Total, in_form
from espalier.clients.shared.secure.terms import SecureTerms

from ..edge_base import EdgeRounds
from ..edges import EdgeDecorator, answered_messages
from ..exchange import REJECTED, Exchanges, Losable
from ..outcomes import EVERYBODY, Failure, Update
from ..randomness import derived_seed
from ..views import MemberGrid
from .round import SecureRound, VoidError

# Metrics that an average tells of itself.
SUMMED: Final = "secure-clients"  # so many are in it
ERROR: Final = "secure-error"  # what a number of it can be off by, beside what was clipped
CLIPPED: Final = "secure-clipped"  # so many numbers of its clients were clipped

VOID: Final = "secure aggregation"  # how the reason of a void round begins


class SecureAggregation(EdgeDecorator):
    """An edge that learns the sum of what its clients have trained, and no single model.

    Each round it and its clients exchange keys and shares before the training, and shares after it (SecAgg+, Bell et
    al., CCS 2020). Clients that drop out on the way are left out, as long as enough are left; else the round gives no
    model, and nothing is revealed. What the edge inside gets is, for each client in the sum, a reply with the average
    in the place of its model, its loss and what it tells beside: so it must make of these what it makes of their mean.

    Parameters
    ----------
    edge : Strategy | EdgeRounds
        Averages models. What judges single ones has nothing to judge.
    terms : SecureTerms
        What holds; clients have the same from their own settings.
    most_weight : int
        The largest number of examples of a client, 1 where all weigh the same.
    seed : int (default: 0)
        Of the order in which clients are neighbours. Keys follow no seed.

    Raises
    ------
    ValueError
        If clients have parts of weights.
    """

    def __init__(self, edge: Strategy | EdgeRounds, terms: SecureTerms, most_weight: int, seed: int = 0) -> None:
        super().__init__(edge)
        if self.edge.fills_up:
            raise ValueError("clients lack parts of weights, and secure aggregation adds up models of one form")
        self.terms, self.most_weight, self.seed = terms, most_weight, seed
        self.edge.inner.ends_together = True

    def train_round(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: MemberGrid
    ) -> Exchanges[Update]:
        """Run the edge's round; what its clients have learned comes under masks."""
        carrier = _Carrier(server_round, self)
        training = self.edge.train_round(server_round, arrays, config, grid)
        update = yield from answered_messages(training, carrier.carry)
        return carrier.told(update)


class _Carrier:
    """Carries the messages of one edge round, and those of secure aggregation around them."""

    def __init__(self, server_round: int, own: SecureAggregation) -> None:
        self._server_round, self._own = server_round, own
        self._round: SecureRound | None = None
        self._sent: dict[int, ArrayRecord] = {}
        self._total: Total | None = None
        self._clients = 0
        self._has_loss = False
        self._why_void = ""

    def carry(self, step: list[Message]) -> Exchanges[list[Message]]:
        """Answer the messages that an edge yields."""
        errors: dict[int, Error] = {}
        try:
            if beginning := [message for message in step if begins_round(message.metadata.message_type)]:
                yield from self._begin(beginning)
        except VoidError as why:
            errors = self._void(step, why)
        errors |= self._round.lost if self._round else {}
        going = [message for message in step if message.metadata.dst_node_id not in errors]
        replies = dict(zip(map(_node_of, going), (yield self._with_openings(step, going)), strict=True))
        for message in going:
            _without_opening(message)
        ending = [message for message in going if ends_round(message.metadata.message_type)]
        if _called_off([replies[_node_of(message)] for message in ending]):
            self._round = None  # nobody's numbers are here, and those who train in another way begin anew
        elif ending and self._round is not None:
            try:
                replies |= yield from self._end(self._round, ending, [replies[_node_of(m)] for m in ending])
            except VoidError as why:
                errors |= self._void(ending, why)
            errors |= self._round.lost
        return [
            Message(error, reply_to=message) if (error := errors.get(_node_of(message))) else replies[_node_of(message)]
            for message in step
        ]

    def told(self, update: Update) -> Update:
        """Return what the round gave, with what the average tells of itself, and why there is none."""
        if self._why_void:
            own = [failure for failure in update.failures if failure.reason != self._why_void]
            return replace(update, failures=[*own, Failure(EVERYBODY, self._why_void)])
        if self._total is None or update.arrays is None:
            return update
        told = {SUMMED: self._clients, ERROR: self._total.error, CLIPPED: self._total.clipped}
        metrics = MetricRecord({**(update.metrics or {}), **told})
        # No loss is of one client where all of them are the mean.
        return replace(update, losses={} if self._has_loss else update.losses, metrics=metrics)

    def _begin(self, messages: Sequence[Message]) -> Exchanges[None]:
        """Exchange keys and shares with those whose training begins."""
        if self._round is not None:
            raise VoidError("clients of one edge round must begin it together")
        nodes, own = [_node_of(message) for message in messages], self._own
        seed = derived_seed(own.seed, "neighbours", self._server_round)
        instruction = digest_of(messages[0].metadata.message_type, messages[0].content, own.terms.apart)
        self._round = SecureRound(self._server_round, nodes, own.terms, own.most_weight, seed, instruction)
        self._sent = {_node_of(message): start_in(message.content) for message in messages}
        asked = self._round.ask_for_keys()
        self._round.take_keys(asked, (yield asked))
        asked = self._round.ask_for_shares()
        self._round.take_shares(asked, (yield asked))

    def _end(
        self, own: SecureRound, messages: Sequence[Message], replies: Sequence[Message]
    ) -> Exchanges[dict[int, Message]]:
        """Unmask the sum; return the replies with the average."""
        own.take_masked(messages, replies, self._sent)
        if asked := own.ask_what_was_seen():
            own.take_seen(asked, (yield asked))
        asked = own.ask_to_unmask()
        own.take_unmasking(asked, (yield asked))
        self._total, self._has_loss = own.total(), own.has_loss
        survivors = set(own.survivors)
        self._clients = len(survivors)
        return {
            _node_of(message): self._with_average(message, reply, own.form)
            for message, reply in zip(messages, replies, strict=True)
            if _node_of(message) in survivors
        }

    def _with_average(self, message: Message, reply: Message, form: Form) -> Message:
        """Return a reply with the average in the place of masked numbers."""
        assert self._total is not None
        total = self._total
        model = to_record(with_possible_variances(in_form(total.model, form)))  # rounded, one of zero can be below
        told = {CLIENT_HALF: to_record({n: own.to(form.kind_of(n)) for n, own in total.told.items()})}
        loss = {TRAIN_LOSS: total.loss} if self._has_loss else {}
        beside = told if form.told else {}
        if message.metadata.message_type == TRAIN:
            weight = {self._own.edge.inner.weight_key: total.weight / self._clients}
            reply.content = RecordDict({ARRAYS: model, METRICS: MetricRecord({**loss, **weight}), **beside})
            return reply
        own = {n: record for n, record in reply.content.items() if n not in (SECURE, MASKED)}
        metrics = {n: MetricRecord({**record, **loss}) for n, record in reply.content.metric_records.items()}
        reply.content = RecordDict({**own, **metrics, CLIENT_BLOCK: model, **beside})
        return reply

    def _void(self, messages: Sequence[Message], why: VoidError) -> dict[int, Error]:
        self._why_void = f"{VOID}: {why}: the edge round is void"
        return {_node_of(message): Error(REJECTED, self._why_void) for message in messages}

    def _with_openings(self, step: Sequence[Message], going: list[Message]) -> list[Message]:
        """Put what agrees on masks into the messages that begin a training."""
        for message in going:
            if self._round is not None and begins_round(message.metadata.message_type):
                opening = self._round.opening_of(_node_of(message)).to_record()
                message.content = RecordDict({**message.content, SECURE: opening})
        return Losable(going, step.is_lost) if isinstance(step, Losable) else going


def _node_of(message: Message) -> int:
    return message.metadata.dst_node_id


def _called_off(replies: Sequence[Message]) -> bool:
    """Return whether the edge has called streams off before anybody had trained."""
    errors = [reply.error.code for reply in replies if reply.has_error()]
    return len(errors) == len(replies) and STREAM_WITHDRAWN in errors


def _without_opening(message: Message) -> None:
    """Leave a message as it was made: an edge may look at it again."""
    if SECURE in message.content:
        message.content = RecordDict({n: record for n, record in message.content.items() if n != SECURE})
