"""Differential privacy where an average is made: updates are clipped, and noise is added to their mean."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from secrets import token_hex
from typing import Any, Final

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from espalier.clients.messages.train import TRAIN, model_in_reply, only_arrays
from espalier.clients.shared import text
from espalier.clients.shared.arrays import to_record, to_weights
from espalier.clients.shared.privacy import clipped, noised, with_possible_variances
from espalier.clients.shared.records import records_in

from .edge_base import EdgeRounds
from .edges import EdgeDecorator, answered_messages
from .exchange import REJECTED, Exchanges
from .flower_strategies import weight_key
from .outcomes import Update
from .replies import number_of
from .reply_forms import in_form_of
from .state import built_attributes, restore_strategy_state, strategy_state
from .views import MemberGrid

# Metrics that an average with noise tells of itself.
ASKED: Final = "privacy-asked"  # so many were told to train
OF: Final = "privacy-of"  # of so many, who were drawn from
NOISE: Final = "privacy-noise"  # the noise multiplier

# Called with the round, it returns what the round's noise is drawn from.
Draws = Callable[[int], np.random.Generator]


class PrivateMean(EdgeDecorator):
    """An edge that averages with equal weights; its clients' updates are clipped, and noise is added to their mean.

    The mean is that over all clients who were told to train: who fails counts as an update of zero. So one client
    moves it by ``clip / asked`` at most, whoever else fails, and ``2 * clip / asked`` is between any two updates of
    one client. The noise at each number has the standard deviation ``noise * clip / asked`` (McMahan et al.,
    arXiv:1710.06963, with a fixed denominator).

    Parameters
    ----------
    edge : Strategy | EdgeRounds
        Averages the models of replies with the weight 1; a reply with another is left out. What changes weights, or
        decodes what travels, belongs outside.
    clip : float
        The longest update; 0: any.
    noise : float
        The noise multiplier; 0: none.
    draws : Callable[[int], np.random.Generator]
        What an edge round's noise is drawn from.
    is_secret : bool (default: False)
        The sample of clients follows the system's entropy, not the seed of the edge.
    largest_share : float (default: 1.0)
        Of the clients who are there, those who may be told to train. Where more would be, nobody is, and there is no
        model: a sample hides less the more of all are in it.
    untrained : Collection[str] (default: none)
        Weights that no client trains, or sends: where there is noise they stay as they were, to the bit.
    """

    def __init__(
        self,
        edge: Strategy | EdgeRounds,
        clip: float,
        noise: float,
        draws: Draws,
        *,
        is_secret: bool = False,
        largest_share: float = 1.0,
        untrained: Collection[str] = (),
    ) -> None:
        super().__init__(edge)
        if self.edge.fills_up:  # that a weight is 0 where a client lacks it would be an update that nobody clips
            raise ValueError("clients lack parts of weights, and updates of whole models are to be clipped")
        self._clip, self._noise, self._draws, self._is_secret = clip, noise, draws, is_secret
        self._largest_share, self._untrained = largest_share, frozenset(untrained)
        self._weight_key = self.edge.inner.weight_key

    def train_round(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: MemberGrid
    ) -> Exchanges[Update]:
        """Run the edge's round, and make its model private."""
        if self._is_secret:
            self.edge.inner.use_seed(token_hex(), hides_noise=True)
        there = grid.as_of_now()
        asked = set[int]()

        def clip(messages: list[Message]) -> Exchanges[list[Message]]:
            if fault := self._too_many(messages, len(there.get_node_ids())):
                return [Message(Error(REJECTED, fault), reply_to=message) for message in messages]
            replies = yield messages
            asked.update(message.metadata.dst_node_id for message in messages)
            return [self._clipped(message, reply) for message, reply in zip(messages, replies, strict=True)]

        update = yield from answered_messages(self.edge.train_round(server_round, arrays, config, there), clip)
        if update.arrays is None:
            return update
        share = len(update.participants) / len(asked)
        deviation = self._noise * self._clip / len(asked)
        model = _private(update.arrays, arrays, share, deviation, self._draws(server_round), self._untrained)
        told = {ASKED: len(asked), OF: len(there.get_node_ids()), NOISE: self._noise}
        return replace(update, arrays=model, metrics=MetricRecord({**(update.metrics or {}), **told}))

    def _too_many(self, messages: Sequence[Message], there: int) -> str:
        """Return why so many can't be told to train, or an empty string; shares are compared as numbers of clients."""
        training = sum(message.metadata.message_type == TRAIN for message in messages)
        if training <= self._largest_share * there * (1 + 1e-9):
            return ""
        return f"not asked: {training} of {there} are a larger share than the {self._largest_share:.3g} planned"

    def _clipped(self, message: Message, reply: Message) -> Message:
        if message.metadata.message_type != TRAIN or reply.has_error():
            return reply
        return _clipped_reply(message, reply, self._clip, self._weight_key)


