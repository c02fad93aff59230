"""`sca` never beats the optimum, never breaks a limit, and comes close."""

import re
from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks.allocation import paper_problem
from benchmarks.sca_gaps import hard_problem
from espalier.strategies.allocation import SCA, exact, sca, violations
from espalier.strategies.allocation.sca import _Clients, _linearised
from espalier.strategies.allocation.single_client import eligibility, least_energy

# HiGHS' presolve calls a program of these infeasible that has a solution.
STOPPED_BY_PRESOLVE = [("deadlines of 0.5 to 1.5 s", 5), ("four of each client", 16), ("theta of 0.9 to 1", 5)]


@pytest.fixture(scope="module")
def solver() -> SCA:
    return SCA()


def gap(solver: SCA, **changes: object) -> float:
    """Return how far the solver's objective is above the optimum, relative to it."""
    problem = paper_problem(**changes)
    plan, optimum = solver(problem), exact(problem).objective
    assert violations(problem, plan) == []
    return (plan.objective - optimum) / abs(optimum)


def test_never_beats_exact_and_never_breaks_a_limit():
    # Few iterations are enough for a plan that keeps the limits.
    quick, feasible, gaps = SCA(max_iterations=6), 0, []
    for seed in range(80):
        rng = np.random.default_rng(seed)
        problem = paper_problem(
            seed=seed, cells=2, clients_in_cell=4, clients_per_cell=int(rng.integers(1, 4)),
            deadline_seconds=(1.0, 2.0, 5.0, 150.0)[seed % 4], min_frequency_hz=(0.0, 3e8)[seed // 4 % 2],
            theta=float(rng.choice([0.0, 0.01, 0.4, 1.0])), max_overlap=int(rng.integers(2, 4)),
            previous=rng.random(8) < 0.4, energy_budget_joules=rng.uniform(0.02, 1.0, 8),
        )  # fmt: skip
        optimum, plan = exact(problem), quick(problem)
        assert violations(problem, plan) == []
        assert (plan.seconds <= problem.deadline_seconds).all()
        assert plan.selected.sum() == optimum.selected.sum()
        assert optimum.objective <= plan.objective + 1e-12
        feasible += bool(optimum.selected.any())
        gaps.append(plan.objective - optimum.objective)
    assert feasible >= 72
    assert np.median(gaps) < 0.05


def test_it_selects_by_what_clients_are_worth(solver):
    worth = np.random.default_rng(7).permutation(48) / 8.0
    problem = paper_problem(seed=0, deadline_seconds=2.0, worth=worth)
    plan, optimum = solver(problem), exact(problem)
    assert violations(problem, plan) == []
    assert optimum.objective <= plan.objective <= optimum.objective + 1e-3 * abs(optimum.objective)
    assert worth[plan.selected].mean() > worth[exact(paper_problem(seed=0, deadline_seconds=2.0)).selected].mean() + 0.5


@pytest.mark.parametrize(
    ("changes", "largest"),
    [
        ({"deadline_seconds": 150.0}, 1e-9),
        ({"deadline_seconds": 5.0}, 1e-6),
        ({"deadline_seconds": 2.0}, 1e-3),
        ({"deadline_seconds": 1.0}, 1e-2),
        ({"deadline_seconds": 2.0, "theta": 0.0}, 1e-5),
        ({"deadline_seconds": 5.0, "theta": 0.0}, 1e-8),
        ({"deadline_seconds": 2.0, "theta": 1.0}, 1e-9),
        ({"deadline_seconds": 2.0, "energy_budget_joules": 0.02}, 1e-3),
        ({"deadline_seconds": 2.0, "previous": np.arange(48) % 2 == 0, "max_overlap": 1}, 1e-3),
        ({"min_frequency_hz": 5e8}, 1e-9),
        ({"idle_seconds": 148.0}, 1e-3),
    ],
)
def test_comes_close_to_the_optimum(solver, changes, largest):
    assert -1e-12 <= gap(solver, seed=8, **changes) <= largest
    assert 5 < solver.iterations <= 50


def test_who_is_selected_spends_the_least_energy_for_its_rounds(solver):
    for seed in range(6):
        problem = hard_problem("deadlines of 0.5 to 1.5 s", seed)
        plan = solver(problem)
        who = np.flatnonzero(plan.selected)
        least = least_energy(problem, who, np.array(0), plan.local_rounds[who])
        np.testing.assert_allclose(plan.joules[who], least.joules, rtol=1e-9)
        best = exact(problem)
        if np.array_equal(plan.local_rounds, best.local_rounds):
            assert plan.objective == pytest.approx(best.objective, rel=1e-9)


@pytest.mark.parametrize(("kind", "seed"), STOPPED_BY_PRESOLVE)
def test_programs_in_which_presolve_finds_no_solution_are_solved_without_it(solver, kind, seed):
    problem = hard_problem(kind, seed)
    assert solver(problem).converged
    assert solver.iterations < 50


def test_the_programs_rows_are_tangents_to_the_true_limits():
    for seed in range(5):
        rng = np.random.default_rng(seed)
        problem = paper_problem(seed=seed, deadline_seconds=rng.uniform(1.5, 10.0))
        who = np.flatnonzero(eligibility(problem)[0])
        clients, n = _Clients.of(problem, who), who.size
        points, x = clients.allowed(rng.uniform(1, 50, n), rng.uniform(0.2, 0.8, n)), rng.uniform(0.05, 1, n)
        rows = _linearised(clients, points, x, 0.0)

        def limits(at, clients=clients, points=points, problem=problem, who=who):
            """Equations 10 to 14 with the products of variables, less what they may be."""
            rounds, frequency, power = at[1:] * [points.local_rounds, points.frequency_hz, points.power_watts]
            rate = problem.bandwidth_hz * np.log2(1 + problem.gain[who] / problem.noise_watts * power)
            upload = at[0] * problem.payload_bits[who, 0] / rate
            cycles = problem.cycles_per_local_round[who, 0] * rounds
            joules = problem.capacitance / 2 * cycles * frequency**2 + power * upload
            seconds = cycles / frequency + upload
            return {"time": seconds / clients.seconds - at[0], "energy": joules / clients.budget_joules - at[0]}

        here, step = np.stack([x, x, np.ones(n), np.ones(n)]), 1e-6
        for name, values in limits(here).items():
            np.testing.assert_allclose((rows[name] * here).sum(0) - rows[f"{name}_limit"], values, atol=1e-12)
            for variable, row in enumerate(rows[name]):
                move = np.zeros_like(here)
                move[variable] = step
                slope = (limits(here + move)[name] - limits(here - move)[name]) / (2 * step)
                np.testing.assert_allclose(slope, row, rtol=1e-6, atol=1e-8)


class Recorded(SCA):
    """Keeps each program's cost row, and what came of it."""

    def _program(self, problem):
        program, self.costs, self.shares = super()._program(problem), [], []

        def solve(who, values, seats, overlap):
            solution = program.solve(who, values, seats, overlap)
            self.costs.append(values["cost"])
            self.shares.append(solution[0])
            return solution

        return SimpleNamespace(solve=solve)


def test_the_penalty_is_the_tangent_to_what_shares_that_are_not_whole_cost():
    """Sec. IV-C: ``rho B Z sum [(1 - 2 x_i) x + x_i^2]``, which is tangent to ``rho B Z sum x (1 - x)`` at x_i."""
    problem = paper_problem(seed=7, deadline_seconds=2.0)  # 4 cells, 4 clients of each
    who, rng = np.flatnonzero(eligibility(problem)[0]), np.random.default_rng(0)
    clients, n = _Clients.of(problem, who), who.size
    points, x = clients.allowed(rng.uniform(1, 50, n), rng.uniform(0.2, 0.8, n)), rng.uniform(0, 1, n)
    added, step = _linearised(clients, points, x, 5.0)["cost"] - _linearised(clients, points, x, 0.0)["cost"], 1e-6
    slope = ((x + step) * (1 - x - step) - (x - step) * (1 - x + step)) / (2 * step)
    np.testing.assert_allclose(added, [5 * slope, 0 * x, 0 * x, 0 * x], atol=1e-8)

    one, three = Recorded(rho=1.0), Recorded(rho=3.0)
    one(problem), three(problem)
    at = next(i for i, pair in enumerate(zip(one.costs, three.costs, strict=False)) if not np.array_equal(*pair))
    more = three.costs[at] - one.costs[at]
    np.testing.assert_allclose(more[0], (3 - 1) * 4 * 4 * (1 - 2 * one.shares[at - 1]), rtol=1e-12, atol=1e-12)
    assert not more[1:].any()


def test_a_plan_says_whether_it_converged(solver):
    problem = paper_problem(seed=8, deadline_seconds=2.0)
    short = SCA(max_iterations=3)
    plan = short(problem)
    assert (plan.converged, short.iterations) == (False, 3)
    assert violations(problem, plan) == []
    assert solver(problem).converged
    assert solver.iterations < solver.max_iterations
    assert short(
        paper_problem(seed=0, deadline_seconds=1e-3)
    ).converged  # nobody is eligible: nothing to come closer to


def test_the_relaxed_selection_ends_whole_and_within_its_limits(solver):
    problem = paper_problem(seed=7, deadline_seconds=2.0, previous=np.arange(48) % 2 == 0, max_overlap=1)
    who = np.flatnonzero(exact(problem).eligible)
    x, _ = solver._relaxed(problem, who)
    inside = problem.cell[who] == np.arange(4)[:, np.newaxis]
    assert set(x) == {0.0, 1.0}
    np.testing.assert_allclose(inside @ x, 4)
    assert ((inside * problem.previous[who]) @ x <= 1).all()


def test_who_is_not_selected_has_the_reason():
    problem = paper_problem(
        seed=3, cells=1, clients_in_cell=6, clients_per_cell=3, max_overlap=1, previous=np.arange(6) >= 4,
        energy_budget_joules=np.where(np.arange(6) < 3, 1e-9, 1.0),
    )  # fmt: skip
    plan = SCA()(problem)
    assert plan.eligible.tolist() == [False] * 3 + [True] * 3
    assert plan.reason[:4].tolist() == ["energy"] * 3 + ["selected"]
    assert sorted(plan.reason[4:]) == ["overlap", "selected"]


def test_programs_that_were_dropped_are_made_anew(monkeypatch):
    monkeypatch.setattr(sca, "MOST_PROGRAMS", 1)
    problems = [paper_problem(seed=0, cells=2, clients_in_cell=n, clients_per_cell=1) for n in (3, 4, 3)]
    few = SCA()
    plans = [few(problem) for problem in problems]
    assert len(few._programs) == 1
    for plan, problem in zip(plans, problems, strict=True):
        for ours, theirs in zip(vars(plan).values(), vars(SCA()(problem)).values(), strict=True):
            np.testing.assert_array_equal(ours, theirs)


def test_one_program_serves_all_rounds_of_a_shape(solver):
    for seed in range(2):
        solver(paper_problem(seed=seed, cells=3, clients_in_cell=5, deadline_seconds=2.0 + seed))
    solver(paper_problem(seed=0, cells=5, clients_in_cell=3, clients_per_cell=1))
    programs = solver._programs
    assert {48, 15} >= {len(key) // 8 for key in programs}
    assert len([key for key in programs if len(key) == 15 * 8]) == 2
    assert all(program._program.is_dcp(dpp=True) for program in programs.values())


def test_what_was_solved_before_leaves_no_trace():
    first, second = paper_problem(seed=0, deadline_seconds=2.0), paper_problem(seed=1, deadline_seconds=1.0)
    used, fresh = SCA(max_iterations=10), SCA(max_iterations=10)
    used(first)
    again, alone = used(second), fresh(second)
    assert again.selected.tolist() == alone.selected.tolist()
    np.testing.assert_allclose(again.frequency_hz, alone.frequency_hz, rtol=1e-9)


def test_nobody_eligible_is_an_empty_plan(solver):
    plan = solver(paper_problem(seed=0, deadline_seconds=1e-3))
    assert not plan.selected.any()
    assert plan.short_cells == (0, 1, 2, 3)


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"payload_bits": np.ones((48, 3))}, "options = 3: allowed for the solver sca is 1"),
        (
            {"payload_bits_per_local_round": 1.0},
            "payload_bits_per_local_round = 1.0: allowed for the solver sca is 0",
        ),
        (
            {"idle_seconds_per_local_round": 0.5},
            "idle_seconds_per_local_round = 0.5: allowed for the solver sca is 0",
        ),
    ],
)
def test_what_the_papers_model_does_not_have_is_refused(solver, changes, line):
    with pytest.raises(ValueError) as error:  # noqa: PT011
        solver(paper_problem(seed=0, **changes))
    assert str(error.value) == line


