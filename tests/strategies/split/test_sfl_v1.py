"""SFL-V1 is FedAvg at any cut, and nested it is hierarchical FedAvg."""

from functools import partial

import pytest
from flwr.app import ArrayRecord, ConfigRecord
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg

from espalier.app.tasks.models import build_model
from espalier.strategies import Hierarchical, StrategyEdge, ask_profiles, group_by_edge
from espalier.strategies.split import SplitFedV1
from tests.strategies.split.federation import ANY, Federation, assert_close, every, momentum_sgd, same, weights


@pytest.mark.parametrize("labels", ["indices", "labels"])
@pytest.mark.parametrize("cut", [1, 2, 3])
def test_sfl_v1_is_fedavg_at_any_cut(cut, labels):
    federation = Federation(local_epochs=2)
    split = federation.run(federation.split(SplitFedV1, every(cut), label_policy=labels), rounds=3)
    whole = federation.run(rounds=3)
    assert_close(weights(split[-1]), weights(whole[-1]))
    assert split[-1].train_metrics["train_loss"] == pytest.approx(whole[-1].train_metrics["train_loss"], rel=1e-6)
    assert dict(split[-1].evaluate_metrics) == pytest.approx(dict(whole[-1].evaluate_metrics), rel=1e-6)


def test_what_is_sent_along_reaches_the_clients_as_in_fedavg():
    federation, config = Federation(), ConfigRecord({"local-rounds": 3, "cut": 99, "server-round": 99})

    def run(make_edge, config):
        grid = federation.grid()
        strategy = Hierarchical(FedAvg(**ANY), make_edge, group_by_edge(ask_profiles(grid), 1))
        arrays = ArrayRecord(federation.make_model().state_dict())
        return weights(list(strategy.rounds(grid, arrays, 2, train_config=config))[-1])

    told = run(federation.split(SplitFedV1, every(2)), config)
    assert_close(told, run(lambda name, size: FedAvg(**ANY), config))
    assert_close(told, weights(Federation(local_epochs=3).run()[-1]))
    assert not same(told, run(federation.split(SplitFedV1, every(2)), None))


@pytest.mark.parametrize("cut", [1, 2, 3])
def test_sfl_v1_is_fedavg_at_every_cut_of_cnn(cut):
    make = partial(build_model, "cnn", image_shape=(3, 16, 16), num_classes=4, seed=1)
    federation = Federation(make, sizes=(16, 9), shape=(3, 16, 16), classes=4)
    split = federation.run(federation.split(SplitFedV1, every(cut)), rounds=2)
    assert_close(weights(split[-1]), weights(federation.run(rounds=2)[-1]))


@pytest.fixture(scope="module")
def resnet18():
    """Return a federation that trains it, and its weights after a round of FedAvg: of small models two are held."""
    make = partial(build_model, "resnet18", image_shape=(3, 16, 16), num_classes=4, seed=1)
    federation = Federation(make, sizes=(4, 6), test_size=2, shape=(3, 12, 12), classes=4, batch_size=4)
    return federation, weights(federation.run(rounds=1)[-1])


@pytest.mark.parametrize("cut", [1, 2, 3, 4])
def test_sfl_v1_is_fedavg_at_every_cut_of_resnet18(resnet18, cut):
    federation, whole = resnet18
    split = federation.run(federation.split(SplitFedV1, every(cut)), rounds=1)
    assert_close(weights(split[-1]), whole, 1e-7)


def test_hsfl_is_hierarchical_fedavg():
    federation = Federation(sizes=(20, 33, 14, 40, 9, 25))
    options = {"num_edges": 3, "edge_rounds": 2, "rounds": 2}
    split = federation.run(federation.split(SplitFedV1, every(2)), **options)
    assert_close(weights(split[-1]), weights(federation.run(**options)[-1]))


def test_mixed_cuts_are_one_cut():
    federation = Federation()
    cuts = {}

    def cut_of(node_id):
        return cuts.setdefault(node_id, 1 + len(cuts) % 3)

    mixed = federation.run(federation.split(SplitFedV1, cut_of), rounds=2)
    assert sorted(cuts.values()) == [1, 1, 2, 3]
    assert_close(weights(mixed[-1]), weights(federation.run(rounds=2)[-1]))


def test_the_server_optimizers_of_sfl_v1_start_afresh_in_every_round_as_the_clients_do():
    federation = Federation(momentum=0.5)
    whole = federation.run(rounds=3)
    split = federation.run(federation.split(SplitFedV1, every(2), make_optimizer=momentum_sgd), rounds=3)
    assert_close(weights(split[-1]), weights(whole[-1]))


def test_privacy_noise_of_the_strategy_of_a_split_edge_follows_the_seed_that_is_given():
    def noisy(**options):
        federation = Federation(sizes=(20, 33, 14))
        private = DifferentialPrivacyServerSideFixedClipping(FedAvg(**ANY), 0.5, 1.0, 3)
        make_edge = federation.split(SplitFedV1, every(1), aggregation=StrategyEdge(private))
        return weights(federation.run(make_edge, rounds=1, **options)[-1])

    assert same(noisy(seed=5), noisy(seed=5))
    assert not same(noisy(seed=5), noisy(seed=6))
    assert not same(noisy(), noisy())
