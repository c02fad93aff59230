"""Oort against its formulas, written out client by client, over eighty rounds; and what it keeps."""

from dataclasses import replace
from math import log, sqrt

import numpy as np
import pytest

from espalier.strategies.allocation import Oort
from espalier.strategies.allocation.full_work import full_work
from tests.strategies.allocation.knowledge import chosen, problem_of

CLIENTS, WANTED = 60, 6
FLAT_FROM, JUMP = 20, 60  # rounds from which losses stay nearly as they are, and from which they are tenfold
EXAMPLES = np.random.default_rng(7).integers(20, 200, CLIENTS).astype(float)


def loss_of(client: int, server_round: int) -> float:
    """Return the loss that a client tells after a round."""
    level = 0.97 ** min(server_round, FLAT_FROM) * (10 if server_round >= JUMP else 1)
    return (0.5 + client % 5) * level + 0.01 * (client * server_round % 7)


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


def reference(
    rounds: int, window: int, times: list[float], clip: float
) -> tuple[list[list[int]], list[float], float, set[str]]:
    """Return whom each round selects, T's percentile in each, and the last exploration, by the formulas alone.

    Also which of the rules for rare cases have made a difference.
    """
    told, epsilon, percentile, history, exploited, found, percentiles = Told(), 0.9, 10.0, [], [], [], []
    seen = set()
    for r in range(1, rounds + 1):
        stat = {i: EXAMPLES[i] * sqrt(loss**2) for i, loss in told.loss.items()}
        # The pacer looks at the rounds that are over.
        history.append(sum(stat[i] for i in exploited) / len(exploited) if exploited else 0.0)
        if r >= 2 * window and r % window == 0:
            before, after = sum(history[-2 * window : -window]), sum(history[-window:])
            if abs(after - before) <= 0.1 * before:
                percentile = min(100.0, percentile + 5)
                seen.add("T rises")
            elif abs(after - before) >= 5 * before:
                percentile = max(5.0, percentile - 5)
                seen.add("T falls")
        percentiles.append(percentile)
        preferred = sorted(times)[min(int(CLIENTS * percentile / 100), CLIENTS - 1)]
        slow = {i: (preferred / times[i]) ** 2 if times[i] > preferred else 1.0 for i in range(CLIENTS)}
        new = [i for i in range(CLIENTS) if i not in stat]
        epsilon = max(0.95 * epsilon, 0.2)
        number = min(int(WANTED * (1 - epsilon if new else 1)), len(stat))
        rng = np.random.default_rng([11, 0])
        exploited = []
        if number:
            ascending = sorted(stat.values())
            high = ascending[min(int(clip * len(stat)), len(stat) - 1)]
            low, spread = ascending[0], max(ascending[-1] - ascending[0], 1e-4)
            if high < ascending[-1]:
                seen.add("clipped")
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
        if more and len(best_first) < len(new):
            seen.add("exploration restricted")
        chosen_now = exploited + explored
        rest = [i for i in range(CLIENTS) if i not in chosen_now]
        chosen_now += rng.choice(rest, WANTED - len(chosen_now), replace=False).tolist()
        found.append(sorted(chosen_now))
        told.learn(r, chosen_now)
    return found, percentiles, epsilon, seen


def rounds_of(solver: Oort, told: Told, first: int, last: int) -> tuple[list[list[int]], list[float]]:
    found, percentiles = [], []
    for number in range(first, last + 1):
        found.append(chosen(solver(told.problem(number))))
        told.learn(number, found[-1])
        percentiles.append(solver.state_dict()["cells"][0]["percentile"])
    return found, percentiles


@pytest.mark.parametrize(("window", "clip"), [(20, 0.98), (3, 0.98), (3, 0.7)])
def test_eighty_rounds_are_those_of_the_formulas(window, clip):
    times = full_work(Told().problem(1)).seconds.tolist()
    solver = Oort(window=window, clip=clip)
    expected, percentiles, epsilon, seen = reference(80, window, times, clip)
    assert seen == {"T rises", "T falls", "clipped", "exploration restricted"}
    assert rounds_of(solver, Told(), 1, 80) == (expected, percentiles)
    assert solver.state_dict()["cells"][0]["exploration"] == epsilon == 0.2


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


def problem_in(number: int, there: range, loss: dict[int, float]):
    """Return a round's problem of four who are there, with the losses that they told."""
    base = problem_of(4, 0, 4, edge_round=number, loss=np.array([loss.get(client, np.nan) for client in there]))
    return replace(base, standing=replace(base.standing, clients=np.array(there)))


def test_its_share_of_new_clients_goes_on_falling_where_the_new_ones_are_away():
    solver, known = Oort(), {0: 1.0, 1: 2.0, 2: 3.0, 3: 4.0}
    shares = []
    for number, there in enumerate((range(4), range(2, 6), range(4), range(2, 6)), 1):
        solver(problem_in(number, there, known if number > 1 else {}))
        shares.append(solver.state_dict()["cells"][0]["exploration"])
    assert shares == pytest.approx([0.9 * 0.95, 0.9 * 0.95**2, 0.9 * 0.95**3, 0.9 * 0.95**4])


def test_a_share_of_a_fifth_of_five_is_one():
    solver = Oort(exploration=0.8, decay=1.0)
    loss = np.array([1.0, 1.0, np.nan, np.nan, np.nan])
    solver(problem_of(5, 0, 5, edge_round=2, loss=loss))  # 5 * (1 - 0.8) is less than 1 in double precision
    assert len(solver.state_dict()["cells"][0]["exploited"]) == 1


def test_the_pacer_counts_its_own_rounds_and_remembers_who_went_away():
    solver, loss = Oort(window=2), dict.fromkeys(range(8), 5.0)
    percentiles = []
    for number in (4, 5, 6, 7, 8, 9, 11, 13):  # nobody was there in the others
        solver(problem_in(number, range(4) if number % 2 else range(4, 8), loss))
        percentiles.append(solver.state_dict()["cells"][0]["percentile"])
    kept = solver.state_dict()["cells"][0]
    assert kept["utilities"] == [5.0] * 4
    # 0 and 5 before 5 and 5: neither flat nor sixfold; later all are 5.
    assert percentiles == [10.0] * 5 + [15.0, 15.0, 20.0]
    assert kept["rounds"] == 8


def test_the_pacer_moves_where_the_utility_changed_by_at_most_a_tenth_or_to_sixfold():
    solver, loss, percentiles = Oort(window=1), 5.0, []
    for number, factor in enumerate((1, 1, 1.09, 1.11, 0.91, 0.89, 5.9, 6.1, 6.1, 6.1, 0.01), 2):
        loss *= factor
        solver(problem_in(number, range(4), dict.fromkeys(range(4), loss)))
        percentiles.append(solver.state_dict()["cells"][0]["percentile"])
    # All four are exploited in each round; before the first it was nobody, so that the utility rises from 0.
    assert percentiles == [10.0, 5.0, 10.0, 10.0, 15.0, 15.0, 15.0, 10.0, 5.0, 5.0, 5.0]


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
