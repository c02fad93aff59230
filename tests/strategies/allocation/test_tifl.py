"""TiFL against a direct transcription of its Algorithm 2, and what it keeps."""

from dataclasses import replace

import numpy as np
import pytest

from espalier.strategies.allocation import TiFL
from espalier.strategies.allocation.full_work import full_work
from espalier.strategies.allocation.tifl import changed_chances
from tests.strategies.allocation.knowledge import chosen, problem_of

NOBODY = np.full(20, np.nan)


def accuracies(server_round: int) -> np.ndarray:
    """Return accuracies of 20 clients that rise for ten rounds and fall then."""
    rng = np.random.default_rng(server_round)
    return np.clip(0.5 + 0.02 * (10 - abs(server_round - 10)) + rng.normal(0, 0.05, 20), 0, 1)


def rounds(solver: TiFL, first: int, last: int) -> list[list[int]]:
    """Return whom each round selects; the channels are other ones in each."""
    base = problem_of(20, 3, 3)
    gains = np.random.default_rng(5).permuted(np.tile(base.gain, (60, 1)), axis=1)
    gains[1] = base.gain
    return [
        chosen(
            solver(
                replace(
                    base,
                    gain=gains[number],
                    seed=number,
                    standing=replace(base.standing, edge_round=number, accuracy=accuracies(number)),
                )
            )
        )
        for number in range(first, last + 1)
    ]


def algorithm_2(interval: int, credits: int, last: int) -> list[list[int]]:
    """Return the same by the paper's algorithm with the probabilities of its public port, one step after the other."""
    base = problem_of(20, 3, 3)
    delay = full_work(base).seconds.tolist()
    order = sorted(range(20), key=lambda client: delay[client])
    tiers = [order[4 * i : 4 * i + 4] for i in range(5)]
    chance, left, found, seen, current = [1 / 5] * 5, [credits] * 5, [], [], 0
    for number in range(last):  # the paper counts from 0
        if sum(left) == 0:
            left = [credits] * 5
        told = accuracies(number + 1)
        seen.append([sum(told[client] for client in tier) / 4 for tier in tiers])
        if number % interval == 0 and number >= interval and seen[number][current] <= seen[number - interval][current]:
            with_credits = [t for t in range(5) if left[t] > 0]
            n = len(with_credits)
            chance = [0.0] * 5
            for i, tier in enumerate(sorted(with_credits, key=lambda t: seen[number][t])):
                chance[tier] = (n - i) / (n * (n + 1) / 2)
        weights = np.array([chance[t] if left[t] > 0 else 0.0 for t in range(5)])
        if weights.sum() == 0:
            weights = np.array([float(left[t] > 0) for t in range(5)])
        rng = np.random.default_rng([number + 1, 0])
        current = int(rng.choice(5, p=weights / weights.sum()))
        left[current] -= 1
        found.append(sorted(rng.choice(tiers[current], 3, replace=False).tolist()))
    return found


@pytest.mark.parametrize(("interval", "credits"), [(4, 12), (3, 4), (20, 1000)])
def test_fifty_rounds_are_those_of_the_transcription(interval, credits):
    assert rounds(TiFL(interval=interval, credits=credits), 1, 50) == algorithm_2(interval, credits, 50)


def test_without_credits_no_tier_runs_out():
    assert rounds(TiFL(interval=4), 1, 50) == rounds(TiFL(interval=4, credits=1000), 1, 50)


def test_it_goes_on_from_what_it_kept():
    whole, first, second = (TiFL(interval=4, credits=6) for _ in range(3))
    expected = rounds(whole, 1, 30)
    assert rounds(first, 1, 13) == expected[:13]
    second.load_state_dict(first.state_dict())
    assert rounds(second, 14, 30) == expected[13:]


def test_the_less_accurate_a_tier_the_higher_its_chance():
    left = np.array([True, True, False, True])
    chances = changed_chances(np.array([0.9, 0.2, 0.1, 0.5]), left)
    np.testing.assert_allclose(chances, [1 / 6, 3 / 6, 0, 2 / 6])


def test_without_accuracies_all_tiers_are_alike():
    solver = TiFL(interval=1)
    base = problem_of(20, 3, 3, accuracy=NOBODY)
    for seed in range(5):
        solver(replace(base, seed=seed))
    assert solver.state_dict()["cells"][0]["chances"] == [1 / 5] * 5


@pytest.mark.parametrize(("clients", "wanted", "number"), [(20, 3, 5), (20, 5, 4), (6, 4, 1), (4, 4, 1)])
def test_a_tier_has_as_many_clients_as_are_wanted(clients, wanted, number):
    solver = TiFL()
    assert len(chosen(solver(problem_of(clients, 0, wanted)))) == wanted
    assert len(solver.state_dict()["cells"][0]["chances"]) == number


@pytest.mark.parametrize("given", [{"tiers": 0}, {"interval": 0}, {"credits": -1}, {"tiers": 2.5}])
def test_a_number_that_is_none_is_refused(given):
    with pytest.raises(ValueError, match=r"allowed is an integer of \d or more$"):
        TiFL(**given)
