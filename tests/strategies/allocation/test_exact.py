"""`exact` against enumeration and a mixed-integer program, and the properties of an optimum."""

import numpy as np
import pytest

from benchmarks.allocation import paper_problem
from espalier.strategies.allocation import SCA, Problem, exact, h_fedavg_m1, h_fedavg_m2, objective, violations
from espalier.strategies.allocation.problem import PER_OPTION
from espalier.strategies.allocation.single_client import best_choice, least_energy, value_of
from tests.strategies.allocation.reference import best_objective


def small(seed: int, **changes: object) -> Problem:
    """Return a round of two cells of 5 clients, with everything that varies drawn."""
    rng = np.random.default_rng(1000 + seed)
    drawn = {
        "clients_per_cell": int(rng.integers(1, 4)),
        "deadline_seconds": float(rng.choice([1.0, 1.5, 2.0, 5.0, 150.0])),
        "theta": float(rng.choice([0.0, 1e-3, 0.02, 0.4, 1.0])),
        "max_local_rounds": 6,
        "cycles_per_local_round": rng.uniform(5e7, 2e8, 10),
        "energy_budget_joules": rng.uniform(0.05, 0.8, 10),
        "min_frequency_hz": rng.choice([0.0, 5e8, 9e8], 10),
        "previous": rng.random(10) < 0.4,
        "max_overlap": int(rng.integers(1, 4)),
    }
    return paper_problem(seed=seed, cells=2, clients_in_cell=5, **drawn | changes)


def split(seed: int, **changes: object) -> dict[str, object]:
    """Return what makes a small round one of split training: three cuts, activations and idle time."""
    rng = np.random.default_rng(2000 + seed)
    return {
        "cycles_per_local_round": rng.uniform(2e7, 2e8, (10, 3)),
        "payload_bits": rng.uniform(1e5, 4e6, (1, 3)),
        "payload_bits_per_local_round": rng.uniform(0, 5e5, (1, 3)),
        "idle_seconds": rng.uniform(0, 0.2, 10),
        "idle_seconds_per_local_round": rng.uniform(0, 0.05, (10, 3)),
    } | changes


@pytest.mark.parametrize("seed", range(4))
def test_no_upload_takes_less_than_an_endless_one_and_the_optimum_tends_to_that(seed):
    """s ln2 N / (w g) joules are the limit of eq. 14 for P towards 0."""
    for deadline in (2.0, 150.0, 1e6, 1e9):
        problem = paper_problem(seed=seed, deadline_seconds=deadline)
        plan = exact(problem)
        least = problem.payload_bits[:, 0] * np.log(2) / problem.bandwidth_hz * problem.noise_watts / problem.gain
        assert plan.selected.sum() == 16
        assert (plan.upload_joules >= least * (1 - 1e-12))[plan.selected].all()
    np.testing.assert_allclose(plan.joules[plan.selected], least[plan.selected], rtol=1e-7)


@pytest.mark.parametrize("seed", range(24))
def test_equals_enumeration_of_all_subsets_options_and_rounds(seed):
    problem = small(seed, **(split(seed) if seed % 2 else {}))
    plan = exact(problem)
    assert violations(problem, plan) == []
    assert plan.objective == pytest.approx(best_objective(problem), rel=1e-10)


@pytest.mark.parametrize("seed", range(24))
def test_equals_enumeration_where_clients_are_worth_something_of_their_own(seed):
    # From negligible beside rounds and joules to all that counts.
    worth = np.random.default_rng(3000 + seed).normal(0, (1e-3, 0.1, 3.0, 1e3)[seed % 4], 10)
    problem = small(seed, worth=worth, **(split(seed) if seed % 2 else {}))
    plan = exact(problem)
    assert violations(problem, plan) == []
    assert plan.objective == pytest.approx(best_objective(problem), rel=1e-10)


