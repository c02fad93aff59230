"""Successive convex approximation: the paper's Algorithm 2, with what it takes to converge."""

from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

import numpy as np

from .operating_point import ENOUGH, OperatingPoint
from .plan import Plan, make_plan
from .problem import Problem
from .selection import choose, why_not
from .single_client import USED, eligibility, least_energy, value_in_budget, value_of

# Near enough to a client's best point for the selection.
SMALL_MOVE = 0.1
# Converged: moves below this factor change a value by its square, and x by less than shows.
SMALLEST_MOVE = 1e-3
SMALLEST_CHANGE = 1e-6
# Below this share of a selection, the number of rounds that the program means is noise.
LEAST_SHARE = 1e-6
# Linear programs that are kept, one for each layout of clients in cells; clients that come and go make new ones.
MOST_PROGRAMS = 64
ABOVE_ONE, MOST = float(np.nextafter(1, 2)), 10**9  # of parameters


class SCA:
    """Solve a problem by a sequence of linear programs (RawHFL, Algorithm 2).

    The paper relaxes the selection to ``0 <= x <= 1`` with a penalty on what is neither 0 nor 1, replaces products of
    variables by one, ``Lb = x L``, and linearises what is not convex around the last solution (eq. 36 to 40); L itself
    can then be eliminated. As printed it runs to zero frequency, where the tangents to the times are far too low. Here

    - the variables move by a limited factor in each iteration;
    - after it each client's times are scaled to fill the deadline, and frequency and power follow from them;
    - a client goes to its new point only if this lowers its true cost within its true limits; otherwise its factor
      shrinks;
    - all start with equal x, half of the time for computing, and as many rounds as the limits then allow;
    - x stays equal until all factors are small, and only when it has been free once does the penalty set in: it fixes
      the selection as soon as x differ, so the clients must have come near their best points by then.

    At the end the local rounds are rounded, each client's time is shared anew for them, with the least energy, its
    limits are checked once more, and the clients with the largest x are selected. A cell in which fewer than Z can take
    part gets all who can, and the plan names it. Whether all had settled by then is in `Plan.converged`: after
    `max_iterations`, or with numerical trouble, the plan keeps all limits too, but may be further from the optimum.

    A solver: call it with a `Problem` to get a `Plan`. It keeps a compiled program for each number of clients and their
    cells, so use one instance for all rounds. Needs CVXPY with HiGHS.

    Parameters
    ----------
    max_iterations : int (default: 50)
        Most linear programs to solve, I.
    rho : float (default: 1.0)
        Weight of the penalty.
    move_factor : float (default: 3.0)
        Largest factor by which local rounds, frequency and power change in an iteration; above 1.

    Raises
    ------
    ValueError
        If an argument is not allowed; when called, if the problem has options, or payload or idle time per local
        round.
    """

    def __init__(self, *, max_iterations: int = 50, rho: float = 1.0, move_factor: float = 3.0) -> None:
        for name, value, kind, least, allowed in (
            ("max_iterations", max_iterations, Integral, 1, "an integer from 1"),
            ("rho", rho, Real, 0, "a number from 0"),
            ("move_factor", move_factor, Real, ABOVE_ONE, "a number above 1"),
        ):
            if isinstance(value, bool) or not isinstance(value, kind) or not least <= value <= MOST:
                raise ValueError(f"{name} = {value!r}: allowed is {allowed} to {MOST:g}")
        self.max_iterations = max_iterations
        self.rho = rho
        self.move_factor = move_factor
        self.iterations = 0
        self.converged = True
        self._programs: dict[bytes, _Program] = {}

    def state_dict(self) -> dict[str, Any]:
        """Return what must survive an interruption: nothing, plans do not depend on those before."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what `state_dict` returned."""

    def __call__(self, problem: Problem) -> Plan:
        """Return the plan for a problem.

        `iterations` then holds the number of linear programs solved for it, and `converged` whether they were enough.
        """
        for name, value, allowed in (
            ("options", problem.options, 1),
            ("payload_bits_per_local_round", problem.payload_bits_per_local_round.max(), 0),
            ("idle_seconds_per_local_round", problem.idle_seconds_per_local_round.max(), 0),
        ):
            if value != allowed:
                raise ValueError(f"{name} = {value}: allowed for the solver sca is {allowed}")
        eligible, limit = eligibility(problem)
        who = np.flatnonzero(eligible)
        x, points = self._relaxed(problem, who)
        rounds, point, reached = _rounded(problem, who, points.local_rounds)

        def filled(values: np.ndarray) -> np.ndarray:
            whole = np.zeros(problem.clients)
            whole[who] = values
            return whole

        value = filled(reached) - problem.worth
        # To six digits: of clients selected to the same degree, the better one.
        selected, skipped = choose(problem, eligible & np.isfinite(value), -np.round(filled(x), 6), value)
        return make_plan(
            problem,
            selected=selected,
            local_rounds=filled(rounds).astype(np.int64),
            frequency_hz=filled(point.frequency_hz),
            power_watts=filled(point.power_watts),
            eligible=eligible,
            reason=why_not(eligible, limit, skipped),
            converged=self.converged,
        )

    def _relaxed(self, problem: Problem, who: np.ndarray) -> "tuple[np.ndarray, _Points]":
        """Return x and the points of the clients `who` after convergence, or as far as it came."""
        clients = _Clients.of(problem, who)
        points = _start(problem, clients, who)
        x, again, seats, overlap = _equal_shares(problem, who)
        program = self._program(problem)
        factor = np.full(who.size, self.move_factor)
        self.iterations, self.converged, held, penalty = 0, not who.size, True, 0.0
        while self.iterations < self.max_iterations and not self.converged:
            self.iterations += 1
            if not held:
                penalty = self.rho * seats.size * problem.clients_per_cell
            held = held and np.log(factor).max() > SMALL_MOVE
            values = {
                "again": again,
                **_linearised(clients, points, x, penalty),
                **_bounds(clients, points, factor),
                "lowest_x": x if held else 0 * x,
                "highest_x": x if held else 0 * x + 1,
            }
            solution = program.solve(who, values, seats, overlap)
            if solution is None:  # Numerical trouble: the points so far are good.
                break
            new, live = clients.moved(points, solution), x > LEAST_SHARE
            better = live & (new.value < points.value)
            points = points.replaced(new, better)
            factor = np.where(live & ~better, np.sqrt(factor), factor)
            change, x = np.abs(solution[0] - x).max(), solution[0]
            settled = change < SMALLEST_CHANGE and np.log(factor[live]).max(initial=0.0) < SMALLEST_MOVE
            self.converged = not held and bool(settled)
        return x, points

    def _program(self, problem: Problem) -> "_Program":
        index = np.unique(problem.cell, return_inverse=True)[1]
        key = index.tobytes()
        if key not in self._programs:
            if len(self._programs) == MOST_PROGRAMS:
                del self._programs[next(iter(self._programs))]
            self._programs[key] = _Program(index)
        return self._programs[key]


