"""Resource awareness: in every edge round the optimizer says who trains, and how hard (RawHFL)."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Error, Message, RecordDict
from flwr.serverapp.strategy import Strategy

from espalier.clients.messages import begins_round
from espalier.clients.messages.train import CONFIG, ClientPlan
from espalier.clients.shared.records import records_in

from .allocation import Plan, Problem, Solver
from .deadline import Deadline
from .edge_base import EdgeRounds
from .edges import EdgeDecorator, idle
from .exchange import ARRIVED_LATE, LATE, Exchanges, answered, without_results
from .outcomes import Evaluation, Update
from .views import MemberGrid


@dataclass(frozen=True)
class Outcome:
    """What became of a plan.

    Parameters
    ----------
    late : np.ndarray
        Booleans of shape (U,): who did not deliver within the deadline.
    spare : np.ndarray, optional (default: None)
        Booleans of shape (U,): who is selected beyond the number that is wanted, and would deliver after it is reached.
        They take no part. None: nobody.
    wanted : int, optional (default: None)
        The number that is wanted; None: all who are asked.
    """

    late: np.ndarray
    spare: np.ndarray | None = None
    wanted: int | None = None


class Resources(Protocol):
    """What an edge knows of its clients' channels and devices: simulated, or measured.

    One that also has a method ``learned(losses)`` is told after every round how well those who took part fit the model:
    their mean training losses by node id. One that has ``evaluated(accuracies)`` is told after every evaluation the
    accuracies that clients report, likewise. One that has a ``deadline`` (`espalier.strategies.deadline.Deadline`, not
    None) begins it when a plan is carried out; then rounds end by real time, and ``delivered(late)`` is told the node
    ids of those who were late.
    """

    def problem(self, server_round: int, clients: Sequence[int]) -> Problem:
        """Return the round's problem; its U clients are `clients`, node ids in client order."""

    def carry_out(self, server_round: int, clients: Sequence[int], plan: Plan) -> Outcome:
        """Take note of the plan that the clients carry out, and return what becomes of it."""

    def state_dict(self) -> dict[str, Any]:
        """Return what must survive an interruption."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what `state_dict` returned."""


