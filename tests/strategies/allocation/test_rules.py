"""The baselines: worked out client by client, and the properties that set them apart."""

from itertools import combinations

import numpy as np
import pytest

from benchmarks.allocation import paper_problem
from espalier.strategies.allocation import (
    Problem,
    cheapest_at_full_power,
    eligible_at_full_power,
    exact,
    full_work_at_full_power,
    h_fedavg_m1,
    h_fedavg_m2,
    h_fedavg_ub,
    random,
    violations,
)
from espalier.strategies.allocation.single_client import least_energy


def rounds_at_full_power(problem: Problem, client: int) -> int:
    """Return the most local rounds of a client by trying one after the other."""
    cycles, bits = problem.cycles_per_local_round[client, 0], problem.payload_bits[client, 0]
    frequency, power = problem.max_frequency_hz[client], problem.max_power_watts[client]
    upload = bits / (problem.bandwidth_hz * np.log2(1 + problem.gain[client] * power / problem.noise_watts))
    rounds = 0
    while rounds < problem.max_local_rounds:
        seconds = (rounds + 1) * cycles / frequency + upload
        joules = problem.capacitance / 2 * (rounds + 1) * cycles * frequency**2 + power * upload
        if seconds > problem.deadline_seconds or joules > problem.energy_budget_joules[client]:
            break
        rounds += 1
    return rounds


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("deadline_seconds", [2.0, 150.0])
def test_m1_and_m2_do_what_all_can_do(seed, deadline_seconds):
    problem = paper_problem(seed=seed, cells=2, deadline_seconds=deadline_seconds)
    most = np.array([rounds_at_full_power(problem, client) for client in range(24)])
    assert eligible_at_full_power(problem).tolist() == (most >= 1).tolist()
    assert 0 < (most >= 1).sum() < 24
    m1, m2 = h_fedavg_m1(problem), h_fedavg_m2(problem)
    assert not m1.selected.any()
    assert m1.objective == 0
    assert set(m1.reason[most >= 1]) == {"another client cannot take part"}
    assert m2.selected.tolist() == (most >= 1).tolist()
    assert set(m2.local_rounds[m2.selected]) == {most[most >= 1].min()}
    assert set(m2.reason[most == 0]) <= {"deadline", "energy at full power"}
    np.testing.assert_array_equal(m2.frequency_hz[m2.selected], problem.max_frequency_hz[m2.selected])
    np.testing.assert_array_equal(m2.power_watts[m2.selected], problem.max_power_watts[m2.selected])
    assert {line.split(":")[0] for line in violations(problem, m2)} <= {"C2"}
    assert (m2.seconds <= deadline_seconds).all()


def test_m1_trains_where_all_can_and_is_then_m2():
    problem = paper_problem(seed=1, energy_budget_joules=5.0)
    most = [rounds_at_full_power(problem, client) for client in range(48)]
    m1, m2 = h_fedavg_m1(problem), h_fedavg_m2(problem)
    assert m1.selected.all()
    assert set(m1.local_rounds) == {min(most)}
    assert m1.objective == m2.objective
    assert m1.short_cells == ()


def test_ub_has_no_limits():
    problem = paper_problem(seed=0, deadline_seconds=1.0)
    plan = h_fedavg_ub(problem)
    assert plan.selected.all()
    assert set(plan.local_rounds) == {50}
    assert plan.seconds.max() > 1
    assert {line.split(":")[0] for line in violations(problem, plan)} == {"C2", "C7", "C8"}


def test_full_work_is_what_ub_does_and_within_both_limits_all_three_rules_are_one():
    problem = paper_problem(seed=0)
    seconds, joules = full_work_at_full_power(problem)
    ub = h_fedavg_ub(problem)
    np.testing.assert_allclose(seconds[:, 0], ub.seconds)
    np.testing.assert_allclose(joules[:, 0], ub.joules)
    for tight, are_one in ((1.001, True), (0.999, False)):
        limits = vars(problem) | {
            "deadline_seconds": seconds.max() * 1.001,
            "energy_budget_joules": joules[:, 0] * tight,
        }
        limited = Problem(**limits)
        plans = [rule(limited).local_rounds.tolist() for rule in (h_fedavg_m1, h_fedavg_m2, h_fedavg_ub)]
        assert (plans[0] == plans[1] == plans[2]) == are_one


def test_without_limits_and_with_all_clients_the_optimum_is_ubs_selection_and_rounds():
    problem = paper_problem(seed=0, clients_per_cell=12, energy_budget_joules=np.inf, deadline_seconds=1e4)
    plan, ub = exact(problem), h_fedavg_ub(problem)
    assert plan.selected.tolist() == ub.selected.tolist()
    assert plan.local_rounds.tolist() == ub.local_rounds.tolist()
    assert plan.joules.sum() < ub.joules.sum()


