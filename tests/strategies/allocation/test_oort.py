"""Oort against its formulas, written out client by client, over fifty rounds; and what it keeps."""

from dataclasses import replace
from math import log, sqrt

import numpy as np
import pytest

from espalier.strategies.allocation import Oort
from espalier.strategies.allocation.full_work import full_work
from tests.strategies.allocation.knowledge import chosen, problem_of

CLIENTS, WANTED = 24, 6
EXAMPLES = np.random.default_rng(7).integers(20, 200, CLIENTS).astype(float)


def loss_of(client: int, server_round: int) -> float:
    """Return the loss that a client tells after a round."""
    return (0.5 + client % 5) * 0.97**server_round + 0.01 * (client * server_round % 7)


class Told:
    """What the edge knows from round to round, kept in plain dicts."""

    def __init__(self) -> None:
        self.loss: dict[int, float] = {}
        self.last: dict[int, int] = {}

    def problem(self, number: int, seconds: float = 1e6):
        return problem_of(
            CLIENTS, 11, WANTED, examples=EXAMPLES, edge_round=number,
            loss=np.array([self.loss.get(i, np.nan) for i in range(CLIENTS)]),
            age=np.array([number - self.last.get(i, 0) for i in range(CLIENTS)]),
        )  # fmt: skip

    def learn(self, number: int, selected: list[int]) -> None:
        for client in selected:
            self.loss[client], self.last[client] = loss_of(client, number), number


def draw(rng, weight: dict[int, float], number: int) -> list[int]:
    total = sum(weight.values())
    return rng.choice(list(weight), number, replace=False, p=[w / total for w in weight.values()]).tolist()


def reference(rounds: int, window: int, times: list[float], seed_of) -> tuple[list[list[int]], list[float], float]:
    """Return whom each round selects, T's percentile in each, and the last exploration, by the formulas alone."""
    told, epsilon, percentile, history, exploited, found, percentiles = Told(), 0.9, 10.0, [], [], [], []
    for r in range(1, rounds + 1):
        stat = {i: EXAMPLES[i] * sqrt(loss**2) for i, loss in told.loss.items()}
        # The pacer looks at the rounds that are over.
        history.append(sum(stat[i] for i in exploited) / len(exploited) if exploited else 0.0)
        if r >= 2 * window and r % window == 0:
            before, after = sum(history[-2 * window : -window]), sum(history[-window:])
            if abs(after - before) <= 0.1 * before:
                percentile = min(100.0, percentile + 5)
            elif abs(after - before) >= 5 * before:
                percentile = max(5.0, percentile - 5)
        percentiles.append(percentile)
        preferred = sorted(times)[min(int(CLIENTS * percentile / 100), CLIENTS - 1)]
        slow = {i: (preferred / times[i]) ** 2 if times[i] > preferred else 1.0 for i in range(CLIENTS)}
        new = [i for i in range(CLIENTS) if i not in stat]
        epsilon = max(0.95 * epsilon, 0.2) if new else 0.0
        number = min(int(WANTED * (1 - epsilon)), len(stat))
        rng = np.random.default_rng([11, 0])
        exploited = []
        if number:
            ascending = sorted(stat.values())
            high = ascending[min(int(0.98 * len(stat)), len(stat) - 1)]
            low, spread = ascending[0], max(ascending[-1] - ascending[0], 1e-4)
            score = {
                i: ((min(stat[i], high) - low) / spread + sqrt(0.1 * log(r) / told.last[i])) * slow[i]
                for i in sorted(stat)
            }
            best_first = sorted(score, key=lambda i: -score[i])
            at_the_cut = score[best_first[min(number, len(best_first) - 1)]]
            exploited = draw(rng, {i: score[i] for i in best_first if score[i] >= 0.7 * at_the_cut}, number)
        more = min(WANTED - number, len(new))
        reward = {i: EXAMPLES[i] * slow[i] for i in new}
        best_first = sorted(reward, key=lambda i: -reward[i])[: 5 * more]
        explored = draw(rng, {i: reward[i] for i in best_first}, more) if more else []
        chosen_now = exploited + explored
        rest = [i for i in range(CLIENTS) if i not in chosen_now]
        chosen_now += rng.choice(rest, WANTED - len(chosen_now), replace=False).tolist()
        found.append(sorted(chosen_now))
        told.learn(r, chosen_now)
    return found, percentiles, epsilon


def rounds_of(solver: Oort, told: Told, first: int, last: int) -> tuple[list[list[int]], list[float]]:
    found, percentiles = [], []
    for number in range(first, last + 1):
        found.append(chosen(solver(told.problem(number))))
        told.learn(number, found[-1])
        percentiles.append(solver.state_dict()["cells"][0]["percentile"])
    return found, percentiles


@pytest.mark.parametrize("window", [20, 3])
def test_fifty_rounds_are_those_of_the_formulas(window):
    times = full_work(Told().problem(1)).seconds.tolist()
    solver = Oort(window=window)
    expected, percentiles, epsilon = reference(50, window, times, None)
    assert rounds_of(solver, Told(), 1, 50) == (expected, percentiles)
    assert solver.state_dict()["cells"][0]["exploration"] == epsilon == 0
    assert set(percentiles) > {10.0} or window == 20  # the pacer moved


def test_it_goes_on_from_what_it_kept():
    expected, _ = rounds_of(Oort(window=3), Told(), 1, 30)
    first, second, told = Oort(window=3), Oort(window=3), Told()
    assert rounds_of(first, told, 1, 12)[0] == expected[:12]
    second.load_state_dict(first.state_dict())
    assert rounds_of(second, told, 13, 30)[0] == expected[12:]


def test_all_are_exploited_once_nobody_is_new():
    loss = np.array([loss_of(i, 1) for i in range(CLIENTS)])
    everybody = problem_of(CLIENTS, 0, CLIENTS, loss=loss, edge_round=2)  # where the authors' code fails
    assert chosen(Oort()(everybody)) == list(range(CLIENTS))


def test_a_slow_client_is_rarely_explored_and_from_the_hundredth_percentile_on_nobody_is_slow():
    base = problem_of(CLIENTS, 0, 1)
    seconds = full_work(base).seconds

    def mean_seconds(solver: Oort) -> float:
        return float(np.mean([seconds[chosen(solver(replace(base, seed=seed)))] for seed in range(100)]))

    assert mean_seconds(Oort()) < 0.8 * mean_seconds(Oort(percentile=100.0, least=0.0))


@pytest.mark.parametrize("given", [{"exploration": 2}, {"window": 0}, {"window": 2.0}, {"cut": -1}, {"clip": True}])
def test_a_number_that_is_none_is_refused(given):
    with pytest.raises(ValueError, match=r"^\w+ = .*: allowed is an? (number|integer) from \d"):
        Oort(**given)