class PrivateCloud(Strategy):
    """A strategy that averages edges' models with equal weights, with noise at the mean.

    As in `PrivateMean`, the mean is that over all edges that were asked. Who they are follows the run's seed, so they
    are told as all that there are.

    Parameters
    ----------
    strategy : Strategy
        Averages the models: `FedAvg`, or one that does the same.
    clip : float
        The longest update of an edge; 0: any.
    noise : float
        The noise multiplier; 0: none.
    draws : Callable[[int], np.random.Generator]
        What a round's noise is drawn from.
    reach : Callable[[Mapping[str, Any]], float]
        How far one of those who are protected can move an edge's model at most, by the metrics of the edge's reply. The
        standard deviation of the noise is `noise` times the longest of all edges, over the number of edges asked.
    least_reach : float (default: 0.0)
        What the longest is at least, so that the noise does not tell which edges have answered.
    untrained : Collection[str] (default: none)
        As of `PrivateMean`.
    """

    own_statistics = True  # plain averages of running statistics would give away what the noise hides

    def __init__(
        self,
        strategy: Strategy,
        clip: float,
        noise: float,
        draws: Draws,
        reach: Callable[[Mapping[str, Any]], float],
        least_reach: float = 0.0,
        untrained: Collection[str] = (),
    ) -> None:
        self.strategy = strategy
        self._clip, self._noise, self._draws, self._reach, self._least_reach = clip, noise, draws, reach, least_reach
        self._untrained = frozenset(untrained)
        self._messages: dict[int, Message] = {}
        self._built = built_attributes(strategy)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the strategy's messages."""
        messages = list(self.strategy.configure_train(server_round, arrays, config, grid))
        self._messages = {message.metadata.dst_node_id: message for message in messages}
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Return the mean of clipped updates, with noise."""
        replies = [self._clipped(reply) for reply in replies]
        good = [reply for reply in replies if not reply.has_error()]
        reaches = [self._reach(next(iter(records_in(reply.content, MetricRecord).values()))) for reply in good]
        made, metrics = self.strategy.aggregate_train(server_round, replies)
        if made is None:
            return made, metrics
        asked = len(self._messages)
        sent = only_arrays(next(iter(self._messages.values())).content)
        deviation = self._noise * max([self._least_reach, *reaches]) / asked
        share, draws = len(good) / asked, self._draws(server_round)
        model = _private(in_form_of(sent, made), sent, share, deviation, draws, self._untrained)
        return model, MetricRecord({**(metrics or {}), ASKED: asked, OF: asked, NOISE: self._noise})

    def _clipped(self, reply: Message) -> Message:
        if reply.has_error():
            return reply
        return _clipped_reply(self._messages[reply.metadata.src_node_id], reply, self._clip, weight_key(self.strategy))

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the strategy's messages."""
        return self.strategy.configure_evaluate(server_round, arrays, config, grid)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Return what the strategy makes of evaluations."""
        return self.strategy.aggregate_evaluate(server_round, replies)

    def summary(self) -> None:
        """Log the strategy's summary."""
        self.strategy.summary()

    def state_dict(self) -> dict[str, Any]:
        """Return the strategy's state."""
        return strategy_state(self.strategy)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what `state_dict` returned."""
        restore_strategy_state(self.strategy, state, self._built)


def _clipped_reply(message: Message, reply: Message, clip: float, weight: str) -> Message:
    """Return a reply with a clipped update; an error where it has none that can be, or another weight than 1."""
    try:
        if {number_of(own.get(weight)) for own in records_in(reply.content, MetricRecord).values()} != {1.0}:
            raise ValueError("its weight is not 1, as those of all others are")
        name, record = model_in_reply(reply.content)
        model = to_weights(record)
        within = clipped(model, to_weights(only_arrays(message.content)), clip)
    except ValueError as error:
        return Message(Error(REJECTED, text.one_line(str(error))), reply_to=message)
    if within is not model:
        reply.content = RecordDict({**reply.content, name: to_record(within)})
    return reply


def _private(
    made: ArrayRecord, sent: ArrayRecord, share: float, deviation: float, draws: Any, untrained: Collection[str]
) -> ArrayRecord:
    """Return the mean over all who were asked, of whom a share has answered, with noise where anybody trains."""
    if share == 1 and not deviation:
        return made
    model, start = to_weights(made), to_weights(sent)
    if share < 1:
        model = {name: _nearer(own, start[name], share) for name, own in model.items()}
    model |= {name: start[name] for name in untrained if name in model}
    return to_record(with_possible_variances(noised(model, deviation, draws, untrained)))


def _nearer(own: Any, start: Any, share: float) -> Any:
    """Return a share of the way from where it started; integers, such as counters, as they are."""
    return start + (own - start) * share if own.is_floating_point() else own