def test_with_options_each_client_takes_the_cheapest_that_allows_the_rounds():
    problem = paper_problem(
        seed=0, cells=1, clients_in_cell=4, deadline_seconds=10.0, gain=[1e-10] * 4, energy_budget_joules=np.inf,
        max_frequency_hz=1e9, max_power_watts=1.0, clients_per_cell=1, max_local_rounds=9,
        payload_bits=[[1e6, 9e6, 1e6]], payload_bits_per_local_round=[[1e7, 0, 0]],
        cycles_per_local_round=[[1e8, 2e8, np.inf]] * 3 + [[2e9, 2e9, 3e9]],
    )  # fmt: skip
    m1, ub = h_fedavg_m1(problem), h_fedavg_ub(problem)
    # At 8.4 Mbit/s the last client can make 3, 4 and 3 rounds in 10 s, so all make 4. That takes it 0.8 + 1.07 J with
    # the second option; the third would be cheaper, but takes 12 s. The others upload 41 Mbit or 9 Mbit.
    assert m1.local_rounds.tolist() == [4] * 4
    assert m1.option.tolist() == [1, 1, 1, 1]
    assert m1.joules[3] == pytest.approx(0.8 + 9e6 / (540e3 * np.log2(1 + 1e-10 / problem.noise_watts)))
    assert ub.local_rounds.tolist() == [9] * 4
    assert ub.option.tolist() == [1, 1, 1, 2]
    assert np.isfinite(ub.joules).all()
    assert violations(problem, m1) == ["C2: cell 0: 4 clients selected, must be 1"]


def test_random_keeps_all_limits_and_follows_the_seed():
    base = vars(paper_problem(seed=3, deadline_seconds=2.0, max_overlap=2, previous=np.arange(48) % 2 == 0))
    problems = [Problem(**base | {"seed": seed}) for seed in range(30)]
    plans = [random(problem) for problem in problems]
    assert all(violations(problem, plan) == [] for problem, plan in zip(problems, plans, strict=True))
    assert len({tuple(plan.selected) for plan in plans}) == 30
    assert random(problems[4]).selected.tolist() == plans[4].selected.tolist()
    optimum = exact(problems[0])
    for plan in plans:
        assert plan.objective > optimum.objective
        both = plan.selected & optimum.selected
        np.testing.assert_array_equal(plan.frequency_hz[both], optimum.frequency_hz[both])
        assert set(plan.reason) <= {"selected", "not drawn", "overlap", "deadline", "energy"}


def test_random_takes_every_eligible_client_equally_often():
    base = vars(paper_problem(seed=3, cells=1, deadline_seconds=2.0))
    plans = [random(Problem(**base | {"seed": seed})) for seed in range(400)]
    eligible = plans[0].eligible
    counts = np.sum([plan.selected for plan in plans], axis=0)
    share = 4 / eligible.sum()
    assert not counts[~eligible].any()
    assert (np.abs(counts[eligible] - 400 * share) < 4 * np.sqrt(400 * share * (1 - share))).all()


def test_the_cheapest_option_is_that_of_all_rounds_together():
    def options(rounds):
        problem = paper_problem(
            seed=0, cells=1, clients_in_cell=2, clients_per_cell=1, max_local_rounds=rounds, payload_bits=[[1e6, 5e6]],
            payload_bits_per_local_round=[[2e6, 0]],
        )  # fmt: skip
        return h_fedavg_ub(problem).option.tolist()

    # 1 + 2 L Mbit against 5 Mbit.
    assert options(1) == [0, 0]
    assert options(4) == [1, 1]


def test_only_who_is_late_with_every_option_is_left_out_for_the_deadline():
    problem = paper_problem(
        seed=0, cells=1, clients_in_cell=3, clients_per_cell=1, deadline_seconds=2.0, gain=[1e-10, 1e-10, 1e-16],
        payload_bits=[[1e9, 1e6]], energy_budget_joules=[1e-6, 10.0, 10.0],
    )  # fmt: skip
    assert h_fedavg_m2(problem).reason.tolist() == ["energy at full power", "selected", "deadline"]