def test_what_a_client_is_worth_decides_whether_it_trains_and_not_how():
    problem = paper_problem(seed=2, cells=1, clients_in_cell=6, clients_per_cell=3, deadline_seconds=2.0)
    plain = exact(problem)
    assert not plain.selected[5]
    (left_out,) = (np.flatnonzero(plain.selected)[best_choice(problem).value[plain.selected].argmax()],)
    missing = best_choice(problem).value[5] - best_choice(problem).value[left_out]
    for share, taken in ((0.999, False), (1.001, True)):
        worthy = exact(Problem(**vars(problem) | {"worth": np.arange(6) // 5 * missing * share}))
        assert worthy.selected[5] == taken
        assert worthy.selected[left_out] != taken
    both = worthy.selected & plain.selected
    assert both.sum() == 2
    for name in ("local_rounds", "frequency_hz", "power_watts"):
        np.testing.assert_array_equal(getattr(worthy, name)[both], getattr(plain, name)[both])
    assert worthy.joules[5] == pytest.approx(best_choice(problem).point.joules[5], rel=1e-12)
    # All worth the same: the same plan, and the objective lower by just that.
    same = exact(Problem(**vars(problem) | {"worth": 0.25}))
    np.testing.assert_array_equal(same.selected, plain.selected)
    assert same.objective == pytest.approx(plain.objective - 0.25, rel=1e-12)


@pytest.mark.parametrize("deadline_seconds", [1.0, 2.0, 5.0, 150.0])
@pytest.mark.parametrize("min_frequency_hz", [0.0, 5e8])
@pytest.mark.parametrize("spread_of_worth", [0.0, 1.0])
def test_equals_a_mixed_integer_program_over_clients_options_and_rounds(
    deadline_seconds, min_frequency_hz, spread_of_worth
):
    from scipy.optimize import Bounds, LinearConstraint, milp

    full, options = 0, []
    for seed in range(16):
        limits = {"deadline_seconds": deadline_seconds, "min_frequency_hz": min_frequency_hz}
        limits["worth"] = np.random.default_rng(4000 + seed).normal(0, spread_of_worth, 10)
        problem = small(seed, **(split(seed) if seed % 2 else {}), **limits)
        u, k, rounds = np.meshgrid(*map(np.arange, (10, problem.options, 7)), indexing="ij")
        # The least energy is compared with grids in test_operating_point.py.
        joules = least_energy(problem, u, k, np.maximum(rounds, 1)).joules
        possible = (rounds > 0) & (joules <= problem.energy_budget_joules[:, np.newaxis, np.newaxis])
        cost = (value_of(problem, rounds, np.where(possible, joules, np.inf)) - problem.worth[u])[possible]
        who, again = u[possible], problem.previous[u[possible]]
        able = possible.any(axis=(1, 2))
        in_cell = problem.cell == np.arange(2)[:, np.newaxis]
        old, new = (in_cell & able & problem.previous).sum(1), (in_cell & able & ~problem.previous).sum(1)
        seats = np.minimum(problem.clients_per_cell, new + np.minimum(problem.max_overlap, old))
        plan = exact(problem)
        assert [int(plan.selected[inside].sum()) for inside in in_cell] == seats.tolist()
        full += not plan.short_cells
        options += plan.option[plan.selected].tolist()
        if not cost.size:
            continue
        unit = np.abs(cost).min()  # HiGHS takes differences below 1e-6 for none
        program = milp(
            cost / unit,
            integrality=np.ones(cost.size),
            bounds=Bounds(0, 1),
            constraints=[
                LinearConstraint(who == np.arange(10)[:, np.newaxis], ub=1),
                LinearConstraint(in_cell[:, who], seats, seats),
                LinearConstraint(in_cell[:, who] & again, ub=problem.max_overlap),
            ],
            options={"mip_rel_gap": 0},
        )
        assert program.success
        assert plan.objective == pytest.approx(unit * program.fun / 2 / problem.clients_per_cell, rel=1e-9, abs=1e-12)
    assert full > 0
    assert set(options) == {0, 1, 2}


def test_the_optimum_over_all_cells_is_the_sum_of_the_cells_optima():
    problem = paper_problem(seed=5, deadline_seconds=2.0, previous=np.arange(48) % 3 == 0, max_overlap=1)
    joint = exact(problem)
    alone = []
    for cell in range(4):
        inside = problem.cell == cell
        arrays = {name: value[inside] for name, value in vars(problem).items() if isinstance(value, np.ndarray)}
        alone.append(exact(Problem(**vars(problem) | arrays)))
    assert joint.objective == pytest.approx(sum(plan.objective for plan in alone) / 4, rel=1e-12)
    assert joint.selected.tolist() == np.concatenate([plan.selected for plan in alone]).tolist()


def test_a_plan_never_breaks_a_limit_not_even_by_rounding():
    short = 0
    for seed in range(150):
        problem = small(seed, **(split(seed) if seed % 3 else {}))
        plan = exact(problem)
        assert violations(problem, plan) == []
        assert (plan.seconds <= problem.deadline_seconds).all()
        assert (plan.joules <= problem.energy_budget_joules).all()
        assert (plan.frequency_hz <= problem.max_frequency_hz).all()
        assert (plan.power_watts <= problem.max_power_watts).all()
        assert plan.objective == objective(problem, plan)
        short += bool(plan.short_cells)
    assert 10 < short < 140


@pytest.mark.parametrize(
    ("name", "relaxed"),
    [
        ("deadline_seconds", lambda p: p.deadline_seconds * 1.2),
        ("energy_budget_joules", lambda p: p.energy_budget_joules * 1.5),
        ("max_frequency_hz", lambda p: p.max_frequency_hz * 1.2),
        ("max_power_watts", lambda p: p.max_power_watts * 1.5),
        ("gain", lambda p: p.gain * 2),
        ("max_local_rounds", lambda p: p.max_local_rounds + 3),
        ("max_overlap", lambda p: p.max_overlap + 1),
        ("min_frequency_hz", lambda p: p.min_frequency_hz / 2),
        ("payload_bits", lambda p: p.payload_bits / 2),
        ("cycles_per_local_round", lambda p: p.cycles_per_local_round / 2),
    ],
)
def test_the_objective_never_rises_when_a_limit_is_relaxed(name, relaxed):
    fell = compared = 0
    for seed in range(40):
        problem = small(seed, clients_per_cell=1, min_frequency_hz=4e8, max_overlap=0, deadline_seconds=1.5)
        before, after = exact(problem), exact(Problem(**vars(problem) | {name: relaxed(problem)}))
        if not before.short_cells:
            compared += 1
            assert after.objective <= before.objective + 1e-12
            fell += after.objective < before.objective - 1e-12
    assert compared > 20
    assert fell > 0


@pytest.mark.parametrize(("deadline_seconds", "rounds"), [(1.125, 1), (1.5, 4), (1.5 - 1e-6, 3)])
@pytest.mark.parametrize("solve", [exact, SCA(), h_fedavg_m1, h_fedavg_m2])
def test_who_needs_the_whole_deadline_is_in_time(solve, deadline_seconds, rounds):
    # An eighth of a second for a local round and one second for the upload, at full speed and power.
    problem = Problem(
        gain=[3.0, 3.0], noise_watts=1.0, bandwidth_hz=2.0**20, payload_bits=2.0**21, max_power_watts=1.0,
        cycles_per_local_round=2.0**27, max_frequency_hz=2.0**30, capacitance=1e-30, energy_budget_joules=np.inf,
        clients_per_cell=2, deadline_seconds=deadline_seconds, max_local_rounds=9, theta=1.0,
    )  # fmt: skip
    plan = solve(problem)
    assert violations(problem, plan) == []
    assert plan.local_rounds.tolist() == [rounds, rounds]
    assert (plan.seconds <= deadline_seconds * (1 + 1e-11)).all()


@pytest.mark.parametrize("seed", range(5))
def test_energy_is_convex_and_increases_in_the_number_of_rounds(seed):
    rng = np.random.default_rng(seed)
    clients = 40
    problem = paper_problem(
        seed=seed, cells=1, clients_in_cell=clients, deadline_seconds=float(rng.uniform(1, 20)), max_local_rounds=60,
        min_frequency_hz=float(rng.choice([0.0, 6e8])), payload_bits_per_local_round=rng.uniform(0, 2e5, (clients, 2)),
        payload_bits=rng.uniform(1e4, 4e6, (clients, 2)), idle_seconds_per_local_round=rng.uniform(0, 0.02, clients),
    )  # fmt: skip
    u, k, rounds = np.meshgrid(np.arange(clients), [0, 1], np.arange(1, 61), indexing="ij")
    joules = least_energy(problem, u, k, rounds).joules
    possible = np.isfinite(joules)
    assert (possible[..., :-1] >= possible[..., 1:]).all()
    first = np.diff(np.where(possible, joules, np.nan), axis=-1)
    second = np.diff(first, axis=-1)
    assert (first[np.isfinite(first)] > 0).all()
    assert np.isfinite(second).sum() > 100
    assert (second[np.isfinite(second)] >= -1e-12 * joules[..., :-2][np.isfinite(second)]).all()


def test_options_give_each_client_its_best_single_option():
    chosen = set()
    for seed in range(20):
        problem = small(seed, **split(seed))
        best = best_choice(problem)
        single = [
            best_choice(Problem(**vars(problem) | {name: getattr(problem, name)[:, [k]] for name in PER_OPTION}))
            for k in range(3)
        ]
        values_ = np.stack([choice.value for choice in single])
        np.testing.assert_array_equal(best.value, values_.min(axis=0))
        able = best.eligible
        np.testing.assert_array_equal(able, np.any([choice.eligible for choice in single], axis=0))
        index = best.option[able], np.flatnonzero(able)
        np.testing.assert_array_equal(best.local_rounds[able], np.stack([c.local_rounds for c in single])[index])
        chosen |= set(best.option[able].tolist())
    assert chosen == {0, 1, 2}


def test_an_option_that_a_client_lacks_is_never_chosen():
    cycles = np.full((10, 2), 1e7)
    cycles[:5, 0] = np.inf
    cycles[7] = np.inf
    problem = small(0, clients_per_cell=3, max_overlap=None, deadline_seconds=150.0, cycles_per_local_round=cycles)
    plan = exact(problem)
    assert not plan.option[plan.selected][problem.cell[plan.selected] == 1].any()
    assert (plan.option[plan.selected][problem.cell[plan.selected] == 0] == 1).all()
    assert plan.reason[7] == "deadline"


def test_only_energy_counts_at_theta_0():
    problem = paper_problem(seed=1, theta=0.0)
    plan = exact(problem)
    assert set(plan.local_rounds[plan.selected]) == {1}
    energy = best_choice(problem).point.joules
    for cell in range(4):
        inside = problem.cell == cell
        assert energy[inside & plan.selected].max() < energy[inside & ~plan.selected].min()


def test_only_rounds_count_at_theta_1_and_energy_breaks_ties():
    problem = paper_problem(seed=1, theta=1.0)
    plan = exact(problem)
    assert set(plan.local_rounds[plan.selected]) == {50}
    assert plan.objective == -50
    assert exact(paper_problem(seed=1, theta=0.999)).selected.tolist() == plan.selected.tolist()


def test_a_cell_that_cannot_be_filled_gets_all_who_can():
    budget = np.where(np.arange(12) < 9, 1e-9, 1.0)
    problem = paper_problem(seed=3, cells=2, clients_in_cell=6, energy_budget_joules=budget)
    plan = exact(problem)
    assert np.flatnonzero(plan.selected).tolist() == [9, 10, 11]
    assert plan.short_cells == (0, 1)
    assert set(plan.reason[:9]) == {"energy"}
    nobody = exact(paper_problem(seed=3, cells=2, clients_in_cell=6, deadline_seconds=1e-3))
    assert not nobody.selected.any()
    assert nobody.objective == 0
    assert set(nobody.reason) == {"deadline"}
    assert not nobody.seconds.any()


def test_the_limit_on_the_overlap_holds_even_where_it_leaves_a_cell_short():
    budget = np.where(np.arange(6) < 3, 1e-9, 1.0)
    problem = paper_problem(
        seed=3, cells=1, clients_in_cell=6, clients_per_cell=3, energy_budget_joules=budget, max_overlap=1,
        previous=np.arange(6) >= 4,
    )  # fmt: skip
    plan = exact(problem)
    assert plan.selected[3]
    assert plan.selected[4:].sum() == 1
    assert plan.short_cells == (0,)
    assert sorted(plan.reason[3:]) == ["overlap", "selected", "selected"]


def test_who_is_not_selected_has_the_reason():
    problem = paper_problem(seed=2, deadline_seconds=2.0, max_overlap=2, previous=np.arange(48) % 2 == 0)
    plan, free = exact(problem), exact(paper_problem(seed=2, deadline_seconds=2.0))
    assert (plan.reason == "selected").tolist() == plan.selected.tolist()
    assert set(np.flatnonzero(plan.reason == "overlap")) == set(np.flatnonzero(free.selected & ~plan.selected))
    assert set(plan.reason) == {"selected", "overlap", "not among the best", "deadline"}


def test_no_limit_on_the_overlap_in_the_first_round():
    assert exact(small(2, previous=None)).objective == exact(small(2, max_overlap=None)).objective


def test_an_infinite_budget_does_not_make_the_late_eligible():
    problem = paper_problem(seed=0, deadline_seconds=1.0, energy_budget_joules=np.inf)
    plan = exact(problem)
    assert violations(problem, plan) == []
    assert "deadline" in plan.reason
    assert "energy" not in plan.reason


def test_at_theta_1_energy_breaks_ties_between_options_too():
    problem = paper_problem(seed=1, theta=1.0, payload_bits=[[8e6, 4e6, 6e6]])
    plan = exact(problem)
    assert set(plan.local_rounds[plan.selected]) == {50}
    assert set(plan.option[plan.selected]) == {1}


def test_a_short_cell_has_its_own_number():
    budget = np.where(np.arange(12) < 5, 1e-9, 1.0)
    cell = np.repeat([3, 7], 6)
    problem = paper_problem(
        seed=3, cells=2, clients_in_cell=6, clients_per_cell=2, energy_budget_joules=budget, cell=cell
    )
    assert exact(problem).short_cells == (3,)
