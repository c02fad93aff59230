"""An edge's part of the world: its problems, what became of its plans, and the reports of that."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from logging import getLogger
from typing import TYPE_CHECKING, Any

import numpy as np

from espalier.app.planning.worth import Book
from espalier.strategies.allocation import Plan, Problem, Solver, eligible_at_full_power
from espalier.strategies.allocation.costs import rate_bits_per_second
from espalier.strategies.deadline import Deadline
from espalier.strategies.randomness import derived_seed
from espalier.strategies.resource_aware import Outcome

if TYPE_CHECKING:
    from espalier.app.planning.world import PlannedWorld

logger = getLogger("espalier")

UNCONVERGED = (
    "the plan keeps all limits, but may not be the best; metrics.jsonl and summary.json count such edge rounds"
)


class EdgeResources:
    """An edge's part of the world (`espalier.strategies.resource_aware.Resources`).

    Parameters
    ----------
    world : PlannedWorld
        The whole.
    edge : str
        Name of the edge.

    Attributes
    ----------
    deadline : Deadline, optional
        In real time; None: what the world says of a plan is what becomes of it.
    pending : list[tuple[int, dict[str, Any]]]
        Numbers and reports of edge rounds that are not in ``metrics.jsonl`` yet.
    """

    def __init__(self, world: "PlannedWorld", edge: str) -> None:
        self.deadline: Deadline | None = None
        self._world = world
        self._edge = edge
        self._previous: list[int] | None = None
        self._book = Book()
        self._asked: tuple[int, np.ndarray] = (0, np.array([], dtype=int))
        self._at_full_power = np.array([], dtype=bool)
        self.pending: list[tuple[int, dict[str, Any]]] = []

    def problem(self, server_round: int, clients: Sequence[int]) -> Problem:
        """Return the problem of an edge round."""
        numbers = self._world.clients(clients)
        self._asked = (server_round, numbers)
        previous = None if self._previous is None else np.isin(numbers, self._previous)
        seed = derived_seed(self._world.seed, "plan", self._edge, server_round)
        problem = self._world.problem(server_round, numbers, previous, seed)
        problem = self._world.valued(problem, server_round, numbers, self._book)
        self._at_full_power = eligible_at_full_power(problem)
        self._problem = problem
        return problem

    def plan_of_all_cells(self, rule: Solver) -> Plan:
        """Return this edge's part of a plan for those of all cells who are there, in the round last asked for."""
        server_round, numbers = self._asked
        there = self._world.there_in(server_round)
        whole = rule(self._world.problem(server_round, there, None, 0))
        place_of = {client: place for place, client in enumerate(there.tolist())}
        own = [place_of[client] for client in numbers.tolist()]
        per_client: dict[str, Any] = {
            name: value[own] for name, value in vars(whole).items() if isinstance(value, np.ndarray)
        }
        return replace(whole, **per_client)

    def carry_out(self, server_round: int, clients: Sequence[int], plan: Plan) -> Outcome:
        """Carry a plan out and keep what is to be reported of it."""
        numbers = self._world.clients(clients)
        report = self._world.carry_out(self._edge, server_round, numbers, plan)
        report["eligible_at_full_power"] = numbers[self._at_full_power].tolist()
        self._note(server_round, report)
        self._previous = report["selected"]
        spent = np.add(report["compute_joules"], report["upload_joules"]).tolist()
        self._book.add(server_round, report["selected"], spent)
        if self.deadline:
            expected = seconds_at_full_power(self._problem, plan) / self._world.slowness(numbers)
            parts = zip(plan.idle_seconds.tolist(), expected.tolist(), strict=True)
            self.deadline.begin(partial(self._took, dict(zip(clients, parts, strict=True))))
        wanted = self._world.results_wanted(numbers[plan.selected])
        return Outcome(np.isin(numbers, report["late"]), np.isin(numbers, report["spare"]), wanted)

    def delivered(self, late: Collection[int]) -> None:
        """Take note of those who were late in the round last carried out, by node id."""
        numbers = sorted(self._world.clients(list(late)).tolist())
        self.pending[-1][1]["late"] = numbers
        for client in numbers:
            self._world.was_late(client)

    def _took(self, expected: Mapping[int, tuple[float, float]], node_id: int, seconds: float) -> None:
        (client,) = self._world.clients([node_id]).tolist()
        idle_seconds, expected_seconds = expected[node_id]
        self._world.took(client, expected_seconds, max(seconds - idle_seconds, 0.0))

    def learned(self, losses: Mapping[int, float]) -> None:
        """Take note of the mean training losses of those who took part, by node id."""
        clients = self._world.clients(list(losses)).tolist()
        self._book.losses |= dict(zip(clients, losses.values(), strict=True))

    def evaluated(self, accuracies: Mapping[int, float]) -> None:
        """Take note of the accuracies of clients on their own test examples, by node id."""
        clients = self._world.clients(list(accuracies)).tolist()
        self._book.accuracies |= dict(zip(clients, accuracies.values(), strict=True))

    def carried_out(self, server_round: int, report: dict[str, Any]) -> None:
        """Take over the report of an edge round that was carried out in another process."""
        self._world.add_report(self._edge, report)
        self._note(server_round, report)

    def seconds_of(self, edge_rounds: Collection[int]) -> float:
        """Return the time that edge rounds took, of those whose reports nobody has taken yet."""
        return float(sum(report["seconds"] for number, report in self.pending if number in edge_rounds))

    def take_rounds(self, at_work: Collection[int] = ()) -> list[tuple[int, dict[str, Any]]]:
        """Return the reports of the edge rounds since the last call, each with its number, but of those `at_work`."""
        over = [(number, report) for number, report in self.pending if number not in at_work]
        self.pending = [(number, report) for number, report in self.pending if number in at_work]
        return over

    def _note(self, server_round: int, report: dict[str, Any]) -> None:
        """Keep a report; log where it fell short of clients, and the first plan of the run that is not converged."""
        self.pending.append((server_round, report))
        self._world.last_planned = max(self._world.last_planned, server_round)
        if report["short"]:
            line = "edge round %d: %s: %d clients, not %d in each cell"
            logger.info(line, server_round, self._edge, len(report["selected"]), self._world.clients_wanted)
        if not report["converged"] and not self._world.told_unconverged:
            self._world.told_unconverged = True
            line = "edge round %d: %s: the solver stopped before it converged: %s"
            logger.warning(line, server_round, self._edge, UNCONVERGED)

    def state_dict(self) -> dict[str, Any]:
        """Return what must survive an interruption."""
        state: dict[str, Any] = {"previous": self._previous}
        return {**state, "book": self._book.state_dict()} if self._world.keeps_books else state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what `state_dict` returned."""
        self._previous = state["previous"]
        if "book" in state:
            self._book.load_state_dict(state["book"])


def seconds_at_full_power(problem: Problem, plan: Plan) -> np.ndarray:
    """Return how long each client computes and sends: as planned, but at its highest power, since nobody sets that."""
    rates = (
        rate_bits_per_second(
            power_watts=power, gain=problem.gain, noise_watts=problem.noise_watts, bandwidth_hz=problem.bandwidth_hz
        )
        for power in (plan.power_watts, problem.max_power_watts)
    )
    planned, highest = rates
    return plan.compute_seconds + plan.upload_seconds * planned / highest
