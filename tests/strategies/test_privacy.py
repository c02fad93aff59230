"""Clipped updates and noise at the mean, in front of an edge and around a cloud's strategy."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from flwr.serverapp.strategy import FedAvg

from espalier.clients.shared.privacy import noise_generator
from espalier.strategies import EqualWeights, Hierarchical, StrategyEdge
from espalier.strategies.privacy import ASKED, NOISE, OF, PrivateCloud, PrivateMean
from tests.strategies.split.federation import ANY, Federation, weights
from tests.strategies.toys import initial, local_step, to_numpy, to_record, toy_grid, toy_topology

CLIP = 0.7


def draws(name):
    return partial(noise_generator, 0, name)


def private(clip, noise, fraction=1.0, **options):
    def make(name, size):
        edge = FedAvg(**ANY, fraction_train=fraction)
        return EqualWeights(PrivateMean(edge, clip, noise, draws(name), **options))

    return make


def plain(name, size):
    return EqualWeights(StrategyEdge(FedAvg(**ANY)))


def cloud(clip, noise, reach=None):
    return PrivateCloud(FedAvg(**ANY), clip, noise, draws("cloud"), reach or (lambda told: clip))


def first_round(top, make_edge, *, clients=6, num_edges=2, start=None, edge_rounds=1, **faults):
    grid = toy_grid(clients, **faults)
    strategy = Hierarchical(top, make_edge, toy_topology(grid, num_edges), edge_rounds=edge_rounds)
    return next(strategy.rounds(grid, to_record(start or initial()), 1))


def short(before, after, clip=CLIP):
    """Return a clipped update."""
    update = {name: after[name].astype(float) - before[name] for name in before}
    length = np.sqrt(sum((own**2).sum() for own in update.values()))
    return {name: own * min(1.0, clip / length) for name, own in update.items()}


def mean_of(updates, count):
    return {name: sum(own[name] for own in updates) / count for name in updates[0]}


@pytest.mark.parametrize("by_cloud", [False, True])
def test_what_no_client_trains_is_what_was_sent_to_the_bit_and_all_else_has_the_same_noise(by_cloud):
    def round_of(untrained):
        if by_cloud:
            top = PrivateCloud(FedAvg(**ANY), CLIP, 1.0, draws("cloud"), lambda told: CLIP, untrained=untrained)
            return first_round(top, plain, start=start)
        return first_round(FedAvg(**ANY), private(CLIP, 1.0, untrained=untrained), start=start)

    start = initial()
    last = sorted(start)[-1]  # noise is drawn by name
    every, others = (to_numpy(round_of(untrained).arrays) for untrained in ((), (last,)))
    assert np.array_equal(others[last], start[last])
    assert not np.array_equal(every[last], start[last])
    assert all(np.array_equal(every[name], others[name]) for name in start if name != last)


def close(arrays, expected, atol=1e-6):
    return all(np.allclose(own, expected[name], atol=atol) for name, own in to_numpy(arrays).items())


@pytest.mark.parametrize("clip", [0.0, 1e6])
def test_without_noise_and_bound_edges_and_cloud_compute_the_same_bits(clip):
    """The model has BatchNorm, with statistics and an integer counter, and one client's update is zero."""
    federation = Federation(sizes=(20, 33, 14, 40))
    still = replace(federation.tasks[2].training, learning_rate=1e-300)
    federation.tasks[2] = replace(federation.tasks[2], training=still)
    expected = federation.run(plain, num_edges=2, edge_rounds=2)[-1]
    found = federation.run(private(clip, 0.0), num_edges=2, edge_rounds=2)[-1]
    assert all(torch.equal(own, weights(expected)[name]) for name, own in weights(found).items())
    before, after = first_round(FedAvg(**ANY), plain), first_round(cloud(clip, 0.0), plain)
    assert {n: a.data for n, a in before.arrays.items()} == {n: a.data for n, a in after.arrays.items()}


def test_an_edge_takes_the_mean_of_clipped_updates_over_all_who_were_asked():
    """One of three fails: it counts as an update of zero."""
    start = initial()
    outcome = first_round(FedAvg(**ANY), private(CLIP, 0.0), clients=3, num_edges=1, faults={1: "raise"})
    update = mean_of([short(start, local_step(start, client, 1)) for client in (0, 2)], 3)
    assert close(outcome.arrays, {name: start[name] + own for name, own in update.items()})
    (told,) = outcome.edges["edge-0"].updates
    assert (told.metrics[ASKED], told.metrics[OF], told.metrics[NOISE]) == (3, 3, 0.0)
    sampled = first_round(FedAvg(**ANY), private(CLIP, 0.5, fraction=0.5)).edges["edge-1"].updates[0].metrics
    assert (sampled[ASKED], sampled[OF], sampled[NOISE]) == (1, 3, 0.5)


