"""The world of a run: cells, channel and devices from one seed, and what an edge round in it really costs."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from espalier.sim.cells import Cells, draw_cells
from espalier.sim.devices import Devices, compute_joules, compute_seconds, draw_devices
from espalier.sim.gain_quantile import gain_quantile
from espalier.sim.radio import Radio, draw_gains, upload_joules, upload_seconds
from espalier.sim.walks import Walk, draw_walk

# Plans fill the deadline to the last bit, and their sums may round beyond it.
DEADLINE_TOLERANCE = 1e-9


@dataclass(frozen=True, eq=False)
class World:
    """`U` clients in cells, their devices, and the channel they find in every edge round.

    Parameters
    ----------
    cells : Cells
        Positions.
    radio : Radio
        Parameters of the links.
    devices : Devices
        Profiles, in the clients' order.
    seed : int
        Decides the channel and the planning error. Not negative.
    redraw : bool (default: True)
        Whether line of sight and shadowing are drawn anew for every edge round, or once for the run.
    planning_error_db : float (default: 0)
        Standard deviation of the error, in dB, with which a planner sees the gains. Drawn anew for every edge round.
    walk : Walk, optional (default: None)
        How clients walk. None: they stay where `cells` has them.
    metres_per_step : float (default: 0)
        How far they walk between two steps.
    rounds_per_step : int (default: 1)
        Edge rounds for which they stay where they are.

    Raises
    ------
    ValueError
        If a value is not allowed.
    """

    cells: Cells
    radio: Radio
    devices: Devices
    seed: int
    redraw: bool = True
    planning_error_db: float = 0.0
    walk: Walk | None = None
    metres_per_step: float = 0.0
    rounds_per_step: int = 1

    def __post_init__(self) -> None:
        if len(self.devices) != len(self.cells.cell):
            raise ValueError(f"devices are {len(self.devices)}: must be {len(self.cells.cell)}, as many as clients")
        if self.seed < 0:
            raise ValueError(f"seed = {self.seed}: must be an integer >= 0")
        if not 0 <= self.planning_error_db < np.inf:
            raise ValueError(f"planning_error_db = {self.planning_error_db}: must be a finite number >= 0")

    def cells_in(self, edge_round: int) -> Cells:
        """Return where the clients are in an edge round, counted from 1; in round 0 as in the first."""
        if self.walk is None:
            return self.cells
        return self.walk.after(max(edge_round - 1, 0) // self.rounds_per_step * self.metres_per_step)

    def gains(self, edge_round: int) -> np.ndarray:
        """Return the links' true gains.

        Parameters
        ----------
        edge_round : int
            Number of the edge round, counted through all global rounds, at least 0. The gains depend on it and the
            seed only, not on which rounds were asked for before.

        Returns
        -------
        np.ndarray
            ``(U,)``: linear power gains.

        Raises
        ------
        ValueError
            If `edge_round` is negative.
        """
        return self.drawn_gains(edge_round, self.cells_in(edge_round).distance_metres)

    def drawn_gains(self, edge_round: int, distance_metres: np.ndarray, *links: int) -> np.ndarray:
        """Return gains for clients at these distances ``(U,)``; other `links` than their own have draws of their own.

        Raises
        ------
        ValueError
            If `edge_round` is negative.
        """
        _check_round(edge_round)
        channel = edge_round if self.redraw else 0
        return draw_gains(
            distance_metres,
            self.radio,
            los_rng=self._stream(b"line of sight", channel, *links),
            shadowing_rng=self._stream(b"shadowing", channel, *links),
        )

    def observed_gains(self, edge_round: int) -> np.ndarray:
        """Return the gains as a planner sees them: off by a normal error in dB.

        Parameters
        ----------
        edge_round : int
            As in `gains`.

        Returns
        -------
        np.ndarray
            ``(U,)``: linear power gains; the true ones where `planning_error_db` is 0.

        Raises
        ------
        ValueError
            If `edge_round` is negative.
        """
        _check_round(edge_round)
        rng = self._stream(b"planning error", edge_round)
        error_db = self.planning_error_db * rng.standard_normal(len(self.devices))
        return self.gains(edge_round) * 10 ** (error_db / 10)

    def dependable_gains(self, edge_round: int, late_share: float) -> np.ndarray:
        """Return the gains that the true ones fall short of with a given probability, for a planner's eyes.

        Parameters
        ----------
        edge_round : int
            As in `gains`.
        late_share : float
            The probability, above 0 and below 1: see `espalier.sim.gain_quantile.gain_quantile`.

        Returns
        -------
        np.ndarray
            ``(U,)``: linear power gains; the true ones where `planning_error_db` is 0.

        Raises
        ------
        ValueError
            If a value is not allowed.
        """
        return gain_quantile(
            self.observed_gains(edge_round),
            self.cells_in(edge_round).distance_metres,
            self.radio,
            error_db=self.planning_error_db,
            share=late_share,
        )

    def _stream(self, purpose: bytes, edge_round: int, *links: int) -> np.random.Generator:
        """Return the generator of one purpose in one round, independent of all others."""
        return np.random.default_rng(np.random.SeedSequence(self.seed, spawn_key=(*purpose, edge_round, *links)))


def make_world(
    clients_per_cell: Sequence[int],
    seed: int,
    *,
    radius_metres: float = 400.0,
    min_distance_metres: float = 10.0,
    redraw: bool = True,
    planning_error_db: float = 0.0,
    metres_per_step: float = 0.0,
    rounds_per_step: int = 1,
    **parameters: Any,
) -> World:
    """Draw a world; positions, devices, channel and planning error follow the seed independently of each other.

    Parameters
    ----------
    clients_per_cell : Sequence[int]
        Number of clients of each cell, at least 1.
    seed : int
        The only source of chance. Not negative.
    radius_metres, min_distance_metres : float (default: 400 and 10)
        See `espalier.sim.cells.draw_cells`.
    redraw : bool (default: True)
        See `World`.
    planning_error_db : float (default: 0)
        See `World`.
    metres_per_step, rounds_per_step : float and int (default: 0 and 1)
        See `World`; with 0 metres clients stay where they are, else each walks in a direction that is drawn.
    **parameters : Any
        Parameters of `espalier.sim.radio.Radio` and ranges of `espalier.sim.devices.draw_devices`, by their names.

    Raises
    ------
    ValueError
        If a value is not allowed.
    TypeError
        If there is no parameter of that name.
    """
    radio = {field.name: parameters.pop(field.name) for field in fields(Radio) if field.name in parameters}
    cells = draw_cells(clients_per_cell, seed, radius_metres=radius_metres, min_distance_metres=min_distance_metres)
    devices = draw_devices(len(cells.cell), seed, **parameters)
    walk = draw_walk(cells, seed) if metres_per_step else None
    return World(
        cells, Radio(**radio), devices, seed, redraw, planning_error_db, walk, metres_per_step, rounds_per_step
    )


@dataclass(frozen=True, eq=False)
class Realised:
    """What became of the clients' plans in an edge round, one array ``(U,)`` per quantity.

    Parameters
    ----------
    compute_seconds, upload_seconds : np.ndarray
        Time spent; a late client stops at the deadline.
    compute_joules, upload_joules : np.ndarray
        Energy spent in that time.
    finish_seconds : np.ndarray
        When the upload would be complete without a deadline, from the start of the edge round; infinite if never.
    late : np.ndarray
        ``bool``: not complete at the deadline, so it does not arrive.
    """

    compute_seconds: np.ndarray
    upload_seconds: np.ndarray
    compute_joules: np.ndarray
    upload_joules: np.ndarray
    finish_seconds: np.ndarray
    late: np.ndarray


def realise(
    *,
    cycles: ArrayLike,
    upload_bits: ArrayLike,
    frequency_hz: ArrayLike,
    power_watts: ArrayLike,
    gains: ArrayLike,
    capacitance: ArrayLike,
    deadline_seconds: float,
    bandwidth_hz: float,
    noise_watts: float,
    idle_seconds: ArrayLike = 0.0,
) -> Realised:
    """Return the time and energy that plans really take: computing, then idling, then uploading, until the deadline.

    A late client has spent the energy of what it did before the deadline `T`: it transmits for
    ``max(0, T - compute - idle)`` seconds, and where computing alone passes the deadline, it has done the part
    ``T / compute`` of its cycles and transmitted nothing.

    Parameters
    ----------
    cycles : ArrayLike
        ``(U,)``, as all of the following, or one number for all: CPU cycles to compute.
    upload_bits : ArrayLike
        Bits to upload; with 0 nothing is transmitted.
    frequency_hz : ArrayLike
        CPU frequencies; at 0 Hz cycles are never done.
    power_watts : ArrayLike
        Transmit powers; at 0 W bits never arrive and cost nothing.
    gains : ArrayLike
        True linear power gains of this edge round, positive.
    capacitance : ArrayLike
        See `Devices`.
    deadline_seconds : float
        Positive; infinite for none. Meant with a relative tolerance of 1e-9.
    bandwidth_hz, noise_watts : float
        Of a link; positive.
    idle_seconds : ArrayLike (default: 0)
        Waiting between computing and uploading, which costs no energy.

    Raises
    ------
    ValueError
        If a value is not allowed, or a client would never finish and there is no deadline.
    """
    at_least_0 = {
        "cycles": cycles,
        "upload_bits": upload_bits,
        "frequency_hz": frequency_hz,
        "power_watts": power_watts,
        "capacitance": capacitance,
        "idle_seconds": idle_seconds,
    }
    above_0 = {"gains": gains, "bandwidth_hz": bandwidth_hz, "noise_watts": noise_watts}
    for name, values in (at_least_0 | above_0).items():
        values = np.asarray(values)
        allowed = (values > 0 if name in above_0 else values >= 0) & (values < np.inf)
        if not allowed.all():
            bound = "> 0" if name in above_0 else ">= 0"
            raise ValueError(f"{name} = {values[~allowed].flat[0]}: must be a finite number {bound}")
    if not deadline_seconds > 0:
        raise ValueError(f"deadline_seconds = {deadline_seconds}: must be a number > 0")

    compute = compute_seconds(cycles, frequency_hz)
    upload = upload_seconds(upload_bits, power_watts, gains, bandwidth_hz=bandwidth_hz, noise_watts=noise_watts)
    compute, idle, upload = np.broadcast_arrays(compute, idle_seconds, upload)
    finish = compute + idle + upload
    if deadline_seconds == np.inf == finish.max(initial=0.0):
        raise ValueError("deadline_seconds = inf: must be finite where a client has no frequency or no power")
    late = finish > deadline_seconds * (1 + DEADLINE_TOLERANCE)
    computing = np.where(late, np.minimum(compute, deadline_seconds), compute)
    uploading = np.where(late, np.maximum(deadline_seconds - compute - idle, 0.0), upload)
    cycles_done = np.where(computing < compute, np.multiply(frequency_hz, computing), cycles)
    return Realised(
        compute_seconds=computing,
        upload_seconds=uploading,
        compute_joules=compute_joules(cycles_done, frequency_hz, capacitance),
        upload_joules=upload_joules(power_watts, uploading),
        finish_seconds=finish,
        late=late,
    )


def _check_round(edge_round: int) -> None:
    if edge_round < 0:
        raise ValueError(f"edge_round = {edge_round}: must be an integer >= 0")
