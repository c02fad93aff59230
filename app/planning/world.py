"""What plans are made for: the clients of all edges, simulated or measured."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, BinaryIO

import numpy as np

from espalier.app.planning.edge_resources import EdgeResources
from espalier.app.planning.rule import PlanRule, kind_of
from espalier.app.planning.work import Work, traffic_of
from espalier.app.planning.worth import Book, value_of, valued
from espalier.app.settings.sections import Plans
from espalier.sim.meters import EnergyMeter
from espalier.strategies import Observer
from espalier.strategies.allocation import Plan, Problem
from espalier.strategies.deadline import Deadline


class PlannedWorld(ABC):
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
        By which clients keep the deadline; None: time is simulated, or nobody is late.
    is_there : Callable[[int, int], bool], optional (default: None)
        Says of a client and an edge round whether the client is there when it begins. None: all are, always.
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
        is_there: Callable[[int, int], bool] | None = None,
    ) -> None:
        self.seed = seed
        self.energy = EnergyMeter(len(cell))
        self.options: dict[int, int] = {}
        self.edges = {name: EdgeResources(self, name) for name in topology}
        if clock and rule.has_limits:
            for edge in self.edges.values():
                edge.deadline = Deadline(plan.deadline_seconds, clock)
        self.told_unconverged = False
        self.last_planned = 0  # the highest number of an edge round with a plan
        self._plan = plan
        self.rule = rule
        self._value = value_of(plan) if rule.selects_a_number else None
        self._examples = np.array(num_examples, dtype=float)
        self._is_there = is_there
        self._client_of = client_of
        self._cell = cell
        self._traffic = traffic_of(work, num_examples, plan.downlink_bits_per_second)

    @property
    @abstractmethod
    def everybody(self) -> np.ndarray:
        """Numbers of the clients in all cells."""

    def there_in(self, server_round: int) -> np.ndarray:
        """Return the numbers of the clients in all cells that are there when an edge round begins."""
        if (is_there := self._is_there) is None:
            return self.everybody
        return np.array([client for client in self.everybody.tolist() if is_there(client, server_round)], dtype=int)

    @abstractmethod
    def problem(self, server_round: int, clients: np.ndarray, previous: np.ndarray | None, seed: int) -> Problem:
        """Return the problem of some clients, by their numbers, in an edge round."""

    @abstractmethod
    def carry_out(self, edge: str, server_round: int, clients: np.ndarray, plan: Plan) -> dict[str, Any]:
        """Let the selected clients carry out their plans and return what is to be reported of it."""

    @property
    def joules(self) -> float:
        """What all clients have spent since the run began."""
        return float(self.energy.total_joules.sum())

    @abstractmethod
    def end_round(self) -> dict[str, Any]:
        """Close a global round and return its figures."""

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """Return what there is to know of it, as plain data."""

    def add_report(self, edge: str, report: Mapping[str, Any]) -> None:
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

    def files(self, num_rounds: int) -> Mapping[str, Callable[[BinaryIO], object]]:
        """Return what the results folder has for so many edge rounds beside ``world.json``: names, and writers."""
        return {}

    def slowness(self, clients: np.ndarray) -> np.ndarray:
        """Return by which factors plans take clients to be slower than measured; for worlds of real devices."""
        raise NotImplementedError

    def took(self, client: int, expected_seconds: float, seconds: float) -> None:
        """Take note of how long a client took for a plan, in real time; for worlds of real devices.

        Both are without what the plan has it wait for the edge. Expected is how long a client takes that is as fast as
        measured: what is known of this one may have changed since the plan was made.
        """
        raise NotImplementedError

    def was_late(self, client: int) -> None:
        """Take note that a client's result was not there at the deadline; for worlds of real devices."""
        raise NotImplementedError

    @property
    def keeps_books(self) -> bool:
        """Whether plans depend on what became of earlier ones: by worth, by batteries, or by the solver."""
        kind = kind_of(self._plan.solver)  # the user's own may look back
        asked = self._value or self._plan.battery_joules or kind is None or kind.looks_back
        return self.rule.selects_a_number and bool(asked)

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
        most = self.rule.most_of_a_cell(self._plan.selected_per_edge)
        return int(np.bincount(self._cell[self._rows(selected)]).clip(max=most).sum())

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
        state: dict[str, Any] = {"energy": self.energy.state_dict(), "options": dict(self.options)}
        state["last_planned"] = self.last_planned
        # Of edges that are at work while the cloud goes on.
        pending = {name: list(edge.pending) for name, edge in self.edges.items() if edge.pending}
        return {**state, "pending": pending} if pending else state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what `state_dict` returned."""
        self.energy.load_state_dict(state["energy"])
        self.options = dict(state["options"])
        self.last_planned = int(state.get("last_planned", 0))
        for name, reports in state.get("pending", {}).items():
            self.edges[name].pending = list(reports)


class MovesCells(Observer):
    """Lets clients that move to another edge move to its cell.

    Parameters
    ----------
    world : PlannedWorld
        Has the cells.
    """

    def __init__(self, world: PlannedWorld) -> None:
        self._world = world

    def on_regroup(self, server_round: int, path: str, topology: Mapping[str, Sequence[int]]) -> None:
        """Notice that nodes have moved between edges."""
        self._world.regroup(topology)
