"""What the clients' devices are capable of, and what computing costs them."""

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import ArrayLike

from espalier.sim.radio import watts_from_dbm


@dataclass(frozen=True, eq=False)
class Devices:
    """Profiles of `U` devices, one array ``(U,)`` of positive numbers per quantity.

    Parameters
    ----------
    cycles_per_bit : np.ndarray
        CPU cycles it takes to train on one bit of data, ``c_u``.
    max_frequency_hz : np.ndarray
        Highest CPU frequency.
    max_power_watts : np.ndarray
        Highest transmit power.
    energy_budget_joules : np.ndarray
        What the device may spend in an edge round, ``e_bd``.
    capacitance : np.ndarray
        Twice the effective capacitance of the CPU in J s^2, ``zeta``: a cycle costs ``zeta / 2 * f^2`` joules.

    Raises
    ------
    ValueError
        If the arrays differ in length, or a value is not finite and positive.
    """

    cycles_per_bit: np.ndarray
    max_frequency_hz: np.ndarray
    max_power_watts: np.ndarray
    energy_budget_joules: np.ndarray
    capacitance: np.ndarray

    def __post_init__(self) -> None:
        shape = (len(self),)
        for field in fields(self):
            values = getattr(self, field.name)
            if values.shape != shape:
                raise ValueError(f"{field.name} has shape {values.shape}: must be {shape}, as cycles_per_bit has")
            if (bad := values[~((values > 0) & (values < np.inf))]).size:
                raise ValueError(f"{field.name} = {bad[0]}: must be a finite number > 0")

    def __len__(self) -> int:
        return len(self.cycles_per_bit)


def draw_devices(
    num: int,
    seed: int,
    *,
    cycles_per_bit: tuple[float, float] = (25.0, 40.0),
    max_frequency_hz: tuple[float, float] = (1.2e9, 2.0e9),
    max_power_dbm: tuple[float, float] = (20.0, 30.0),
    energy_budget_joules: tuple[float, float] = (0.8, 1.5),
    capacitance: float = 2e-28,
) -> Devices:
    """Draw device profiles uniformly from ranges; the defaults are the RawHFL paper's (Section V).

    A device's draws depend neither on how many devices there are nor on the ranges: another range rescales its own
    quantity only.

    Parameters
    ----------
    num : int
        Number of devices, at least 1.
    seed : int
        The only source of chance. Not negative.
    cycles_per_bit : tuple[float, float] (default: (25, 40))
        Lowest and highest CPU cycles per bit.
    max_frequency_hz : tuple[float, float] (default: (1.2e9, 2e9))
        Lowest and highest maximum CPU frequency.
    max_power_dbm : tuple[float, float] (default: (20, 30))
        Lowest and highest maximum transmit power; uniform in dBm, not in watts.
    energy_budget_joules : tuple[float, float] (default: (0.8, 1.5))
        Lowest and highest energy budget of an edge round.
    capacitance : float (default: 2e-28)
        The same for all devices, see `Devices`.

    Raises
    ------
    ValueError
        If a value is not allowed.
    """
    if num < 1:
        raise ValueError(f"num = {num}: must be an integer >= 1")
    if seed < 0:
        raise ValueError(f"seed = {seed}: must be an integer >= 0")
    ranges = {
        "cycles_per_bit": cycles_per_bit,
        "max_frequency_hz": max_frequency_hz,
        "max_power_dbm": max_power_dbm,
        "energy_budget_joules": energy_budget_joules,
    }
    for name, (low, high) in ranges.items():
        lowest = -np.inf if name == "max_power_dbm" else 0
        if not lowest < low <= high < np.inf:
            raise ValueError(f"{name} = ({low}, {high}): must be (low, high) with {lowest} < low <= high, finite")
    rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=tuple(b"devices")))
    drawn = {
        name: low + share * (high - low)
        for (name, (low, high)), share in zip(ranges.items(), rng.random((num, len(ranges))).T, strict=True)
    }
    return Devices(
        cycles_per_bit=drawn["cycles_per_bit"],
        max_frequency_hz=drawn["max_frequency_hz"],
        max_power_watts=watts_from_dbm(drawn["max_power_dbm"]),
        energy_budget_joules=drawn["energy_budget_joules"],
        capacitance=np.full(num, float(capacitance)),
    )


def compute_seconds(cycles: ArrayLike, frequency_hz: ArrayLike) -> np.ndarray:
    """Return the time of computing (RawHFL paper, eq. 10): 0 for no cycles, infinite for cycles at 0 Hz."""
    cycles, frequency = np.broadcast_arrays(np.asarray(cycles, dtype=float), np.asarray(frequency_hz, dtype=float))
    return np.divide(cycles, frequency, out=np.where(cycles > 0, np.inf, 0.0), where=frequency > 0)


def compute_joules(cycles: ArrayLike, frequency_hz: ArrayLike, capacitance: ArrayLike) -> np.ndarray:
    """Return the energy of computing: ``capacitance / 2 * cycles * frequency^2`` (RawHFL paper, eq. 11)."""
    return np.multiply(capacitance, cycles) / 2 * np.square(frequency_hz)