@dataclass(frozen=True, eq=False)
class _Points:
    """Where each client stands; `value` is infinite where this breaks a limit."""

    local_rounds: np.ndarray
    compute_seconds: np.ndarray
    upload_seconds: np.ndarray
    frequency_hz: np.ndarray
    power_watts: np.ndarray
    compute_joules: np.ndarray
    upload_joules: np.ndarray
    value: np.ndarray

    @property
    def compute_share(self) -> np.ndarray:
        """Computing's share of the time."""
        return self.compute_seconds / (self.compute_seconds + self.upload_seconds)

    def replaced(self, new: "_Points", where: np.ndarray) -> "_Points":
        """Return these points, but `new` ones for some clients."""
        return _Points(*(np.where(where, b, a) for a, b in zip(vars(self).values(), vars(new).values(), strict=True)))


@dataclass(frozen=True, eq=False)
class _Clients:
    """The eligible clients' constants: `nats_seconds` is ``s ln2 / w``, `snr_per_watt` is ``g / N``."""

    problem: Problem
    cycles: np.ndarray
    nats_seconds: np.ndarray
    snr_per_watt: np.ndarray
    seconds: np.ndarray
    least_upload_seconds: np.ndarray
    min_frequency_hz: np.ndarray
    max_frequency_hz: np.ndarray
    max_power_watts: np.ndarray
    budget_joules: np.ndarray
    worth: np.ndarray

    @classmethod
    def of(cls, problem: Problem, who: np.ndarray) -> "_Clients":
        nats_seconds = problem.payload_bits[who, 0] * np.log(2) / problem.bandwidth_hz
        snr_per_watt = problem.gain[who] / problem.noise_watts
        return cls(
            problem=problem,
            cycles=problem.cycles_per_local_round[who, 0],
            nats_seconds=nats_seconds,
            snr_per_watt=snr_per_watt,
            seconds=problem.deadline_seconds * USED - problem.idle_seconds[who, 0],
            least_upload_seconds=nats_seconds / np.log1p(snr_per_watt * problem.max_power_watts[who]),
            min_frequency_hz=problem.min_frequency_hz[who],
            max_frequency_hz=problem.max_frequency_hz[who],
            max_power_watts=problem.max_power_watts[who],
            budget_joules=problem.energy_budget_joules[who],
            worth=problem.worth[who],
        )

    def points(self, local_rounds: np.ndarray, compute_share: np.ndarray) -> _Points:
        """Return the points that fill the deadline, `compute_share` of it with computing, or the nearest possible."""
        cycles = local_rounds * self.cycles
        longest = self.seconds - self.least_upload_seconds
        longest = np.minimum(longest, _over(cycles, self.min_frequency_hz))
        compute = np.maximum(np.minimum(self.seconds * compute_share, longest), cycles / self.max_frequency_hz)
        upload = np.maximum(self.seconds - compute, self.least_upload_seconds)
        frequency = np.minimum(cycles / compute, self.max_frequency_hz)
        power = np.minimum(np.expm1(self.nats_seconds / upload) / self.snr_per_watt, self.max_power_watts)
        compute_joules = self.problem.capacitance / 2 * cycles * frequency**2
        joules = compute_joules + power * upload
        in_limits = (compute + upload <= self.seconds * ENOUGH) & (joules <= self.budget_joules)
        value = value_of(self.problem, local_rounds, np.where(in_limits, joules, np.inf))
        return _Points(local_rounds, compute, upload, frequency, power, compute_joules, power * upload, value)

    def allowed(self, local_rounds: np.ndarray, compute_share: np.ndarray) -> _Points:
        """Return the points with `local_rounds`, or with as many as the limits allow at this share."""
        compute = np.minimum(self.seconds * compute_share, self.seconds - self.least_upload_seconds)
        upload = self.seconds - compute
        left = self.budget_joules * USED - np.expm1(self.nats_seconds / upload) / self.snr_per_watt * upload
        scaled = 2 * np.maximum(left, 0) / self.problem.capacitance
        cycles = np.minimum(np.cbrt(scaled * compute**2), self.max_frequency_hz * compute)
        cycles = np.minimum(cycles, _over(scaled, self.min_frequency_hz**2))
        most = np.clip(cycles / self.cycles, 1, self.problem.max_local_rounds)
        return self.points(np.clip(local_rounds, 1, most), compute_share)

    def moved(self, points: _Points, solution: np.ndarray) -> _Points:
        """Return the points that a program's solution means, its times scaled to fill the deadline."""
        share, rounds, frequency, power = solution
        local_rounds = points.local_rounds * np.where(share > LEAST_SHARE, rounds / np.maximum(share, LEAST_SHARE), 1)
        compute = local_rounds * self.cycles / (points.frequency_hz * frequency)
        upload = self.nats_seconds / np.log1p(self.snr_per_watt * points.power_watts * power)
        return self.allowed(local_rounds, compute / (compute + upload))


