import pytest
from flwr.serverapp.strategy import FedAvg

from espalier.strategies.sampled_evaluation import SampledEvaluation
from tests.strategies.split.federation import ANY, Federation, same, weights

SIZES = (24, 16, 8, 32)


def _run(share, seed=1, rounds=4):
    federation = Federation(sizes=SIZES)
    return federation.run(lambda name, size: SampledEvaluation(FedAvg(**ANY), share, seed), rounds=rounds)


def _asked(outcomes):
    return [list(outcome.evaluations["edge-0"].replies) for outcome in outcomes]


def test_all_clients_are_the_evaluation_without_it():
    plain = Federation(sizes=SIZES).run(lambda name, size: FedAvg(**ANY), rounds=4)
    ours = _run(1.0)
    assert _asked(ours) == _asked(plain)
    assert [one.evaluate_metrics for one in ours] == [one.evaluate_metrics for one in plain]


@pytest.mark.parametrize(("share", "count"), [(0.75, 3), (0.6, 2), (0.01, 1)])
def test_a_share_is_drawn_by_seed_and_round_in_client_order_and_training_does_not_notice(share, count):
    everybody, ours = _run(1.0), _run(share)
    asked, order = _asked(ours), _asked(everybody)[0]
    assert all(len(own) == count and own == sorted(own, key=order.index) for own in asked)
    assert asked == _asked(_run(share))
    assert len({tuple(own) for own in asked}) > 1
    assert same(weights(ours[-1]), weights(everybody[-1]))


def test_nobody_is_asked_for_a_share_of_zero_and_nothing_fails():
    (last, *_), everybody = reversed(_run(0.0)), _run(1.0)
    assert (last.evaluations["edge-0"].replies, last.evaluations["edge-0"].failures, last.failures) == ({}, (), [])
    assert last.evaluate_metrics is None
    assert same(weights(last), weights(everybody[-1]))
