"""The simulated radio world of a run, as its edges see it: problems to solve, and what becomes of the plans."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from logging import getLogger
from math import inf
from typing import Any, Protocol

import numpy as np

from espalier.app.config.sections import RunConfig
from espalier.app.errors import bad_value
from espalier.app.work import Work, traffic_of
from espalier.sim.meters import Clock, EnergyMeter
from espalier.sim.world import make_world, realise
from espalier.strategies.allocation import Plan, Problem, Solver, eligible_at_full_power, get_solver
from espalier.strategies.allocation.feasibility import least_seconds
from espalier.strategies.randomness import derived_seed
from espalier.strategies.resource_aware import Outcome

logger = getLogger("espalier")

BITS_PER_INPUT = 32  # D_u = 43 features x 32 bit in the RawHFL paper

# These have rules of their own; all others take the config's `plan.solver`.
RULES = {
    "h-fedavg-m1": "h-fedavg-m1",
    "h-fedavg-m2": "h-fedavg-m2",
    "h-fedavg-ub": "h-fedavg-ub",
    "fedavg-ub": "h-fedavg-ub",
}
# All clients of all cells make as many local rounds as the weakest of them can.
JOINT_RULES = ("h-fedavg-m1", "h-fedavg-m2")
WITHOUT_LIMITS = ("h-fedavg-ub", "fedavg-ub")


class WirelessWorld:
    """Cells with their clients' channels and devices, the simulated clock, and the energy spent.

    Parameters
    ----------
    config : RunConfig
        The run.
    topology : Mapping[str, Sequence[int]]
        Node ids by edge.
    client_of : Mapping[int, int]
        Client number by node id.
    work : Work
        What training takes.
    values_per_example : int
        Numbers that an example consists of.
    num_examples : Sequence[int]
        By client: the examples of a local round.
    """

    def __init__(
        self,
        config: RunConfig,
        topology: Mapping[str, Sequence[int]],
        client_of: Mapping[int, int],
        work: Work,
        values_per_example: int,
        num_examples: Sequence[int],
    ) -> None:
        cell_of = cells_of_clients(config, topology, client_of)
        cells = np.array([cell_of[client] for client in sorted(cell_of)])
        self._place = np.argsort(np.argsort(cells, kind="stable"), kind="stable")  # of each client in the world
        self._cell = cells
        self.world = make_world(
            np.bincount(cells).tolist(),
            config.seed,
            radius_metres=config.radio.cell_radius_metres,
            redraw=config.radio.fading == "redrawn",
            planning_error_db=config.radio.planning_error_db,
            bandwidth_hz=config.radio.bandwidth_hz,
            noise_figure_db=config.radio.noise_figure_db,
            **config.radio.device_ranges,
        )
        self.clock = Clock(topology)
        self.energy = EnergyMeter(cells)
        self.seed = config.seed
        self._config = config
        self._client_of = client_of
        examples = np.array(num_examples, dtype=np.float64)[:, np.newaxis]
        self._cycles = examples * BITS_PER_INPUT * values_per_example * self._cycles_per_bit[:, np.newaxis] * work.share
        self._traffic = traffic_of(work, num_examples, config.plan.downlink_bits_per_second)
        self.options: dict[int, int] = {}
        self.edges = {name: EdgeResources(self, name) for name in topology}

    @property
    def _cycles_per_bit(self) -> np.ndarray:
        return self.world.devices.cycles_per_bit[self._place]

    @property
    def everybody(self) -> np.ndarray:
        """Numbers of the clients in all cells."""
        return np.arange(len(self._cell))

    def clients(self, node_ids: Sequence[int]) -> np.ndarray:
        """Return the numbers of clients."""
        return np.array([self._client_of[node_id] for node_id in node_ids])

    def problem(self, server_round: int, clients: np.ndarray, previous: np.ndarray | None, seed: int) -> Problem:
        """Return the problem of some clients in an edge round, by the channel that the planner sees."""
        config, place = self._config, self._place[clients]
        devices, cell = self.world.devices, self._cell[clients]
        return Problem(
            **limits_of(config, cell),
            gain=self.world.observed_gains(server_round)[place],
            max_frequency_hz=devices.max_frequency_hz[place],
            max_power_watts=devices.max_power_watts[place],
            energy_budget_joules=devices.energy_budget_joules[place],
            capacitance=float(devices.capacitance[0]),
            cycles_per_local_round=self._cycles[clients],
            **{name: values[clients] for name, values in self._traffic.items()},
            cell=cell,
            previous=previous,
            bandwidth_hz=self.world.radio.bandwidth_hz,
            noise_watts=self.world.radio.noise_watts,
            min_frequency_hz=config.plan.min_frequency_hz,
            seed=seed,
        )

    def option_of(self, client: int) -> int:
        """Return the option that a client's last plan chose; the first for one that never had a plan."""
        return self.options.get(client, 0)

    def carry_out(self, edge: str, server_round: int, clients: np.ndarray, plan: Plan) -> dict[str, Any]:
        """Let the selected clients carry out their plans over the true channel; return what came of it, to report."""
        who = np.flatnonzero(plan.selected)
        chosen, option, rounds = clients[who], plan.option[who], plan.local_rounds[who]
        place = self._place[chosen]
        deadline = inf if self._config.algorithm in WITHOUT_LIMITS else self._config.plan.deadline_seconds
        traffic = {name: values[chosen, option] for name, values in self._traffic.items()}
        done = realise(
            cycles=rounds * self._cycles[chosen, option],
            upload_bits=traffic["payload_bits"] + rounds * traffic["payload_bits_per_local_round"],
            idle_seconds=traffic["idle_seconds"] + rounds * traffic["idle_seconds_per_local_round"],
            frequency_hz=plan.frequency_hz[who],
            power_watts=plan.power_watts[who],
            gains=self.world.gains(server_round)[place],
            capacitance=self.world.devices.capacitance[place],
            deadline_seconds=deadline,
            bandwidth_hz=self.world.radio.bandwidth_hz,
            noise_watts=self.world.radio.noise_watts,
        )
        seconds = deadline if done.late.any() else done.finish_seconds.max(initial=0.0)
        self.clock.advance(edge, seconds)
        self.energy.add(chosen, done.compute_joules, done.upload_joules)
        self.options |= dict(zip(chosen.tolist(), option.tolist(), strict=True))
        return {
            **report_of(clients, plan),
            "late": chosen[done.late].tolist(),
            "compute_joules": done.compute_joules.tolist(),
            "upload_joules": done.upload_joules.tolist(),
            "seconds": float(seconds),
            "short": falls_short(self._config, edge, server_round, self._cell[clients], plan),
        }

    def end_round(self) -> dict[str, Any]:
        """Close a global round and return its figures: its joules, and the simulated time at its end."""
        self.clock.end_round()
        return {"energy_joules": end_energy_round(self.energy), "simulated_seconds": self.clock.now}

    def describe(self) -> dict[str, Any]:
        """Return where base stations and clients are, and what the clients' devices are capable of, as plain data.

        Returns
        -------
        dict
            ``radius_metres`` of the cells, ``base_stations`` in the order of their cells and ``clients`` in that of
            their numbers.
        """
        cells, devices, place = self.world.cells, self.world.devices, self._place
        edges = list(self.edges)
        names = edges if len(edges) > 1 else edges * len(cells.station_x_metres)
        stations = {"x_metres": cells.station_x_metres, "y_metres": cells.station_y_metres}
        clients = {
            "cell": self._cell,
            "x_metres": cells.x_metres[place],
            "y_metres": cells.y_metres[place],
            "distance_metres": cells.distance_metres[place],
            "cycles_per_bit": devices.cycles_per_bit[place],
            "max_frequency_hz": devices.max_frequency_hz[place],
            "max_power_watts": devices.max_power_watts[place],
            "energy_budget_joules": devices.energy_budget_joules[place],
        }
        return {
            "radius_metres": cells.radius_metres,
            "base_stations": [{"cell": cell, **row} for cell, row in enumerate(rows_of(stations))],
            "clients": [
                {"client": client, "edge": names[row["cell"]], **row} for client, row in enumerate(rows_of(clients))
            ],
        }

    def state_dict(self) -> dict[str, Any]:
        """Return what must survive an interruption."""
        return {"clock": self.clock.state_dict(), "energy": self.energy.state_dict(), "options": dict(self.options)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what `state_dict` returned."""
        self.clock.load_state_dict(state["clock"])
        self.energy.load_state_dict(state["energy"])
        self.options = dict(state["options"])


class World(Protocol):
    """What plans are made for: all clients of all edges, `WirelessWorld` or `espalier.app.measured.MeasuredWorld`."""

    seed: int
    edges: dict[str, "EdgeResources"]

    @property
    def everybody(self) -> np.ndarray:
        """Numbers of the clients in all cells."""

    def clients(self, node_ids: Sequence[int]) -> np.ndarray:
        """Return the numbers of clients."""

    def problem(self, server_round: int, clients: np.ndarray, previous: np.ndarray | None, seed: int) -> Problem:
        """Return the problem of some clients, by their numbers, in an edge round."""

    def option_of(self, client: int) -> int:
        """Return the option that a client's last plan chose; the first for one that never had a plan."""

    def carry_out(self, edge: str, server_round: int, clients: np.ndarray, plan: Plan) -> dict[str, Any]:
        """Let the selected clients carry out their plans and return what is to be reported of it."""

    def end_round(self) -> dict[str, Any]:
        """Close a global round and return its figures."""

    def describe(self) -> dict[str, Any]:
        """Return what there is to know of it, as plain data."""

    def state_dict(self) -> dict[str, Any]:
        """Return what must survive an interruption."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what `state_dict` returned."""


class EdgeResources:
    """An edge's part of the world (`espalier.strategies.resource_aware.Resources`).

    Parameters
    ----------
    world : World
        The whole.
    edge : str
        Name of the edge.
    """

    def __init__(self, world: World, edge: str) -> None:
        self._world = world
        self._edge = edge
        self._previous: list[int] | None = None
        self._asked: tuple[int, np.ndarray] = (0, np.array([], dtype=int))
        self._at_full_power = np.array([], dtype=bool)
        self._reports: list[dict[str, Any]] = []

    def problem(self, server_round: int, clients: Sequence[int]) -> Problem:
        """Return the problem of an edge round."""
        numbers = self._world.clients(clients)
        self._asked = (server_round, numbers)
        previous = None if self._previous is None else np.isin(numbers, self._previous)
        seed = derived_seed(self._world.seed, "plan", self._edge, server_round)
        problem = self._world.problem(server_round, numbers, previous, seed)
        self._at_full_power = eligible_at_full_power(problem)
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
        self._reports.append(report)
        self._previous = report["selected"]
        return Outcome(np.isin(numbers, report["late"]))

    def take_reports(self) -> list[dict[str, Any]]:
        """Return the reports of the edge rounds since the last call."""
        reports, self._reports = self._reports, []
        return reports

    def state_dict(self) -> dict[str, Any]:
        """Return what must survive an interruption."""
        return {"previous": self._previous}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what `state_dict` returned."""
        self._previous = state["previous"]


def cells_of_clients(
    config: RunConfig, topology: Mapping[str, Sequence[int]], client_of: Mapping[int, int]
) -> dict[int, int]:
    """Return each client's cell: that of its edge; the one group of a flat algorithm is in cells of equal size."""
    cell_of = {client_of[n]: cell for cell, members in enumerate(topology.values()) for n in members}
    if config.is_flat:
        return {client: client * config.cells // len(cell_of) for client in sorted(cell_of)}
    return cell_of


def limits_of(config: RunConfig, cell: np.ndarray) -> dict[str, Any]:
    """Return the part of a `Problem` that the config decides, for clients of these cells."""
    smallest = int(np.unique(cell, return_counts=True)[1].min())
    to_select = min(config.plan.selected_per_edge, smallest)
    overlap = config.plan.max_overlap if config.plan.max_overlap >= 0 else config.plan.selected_per_edge // 2
    return {
        "clients_per_cell": to_select,
        # With clients missing, others may have to come twice.
        "max_overlap": max(overlap, 2 * to_select - smallest),
        "deadline_seconds": config.plan.deadline_seconds,
        "max_local_rounds": config.plan.max_local_rounds,
        "theta": config.plan.theta,
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
    }


def falls_short(config: RunConfig, edge: str, server_round: int, cell: np.ndarray, plan: Plan) -> bool:
    """Tell, and log, whether a plan has somebody but fewer of the clients of a cell than `plan.selected-per-edge`."""
    selected, wanted = int(plan.selected.sum()), config.plan.selected_per_edge
    fewest = np.bincount(cell, weights=plan.selected)[np.unique(cell)].min()
    # The rules that take everybody have no number to fall short of.
    is_short = selected > 0 and fewest < wanted and config.algorithm not in RULES
    if is_short:
        logger.info("edge round %d: %s: %d clients, not %d in each cell", server_round, edge, selected, wanted)
    return bool(is_short)


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


def solver_for(config: RunConfig, resources: EdgeResources) -> Solver:
    """Return the rule of the config's algorithm, or its `plan.solver`, for an edge."""
    solve = get_solver(RULES.get(config.algorithm, config.plan.solver))
    if config.algorithm in JOINT_RULES:
        return lambda problem: resources.plan_of_all_cells(solve)
    return solve


def check_deadline(config: RunConfig, world: World) -> None:
    """Raise UserError where no client could make one local round before the deadline in the first edge round."""
    if config.algorithm in WITHOUT_LIMITS:
        return
    fastest = float(least_seconds(world.problem(1, world.everybody, None, 0)).min())
    if fastest > config.plan.deadline_seconds:
        allowed = f"more: the fastest client needs {fastest:.3g} s for one local round"
        raise bad_value("plan.deadline-seconds", config.plan.deadline_seconds, allowed)