def test_idle_time_leaves_less_for_local_rounds_at_full_power():
    problem = paper_problem(
        seed=0, cells=1, clients_in_cell=2, clients_per_cell=1, deadline_seconds=10.0, max_frequency_hz=1e9,
        cycles_per_local_round=1e9, payload_bits=1.0, energy_budget_joules=np.inf, idle_seconds=[1.75, 0],
        idle_seconds_per_local_round=[0.5, 0],
    )  # fmt: skip
    # 1.75 + 5 * (1 + 0.5) s are within 10 s; 6 rounds would take 10.75 s, and 9 s or 10.75 s without some idle time.
    assert h_fedavg_m2(problem).local_rounds.tolist() == [5, 5]


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("deadline_seconds", [2.0, 10.0, 150.0])
def test_the_cheapest_at_full_power_are_the_least_joules_that_full_power_allows(seed, deadline_seconds):
    rng = np.random.default_rng(seed)
    problem = paper_problem(
        seed=seed, cells=3, clients_in_cell=7, clients_per_cell=3, deadline_seconds=deadline_seconds, max_overlap=2,
        previous=rng.random(21) < 0.4, theta=float(rng.choice([0.0, 0.4, 1.0])),
        max_local_rounds=int(rng.integers(1, 51)),
    )  # fmt: skip
    plan, everybody, rounds = cheapest_at_full_power(problem), h_fedavg_ub(problem), problem.max_local_rounds
    able = np.array([rounds_at_full_power(problem, client) == rounds for client in range(21)])
    assert plan.eligible.tolist() == able.tolist()
    for cell in range(3):
        inside = np.flatnonzero((problem.cell == cell) & able)
        groups = [
            list(group)
            for count in range(4)
            for group in combinations(inside, count)
            if problem.previous[list(group)].sum() <= 2
        ]
        most = max(map(len, groups))
        least = min(everybody.joules[group].sum() for group in groups if len(group) == most)
        assert plan.joules[problem.cell == cell].sum() == pytest.approx(least, rel=1e-12)
    who = np.flatnonzero(plan.selected)
    assert set(plan.local_rounds[who]) <= {rounds}
    np.testing.assert_array_equal(plan.frequency_hz[who], problem.max_frequency_hz[who])
    np.testing.assert_array_equal(plan.power_watts[who], problem.max_power_watts[who])
    assert {line.split(":")[0] for line in violations(problem, plan)} <= {"C2"}
    assert (plan.seconds <= deadline_seconds).all()
    assert (plan.joules <= problem.energy_budget_joules).all()
    # The same clients can make the same rounds with less, and as many clients reach a better objective.
    assert (plan.joules[who] >= least_energy(problem, who, np.array(0), np.array(rounds)).joules * (1 - 1e-12)).all()
    optimum = exact(problem)
    if plan.selected.sum() == optimum.selected.sum():
        assert plan.objective >= optimum.objective - 1e-12
    for name, values in vars(cheapest_at_full_power(problem)).items():
        np.testing.assert_array_equal(values, getattr(plan, name))


def test_with_options_the_cheapest_that_allows_all_rounds_counts_at_full_power():
    problem = paper_problem(
        seed=0, cells=1, clients_in_cell=4, deadline_seconds=10.0, gain=[1e-10] * 4, energy_budget_joules=np.inf,
        max_frequency_hz=1e9, max_power_watts=1.0, clients_per_cell=3, max_local_rounds=4,
        payload_bits=[[1e6, 9e6, 1e6]], payload_bits_per_local_round=[[1e7, 0, 0]],
        cycles_per_local_round=[[1e8, 2e8, np.inf]] * 2 + [[2e9, 2e9, 2.1e9], [3e9, 3e9, 3e9]],
    )  # fmt: skip
    plan = cheapest_at_full_power(problem)
    # At 8.4 Mbit/s the third can compute and upload 1 Mbit in 8.5 s; its first option is 41 Mbit. The last takes 12 s.
    assert plan.option.tolist() == [1, 1, 2, 0]
    assert plan.reason.tolist() == ["selected"] * 3 + ["all rounds take too long"]


def test_who_needs_the_whole_deadline_or_budget_at_full_power_but_for_rounding_is_in():
    whole = h_fedavg_ub(paper_problem(seed=0, cells=1))
    for limits in ({"deadline_seconds": whole.seconds.max()}, {"energy_budget_joules": whole.joules}):
        for slack, able in ((1, True), (1 - 1e-14, True), (1 - 1e-9, False)):
            values = {"deadline_seconds": 150.0, "energy_budget_joules": np.inf} | limits
            problem = paper_problem(seed=0, cells=1, **{name: value * slack for name, value in values.items()})
            assert cheapest_at_full_power(problem).eligible[whole.seconds.argmax()] == able
    reasons = cheapest_at_full_power(paper_problem(seed=0, cells=1, energy_budget_joules=1e-6)).reason
    assert set(reasons) == {"all rounds take too much energy"}
