"""Any Flower strategy as an edge."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp.strategy import (
    FedXgbBagging,
    FedXgbCyclic,
    Strategy,
)

from espalier.clients.messages.train import TRAIN_LOSS
from espalier.clients.shared.records import records_in
from espalier.clients.shared.statistics import is_beside_weights

from .edge_base import Edge
from .exchange import Exchanges
from .flower_strategies import (
    PRIVATE,
    REFUSALS,
    check_minimum,
    forget_round,
    forget_sent_model,
    layers,
    limits_within,
    needed_metrics,
    nodes_needed,
    own_statistics,
    told_by,
    unwrapped,
    weight_key,
)
from .guards.updates import GUARD_STATE, UpdateGuard, guard_state, load_guard_state
from .kept_config import CONFIG_STATE, KeptConfig
from .outcomes import EVERYBODY, Evaluation, Failure, Update
from .randomness import derived_seed, seeded_globals
from .replies import number_of, one_line, record_of_metrics, weight_of
from .reply_faults import model_fault
from .reply_forms import complete, in_form_of
from .running_statistics import Models, with_averages, with_possible_variances
from .screening import screen
from .state import built_attributes, restore_strategy_state, spoilt_attribute, strategy_state
from .views import MemberGrid


class StrategyEdge(Edge):
    """A Flower strategy as an edge: one exchange per round, through its public methods only.

    Parameters
    ----------
    strategy : Strategy
        Any Flower strategy.
    seed : int | str, optional (default: None)
        What the strategy draws (its samples of nodes, noise) follows this seed and the round. None: `Hierarchical`
        gives the edge one of its own. Where no seed was given to that either, the noise of Flower's differential
        privacy strategies follows none: who knows it can take it off again.
    name : str, optional (default: None)
        Its name in its own failures; None is the name of the strategy's class.
    guard : UpdateGuard, optional (default: None)
        Bounds what one reply can do to the model. None: `Hierarchical` gives the edge one of its own.

    Raises
    ------
    ValueError
        If the strategy's models are no arrays that keep their shapes.
    """

    is_guarded = True

    def __init__(
        self,
        strategy: Strategy,
        seed: int | str | None = None,
        name: str | None = None,
        guard: UpdateGuard | None = None,
    ) -> None:
        if isinstance(inner := unwrapped(strategy), FedXgbBagging | FedXgbCyclic):
            raise ValueError(
                f"{type(inner).__name__} is for trees that grow: here models are arrays that keep their shapes"
            )
        self.strategy: Strategy = strategy
        self._has_seed = seed is not None
        self.seed = 0 if seed is None else seed
        self.hides_noise = seed is None
        self.guard = guard
        self.weight_key = weight_key(strategy)
        self.name = name or type(strategy).__name__
        self._built = built_attributes(strategy)
        self._configs = {"train": KeptConfig(), "evaluate": KeptConfig()}

    def use_seed(self, seed: int | str, *, hides_noise: bool) -> None:
        """Let what the strategy draws follow a seed from the tier above, unless this edge was given one of its own."""
        if not self._has_seed:
            self.seed, self.hides_noise = seed, hides_noise

    def check_nodes(self, name: str, members: Sequence[int]) -> None:
        """Raise ValueError if the strategy waits for more nodes than there are."""
        check_minimum(f"edge {name!r}", self.strategy, len(members), "node")

    def train_round(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: MemberGrid
    ) -> Exchanges[Update]:
        """Run one round of the strategy: configure, one exchange, aggregate."""
        if self.guard is not None:
            self.guard.begin_round(grid.terms.local_rounds)
        messages, too_few = self.instructions(server_round, arrays, config, grid)
        if too_few:
            return Update(failures=too_few)
        screened, failures = self.screened(messages, (yield messages))
        kept, beyond = self.within_bounds(messages, screened)
        return self.aggregated(server_round, arrays, messages, kept, [*failures, *beyond])

    def instructions(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: MemberGrid
    ) -> tuple[list[Message], list[Failure]]:
        """Return the strategy's instructions to train, in client order; or failures, where too few are there."""
        grid = grid.as_of_now()
        with limits_within(self.strategy, grid.terms.num_clients):
            if too_few := self._too_few("train", grid):
                return [], too_few
            forget_sent_model(self.strategy)
            return self._configure("train", server_round, arrays, config, grid), []

    def screened(self, messages: Sequence[Message], replies: Sequence[Message]) -> tuple[list[Message], list[Failure]]:
        """Turn every reply that can't be averaged into an error reply, see `espalier.strategies.screening.screen`."""
        return screen(messages, replies, self.weight_key, needed_metrics(self.strategy))

    def within_bounds(
        self, messages: Sequence[Message], screened: Sequence[Message]
    ) -> tuple[Sequence[Message], list[Failure]]:
        """Let the guard, if there is one, judge screened replies, see `UpdateGuard.keep_within`."""
        return (screened, []) if self.guard is None else self.guard.keep_within(messages, screened)

    def aggregated(
        self,
        server_round: int,
        arrays: ArrayRecord,
        messages: Sequence[Message],
        screened: Sequence[Message],
        failures: Sequence[Failure],
    ) -> Update:
        """Return what the strategy makes of screened and judged replies, one per message to another node.

        Parameters
        ----------
        server_round : int
            The round.
        arrays : ArrayRecord
            The model that the messages hold.
        messages, screened : Sequence[Message]
            What was sent, and the replies to it.
        failures : Sequence[Failure]
            Those who were left out already.
        """
        # Some strategies take the replies apart, so weights are read before they get them.
        participants, weight = _participants(messages, screened), self._total_weight(screened)
        losses, (models, weights) = _losses(messages, screened), _models(screened, arrays, self.weight_key)
        if weight == 0:
            forget_round(self.strategy, server_round)
            return Update(failures=failures)
        try:
            # What is too large is found below.
            with self._seeded_to_aggregate(server_round), np.errstate(over="ignore", invalid="ignore"):
                made: Any = self.strategy.aggregate_train(server_round, screened)
        except REFUSALS as refusal:
            return Update(failures=[*failures, Failure(EVERYBODY, f"{self.name}: {one_line(refusal)}")])
        if fault := _return_fault(made):
            return Update(failures=[*failures, Failure(EVERYBODY, f"aggregate_train of {self.name} returned {fault}")])
        aggregate, metrics = made
        if aggregate is None:
            fault = f"{self.name} made no model of {len(participants)} replies"
        elif unfit := model_fault(aggregate, arrays):
            fault = f"the model that {self.name} made {unfit}"
        elif spoilt := spoilt_attribute(unwrapped(self.strategy), arrays):
            fault = f"{self.name}.{spoilt} holds NaN or Inf: its model no longer moves, or no longer as it should"
        else:
            settled = in_form_of(arrays, self._with_statistics(aggregate, models, weights))
            return Update(settled, metrics, weight, participants, failures, losses=losses)
        return Update(metrics=metrics, failures=[*failures, Failure(EVERYBODY, fault)])

    def evaluate_round(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: MemberGrid
    ) -> Exchanges[Evaluation]:
        """Run one evaluation of the strategy: configure, one exchange, aggregate."""
        grid = grid.as_of_now()
        with limits_within(self.strategy, grid.terms.num_clients):
            if too_few := self._too_few("evaluate", grid):
                return Evaluation(failures=too_few)
            messages = self._configure("evaluate", server_round, arrays, config, grid)
        screened, failures = screen(messages, (yield messages), self.weight_key)
        weight = self._total_weight(screened)
        if weight == 0:
            return Evaluation(failures=failures)
        own_metrics = {
            message.metadata.dst_node_id: MetricRecord({**record_of_metrics(reply)})
            for message, reply in zip(messages, screened, strict=True)
            if not reply.has_error()
        }
        complete(screened, self.weight_key)
        try:
            with self._seeded("aggregate_evaluate", server_round):
                metrics = self.strategy.aggregate_evaluate(server_round, screened)
        except REFUSALS as refusal:
            failures = [*failures, Failure(EVERYBODY, f"{self.name}: {one_line(refusal)}")]
            return Evaluation(replies=own_metrics, failures=failures)
        if not (metrics is None or isinstance(metrics, MetricRecord)):
            fault = f"aggregate_evaluate of {self.name} returned {type(metrics).__name__}, expected MetricRecord"
            return Evaluation(replies=own_metrics, failures=[*failures, Failure(EVERYBODY, fault)])
        return Evaluation(metrics, weight, own_metrics, failures)

    def state_dict(self) -> dict[str, Any]:
        """Return the strategy's state, e.g. the moments of FedAdam, its changes of configs, and the guard's state."""
        changes = {phase: made for phase, config in self._configs.items() if (made := config.state_dict())}
        kept = {CONFIG_STATE: changes} if changes else {}
        return {**strategy_state(self.strategy), **kept, **guard_state(self.guard)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what `state_dict` returned."""
        load_guard_state(self.guard, state)
        for phase, config in self._configs.items():
            config.load_state_dict(state.get(CONFIG_STATE, {}).get(phase, {}))
        own = {k: v for k, v in state.items() if k not in (GUARD_STATE, CONFIG_STATE)}
        restore_strategy_state(self.strategy, own, self._built)

    def _configure(
        self, phase: str, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: MemberGrid
    ) -> list[Message]:
        """Return the strategy's messages in client order."""
        configure = getattr(self.strategy, f"configure_{phase}")
        if (phase, server_round) == ("train", 1):  # a run begins
            self._configs = {kind: KeptConfig() for kind in self._configs}
        given = {**config, **told_by(self.strategy)}
        told = self._configs[phase].with_changes(given)
        with self._seeded(f"configure_{phase}", server_round):
            made = configure(server_round, arrays.copy(), told, grid)
            if not isinstance(made, Iterable):
                raise TypeError(f"configure_{phase} of {self.name} returned {type(made).__name__}, expected messages")
            messages = list(made)
        self._configs[phase].note(given, told)
        if wrong := [m for m in messages if not isinstance(m, Message)]:
            raise TypeError(
                f"configure_{phase} of {self.name} returned {type(wrong[0]).__name__} in the place of Message"
            )
        return grid.in_client_order(messages)

    def _seeded(self, step: str, server_round: int) -> AbstractContextManager[None]:
        return seeded_globals(derived_seed(self.seed, step, server_round))

    def _seeded_to_aggregate(self, server_round: int) -> AbstractContextManager[None]:
        """Let the noise of a differential privacy strategy follow no seed, unless one was given."""
        if self.hides_noise and any(isinstance(layer, PRIVATE) for layer in layers(self.strategy)):
            return seeded_globals(None)
        return self._seeded("aggregate_train", server_round)

    def _with_statistics(self, made: ArrayRecord, models: Models, weights: Sequence[float]) -> ArrayRecord:
        """Return the strategy's model with the statistics that it is to have, see `own_statistics`."""
        if not models:
            return made
        own = own_statistics(self.strategy)
        return with_possible_variances(made) if own else with_averages(made, models, weights, always=own is False)

    def _total_weight(self, replies: Sequence[Message]) -> float:
        return sum(weight_of(reply, self.weight_key) for reply in replies)

    def _too_few(self, phase: str, grid: MemberGrid) -> list[Failure]:
        """Return failures where Flower's sampling would wait for nodes that are not there, maybe for ever."""
        connected = len(grid.get_node_ids())
        needed = nodes_needed(self.strategy, phase, connected)
        if connected >= needed:
            return []
        return [Failure(EVERYBODY, f"{connected} nodes connected, {self.name} needs {needed}")]


def _return_fault(made: Any) -> str:
    """Return what a strategy made of replies if it is not arrays and metrics, or an empty string."""
    if not (isinstance(made, tuple | list) and len(made) == 2):
        return f"{type(made).__name__}, expected (ArrayRecord, MetricRecord)"
    for one, kind in zip(made, (ArrayRecord, MetricRecord), strict=True):
        if not (one is None or isinstance(one, kind)):
            return f"{type(one).__name__} in the place of {kind.__name__}"
    return ""


def _losses(messages: Sequence[Message], replies: Sequence[Message]) -> dict[int, float]:
    """Return the training losses that replies tell, by node id."""
    told: dict[int, float] = {}
    for message, reply in zip(messages, replies, strict=True):
        if not reply.has_error():
            loss = number_of(record_of_metrics(reply).get(TRAIN_LOSS))
            if loss is not None:
                told[message.metadata.dst_node_id] = loss
    return told


def _models(
    replies: Sequence[Message], arrays: ArrayRecord, weight_key: str
) -> tuple[list[Mapping[str, Array]], list[float]]:
    """Return the models of screened replies and their weights; none where a model has weights alone.

    Nor are there any where replies hold more records of arrays than a model, or others.
    """
    good = [reply for reply in replies if not reply.has_error()]
    if not any(is_beside_weights(name, np.dtype(array.dtype)) for name, array in arrays.items()):
        return [], []
    records: list[Mapping[str, Array]] = [
        {**record} for reply in good for record in records_in(reply.content, ArrayRecord).values()
    ]
    if len(records) != len(good) or any(record.keys() != arrays.keys() for record in records):
        return [], []
    return records, [weight_of(reply, weight_key) for reply in good]


def _participants(messages: Sequence[Message], replies: Sequence[Message]) -> list[int]:
    pairs = zip(messages, replies, strict=True)
    return [message.metadata.dst_node_id for message, reply in pairs if not reply.has_error()]
