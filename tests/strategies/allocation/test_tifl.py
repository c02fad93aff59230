"""TiFL against a direct transcription of its Algorithm 2, and what it keeps."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from espalier.strategies.allocation import Problem, TiFL
from espalier.strategies.allocation.full_work import full_work
from espalier.strategies.allocation.tifl import changed_chances
from tests.strategies.allocation.knowledge import chosen, problem_of

NOBODY = np.full(20, np.nan)


def accuracies(server_round: int) -> np.ndarray:
    """Return accuracies of 20 clients that rise for ten rounds and fall then."""
    rng = np.random.default_rng(server_round)
    return np.clip(0.5 + 0.02 * (10 - abs(server_round - 10)) + rng.normal(0, 0.05, 20), 0, 1)


def everybody(_: int) -> list[int]:
    """Return who is there in a round: all."""
    return list(range(20))


def some(server_round: int) -> list[int]:
    """Return who is there in a round: one to all, but the first five not before round 6."""
    rng = np.random.default_rng([server_round, 7])
    return sorted(rng.permutation(np.arange(5 * (server_round < 6), 20))[: rng.integers(1, 21)].tolist())


def problem_in(server_round: int, there: list[int]) -> Problem:
    """Return a round's problem of those who are there: its channels are other ones, but in round 1."""
    base = problem_of(20, 3, 3)
    gains = np.random.default_rng(5).permuted(np.tile(base.gain, (60, 1)), axis=1)
    gains[1] = base.gain
    standing = replace(base.standing, edge_round=server_round, accuracy=accuracies(server_round))
    known = {name: value[there] for name, value in vars(standing).items() if name != "edge_round"}
    arrays = {name: value[there] for name, value in vars(base).items() if isinstance(value, np.ndarray)}
    own = {"gain": gains[server_round][there], "seed": server_round, "standing": replace(standing, **known)}
    return replace(base, **arrays | own, clients_per_cell=min(3, len(there)))


def by_delay() -> list[int]:
    """Return all clients, the fastest of round 1 first."""
    return np.argsort(full_work(problem_in(1, everybody(1))).seconds).tolist()


def rounds(solver: TiFL, first: int, last: int, there: Callable[[int], list[int]] = everybody) -> list[list[int]]:
    """Return whom each round selects."""
    found = []
    for number in range(first, last + 1):
        plan = solver(problem_in(number, there(number)))
        found.append([there(number)[place] for place in chosen(plan)])
    return found


