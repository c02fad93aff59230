"""The problem of one edge round: which clients of every cell train, and how hard (RawHFL, eq. 28 and 29)."""

from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from .standing import Standing, nothing_known

PER_CLIENT = ("gain", "max_frequency_hz", "min_frequency_hz", "max_power_watts", "energy_budget_joules", "worth")
PER_OPTION = (
    "cycles_per_local_round",
    "payload_bits",
    "payload_bits_per_local_round",
    "idle_seconds",
    "idle_seconds_per_local_round",
)
MAY_BE_ZERO = ("min_frequency_hz", *PER_OPTION[2:])
MAY_BE_NEGATIVE = ("worth",)
MAY_BE_INFINITE = ("energy_budget_joules", "cycles_per_local_round")
SCALARS = ("deadline_seconds", "bandwidth_hz", "noise_watts", "capacitance")
MOST_ROUNDS = 10**9
LONGEST_SHOWN = 60


def _bad(name: str, value: object, allowed: str) -> ValueError:
    shown = " ".join(str(value).split())
    if len(shown) > LONGEST_SHOWN:
        shown = shown[: LONGEST_SHOWN - 3] + "..."
    return ValueError(f"{name} = {shown}: allowed is {allowed}")


def _numbers(name: str, value: object) -> np.ndarray:
    try:
        return np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        raise _bad(name, value, "numbers") from None


def _array(value: object) -> np.ndarray:
    """Return a copy as an array; lists of different lengths, which no array holds, are not a number."""
    try:
        return np.array(value)
    except ValueError:
        return np.array(np.nan)


