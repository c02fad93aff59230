"""Plans for the edge rounds of a run: whom they are made for, under which limits, and what is reported of them."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from logging import getLogger
from math import inf
from typing import Any

import numpy as np

from espalier.app.algorithms.algorithm import PlanRule
from espalier.app.config.sections import Plans
from espalier.app.errors import bad_value
from espalier.app.resources.work import Work, traffic_of
from espalier.app.resources.worth import Book, value_of, valued
from espalier.sim.meters import EnergyMeter
from espalier.strategies import Observer
from espalier.strategies.allocation import Plan, Problem, Solver, eligible_at_full_power
from espalier.strategies.allocation.costs import rate_bits_per_second
from espalier.strategies.allocation.feasibility import least_seconds
from espalier.strategies.deadline import Deadline
from espalier.strategies.randomness import derived_seed
from espalier.strategies.resource_aware import Outcome

logger = getLogger("espalier")

TRIED_ROUNDS = 20  # in one of which somebody must be able to take part for a run to start
UNCONVERGED = (
    "the plan keeps all limits, but may not be the best; metrics.jsonl and summary.json count such edge rounds"
)


class World(ABC):
    """What plans are made for: all clients of all edges, simulated or measured.

    Parameters
    ----------
    plan : Plans
        Section of the run config.
    rule : PlanRule
        How plans are made.
    seed : int
        Decides what is drawn.
    topology : Mapping[str, Sequence[int]]
        Node ids by edge.
    client_of : Mapping[int, int]
        Client number by node id.
    cell : np.ndarray
        Shape (U,): the radio cells of the clients.
    work : Work
        What training takes, for each way to share it.
    num_examples : Sequence[int]
        By client: the examples of a local round.
    clock : Callable[[], float], optional (default: None)
        By which clients keep the deadline; None: time is simulated, or clients take turns.
    """

    def __init__(
        self,
        plan: Plans,
        rule: PlanRule,
        seed: int,
        topology: Mapping[str, Sequence[int]],
        client_of: Mapping[int, int],
        cell: np.ndarray,
        work: Work,
        num_examples: Sequence[int],
        clock: Callable[[], float] | None = None,
    ) -> None:
        self.seed = seed
        self.energy = EnergyMeter(len(cell))
        self.options: dict[int, int] = {}
        self.edges = {name: EdgeResources(self, name) for name in topology}
        if clock and rule.has_limits:
            for edge in self.edges.values():
                edge.deadline = Deadline(plan.deadline_seconds, clock)
        self.told_unconverged = False
        self._plan = plan
        self._rule = rule
        self._value = value_of(plan) if rule.selects_a_number else None
        self._examples = np.array(num_examples, dtype=float)
        self._client_of = client_of
        self._cell = cell
        self._traffic = traffic_of(work, num_examples, plan.downlink_bits_per_second)

    @property
    @abstractmethod
    def everybody(self) -> np.ndarray:
        """Numbers of the clients in all cells."""

    @abstractmethod
    def problem(self, server_round: int, clients: np.ndarray, previous: np.ndarray | None, seed: int) -> Problem:
        """Return the problem of some clients, by their numbers, in an edge round."""

    @abstractmethod
    def carry_out(self, edge: str, server_round: int, clients: np.ndarray, plan: Plan) -> dict[str, Any]:
        """Let the selected clients carry out their plans and return what is to be reported of it."""

    @abstractmethod
    def end_round(self) -> dict[str, Any]:
        """Close a global round and return its figures."""

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """Return what there is to know of it, as plain data."""

    def book(self, edge: str, report: Mapping[str, Any]) -> None:
        """Take note of what became of a plan, from what `carry_out` returned, here or in the world of another process.

        Parameters
        ----------
        edge : str
            The edge.
        report : Mapping[str, Any]
            Of one edge round.
        """
        clients = np.array(report["selected"], dtype=int)
        self.energy.add(self._rows(clients), report["compute_joules"], report["upload_joules"])
        self.options |= dict(zip(report["selected"], report["option"], strict=True))

    def took(self, client: int, expected_seconds: float, seconds: float) -> None:
        """Take note of how long a client took for a plan, in real time; for worlds of real devices."""
        raise NotImplementedError

    def was_late(self, client: int) -> None:
        """Take note that a client's result was not there at the deadline; for worlds of real devices."""
        raise NotImplementedError

    @property
    def keeps_books(self) -> bool:
        """Whether plans depend on what became of earlier ones: by what clients are worth, or by their batteries."""
        return self._rule.selects_a_number and bool(self._value or self._plan.battery_joules)

    def valued(self, problem: Problem, server_round: int, clients: np.ndarray, book: Book) -> Problem:
        """Return the problem of these clients in an edge round with what they are worth and what they may spend."""
        if not self.keeps_books:
            return problem
        examples = self._examples[self._rows(clients)]
        standing = book.standing(server_round, clients, examples, self._plan.battery_joules)
        return valued(problem, self._plan, self._value, standing)

    def _rows(self, clients: np.ndarray) -> np.ndarray:
        """Return the places of clients among all."""
        return clients

    @property
    def clients_wanted(self) -> int:
        """Number of clients to select in each cell."""
        return self._plan.asked_per_cell

    def results_wanted(self, selected: np.ndarray) -> int:
        """Return the number of results, of those selected, that an edge goes on with: Z of each cell, or all it has."""
        if not self._rule.selects_a_number:
            return len(selected)
        return int(np.bincount(self._cell[self._rows(selected)]).clip(max=self._plan.selected_per_edge).sum())

    def regroup(self, topology: Mapping[str, Sequence[int]]) -> None:
        """Put clients, by node id, into the cells of their edges; they keep their distances to base stations."""
        for cell, name in enumerate(self.edges):
            self._cell[self._rows(self.clients(topology[name]))] = cell

    def clients(self, node_ids: Sequence[int]) -> np.ndarray:
        """Return the numbers of clients."""
        return np.array([self._client_of[node_id] for node_id in node_ids], dtype=int)

    def option_of(self, client: int) -> int:
        """Return the option that a client's last plan chose; the first for one that never had a plan."""
        return self.options.get(client, 0)

    def state_dict(self) -> dict[str, Any]:
        """Return what must survive an interruption."""
        state = {"energy": self.energy.state_dict(), "options": dict(self.options)}
        # Of edges that are at work while the cloud goes on.
        pending = {name: list(edge.pending) for name, edge in self.edges.items() if edge.pending}
        return {**state, "pending": pending} if pending else state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what `state_dict` returned."""
        self.energy.load_state_dict(state["energy"])
        self.options = dict(state["options"])
        for name, reports in state.get("pending", {}).items():
            self.edges[name].pending = list(reports)


class MovesCells(Observer):
    """Lets clients that move to another edge move to its cell.

    Parameters
    ----------
    world : World
        Has the cells.
    """

    def __init__(self, world: World) -> None:
        self._world = world

    def on_regroup(self, server_round: int, path: str, topology: Mapping[str, Sequence[int]]) -> None:
        """Notice that nodes have moved between edges."""
        self._world.regroup(topology)


class EdgeResources:
    """An edge's part of the world (`espalier.strategies.resource_aware.Resources`).

    Parameters
    ----------
    world : World
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

    def __init__(self, world: World, edge: str) -> None:
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
        """Return this edge's part of a plan for the clients of all cells, in the round last asked for."""
        server_round, numbers = self._asked
        whole = rule(self._world.problem(server_round, self._world.everybody, None, 0))
        per_client = {name: value[numbers] for name, value in vars(whole).items() if isinstance(value, np.ndarray)}
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
            expected = seconds_at_full_power(self._problem, plan).tolist()
            self.deadline.begin(partial(self._took, dict(zip(clients, expected, strict=True))))
        wanted = self._world.results_wanted(numbers[plan.selected])
        return Outcome(np.isin(numbers, report["late"]), np.isin(numbers, report["spare"]), wanted)

    def delivered(self, late: Collection[int]) -> None:
        """Take note of those who were late in the round last carried out, by node id."""
        numbers = sorted(self._world.clients(list(late)).tolist())
        self.pending[-1][1]["late"] = numbers
        for client in numbers:
            self._world.was_late(client)

    def _took(self, expected_seconds: Mapping[int, float], node_id: int, seconds: float) -> None:
        (client,) = self._world.clients([node_id]).tolist()
        self._world.took(client, expected_seconds[node_id], seconds)

    def learned(self, losses: Mapping[int, float]) -> None:
        """Take note of the mean training losses of those who took part, by node id."""
        clients = self._world.clients(list(losses)).tolist()
        self._book.losses |= dict(zip(clients, losses.values(), strict=True))

    def carried_out(self, server_round: int, report: dict[str, Any]) -> None:
        """Take over the report of an edge round that was carried out in another process."""
        self._world.book(self._edge, report)
        self._note(server_round, report)

    def seconds_of(self, edge_rounds: Collection[int]) -> float:
        """Return the time that edge rounds took, of those whose reports nobody has taken yet."""
        return float(sum(report["seconds"] for number, report in self.pending if number in edge_rounds))

    def take_reports(self, at_work: Collection[int] = ()) -> list[dict[str, Any]]:
        """Return the reports of the edge rounds since the last call, but of those that are still `at_work`."""
        over = [report for number, report in self.pending if number not in at_work]
        self.pending = [(number, report) for number, report in self.pending if number in at_work]
        return over

    def take_rounds(self) -> list[tuple[int, dict[str, Any]]]:
        """Return the reports of all edge rounds since the last call, each with the number of its edge round."""
        reports, self.pending = self.pending, []
        return reports

    def _note(self, server_round: int, report: dict[str, Any]) -> None:
        """Keep a report; log where it fell short of clients, and the first plan of the run that is not converged."""
        self.pending.append((server_round, report))
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


