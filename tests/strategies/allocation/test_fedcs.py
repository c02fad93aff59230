"""FedCS against a direct transcription of its Algorithm 3, and what it keeps."""

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.allocation import paper_problem
from espalier.strategies.allocation import FedCS
from espalier.strategies.allocation.fedcs import in_time
from tests.strategies.allocation.knowledge import chosen, problem_of


def algorithm_3(update, upload, deadline):
    """Return FedCS's list S, written as the paper has it, with T_cs = T_agg = T_d = 0."""
    left, taken, theta = set(range(len(update))), [], 0.0
    while left:
        x = min(left, key=lambda k: (upload[k] + max(0.0, update[k] - theta), k))
        left.remove(x)
        later = theta + upload[x] + max(0.0, update[x] - theta)
        if later < deadline:
            theta = later
            taken.append(x)
    return taken


@pytest.mark.parametrize("seed", range(50))
def test_it_is_the_transcription_on_random_instances(seed):
    rng = np.random.default_rng(seed)
    update, upload = rng.exponential(2.0, 30), rng.exponential(1.0, 30)
    found = in_time(update, upload, rng.uniform(2, 15))
    rng = np.random.default_rng(seed)
    update, upload = rng.exponential(2.0, 30), rng.exponential(1.0, 30)
    assert found == algorithm_3(update.tolist(), upload.tolist(), rng.uniform(2, 15))
    assert 0 < len(found) < 30


def test_a_candidate_that_does_not_fit_does_not_end_the_search():
    # The first to be tried after 0 is 1, which is too late; 2 fits.
    assert in_time(np.array([1.0, 2.0, 9.0]), np.array([1.0, 9.0, 0.5]), 10.0) == [0, 2]


@pytest.mark.parametrize("seed", range(5))
def test_a_plan_is_each_cells_own_list_and_all_uploads_in_turn_end_in_time(seed):
    problem = paper_problem(seed=seed, cells=2, deadline_seconds=6.0, energy_budget_joules=20.0)
    plan = FedCS()(problem)
    frequency, power = problem.max_frequency_hz, problem.max_power_watts
    update = 50 * problem.cycles_per_local_round[:, 0] / frequency
    rate = problem.bandwidth_hz * np.log2(1 + problem.gain * power / problem.noise_watts)
    upload = problem.payload_bits[:, 0] / rate
    joules = 1e-28 * frequency**2 * update * frequency + power * upload
    able = (update + upload <= 6) & (joules <= 20)
    assert plan.eligible.tolist() == able.tolist()
    for cell in (0, 1):
        own = np.flatnonzero(able & (problem.cell == cell))
        taken = own[algorithm_3(update[own].tolist(), upload[own].tolist(), 6.0)]
        assert np.flatnonzero(plan.selected & (problem.cell == cell)).tolist() == sorted(taken.tolist())
        assert 0 < len(taken) < len(own)
        end = 0.0
        for k in taken:
            end = max(end, update[k]) + upload[k]
        assert end < 6


def test_candidates_are_drawn_by_the_seed():
    problem = problem_of(20, 1, 4)
    some = chosen(FedCS(asked=0.3)(problem))
    assert len(some) == 6
    assert some == chosen(FedCS(asked=0.3)(problem))
    assert some != chosen(FedCS(asked=0.3)(replace(problem, seed=2)))
    assert len(chosen(FedCS()(problem))) == 20


@pytest.mark.parametrize("asked", [0, 1.5, True, "half"])
def test_a_share_that_is_none_is_refused(asked):
    with pytest.raises(ValueError, match=r"^asked = .*: allowed is a number above 0, at most 1$"):
        FedCS(asked=asked)


def test_seven_of_a_hundred_are_not_eight():
    assert len(chosen(FedCS(asked=0.07)(problem_of(100, 1, 4)))) == 7  # 100 * 0.07 is more than 7 in double precision
    assert len(chosen(FedCS(asked=1e-12)(problem_of(100, 1, 4)))) == 1