@dataclass(frozen=True, eq=False, kw_only=True)
class Problem:
    """Channels, limits and costs of the U clients of all cells in one edge round.

    Per-client values are arrays of shape ``(U,)``; a single number stands for U equal ones. In split training a client
    may have K *options* to choose from, one per cut layer: what depends on the cut then has the shape ``(U, K)``, or
    ``(1, K)`` if all clients have the same. After construction all arrays are read-only float64 and those that depend
    on the option have the shape ``(U, K)``, K = 1 if there are no options.

    Attributes
    ----------
    gain : np.ndarray
        Channel power gain to the base station, linear. Its length is U.
    max_frequency_hz : np.ndarray
        Highest CPU frequency.
    max_power_watts : np.ndarray
        Highest transmit power.
    energy_budget_joules : np.ndarray
        Most energy to spend in the round; infinite is no limit.
    cycles_per_local_round : np.ndarray
        CPU cycles of one local round, W_u. May depend on the option; infinite where a client lacks the option.
    payload_bits : np.ndarray
        What is uploaded once a round. May depend on the option.
    clients_per_cell : int
        Clients to select in each cell, Z.
    deadline_seconds : float
        Time for computing, uploading and idling, t_th.
    max_local_rounds : int
        Most local rounds, L.
    bandwidth_hz : float
        Bandwidth of a client's resource block.
    noise_watts : float
        Noise power in this bandwidth.
    capacitance : float
        zeta: computing takes ``capacitance / 2 * frequency_hz**2`` joules a cycle.
    theta : float
        Weight of local rounds against energy, from 0 (only energy counts) to 1 (only rounds count; ties are broken by
        energy).
    cell : np.ndarray (default: 0)
        Index of the client's cell, integers of shape ``(U,)``.
    previous : np.ndarray, optional (default: None)
        Whether the client was selected in its cell's previous round, booleans. None is the first round: no limit on the
        overlap.
    max_overlap : int, optional (default: None)
        Clients of a cell's previous round that may be selected again, Psi. None is no limit.
    min_frequency_hz : np.ndarray (default: 0.0)
        Lowest CPU frequency.
    payload_bits_per_local_round : np.ndarray (default: 0.0)
        What is uploaded in every local round on top, such as activations. May depend on the option.
    idle_seconds : np.ndarray (default: 0.0)
        Time of the deadline in which a client neither computes nor uploads. May depend on the option.
    idle_seconds_per_local_round : np.ndarray (default: 0.0)
        The same, for every local round. May depend on the option.
    worth : np.ndarray (default: 0.0)
        What it is worth to select the client, whatever it then does, of either sign: is taken off its part of the
        objective.
    seed : int (default: 0)
        What a solver that draws at random follows: hand in another one in every round.
    standing : Standing, optional (default: None)
        What earlier rounds have shown of the clients, for solvers that learn; None: nothing is known.

    Raises
    ------
    ValueError
        If a value is not allowed or an array does not have one entry per client; one line that names the value.
    """

    gain: np.ndarray
    max_frequency_hz: np.ndarray
    max_power_watts: np.ndarray
    energy_budget_joules: np.ndarray
    cycles_per_local_round: np.ndarray
    payload_bits: np.ndarray
    clients_per_cell: int
    deadline_seconds: float
    max_local_rounds: int
    bandwidth_hz: float
    noise_watts: float
    capacitance: float
    theta: float
    cell: np.ndarray = 0  # type: ignore[assignment]
    previous: np.ndarray | None = None
    max_overlap: int | None = None
    min_frequency_hz: np.ndarray = 0.0  # type: ignore[assignment]
    payload_bits_per_local_round: np.ndarray = 0.0  # type: ignore[assignment]
    idle_seconds: np.ndarray = 0.0  # type: ignore[assignment]
    idle_seconds_per_local_round: np.ndarray = 0.0  # type: ignore[assignment]
    worth: np.ndarray = 0.0  # type: ignore[assignment]
    seed: int = 0
    standing: Standing | None = None

    def __post_init__(self) -> None:
        given = {name: _numbers(name, getattr(self, name)) for name in (*PER_CLIENT, *PER_OPTION)}
        clients = given["gain"].size
        if given["gain"].ndim != 1 or clients == 0:
            raise _bad("shape of gain", given["gain"].shape, "(U,), one number per client, U at least 1")
        for name in PER_CLIENT:
            self._set_array(name, given[name], (clients,))
        widths = {given[name].shape[1] for name in PER_OPTION if given[name].ndim == 2}
        if len(widths - {1}) > 1:
            raise _bad("number of options", sorted(widths), f"the same for all of {', '.join(PER_OPTION)}")
        for name in PER_OPTION:
            self._set_array(name, given[name], (clients, max(widths, default=1)))
        for name in SCALARS:
            self._check_number(name, low=0, inclusive=False)
        self._check_number("theta", low=0, high=1)
        for client in np.flatnonzero(self.min_frequency_hz > self.max_frequency_hz):
            allowed = f"a number from 0 to {self.max_frequency_hz[client]:g}, its highest frequency"
            raise _bad(f"min_frequency_hz[{client}]", self.min_frequency_hz[client], allowed)
        self._check_integer("clients_per_cell", low=1)
        self._check_integer("max_local_rounds", low=1, high=MOST_ROUNDS)
        self._check_integer("seed", low=0)
        self._set_cells()
        if self.standing is not None and self.standing.clients.shape != (clients,):
            raise _bad("standing.clients", self.standing.clients, f"{clients} numbers, one per client")

    @property
    def clients(self) -> int:
        """Number of clients, U."""
        return self.gain.size

    @property
    def options(self) -> int:
        """Number of options of a client, K; 1 if there is nothing to choose."""
        return self.payload_bits.shape[1]

    @property
    def known(self) -> Standing:
        """What earlier rounds have shown of the clients; that of clients before their first one where none is given."""
        return self.standing or nothing_known(self.clients)

    def _set_array(self, name: str, given: np.ndarray, shape: tuple[int, ...]) -> None:
        # A value per client stands in front of the options, not at their place.
        lined_up = given[:, np.newaxis] if given.ndim == 1 < len(shape) else given
        try:
            array = np.array(np.broadcast_to(lined_up, shape))
        except ValueError:
            allowed = f"a number or {shape[:1]}" if len(shape) == 1 else f"a number, {shape[:1]} or {shape}"
            raise _bad(f"shape of {name}", given.shape, allowed) from None
        good = (array >= 0 if name in MAY_BE_ZERO else array > 0) | (name in MAY_BE_NEGATIVE)
        good &= np.isfinite(array) | ((name in MAY_BE_INFINITE) & ~np.isnan(array))
        if not good.all():
            at = tuple(int(i) for i in np.argwhere(~good)[0])
            where = ", ".join(map(str, at[: 1 if len(shape) == 2 and shape[1] == 1 else None]))
            bound = " of 0 or more" if name in MAY_BE_ZERO else "" if name in MAY_BE_NEGATIVE else " above 0"
            finite = "" if name in MAY_BE_INFINITE else "finite "
            raise _bad(f"{name}[{where}]", array[at], f"a {finite}number{bound}")
        array.flags.writeable = False
        object.__setattr__(self, name, array)

    def _check_number(self, name: str, *, low: float, high: float = np.inf, inclusive: bool = True) -> None:
        value, number = getattr(self, name), np.nan
        if isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool):
            with suppress(OverflowError):  # an integer of hundreds of digits
                number = float(value)
        if not (np.isfinite(number) and low <= number <= high) or (number == low and not inclusive):
            allowed = f"a number from {low:g} to {high:g}" if np.isfinite(high) else f"a finite number above {low:g}"
            raise _bad(name, value, allowed)
        object.__setattr__(self, name, number)

    def _check_integer(self, name: str, *, low: int, high: int | None = None, why: str = "") -> None:
        value = getattr(self, name)
        whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
        if not whole or value < low or (high is not None and value > high):
            allowed = f"an integer of {low} or more" if high is None else f"an integer from {low} to {high}"
            raise _bad(name, value, allowed + why)

    def _set_cells(self) -> None:
        cell = _array(self.cell)
        if cell.dtype.kind not in "iu" or cell.shape not in ((), (self.clients,)) or cell.min() < 0:
            raise _bad("cell", self.cell, f"{self.clients} indices of 0 or more, one per client")
        object.__setattr__(self, "cell", np.array(np.broadcast_to(cell, self.clients), dtype=np.int64))
        self.cell.flags.writeable = False
        if self.previous is not None:
            previous = _array(self.previous)
            if previous.dtype != np.bool_ or previous.shape != (self.clients,):
                raise _bad("previous", self.previous, f"None or {self.clients} booleans, one per client")
            previous.flags.writeable = False
            object.__setattr__(self, "previous", previous)
        cells, sizes = np.unique(self.cell, return_counts=True)
        smallest = int(sizes.min())
        if self.clients_per_cell > smallest:
            named = f"cell {cells[sizes.argmin()]} has {smallest} clients"
            raise _bad("clients_per_cell", self.clients_per_cell, f"an integer from 1 to {smallest}: {named}")
        if self.max_overlap is not None:
            # Of a previous round with more than Z no more count: the cell is short, as where others are not able.
            others = np.maximum(not_again(self.cell, self.previous), sizes - self.clients_per_cell)
            least = max(0, self.clients_per_cell - int(others.min()))
            named = f"cell {cells[others.argmin()]} has only {others.min()} clients who are not of its previous round"
            why = f": {named}, and {self.clients_per_cell} are selected" if least else ""
            self._check_integer("max_overlap", low=least, why=why)


def not_again(cell: np.ndarray, previous: np.ndarray | None) -> np.ndarray:
    """Return the number of clients of each cell, sorted, who were not in its previous round: all before the first."""
    again = np.zeros(cell.size, dtype=bool) if previous is None else previous
    cells, index = np.unique(cell, return_inverse=True)
    return np.bincount(index[~again], minlength=cells.size)
