"""Running statistics and counters are averaged, whatever a strategy does to weights; who chooses chooses them too."""

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import (
    Bulyan,
    DifferentialPrivacyServerSideFixedClipping,
    FedAdagrad,
    FedAdam,
    FedAvg,
    FedAvgM,
    FedMedian,
    FedTrimmedAvg,
    FedYogi,
    Krum,
    MultiKrum,
)

from espalier.sim.in_process_grid import InProcessGrid
from espalier.strategies import Hierarchical
from tests.strategies.split.federation import Federation
from tests.strategies.split.federation import weights as weights_of
from tests.strategies.split.test_own_strategy import split
from tests.strategies.toys import average, to_numpy, to_record

ANY = {"min_train_nodes": 1, "min_evaluate_nodes": 1, "min_available_nodes": 1, "fraction_evaluate": 0.0}
NUM_CLIENTS = 7
OPTIMIZERS = {
    "FedAvgM": lambda: FedAvgM(**ANY, server_momentum=0.9),
    "FedAvgM, half a step": lambda: FedAvgM(**ANY, server_learning_rate=0.5),
    "FedAdam": lambda: FedAdam(**ANY, eta=0.001),
    "FedYogi": lambda: FedYogi(**ANY),
    "FedAdagrad": lambda: FedAdagrad(**ANY),
}
ROBUST = {
    "FedMedian": lambda: FedMedian(**ANY),
    "FedTrimmedAvg": lambda: FedTrimmedAvg(**ANY),
    "Krum": lambda: Krum(**ANY, num_malicious_nodes=1),
    "MultiKrum": lambda: MultiKrum(**ANY, num_malicious_nodes=1, num_nodes_to_select=3),
    "Bulyan": lambda: Bulyan(**ANY, num_malicious_nodes=1),
}
BESIDE_WEIGHTS = "norm.running_mean", "norm.running_var", "norm.num_batches_tracked"


class Overshoots(FedAvg):
    """A server optimizer of one's own: twice as far as the average."""

    def configure_train(self, server_round, arrays, config, grid):
        self.sent = to_numpy(arrays)
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(self, server_round, replies):
        arrays, metrics = super().aggregate_train(server_round, replies)
        far = {name: Array(np.asarray(2 * array.numpy() - self.sent[name])) for name, array in arrays.items()}
        return ArrayRecord(far), metrics


class Meant(Overshoots):
    """Says that what it makes of statistics is meant."""

    own_statistics = True


class Even(FedAvg):
    """Lets all clients weigh the same, and says that its statistics are not meant."""

    own_statistics = False

    def aggregate_train(self, server_round, replies):
        for reply in replies:
            reply.content["metrics"]["weight"] = 1
        self.weighted_by_key = "weight"
        return super().aggregate_train(server_round, replies)


def initial():
    rng = np.random.default_rng(3)
    return {
        "w": rng.normal(size=(6, 5)).astype(np.float32),
        "norm.running_mean": np.zeros(5, np.float32),
        "norm.running_var": np.ones(5, np.float32),
        "norm.num_batches_tracked": np.asarray(0),
    }


def trained(sent, client, server_round):
    """Return what a client makes of a model: of a small variance, and with a number of mini-batches of its own."""
    rng = np.random.default_rng((client, server_round))
    data = (0.3 * client + 0.1 * rng.normal(size=(20, 5))).astype(np.float32)
    return {
        "w": sent["w"] + np.float32(0.1) * rng.normal(size=(6, 5)).astype(np.float32),
        "norm.running_mean": (sent["norm.running_mean"] + data.mean(0)) / 2,
        "norm.running_var": np.float32(0.4) * sent["norm.running_var"] + np.float32(0.6) * data.var(0),
        "norm.num_batches_tracked": sent["norm.num_batches_tracked"] + 1 + client,
    }