@pytest.mark.parametrize(
    ("name", "values", "allowed"),
    [
        ("max_iterations", [0, 2.5, True, "5", 10**400], "an integer from 1"),
        ("rho", [-1.0, np.inf, np.nan, True, "1", 10**400], "a number from 0"),
        ("move_factor", [1, 1.0, np.inf, np.nan, True, "3", 10**400], "a number above 1"),
    ],
)
def test_a_bad_argument_is_named(name, values, allowed):
    for value in values:
        with pytest.raises(ValueError, match=f"^{re.escape(f'{name} = {value!r}: allowed is {allowed} to 1e+09')}$"):
            SCA(**{name: value})


@pytest.mark.parametrize("given", [{"rho": 10**9}, {"move_factor": 1e9}, {"rho": 0, "move_factor": 2}])
def test_the_largest_arguments_do(given):
    assert -1e-12 <= gap(SCA(**given), seed=0, deadline_seconds=2.0) <= 1e-3


def test_a_plan_does_not_depend_on_the_problems_before():
    # Two kinds of devices and equal channels: many plans are as good.
    def problem(seed: int):
        rng = np.random.default_rng(seed)
        return paper_problem(
            seed=seed, cells=1, clients_in_cell=8, clients_per_cell=3, gain=np.full(8, 1e-11), max_power_watts=0.2,
            max_frequency_hz=np.where(rng.integers(0, 2, 8), 1.5e9, 1.8e9), energy_budget_joules=1.0,
            cycles_per_local_round=1.5e7, deadline_seconds=float(rng.choice([2.0, 3.0, 5.0])),
            previous=rng.random(8) < 0.4, max_overlap=1,
        )  # fmt: skip

    used = SCA()
    for seed in range(10):
        again, fresh = used(problem(seed)), SCA()(problem(seed))
        for name in ("selected", "local_rounds", "frequency_hz", "power_watts"):
            np.testing.assert_array_equal(getattr(again, name), getattr(fresh, name))
