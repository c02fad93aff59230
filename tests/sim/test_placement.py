import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from espalier.sim.placement import Places, busiest, shared_out

WORKERS = 4


def best_partition(seconds, num_workers):
    """Return the shortest critical path there is, by a MILP: which piece at which worker, and how long the last is."""
    from scipy.optimize import Bounds, LinearConstraint, milp

    pieces = len(seconds)
    cost = np.zeros(pieces * num_workers + 1)
    cost[-1] = 1
    once = np.zeros((pieces, len(cost)))
    within = np.zeros((num_workers, len(cost)))
    for piece in range(pieces):
        once[piece, piece * num_workers : (piece + 1) * num_workers] = 1
        within[range(num_workers), piece * num_workers + np.arange(num_workers)] = seconds[piece]
    within[:, -1] = -1
    constraints = [LinearConstraint(once, 1, 1), LinearConstraint(within, -np.inf, 0)]
    integrality = np.ones(len(cost))
    integrality[-1] = 0
    upper = np.ones(len(cost))
    upper[-1] = np.inf
    found = milp(
        cost, constraints=constraints, integrality=integrality, bounds=Bounds(0, upper), options={"mip_rel_gap": 0.01}
    )
    return found.fun


@pytest.mark.parametrize("seed", range(5))
def test_sixteen_uneven_edges_end_within_a_tenth_of_the_best_partition(seed):
    seconds = np.random.default_rng(seed).lognormal(sigma=1.0, size=16)
    work = dict(enumerate(seconds))
    assert busiest(work, shared_out(work, [0.0] * WORKERS)) <= 1.1 * best_partition(seconds, WORKERS)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("share", "every"), [(0.5, 1), (3.0, 5)], ids=["short", "long and rare"])
def test_edges_are_within_a_tenth_of_the_best_partition_whatever_evaluations_take_between(seed, share, every):
    rng = np.random.default_rng(seed)
    train, evaluate, first = (dict(enumerate(rng.lognormal(sigma=1.0, size=16))) for _ in range(3))
    workers = ["a", "b", "c", "d"]
    places = Places(dict.fromkeys(train, 1.0), {edge: edge for edge in train}, workers)
    best, moved = best_partition(list(train.values()), WORKERS), []

    def work(kind, seconds):
        places.share_out_anew(kind, workers)
        at = dict(places.at)
        for edge, own in seconds.items():
            places.add(kind, edge, own)
        return at

    work("query", first)  # done once: data are read
    work("query", dict.fromkeys(first, 0.001))
    for server_round in range(1, 13):
        moved.append(work("train", train))
        if server_round % every == 0:
            work("evaluate", {edge: share * own for edge, own in evaluate.items()})
    assert all(busiest(train, at) <= 1.1 * best for at in moved[5:])
    assert all(at == moved[5] for at in moved[5:])  # nor do they go to and fro


def test_who_took_nothing_keeps_its_share_and_workers_that_are_gone_leave_theirs():
    places = Places({"x": 4.0, "y": 2.0, "z": 1.0, "w": 1.0}, dict(zip("xyzw", "xyzw", strict=True)), [0, 1])
    assert places.at == {"x": 0, "y": 1, "z": 1, "w": 1}
    places.add("train", "x", 1.0)  # of which y took 0.5 then
    places.add("train", "z", 9.0)
    places.share_out_anew("train", [0, 1])
    assert places.at == {"z": 0, "y": 1, "x": 1, "w": 1}
    places.leave([0], [1])
    assert set(places.at.values()) == {1}


def test_a_coarse_clock_ends_nothing():
    places = Places({"x": 0.0, "y": 0.0}, {"x": "x", "y": "y"}, [0, 1])
    for _ in range(3):
        places.add("train", "x", 0.0)
        places.share_out_anew("train", [0, 1])
    assert set(places.at) == {"x", "y"}


def test_an_exchange_mends_what_the_longest_first_gets_wrong():
    # Longest first: 3 + 2 + 2 = 7 beside 3 + 2 = 5; the best is 3 + 3 beside 2 + 2 + 2.
    work = dict(enumerate([3.0, 3.0, 2.0, 2.0, 2.0]))
    assert busiest(work, shared_out(work, [0.0, 0.0])) == 6


@given(st.lists(st.floats(0, 100), max_size=30), st.lists(st.floats(0, 50), min_size=1, max_size=6))
def test_each_piece_is_at_one_worker_and_none_is_busier_than_graham_says(seconds, loads):
    work = dict(enumerate(seconds))
    at = shared_out(work, loads)
    assert at.keys() == work.keys()
    assert set(at.values()) <= set(range(len(loads)))
    totals = [load + sum(work[piece] for piece, place in at.items() if place == i) for i, load in enumerate(loads)]
    mean = sum(totals) / len(totals)
    assert max(totals) <= max([mean + max(seconds, default=0), *loads]) * (1 + 1e-9)
    assert at == shared_out(work, loads)


def test_many_small_pieces_are_even_at_once():
    work = {i: 1.0 + i % 7 for i in range(10_000)}
    totals = [0.0] * 16
    for piece, place in shared_out(work, totals[:]).items():
        totals[place] += work[piece]
    assert max(totals) <= 1.01 * sum(totals) / 16