def run(strategy, *, rounds=8, liar=None, at="edge", num_edges=1, arrays=("w", *BESIDE_WEIGHTS), seed=None):
    """Return, per round, the clients' models, which have these arrays, and the model that a strategy made."""
    app, seen = ClientApp(), {}

    @app.train()
    def train(message, context):
        client, server_round = int(context.node_config["partition-id"]), int(message.content["config"]["server-round"])
        model = trained(initial() | to_numpy(message.content["arrays"]), client, server_round)
        model = {name: model[name] for name in arrays}
        if client == liar:
            model |= {name: np.full_like(model[name], 1000) for name in model}
        seen.setdefault(server_round, {})[client] = model
        metrics = MetricRecord({"num-examples": 10 + client})
        return Message(RecordDict({"arrays": to_record(model), "metrics": metrics}), reply_to=message)

    grid = InProcessGrid(app, NUM_CLIENTS)
    nodes = list(grid.get_node_ids())
    topology = {f"edge-{i}": nodes[i::num_edges] for i in range(num_edges)}
    own, plain = strategy(), lambda *_: FedAvg(**ANY)
    cloud, edge = own if at == "cloud" else FedAvg(**ANY), (lambda *_: own) if at == "edge" else plain
    whole = Hierarchical(cloud, edge, topology, seed=seed)
    outcomes = list(whole.rounds(grid, to_record({name: initial()[name] for name in arrays}), rounds))
    models = [to_numpy(outcome.arrays) for outcome in outcomes]
    clients = [[seen[number][i] for i in range(NUM_CLIENTS)] for number in range(1, rounds + 1)]
    return clients, models


def assert_averages(model, expected):
    """Assert that statistics and counters are averages; two tiers round counters twice."""
    for name in BESIDE_WEIGHTS[:2]:
        np.testing.assert_allclose(model[name], expected[name], rtol=1e-6, atol=1e-7)
    assert abs(model[BESIDE_WEIGHTS[2]] - expected[BESIDE_WEIGHTS[2]]) <= 1


def mean(clients):
    return average(clients, [10 + i for i in range(NUM_CLIENTS)])


@pytest.mark.parametrize("at", ["edge", "cloud"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_server_optimizer_moves_weights_alone(name, at):
    for clients, model in zip(*run(OPTIMIZERS[name], at=at, num_edges=1 if at == "edge" else 3), strict=True):
        assert_averages(model, expected := mean(clients))
    assert np.abs(model["w"] - expected["w"]).max() > 0.01  # the weights are the strategy's


def test_counters_are_averaged_in_a_model_without_statistics_too():
    for clients, model in zip(*run(OPTIMIZERS["FedAdam"], arrays=("w", BESIDE_WEIGHTS[2])), strict=True):
        assert abs(model[BESIDE_WEIGHTS[2]] - mean(clients)[BESIDE_WEIGHTS[2]]) <= 1
    assert model[BESIDE_WEIGHTS[2]] > 8


def test_one_of_a_users_own_does_too():
    for clients, model in zip(*run(Overshoots), strict=True):
        assert_averages(model, mean(clients))


def test_one_may_say_that_its_own_are_meant():
    (clients,), (model,) = run(Meant, rounds=1)
    expected = mean(clients)
    np.testing.assert_allclose(model["norm.running_mean"], 2 * expected["norm.running_mean"], rtol=1e-6)
    assert expected["norm.running_var"].max() < 0.5
    assert (model["norm.running_var"] == 0).all()  # no variance is less


def test_or_that_they_are_not():
    (clients,), (model,) = run(Even, rounds=1)
    np.testing.assert_allclose(model["w"], average(clients, [1] * NUM_CLIENTS)["w"], rtol=1e-5)
    assert_averages(model, mean(clients))


@pytest.mark.parametrize("name", ROBUST)
def test_one_that_chooses_among_clients_keeps_a_liar_out_of_statistics(name):
    clients, models = run(ROBUST[name], liar=2, rounds=3)
    for own, model in zip(clients, models, strict=True):
        honest = [client for i, client in enumerate(own) if i != 2]
        for statistic in BESIDE_WEIGHTS[:2]:
            assert (model[statistic] <= np.max([one[statistic] for one in honest], axis=0) * (1 + 1e-6)).all()


def test_the_noise_of_differential_privacy_stays_and_takes_no_variance_below_zero():
    def private():
        return DifferentialPrivacyServerSideFixedClipping(FedAvg(**ANY), 50.0, 1.0, NUM_CLIENTS)

    # Without a seed the noise is another each time, and there are times when it leaves every variance above zero.
    (clients,), (model,) = run(private, rounds=1, seed=1)
    assert np.abs(model["norm.running_mean"] - mean(clients)["norm.running_mean"]).max() > 0.5
    assert model["norm.running_var"].min() == 0


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_cut_models_are_as_whole_ones(name):
    federation = Federation(sizes=(20, 33, 14))
    plain = weights_of(federation.run(split(federation, lambda: FedAvg(**ANY)), rounds=1)[-1])
    stepped = weights_of(federation.run(split(federation, OPTIMIZERS[name]), rounds=1)[-1])
    beside = [n for n in plain if "running" in n or "tracked" in n]
    assert beside
    for n in beside:
        torch.testing.assert_close(stepped[n], plain[n], rtol=1e-6, atol=0)