def algorithm_2(
    interval: int, credits: int, last: int, there: Callable[[int], list[int]] = everybody
) -> list[list[int]]:
    """Return the same by the paper's algorithm with the probabilities of its public port, one step after the other.

    Tiers are of all clients seen so far, and those are drawn of whom somebody is there; where they are few, the nearest
    tiers join, one after the other.
    """
    delay, told, most, chance, left, found, seen, current = {}, {}, 0, [], [], [], [], 0
    for number in range(1, last + 1):
        here = there(number)
        problem = problem_in(number, here)
        wanted, seconds = problem.clients_per_cell, full_work(problem).seconds.tolist()
        delay = dict(zip(here, seconds, strict=True)) | delay
        told |= {client: accuracies(number)[client] for client in here}
        most = max(most, wanted)
        tiers = [t.tolist() for t in np.array_split(sorted(delay, key=delay.get), max(1, min(5, len(delay) // most)))]
        if len(tiers) != len(chance):
            chance, left, seen = [1 / len(tiers)] * len(tiers), [credits] * len(tiers), []
        rng = np.random.default_rng([number, 0])
        able = [[client for client in tier if client in here] for tier in tiers]
        drawable = [t for t in range(len(tiers)) if able[t]]
        if sum(left[t] for t in drawable) == 0:
            left = [one + credits for one in left]
        seen.append([sum(told[client] for client in tier) / len(tier) for tier in tiers])
        before = len(seen) - 1  # the paper counts from 0
        if before and before % interval == 0 and seen[before][current] <= seen[before - interval][current]:
            with_credits = [t for t in range(len(tiers)) if left[t] > 0]
            n = len(with_credits)
            chance = [0.0] * len(tiers)
            for i, tier in enumerate(sorted(with_credits, key=lambda t: seen[-1][t])):
                chance[tier] = (n - i) / (n * (n + 1) / 2)
        weights = np.array([chance[t] if left[t] > 0 and t in drawable else 0.0 for t in range(len(tiers))])
        if weights.sum() == 0:
            weights = np.array([float(left[t] > 0 and t in drawable) for t in range(len(tiers))])
        current = int(rng.choice(len(tiers), p=weights / weights.sum()))
        left[current] -= 1
        joined, distance = list(able[current]), 0
        while len(joined) < wanted:
            distance += 1
            for tier in (current - distance, current + distance):
                if len(joined) < wanted and 0 <= tier < len(tiers):
                    joined += able[tier]
        found.append(sorted(rng.choice(joined, wanted, replace=False).tolist()))
    return found


@pytest.mark.parametrize("there", [everybody, some])
@pytest.mark.parametrize(("interval", "credits"), [(4, 12), (3, 4), (20, 1000)])
def test_fifty_rounds_are_those_of_the_transcription(interval, credits, there):
    solver = TiFL(interval=interval, credits=credits)
    assert rounds(solver, 1, 50, there) == algorithm_2(interval, credits, 50, there)


def test_with_clients_away_it_adapts_and_credits_run_out():
    def three_away(number: int) -> list[int]:
        return [client for client in range(20) if number % 2 or client not in range(number % 18, number % 18 + 3)]

    solver = TiFL(tiers=6, interval=4, credits=3)
    first = rounds(solver, 1, 18, three_away)
    kept = solver.state_dict()["cells"][0]
    assert (kept["rounds"], kept["credits"]) == (18, [0] * 6)
    assert {len(selected) for selected in first} == {3}
    assert kept["chances"] != [1 / 6] * 6


def test_where_no_tier_has_enough_the_nearest_ones_join():
    solver = TiFL(credits=10)
    (drawn,) = rounds(solver, 1, 1)
    one_of_each = by_delay()[::4]
    found = rounds(solver, 2, 40, lambda _: sorted(one_of_each))
    assert {client for selected in found for client in selected} == set(one_of_each)
    assert {len(selected) for selected in [drawn, *found]} == {3}
    assert sum(solver.state_dict()["cells"][0]["credits"]) == 5 * 10 - 40


def test_who_is_left_of_a_tier_is_drawn_still():
    left = sorted(by_delay()[4:] + by_delay()[:1])  # of the fastest four one stays
    solver = TiFL()
    rounds(solver, 1, 3)
    found = rounds(solver, 4, 59, lambda _: left)
    (fastest,) = set(by_delay()[:4]) & set(left)
    assert any(fastest in selected for selected in found)


def test_who_has_moved_is_in_the_tiers_of_the_new_cell_alone():
    solver, base = TiFL(), problem_of(20, 0, 3)
    cell = np.repeat([0, 1], 10)
    moved = np.where(np.arange(20) == 0, 1, cell)
    for cells in (cell, moved):
        solver(replace(base, cell=cells))
    cells = solver.state_dict()["cells"]
    assert sorted(cells[0]["seconds"]) == list(range(1, 10))
    assert sorted(cells[1]["seconds"]) == [0, *range(10, 20)]


def test_without_credits_no_tier_runs_out():
    assert rounds(TiFL(interval=4), 1, 50) == rounds(TiFL(interval=4, credits=1000), 1, 50)


@pytest.mark.parametrize("there", [everybody, some])
def test_it_goes_on_from_what_it_kept(there):
    whole, first, second = (TiFL(interval=4, credits=6) for _ in range(3))
    expected = rounds(whole, 1, 30, there)
    assert rounds(first, 1, 13, there) == expected[:13]
    second.load_state_dict(first.state_dict())
    assert rounds(second, 14, 30, there) == expected[13:]


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