class ResourceAware(EdgeDecorator):
    """Selection in front of an edge: any edge, split ones too, trains with those whom the plan selects.

    Every selected client is told its plan in the config record of its instruction: ``local-rounds``, which the clients
    of this project train for, ``cpu-frequency-hz`` and ``transmit-power-watts``.

    Parameters
    ----------
    edge : Strategy | EdgeRounds
        Trains with the selected clients, and evaluates on all.
    resources : Resources
        States the problem of every edge round.
    solve : Callable[[Problem], Plan]
        Solves it, see `espalier.strategies.allocation`. One that keeps something from call to call has methods
        ``state_dict()`` and ``load_state_dict(state)``.

    Raises
    ------
    ValueError
        If the edge is a `Hierarchical`: plans are made for devices. If `resources` or `solve` are of another kind;
        in a round, if a plan or what becomes of it is not for the edge's clients.

    Notes
    -----
    A round in which nobody can take part is a failure in the round's metrics, not an error: the edge keeps its model,
    and the cloud leaves an edge out that had no other round, except where all edges weigh the same. A client whose
    result arrives after the deadline is left out and counted in the same way.
    """

    def __init__(self, edge: Strategy | EdgeRounds, resources: Resources, solve: Solver) -> None:
        super().__init__(edge)
        if self.edge.inner.is_tier:
            raise ValueError("plans are made for devices: put ResourceAware in front of the edges inside")
        if not callable(solve):
            raise ValueError(f"solve is {solve!r}: it must be a function, such as espalier.strategies.allocation.exact")
        methods = "problem", "carry_out", "state_dict", "load_state_dict"
        if missing := [name for name in methods if not callable(getattr(resources, name, None))]:
            raise ValueError(f"resources are a {type(resources).__name__} without {missing[0]}(): see Resources")
        self.resources = resources
        self.solve = solve

    def train_round(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: MemberGrid
    ) -> Exchanges[Update]:
        """Plan the round, then run it with the selected clients."""
        clients = grid.get_node_ids()
        if not clients:
            return idle(self.edge, arrays, "no node is connected")
        plan = self.solve(self.resources.problem(server_round, clients))
        _check_size("the plan's selected", getattr(plan, "selected", None), len(clients))
        outcome = self.resources.carry_out(server_round, clients, plan)
        _check_size("the outcome's late", outcome.late, len(clients))
        if outcome.spare is not None:
            _check_size("the outcome's spare", outcome.spare, len(clients))
        asked = plan.selected if outcome.spare is None else plan.selected & ~outcome.spare
        selected = [node_id for node_id, taken in zip(clients, asked, strict=True) if taken]
        if not selected:
            return idle(self.edge, arrays, f"nobody can take part: {_reasons(plan)}")
        plans = {clients[i]: _plan_of(plan, i) for i in np.flatnonzero(plan.selected).tolist()}
        late = {clients[i] for i in np.flatnonzero(outcome.late & plan.selected)}
        told = {node_id: plans[node_id].local_rounds for node_id in selected}
        members = grid.narrowed(selected, wanted=outcome.wanted, local_rounds=told)
        rounds = self.edge.train_round(server_round, arrays, config, members)
        deadline: Deadline | None = getattr(self.resources, "deadline", None)
        send = deadline.answers if deadline else _sent
        update = yield from answered(rounds, partial(_with_plans, plans=plans, late=late, send=send))
        if deadline:
            self.resources.delivered(deadline.late)  # type: ignore[attr-defined]
        if learned := getattr(self.resources, "learned", None):
            learned(update.losses)
        return update

    def evaluate_round(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: MemberGrid
    ) -> Exchanges[Evaluation]:
        """Let the edge evaluate on all of its nodes, and tell the resources how accurate the model is on each."""
        evaluation = yield from self.edge.evaluate_round(server_round, arrays, config, grid)
        if evaluated := getattr(self.resources, "evaluated", None):
            told = {node_id: reply.get("accuracy") for node_id, reply in evaluation.replies.items()}
            evaluated({node_id: float(one) for node_id, one in told.items() if isinstance(one, int | float)})
        return evaluation

    def state_dict(self) -> dict[str, Any]:
        """Return what must survive an interruption."""
        own = {"solver": self.solve.state_dict()} if hasattr(self.solve, "state_dict") else {}
        return {"edge": self.edge.state_dict(), "resources": self.resources.state_dict(), **own}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what `state_dict` returned."""
        self.edge.load_state_dict(state["edge"])
        self.resources.load_state_dict(state["resources"])
        if "solver" in state and hasattr(self.solve, "load_state_dict"):
            self.solve.load_state_dict(state["solver"])


def _check_size(what: str, values: Any, num_clients: int) -> None:
    """Raise ValueError unless these are one value for each client; one for all would be taken for everybody's."""
    if np.shape(values) != (num_clients,):
        raise ValueError(f"{what} has shape {np.shape(values)}: it must be ({num_clients},), one for each client")


def _sent(messages: list[Message]) -> Exchanges[list[Message]]:
    """Pass an exchange on as it is."""
    return (yield messages)


def _with_plans(
    messages: list[Message],
    plans: Mapping[int, ClientPlan],
    late: set[int],
    send: Callable[[list[Message]], Exchanges[list[Message]]],
) -> Exchanges[list[Message]]:
    """Pass an exchange on by `send`, plans added to the instructions and late results taken away."""
    for message in messages:
        if begins_round(message.metadata.message_type):
            message.content = _with_config(message.content, plans[message.metadata.dst_node_id].to_config())
    replies = yield from send(messages)
    return without_results(messages, replies, late, Error(LATE, f"{ARRIVED_LATE} the deadline"))


def _with_config(content: RecordDict, plan: dict[str, Any]) -> RecordDict:
    """Return the content with a config record of its own: a strategy may send one content to all."""
    name, config = next(iter(records_in(content, ConfigRecord).items()), (CONFIG, ConfigRecord()))
    return RecordDict({**content, name: ConfigRecord({**config, **plan})})


def _plan_of(plan: Plan, client: int) -> ClientPlan:
    return ClientPlan(int(plan.local_rounds[client]), float(plan.frequency_hz[client]), float(plan.power_watts[client]))


def _reasons(plan: Plan) -> str:
    reasons, counts = np.unique(plan.reason, return_counts=True)
    return ", ".join(f"{count} for {reason}" for reason, count in zip(reasons, counts, strict=True))