def _over(values: np.ndarray, limits: np.ndarray) -> np.ndarray:
    """Return the quotients, infinite where the limit is 0."""
    return np.divide(values, limits, out=np.full(values.shape, np.inf), where=limits > 0)


def _rounded(
    problem: Problem, who: np.ndarray, local_rounds: np.ndarray
) -> tuple[np.ndarray, OperatingPoint, np.ndarray]:
    """Return the better of the two nearest whole numbers of rounds, its best operating point, and the value of both.

    The value is infinite where both break a limit.
    """
    both = np.stack([np.floor(local_rounds), np.ceil(local_rounds)])
    points = least_energy(problem, who, np.array(0), both)
    values = value_in_budget(problem, who, both, points.joules)
    best = values.argmin(axis=0), np.arange(who.size)
    return both[best], OperatingPoint(*(each[best] for each in vars(points).values())), values[best]


def _start(problem: Problem, clients: _Clients, who: np.ndarray) -> _Points:
    """Return points with half of the time for computing, and as many rounds as the limits then allow.

    Where even one round is too many for that, the time is shared as one round with the least energy has it.
    """
    one = np.ones(who.size)
    half = clients.points(one, one / 2)
    least = least_energy(problem, who, np.array(0), np.array(1))
    share = least.compute_seconds / (least.compute_seconds + least.upload_seconds)
    share = np.where(np.isfinite(half.value), half.compute_share, share)
    return clients.allowed(one * problem.max_local_rounds, share)