def cells_of_clients(
    topology: Mapping[str, Sequence[int]], client_of: Mapping[int, int], num_cells: int
) -> dict[int, int]:
    """Return each client's cell: that of its edge; one group of clients is in `num_cells` cells of equal size."""
    cell_of = {client_of[n]: cell for cell, members in enumerate(topology.values()) for n in members}
    if len(topology) == 1:
        return {client: client * num_cells // len(cell_of) for client in sorted(cell_of)}
    return cell_of


def limits_of(plan: Plans, cell: np.ndarray) -> dict[str, Any]:
    """Return the part of a `Problem` that the config decides, for clients of these cells."""
    smallest = int(np.unique(cell, return_counts=True)[1].min())
    to_select = min(plan.asked_per_cell, smallest)
    overlap = plan.max_overlap if plan.max_overlap >= 0 else plan.asked_per_cell // 2
    return {
        "clients_per_cell": to_select,
        # With clients missing, others may have to come twice.
        "max_overlap": max(overlap, 2 * to_select - smallest),
        "deadline_seconds": plan.planned_seconds,
        "max_local_rounds": plan.max_local_rounds,
        "theta": plan.theta,
    }


def report_of(clients: np.ndarray, plan: Plan) -> dict[str, Any]:
    """Return what is reported of a plan for clients of these numbers, whatever comes of it."""
    who = np.flatnonzero(plan.selected)
    return {
        "eligible": clients[plan.eligible].tolist(),
        "selected": clients[who].tolist(),
        "local_rounds": plan.local_rounds[who].tolist(),
        "option": plan.option[who].tolist(),
        "frequency_hz": plan.frequency_hz[who].tolist(),
        "power_watts": plan.power_watts[who].tolist(),
        "spare": [],
        "converged": plan.converged,
    }


def seconds_at_full_power(problem: Problem, plan: Plan) -> np.ndarray:
    """Return how long each client takes that computes as planned, but sends at its highest power: nobody sets that."""
    rates = (
        rate_bits_per_second(
            power_watts=power, gain=problem.gain, noise_watts=problem.noise_watts, bandwidth_hz=problem.bandwidth_hz
        )
        for power in (plan.power_watts, problem.max_power_watts)
    )
    planned, highest = rates
    return plan.compute_seconds + plan.upload_seconds * planned / highest + plan.idle_seconds


def falls_short(limits: Plans, rule: PlanRule, cell: np.ndarray, plan: Plan) -> bool:
    """Tell whether a plan has somebody but fewer of the clients of a cell than `Plans.asked_per_cell`."""
    fewest = np.bincount(cell, weights=plan.selected)[np.unique(cell)].min()
    # The rules that take everybody have no number to fall short of.
    return bool(plan.selected.any() and fewest < limits.asked_per_cell and rule.selects_a_number)


def end_energy_round(energy: EnergyMeter) -> dict[str, float]:
    """Close the round of a meter and return its joules, and those of all rounds so far."""
    compute, upload = energy.round_compute_joules, energy.round_upload_joules
    energy.end_round()
    return {
        "compute": float(compute.sum()),
        "upload": float(upload.sum()),
        "so_far": float(energy.total_joules.sum()),
    }


def rows_of(columns: Mapping[str, np.ndarray]) -> list[dict[str, Any]]:
    """Return equally long arrays as a row per entry."""
    return [dict(zip(columns, row, strict=True)) for row in zip(*(c.tolist() for c in columns.values()), strict=True)]


def check_deadline(plan: Plans, rule: PlanRule, world: World) -> None:
    """Raise UserError where no client could make one local round before the deadline in any of the first edge rounds.

    One in which nobody can is skipped, as channels are drawn anew: another seed's first would have gone.
    """
    if not rule.has_limits:
        return
    fastest = inf
    for edge_round in range(1, TRIED_ROUNDS + 1):
        fastest = min(fastest, float(least_seconds(world.problem(edge_round, world.everybody, None, 0)).min()))
        if fastest <= plan.planned_seconds:
            return
    kept = f" in {plan.planned_seconds:.3g} s (plan.margin)" if plan.margin else ""
    allowed = f"more: the fastest client needs {fastest:.3g} s for one local round{kept}"
    raise bad_value("plan.deadline-seconds", plan.deadline_seconds, allowed)


def check_cell_size(plan: Plans, rule: PlanRule, smallest: int) -> None:
    """Raise UserError for a number of clients to select, or an overlap, that a cell of this size can't have."""
    if not rule.selects_a_number:
        return
    z, asked = plan.selected_per_edge, plan.asked_per_cell
    if z > smallest:
        raise bad_value("plan.selected-per-edge", z, f"1 to {smallest}, the clients of the smallest cell")
    if asked > smallest:
        why = f"as the smallest cell has {smallest} clients and plan.selected-per-edge is {z}"
        raise bad_value("plan.spare", plan.spare, f"0 to {smallest - z}, {why}")
    least = max(0, 2 * asked - smallest)
    if 0 <= plan.max_overlap < least:
        why = f"with {asked} of {smallest} clients selected in every round"
        raise bad_value("plan.max-overlap", plan.max_overlap, f"at least {least} {why}, or -1 for half of them")
