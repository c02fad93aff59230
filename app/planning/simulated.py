"""The simulated radio world of a run, as its edges see it: problems to solve, and what becomes of the plans."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import lru_cache, partial
from math import inf
from typing import Any, BinaryIO

import numpy as np

from espalier.app.planning.limits import limits_of
from espalier.app.planning.plan_reports import end_energy_round, falls_short, report_of, rows_of
from espalier.app.planning.rule import PlanRule
from espalier.app.planning.work import Work
from espalier.app.planning.world import PlannedWorld
from espalier.app.settings.sections import Plans, RadioWorld
from espalier.sim.links import lasting_gains, linked
from espalier.sim.meters import SimulatedClock
from espalier.sim.radio import Radio
from espalier.sim.radio_trace import RadioTrace, trace_lines, traced
from espalier.sim.world import World, make_world, realise
from espalier.strategies.allocation import Plan, Problem

BITS_PER_INPUT = 32  # D_u = 43 features x 32 bit in the RawHFL paper
RADIO_TRACE = "radio-trace.csv"
OF_LINKS = [field.name for field in fields(Radio)]  # settings have the names of the model's parameters
EDGE_ROUNDS_KEPT = 8  # whose gains are kept: edges that wait for nobody are at different ones


class WirelessWorld(PlannedWorld):
    """Cells with their clients' channels and devices, the simulated clock, and the energy spent.

    Parameters
    ----------
    radio : RadioWorld
        Section of the run config.
    cell_of : Mapping[int, int]
        Cell by client number.
    plan, rule, seed, topology, client_of, work, num_examples, is_there
        As for `PlannedWorld`.
    values_per_example : int
        Numbers that an example consists of.
    drops_out : Callable[[int, int], bool], optional (default: None)
        Says of a client and an edge round whether its result never comes. None: all come.
    edge_rounds : int (default: 1)
        Edge rounds of a global round: clients that walk do so between global rounds, for as long as all deadlines.
    trace : RadioTrace, optional (default: None)
        Where the clients are, or their gains, by client number; None: they are drawn.
    """

    def __init__(
        self,
        plan: Plans,
        radio: RadioWorld,
        rule: PlanRule,
        seed: int,
        topology: Mapping[str, Sequence[int]],
        client_of: Mapping[int, int],
        cell_of: Mapping[int, int],
        work: Work,
        values_per_example: int,
        num_examples: Sequence[int],
        is_there: Callable[[int, int], bool] | None = None,
        drops_out: Callable[[int, int], bool] | None = None,
        edge_rounds: int = 1,
        trace: RadioTrace | None = None,
    ) -> None:
        cells = np.array([cell_of[client] for client in sorted(cell_of)])
        super().__init__(plan, rule, seed, topology, client_of, cells, work, num_examples, is_there=is_there)
        ranges: dict[str, Any] = {**radio.device_ranges}
        self._new_world = partial(
            make_world,
            seed=seed,
            radius_metres=radio.cell_radius_metres,
            redraw=radio.fading == "redrawn",
            planning_error_db=radio.planning_error_db,
            metres_per_step=radio.speed_metres_per_second * plan.deadline_seconds * edge_rounds,
            rounds_per_step=edge_rounds,
            **{name: getattr(radio, name) for name in OF_LINKS},
            **ranges,
        )
        self._work_bits = np.array(num_examples, dtype=np.float64) * BITS_PER_INPUT * values_per_example
        self._work_share = work.share
        self.clock = SimulatedClock(topology)
        self._drops_out = drops_out
        self._edge_rounds = edge_rounds
        self._trace = trace
        self._results = self._late_results = 0
        self._draw(cells.copy())

    def _draw(self, cells: np.ndarray) -> None:
        """Draw places and devices for clients that begin in these cells."""
        self._cells_at_first = cells
        self._place = np.argsort(np.argsort(cells, kind="stable"), kind="stable")  # of each client in the world
        self._drawn: World = self._new_world(clients_per_cell=np.bincount(cells).tolist())
        if self._trace:
            self._drawn = traced(self._drawn, self._trace.in_order(np.argsort(cells, kind="stable")))
        self._be_in(self._drawn)
        self._cycles = self._work_bits[:, np.newaxis] * self._cycles_per_bit[:, np.newaxis] * self._work_share

    def _be_in(self, world: World) -> None:
        self.world = world
        # Of all cells: every edge asks for its own part of them.
        self._gains = lru_cache(EDGE_ROUNDS_KEPT)(self.world.gains)
        self._gains_to_plan_with = lru_cache(EDGE_ROUNDS_KEPT)(self._planned_gains)

    @property
    def cells_at_first(self) -> np.ndarray:
        """The cell in which each client was drawn, by client number."""
        return self._cells_at_first

    def lasting_gains(self) -> np.ndarray:
        """Return what lasts of the gains between all clients, by number, and all base stations; shape (U, B)."""
        return lasting_gains(self._drawn)[self._place]

    def associate(self, cells: np.ndarray) -> None:
        """Let clients, by number, talk to the base stations of these cells, from where they are."""
        self._cell[:] = cells
        in_order = np.empty_like(self._cell)
        in_order[self._place] = cells
        self._be_in(linked(self._drawn, in_order))

    @property
    def _cycles_per_bit(self) -> np.ndarray:
        return self.world.devices.cycles_per_bit[self._place]

    @property
    def everybody(self) -> np.ndarray:
        """Numbers of the clients in all cells."""
        return np.arange(len(self._cell))

    def topology_in(self, number: int) -> dict[str, list[int]]:
        """Return the nodes of each edge in a global round, from 1: those whose nearest base station is that edge's."""
        cell = self.world.cells_in((number - 1) * self._edge_rounds + 1).cell[self._place]
        node_of = sorted((client, node_id) for node_id, client in self._client_of.items())
        return {
            name: [node_id for client, node_id in node_of if cell[client] == own] for own, name in enumerate(self.edges)
        }

    def problem(self, server_round: int, clients: np.ndarray, previous: np.ndarray | None, seed: int) -> Problem:
        """Return the problem of some clients in an edge round, by the channel that the planner sees."""
        place = self._place[clients]
        devices, cell = self.world.devices, self._cell[clients]
        return Problem(
            **limits_of(self._plan, cell, previous, self._cell),
            gain=self._gains_to_plan_with(server_round)[place],
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
            min_frequency_hz=np.full(len(clients), self._plan.min_frequency_hz),
            seed=seed,
        )

    def _planned_gains(self, server_round: int) -> np.ndarray:
        share = self._plan.late_share
        return self.world.dependable_gains(server_round, share) if share else self.world.observed_gains(server_round)

    def carry_out(self, edge: str, server_round: int, clients: np.ndarray, plan: Plan) -> dict[str, Any]:
        """Let the selected clients carry out their plans over the true channel; return what came of it, to report."""
        who = np.flatnonzero(plan.selected)
        chosen, option, rounds = clients[who], plan.option[who], plan.local_rounds[who]
        place = self._place[chosen]
        deadline = self._plan.deadline_seconds if self.rule.has_limits else inf
        traffic = {name: values[chosen, option] for name, values in self._traffic.items()}
        done = realise(
            cycles=rounds * self._cycles[chosen, option],
            upload_bits=traffic["payload_bits"] + rounds * traffic["payload_bits_per_local_round"],
            idle_seconds=traffic["idle_seconds"] + rounds * traffic["idle_seconds_per_local_round"],
            frequency_hz=plan.frequency_hz[who],
            power_watts=plan.power_watts[who],
            gains=self._gains(server_round)[place],
            capacitance=self.world.devices.capacitance[place],
            deadline_seconds=deadline,
            bandwidth_hz=self.world.radio.bandwidth_hz,
            noise_watts=self.world.radio.noise_watts,
        )
        gone = [self._drops_out is not None and self._drops_out(client, server_round) for client in chosen.tolist()]
        missing = done.late | np.array(gone, dtype=bool)
        wanted = min(self.rule.most_of_a_cell(self._plan.selected_per_edge), len(chosen))
        spare, seconds = first_results(self._cell[chosen], done.finish_seconds, missing, int(wanted), deadline)
        report = {
            **report_of(clients, plan),
            "late": chosen[done.late].tolist(),
            "spare": chosen[spare].tolist(),
            "compute_joules": done.compute_joules.tolist(),
            "upload_joules": done.upload_joules.tolist(),
            "seconds": seconds,
            "short": falls_short(self._plan, self.rule, self._cell[clients], plan),
        }
        self.add_report(edge, report)
        return report

    def add_report(self, edge: str, report: Mapping[str, Any]) -> None:
        """Take note of what became of a plan: joules, cuts, the time that it took, and how many were late."""
        super().add_report(edge, report)
        self.clock.advance(edge, report["seconds"])
        self._results += len(report["selected"])
        self._late_results += len(report["late"])

    def end_round(self) -> dict[str, Any]:
        """Close a global round and return its figures: its joules, and the simulated time at its end.

        Where plans are made for a share of late results, also that share, and the one of all rounds so far: None if
        nobody ever was selected.
        """
        self.clock.end_round()
        figures = {"energy_joules": end_energy_round(self.energy), "simulated_seconds": self.clock.now}
        if asked := self._plan.late_share:
            so_far = self._late_results / self._results if self._results else None
            figures["late_share"] = {"asked": asked, "so_far": so_far}
        return figures

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

    def files(self, num_rounds: int) -> Mapping[str, Callable[[BinaryIO], object]]:
        """Return the trace of so many edge rounds, and how it is written."""

        def write(file: BinaryIO) -> None:
            file.writelines(line.encode() for line in trace_lines(self.world, self._place, num_rounds))

        return {RADIO_TRACE: write}

    def state_dict(self) -> dict[str, Any]:
        """Return what must survive an interruption."""
        state = super().state_dict() | {"clock": self.clock.state_dict(), "cells": self._cells_at_first.tolist()}
        counts = {"results": self._results, "late_results": self._late_results}
        if self._trace:
            state["trace"] = self._trace.digest(self.last_planned)
        return state | counts if self._plan.late_share else state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what `state_dict` returned; ValueError if it is of other clients."""
        cells = state.get("cells", self._cells_at_first.tolist())
        if not self._can_be_first(cells):
            raise ValueError("cells: they are not those of this run's clients")
        super().load_state_dict(state)
        if self._trace and state["trace"] != self._trace.digest(self.last_planned):
            raise ValueError(f"radio.trace has changed in edge rounds 1 to {self.last_planned}, which are over")
        self.clock.load_state_dict(state["clock"])
        self._results, self._late_results = state.get("results", 0), state.get("late_results", 0)
        # Nodes may be at other edges when a run goes on; they keep their devices and places.
        if cells != self._cells_at_first.tolist():
            self._draw(np.array(cells))

    def _can_be_first(self, cells: Any) -> bool:
        """Return whether clients can have begun in these cells: a whole number for each, and no cell without any."""
        if not (isinstance(cells, list) and len(cells) == len(self._cell) and {type(c) for c in cells} == {int}):
            return False
        return set(cells) == set(range(max(len(self.edges), int(self._cells_at_first.max()) + 1)))


def first_results(
    cell: np.ndarray, finish_seconds: np.ndarray, missing: np.ndarray, wanted: int, deadline_seconds: float
) -> tuple[np.ndarray, float]:
    """Return whose results an edge does not wait for as it has enough in their cell, and how long its round takes.

    It ends with the last result that is waited for. In the RawHFL paper it ends with the deadline in any case.

    Parameters
    ----------
    cell : np.ndarray
        Shape (S,), as of all arrays: cells of the selected clients.
    finish_seconds : np.ndarray
        When their results arrive. Of two at the same time the first in the order of clients is first.
    missing : np.ndarray
        Booleans: whose results never come, or after the deadline.
    wanted : int
        Results wanted from each cell.
    deadline_seconds : float
        How long an edge waits for a result that is missing; infinite: it does not.

    Returns
    -------
    tuple[np.ndarray, float]
        Booleans of shape (S,), and seconds.
    """
    spare = np.zeros(len(cell), dtype=bool)
    seconds = 0.0
    for own in (np.flatnonzero(cell == name) for name in np.unique(cell)):
        in_order = own[np.argsort(finish_seconds[own], kind="stable")]
        arrived = in_order[~missing[in_order]]
        spare[arrived[wanted:]] = True
        waits_in_vain = len(arrived) < min(wanted, len(own)) and deadline_seconds < inf
        last = deadline_seconds if waits_in_vain else finish_seconds[arrived[:wanted]].max(initial=0.0)
        seconds = max(seconds, float(last))
    return spare, seconds
