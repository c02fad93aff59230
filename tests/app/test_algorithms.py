"""What the config says reaches the parts that the algorithms are made of."""

import pytest
import torch

from espalier.app.algorithms import ALGORITHMS, split_options
from espalier.app.config.parse import parse_config
from espalier.app.tasks.common import local_training
from espalier.app.tasks.family import family
from tests.app.runs import key_of

CLIENTS = {"learning-rate": 0.2, "train.momentum": 0.5, "train.weight-decay": 0.01}


def server_optimizer(**keys):
    config = parse_config({"algorithm": "sfl-v2", **CLIENTS, **{key_of(k): v for k, v in keys.items()}})
    return split_options(config, "edge-0")["make_optimizer"]([torch.nn.Parameter(torch.ones(1))])


def test_the_keys_of_both_optimizers_reach_them():
    training = local_training(parse_config(CLIENTS))
    assert (training.learning_rate, training.momentum, training.weight_decay) == (0.2, 0.5, 0.01)
    adam = server_optimizer(server_optimizer="adam", server_learning_rate=0.03, server_weight_decay=0.04)
    assert "Adam" in type(adam).__name__
    assert (adam.param_groups[0]["lr"], adam.param_groups[0]["weight_decay"]) == (0.03, 0.04)
    (group,) = server_optimizer(server_momentum=0.7).param_groups
    assert (group["lr"], group["momentum"], group["weight_decay"]) == (0.2, 0.7, 0.0)


@pytest.mark.parametrize(("order", "one_by_one"), [("one-by-one", True), ("interleaved", False)])
def test_the_order_of_the_server_reaches_the_edge(order, one_by_one):
    config = parse_config({"algorithm": "sfl-v2", "split.server-order": order})
    assert ALGORITHMS["sfl-v2"](config, {}, None)("edge-0", 2).one_by_one is one_by_one


def test_split_edges_draw_by_the_seed_each_by_itself():
    configs = [parse_config({"algorithm": "hsfl", "seed": seed}) for seed in (0, 1)]
    seeds = {split_options(config, edge)["seed"] for config in configs for edge in ("edge-0", "edge-1")}
    assert len(seeds) == 4


@pytest.mark.parametrize(("dataset", "factor"), [("digits", 6), ("video-caching", 6 * 2)])
def test_centralised_makes_the_steps_of_all_clients(dataset, factor):
    keys = {"algorithm": "centralised", "dataset": dataset, "num-clients": 6, "edge-rounds": 2, "batches-per-epoch": 3}
    config = parse_config(keys)
    assert family(config).centralised_task(config).training.batches_per_epoch == 3 * factor
