"""What the config says reaches the parts that the algorithms are made of."""

import pytest
import torch

from espalier.app.algorithms.registry import ALGORITHMS, algorithm_named
from espalier.app.algorithms.split_edges import split_options
from espalier.app.config.parse import parse_config
from espalier.app.tasks.common import local_training
from espalier.app.wiring.task_of_run import build_task
from espalier.clients.shared.local_round import Begun, Learned
from tests.app.assembling import config_of, engine_of, federation_of, site_of

CLIENTS = {"learning-rate": 0.2, "train.momentum": 0.5, "train.weight-decay": 0.01}


def server_optimizer(**settings):
    config = config_of(algorithm="sfl-v2", **CLIENTS, **settings)
    return split_options(site_of(config))["make_optimizer"]([torch.nn.Parameter(torch.ones(1))])


def test_every_algorithm_is_known_by_its_own_name():
    for name, algorithm in ALGORITHMS.items():
        assert algorithm_named(name) is algorithm
        assert algorithm.name == algorithm.text == name
        dataset = "video-caching" if algorithm.ranks_requests else "digits"
        assert config_of(algorithm=name, dataset=dataset).algorithm is algorithm


def test_the_keys_of_both_optimizers_reach_them():
    training = local_training(parse_config(CLIENTS).train)
    assert (training.learning_rate, training.momentum, training.weight_decay) == (0.2, 0.5, 0.01)
    adam = server_optimizer(server_optimizer="adam", server_learning_rate=0.03, server_weight_decay=0.04)
    assert "Adam" in type(adam).__name__
    assert (adam.param_groups[0]["lr"], adam.param_groups[0]["weight_decay"]) == (0.03, 0.04)
    (group,) = server_optimizer(server_momentum=0.7).param_groups
    assert (group["lr"], group["momentum"], group["weight_decay"]) == (0.2, 0.7, 0.01)
    (plain,) = server_optimizer(server_momentum=0.0, server_weight_decay=0.0).param_groups
    assert (plain["lr"], plain["momentum"], plain["weight_decay"]) == (0.2, 0.0, 0.0)


@pytest.mark.parametrize("order", ["interleaved", "one-by-one", "in-client-order"])
def test_the_order_of_the_server_reaches_the_edge(order):
    config = config_of(algorithm="sfl-v2", server_order=order)
    assert config.algorithm.make_edge(site_of(config)).order == order


def test_split_edges_draw_by_the_seed_each_by_itself():
    configs = [config_of(algorithm="hsfl", seed=seed) for seed in (0, 1)]
    federations = [federation_of(config, engine_of(config).grid) for config in configs]
    edges = [edge for federation in federations for edge in federation.hierarchical.edges.values()]
    seeds = {edge.inner.seed for edge in edges}
    assert len(seeds) == 4


@pytest.mark.parametrize(("dataset", "factor"), [("digits", 6), ("video-caching", 6 * 2)])
def test_centralised_makes_the_steps_of_all_clients(dataset, factor):
    keys = {"algorithm": "centralised", "dataset": dataset, "num-clients": 6, "edge-rounds": 2, "batches-per-epoch": 3}
    config = parse_config(keys)
    assert build_task(config).centralised_task().training.batches_per_epoch == 3 * factor


@pytest.mark.parametrize(("dataset", "factor"), [("digits", 1), ("video-caching", 2)])
def test_centralised_makes_the_passes_of_all_clients(dataset, factor):
    keys = {"algorithm": "centralised", "dataset": dataset, "num-clients": 6, "edge-rounds": 2, "batches-per-epoch": 0}
    training = build_task(parse_config(keys | {"local-epochs": 3})).centralised_task().training
    assert (training.batches_per_epoch, training.local_epochs) == (0, 3 * factor)


@pytest.mark.parametrize(
    "name",
    [name for name, one in ALGORITHMS.items() if one.trains_clients and not one.splits and not one.ranks_requests],
)
def test_an_algorithm_says_how_often_its_clients_train_on_a_mini_batch(name):
    """FedRep's epochs of the head are none of a local round, so they are not among them."""
    config = config_of(algorithm=name, **({"pfedme.steps": 3} if name == "pfedme" else {}))
    algorithm, weights, seen = config.algorithm, {"weight": torch.ones(2)}, 0
    own = config.of_algorithm.as_dict() if config.of_algorithm else {}
    numbers = {key: torch.tensor(float(value)) for key, value in own.items() if isinstance(value, int | float)}
    sent = {**numbers, **{key.replace(".", "-"): value for key, value in numbers.items()}}  # FedDyn's has a hyphen
    conversation = algorithm.client.rule(Begun(weights, weights, {**weights, **sent}, num_batches=4))
    try:
        due = next(conversation)
        while True:
            seen += (due.epochs is None) * (4 if due.batches is None else len(due.batches))
            due = conversation.send(Learned(weights, path=0.1, steps=4))
    except StopIteration:
        pass
    assert seen == 4 * algorithm.passes(config.of_algorithm)
    assert algorithm.passes(config.of_algorithm) == {"ditto": 2, "apfl": 2, "pfedme": 3}.get(name, 1)
