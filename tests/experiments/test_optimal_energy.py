"""The study of the optimum's energy plans what real runs plan, and finds what its page says."""

from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from experiments.optimal_energy import (
    PAPER,
    at_full_power,
    by_rank,
    cheapest_at_full_power,
    draw_worlds,
    everybody_at_full_power,
    never_selected,
    of_selected,
    solve_rounds,
)
from tests.app.assembling import config_of, make_world

ROOT = Path(__file__).parents[2]


def mean_joules(rounds):
    return of_selected(rounds, "joules").mean()


def test_the_problem_is_the_one_of_a_rawhfl_run():
    config = config_of(
        algorithm="rawhfl",
        dataset="video-caching",
        num_clients=48,
        num_edges=4,
        selected_per_edge=4,
        max_local_rounds=50,
        seed=5,
    )
    topology = {f"edge-{i}": list(range(12 * i, 12 * i + 12)) for i in range(4)}
    run = make_world(config, topology, {n: n for n in range(48)}, [100] * 48)
    (_, before), (problem, _) = solve_rounds(draw_worlds([5]), rounds=2)
    expected = vars(run.problem(2, np.arange(48), before.selected, 0))
    for name, value in vars(problem).items():
        np.testing.assert_allclose(
            np.asarray(value, float), np.asarray(expected[name], float), rtol=1e-12, err_msg=name
        )


def test_the_optimum_takes_hundreds_of_times_less_than_the_paper_reports():
    rounds = solve_rounds(draw_worlds(range(3)), rounds=10)
    assert 200 < 0.445 / mean_joules(rounds) < 500
    full = at_full_power(rounds)
    assert all(
        (plan.frequency_hz[plan.selected] == problem.max_frequency_hz[plan.selected]).all() for problem, plan in full
    )
    assert 0.4 < mean_joules(full) < mean_joules(everybody_at_full_power(rounds)) < 1
    assert of_selected(rounds, "local_rounds").min() == 50


@pytest.mark.parametrize(("lowest", "joules"), [(0.2e9, 0.004), (0.5e9, 0.0185), (1e9, 0.068)])
def test_a_lowest_frequency_costs_what_computing_at_it_costs(lowest, joules):
    rounds = solve_rounds(draw_worlds(range(3)), rounds=10, min_frequency_hz=lowest)
    assert mean_joules(rounds) == pytest.approx(joules, rel=0.15)
    cycles = of_selected(rounds, "compute_seconds") * lowest
    np.testing.assert_allclose(of_selected(rounds, "compute_joules"), 1e-28 * cycles * lowest**2, rtol=1e-9)


def test_the_papers_joules_per_client_are_its_totals_divided():
    page = " ".join((ROOT / "docs/optimal-energy.md").read_text().split())
    each = [joules / 400 / clients for name, (joules, _, clients) in PAPER.items() if name.startswith("RawHFL")]
    assert f"spend {min(each):.2f} to {max(each):.2f} J each in an edge round" in page


def test_a_static_channel_leaves_out_half_of_the_clients():
    static = solve_rounds(draw_worlds(range(2), redraw=False), rounds=10)
    assert by_rank(static).tolist() == [10, 10, 5, 5, 5, 5, 0, 0, 0, 0, 0, 0]
    assert never_selected(static) == 0.5
    assert never_selected(solve_rounds(draw_worlds(range(2)), rounds=40)) < 0.1


def test_the_cheapest_at_full_power_are_the_cheapest():
    (problem, plan), *_ = solve_rounds(draw_worlds([0]), cheapest_at_full_power, rounds=1)
    ((_, everybody),) = everybody_at_full_power([(problem, plan)])
    able = (everybody.joules <= problem.energy_budget_joules) & (everybody.seconds <= 150)
    for cell in range(4):
        inside = np.flatnonzero((problem.cell == cell) & able)
        least = min(everybody.joules[list(four)].sum() for four in combinations(inside, 4))
        assert plan.joules[problem.cell == cell].sum() == pytest.approx(least)


def test_theta_weighs_only_far_below_the_papers():
    worlds = draw_worlds(range(2))
    rounds = {t: solve_rounds(worlds, rounds=5, deadline_seconds=2.0, theta=t) for t in (0.001, 0.01, 0.1, 1.0)}
    made = [of_selected(rounds[theta], "local_rounds").mean() for theta in (0.001, 0.01, 0.1, 1.0)]
    assert made[0] < 20 < 40 < made[1] < made[2]
    assert made[2] == pytest.approx(made[3], abs=0.3)
