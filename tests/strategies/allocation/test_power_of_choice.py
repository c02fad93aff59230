"""Power-of-choice against a direct transcription, and by what chance candidates are drawn."""

from dataclasses import replace

import numpy as np
import pytest

from espalier.strategies.allocation import PowerOfChoice
from tests.strategies.allocation.knowledge import chosen, problem_of


@pytest.mark.parametrize("seed", range(30))
def test_the_largest_losses_of_the_candidates_train(seed):
    rng = np.random.default_rng(1000 + seed)
    loss = np.where(rng.random(15) < 0.2, np.nan, rng.exponential(1.0, 15))
    examples = rng.uniform(10, 200, 15)
    problem = problem_of(15, seed, 4, loss=loss, examples=examples)
    draw = np.random.default_rng([seed, 0])
    candidates = draw.choice(15, 7, replace=False, p=examples / examples.sum())
    lots = {client: place for place, client in enumerate(candidates[draw.permutation(7)].tolist())}
    known = {client: np.inf if np.isnan(loss[client]) else loss[client] for client in lots}
    expected = sorted(lots, key=lambda client: (-known[client], lots[client]))[:4]
    assert chosen(PowerOfChoice(candidates=7)(problem)) == sorted(expected)


def test_with_all_as_candidates_those_with_the_largest_losses_train_and_untried_ones_first():
    loss = np.array([0.5, np.nan, 2.0, 1.0, 0.1, np.nan])
    assert chosen(PowerOfChoice(candidates=6)(problem_of(6, 0, 3, loss=loss))) == [1, 2, 5]


def test_with_as_many_candidates_as_are_wanted_chance_goes_by_data():
    examples = np.array([1.0, 2.0, 3.0, 4.0])
    base = problem_of(4, 0, 1, examples=examples, loss=np.array([9.0, 1.0, 1.0, 1.0]))
    counts = np.zeros(4)
    for seed in range(600):
        counts[chosen(PowerOfChoice(candidates=1)(replace(base, seed=seed)))] += 1
    # Four standard deviations of a binomial share are at most 0.082.
    np.testing.assert_allclose(counts / 600, examples / 10, atol=0.082)


@pytest.mark.parametrize("candidates", [-1, 1.5, True])
def test_a_number_that_is_none_is_refused(candidates):
    with pytest.raises(ValueError, match=r"^candidates = .*: allowed is an integer of 0 or more$"):
        PowerOfChoice(candidates=candidates)