def _equal_shares(problem: Problem, who: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return x of the clients `who`, equal as far as the overlap allows.

    Also which of them count for the overlap, and each cell's seats and largest overlap.
    """
    cells, index = np.unique(problem.cell, return_inverse=True)
    eligible = np.zeros(problem.clients, dtype=bool)
    eligible[who] = True
    taken = choose(problem, eligible)[0]
    seats = np.bincount(index, taken, cells.size)
    if problem.previous is None or problem.max_overlap is None:
        again, most = np.zeros(who.size, dtype=bool), problem.clients_per_cell
    else:
        again, most = problem.previous[who], problem.max_overlap
    overlap = np.full(cells.size, float(most))
    index = index[who]
    of_again, of_new = (np.maximum(np.bincount(index, part, cells.size), 1e-9) for part in (again, ~again))
    share_again = np.minimum(seats / (of_again + of_new), overlap / of_again)
    share_new = (seats - share_again * of_again) / of_new
    return np.where(again, share_again[index], share_new[index]).clip(0, 1), again, seats, overlap


def _linearised(clients: _Clients, points: _Points, x: np.ndarray, penalty: float) -> dict[str, np.ndarray]:
    """Return the rows of the program: coefficients of x, Lb/L_i, f/f_i and P/P_i, and right-hand sides (eq. 36 to 39).

    In these variables e_cp is ``E (Lb + 2 x_i (f - 1))`` with E its value at the point, and so on. The time row is
    divided by the deadline, the energy row by the budget, and the objective by the weights that all clients share.
    """
    snr = clients.snr_per_watt * points.power_watts
    slope = snr / (1 + snr) / np.log1p(snr)
    theta = clients.problem.theta
    computing, uploading = points.compute_seconds / clients.seconds, points.upload_seconds / clients.seconds
    compute_joules, upload_joules = points.compute_joules, points.upload_joules
    budget = clients.budget_joules
    energy = np.stack([upload_joules, compute_joules, 2 * x * compute_joules, x * (1 - slope) * upload_joules])
    cost = (1 - theta) * energy
    cost[0] += penalty * (1 - 2 * x) - clients.worth
    cost[1] -= theta * points.local_rounds
    time = np.stack([uploading - 1, computing, -x * computing, -x * slope * uploading])
    return {
        "cost": cost,
        "time": time,
        "time_limit": time[2] + time[3],
        "energy": energy / budget - [[1], [0], [0], [0]],
        "energy_limit": (energy[2] + energy[3]) / budget,
    }


def _bounds(clients: _Clients, points: _Points, factor: np.ndarray) -> dict[str, np.ndarray]:
    """Return how far the clients may move: bounds of f/f_i and P/P_i, and of Lb/L_i where x = 1."""
    frequencies = clients.min_frequency_hz / points.frequency_hz, clients.max_frequency_hz / points.frequency_hz
    powers = clients.max_power_watts / points.power_watts
    most = clients.problem.max_local_rounds / points.local_rounds
    return {
        "low": np.stack([np.clip(frequencies[0], 1 / factor, 1), 1 / factor]),
        "high": np.stack([np.clip(frequencies[1], 1, factor), np.clip(powers, 1, factor)]),
        "rounds_low": np.maximum(1 / points.local_rounds, 1 / factor),
        "rounds_high": np.minimum(most, factor),
    }


class _Program:
    """The linear program for clients in given cells, compiled once; all else are its parameters."""

    def __init__(self, index: np.ndarray) -> None:
        # Here and not above: it takes a second, and only this solver needs it.
        import cvxpy as cp
        from scipy.sparse import csr_array

        clients, cells = index.size, int(index.max()) + 1
        # Sparse: cells times clients would be gigabytes for many.
        inside = csr_array((np.ones(clients), (index, np.arange(clients))), shape=(cells, clients))
        rows = {"cost": 4, "time": 4, "energy": 4, "low": 2, "high": 2}
        single = ["time_limit", "energy_limit", "lowest_x", "highest_x", "rounds_low", "rounds_high", "again"]
        shapes = {name: (count, clients) for name, count in rows.items()} | dict.fromkeys(single, clients)
        self._parameters = {name: cp.Parameter(shape) for name, shape in shapes.items()}
        self._seats, self._overlap = cp.Parameter(cells), cp.Parameter(cells)
        self._variables = v = cp.Variable((4, clients))
        p = self._parameters
        x, rounds = v[0], v[1]
        self._program = cp.Problem(
            cp.Minimize(cp.sum(cp.multiply(p["cost"], v))),
            [
                cp.sum(cp.multiply(p["time"], v), axis=0) <= p["time_limit"],
                cp.sum(cp.multiply(p["energy"], v), axis=0) <= p["energy_limit"],
                x >= p["lowest_x"],
                x <= p["highest_x"],
                v[2:] >= p["low"],
                v[2:] <= p["high"],
                rounds >= cp.multiply(p["rounds_low"], x),
                rounds <= cp.multiply(p["rounds_high"], x),
                inside @ x == self._seats,
                inside @ cp.multiply(p["again"], x) <= self._overlap,
            ],
        )
        self._solver = cp.HIGHS
        # CVXPY raises a ValueError where the solver ends with an unknown status.
        self._failures = (cp.SolverError, ValueError)

    def solve(
        self, who: np.ndarray, values: dict[str, np.ndarray], seats: np.ndarray, overlap: np.ndarray
    ) -> np.ndarray | None:
        """Return x, Lb/L_i, f/f_i and P/P_i of the clients `who`, shape ``(4, len(who))``; None if the solver fails."""
        for name, parameter in self._parameters.items():
            # All that stays 0 for the others binds their variables to 0.
            whole = np.zeros(parameter.shape)
            whole[..., who] = values[name]
            parameter.value = whole
        self._seats.value, self._overlap.value = seats, overlap
        # The points so far are a solution. Where HiGHS' presolve finds none, for rounding, it is left out.
        if not (self._is_solved() or self._is_solved(highs_options={"presolve": "off"})):
            return None
        assert self._variables.value is not None
        solution = self._variables.value[:, who]
        x = solution[:1]
        # The solver's tolerance would else become tiny coefficients of the next program.
        x = np.where(x < LEAST_SHARE, 0.0, np.where(x > 1 - LEAST_SHARE, 1.0, x))
        return np.vstack([x, solution[1:]])

    def _is_solved(self, **options: Any) -> bool:
        try:
            # From a cold start: a plan must not depend on the problems before.
            self._program.solve(solver=self._solver, warm_start=False, **options)
        except self._failures:
            return False
        return self._program.status == "optimal" and self._variables.value is not None