@pytest.mark.parametrize("fault", ["nan", "shape", "missing", "extra", "no weight", "two arrays", "too large"])
def test_who_sends_what_is_no_update_counts_as_one_of_zero(fault):
    start = initial()
    outcome = first_round(FedAvg(**ANY), private(CLIP, 0.0), clients=3, num_edges=1, faults={1: fault})
    update = mean_of([short(start, local_step(start, client, 1)) for client in (0, 2)], 3)
    assert close(outcome.arrays, {name: start[name] + own for name, own in update.items()})


@pytest.mark.parametrize(("largest", "is_made"), [(1 / 3, True), (0.3, False)])
def test_a_larger_share_than_planned_is_not_asked(largest, is_made):
    """Of three clients one is to train."""
    outcome = first_round(FedAvg(**ANY), private(CLIP, 0.5, fraction=0.5, largest_share=largest), num_edges=2)
    edge = outcome.edges["edge-1"]
    assert (edge.arrays is not None) == is_made
    said = [failure.reason for failure in edge.failures]
    assert said == ([] if is_made else ["not asked: 1 of 3 are a larger share than the 0.3 planned"])


def test_replies_that_do_not_weigh_the_same_are_left_out():
    def by_examples(name, size):
        return PrivateMean(FedAvg(**ANY), CLIP, 0.0, draws(name))

    outcome = first_round(FedAvg(**ANY), by_examples)
    assert outcome.edges["edge-0"].arrays is None
    assert "its weight is not 1" in outcome.edges["edge-0"].failures[0].reason


def test_noise_at_an_edge_is_that_of_one_clipped_update_in_its_mean():
    start = {"w": np.zeros(300_000, np.float32)}
    outcomes = [
        first_round(FedAvg(**ANY), private(CLIP, noise), clients=4, num_edges=1, start=start) for noise in (0.0, 1.5)
    ]
    without, noisy = (to_numpy(outcome.arrays)["w"] for outcome in outcomes)
    assert np.std(noisy - without) == pytest.approx(1.5 * CLIP / 4, rel=0.01)


@pytest.mark.parametrize(("level", "deviation"), [("edge", CLIP / 2), ("client", CLIP / 3 / 2)])
def test_noise_at_the_cloud_is_that_of_one_edge_or_one_client_in_its_mean(level, deviation):
    start = {"w": np.zeros(300_000, np.float32)}
    made = []
    for noise in (0.0, 1.5):
        if level == "edge":
            made.append(first_round(cloud(CLIP, noise), plain, start=start))
        else:
            top = cloud(0.0, noise, lambda told: CLIP / told[ASKED])
            made.append(first_round(top, private(CLIP, 0.0), start=start))
    without, noisy = (to_numpy(outcome.arrays)["w"] for outcome in made)
    assert np.std(noisy - without) == pytest.approx(1.5 * deviation, rel=0.01)
    assert (made[1].train_metrics[ASKED], made[1].train_metrics[NOISE]) == (2, 1.5)


def test_the_cloud_clips_the_updates_of_edges():
    start = initial()
    outcome = first_round(cloud(CLIP, 0.0), plain, edge_rounds=2)
    edges = [to_numpy(edge.arrays) for edge in outcome.edges.values()]
    update = mean_of([short(start, own) for own in edges], 2)
    assert close(outcome.arrays, {name: start[name] + own for name, own in update.items()})


def test_variances_stay_possible_and_counters_whole_under_noise():
    federation = Federation(sizes=(20, 33))
    (outcome,) = federation.run(private(50.0, 5.0), num_edges=1, rounds=1)
    model = weights(outcome)
    assert float(model["first.1.running_var"].min()) == 0.0
    assert int(model["first.1.num_batches_tracked"]) in range(3, 6)


def test_a_secret_sample_follows_no_seed():
    def asked(is_secret):
        make = private(CLIP, 0.0, fraction=0.5, is_secret=is_secret)
        outcome = first_round(FedAvg(**ANY), make, clients=20, num_edges=1)
        return tuple(outcome.edges["edge-0"].updates[0].participants)

    assert asked(is_secret=False) == asked(is_secret=False)
    assert len({asked(is_secret=True) for _ in range(3)}) > 1
