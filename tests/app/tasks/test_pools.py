"""Tasks of users' own whose examples the run shares out."""

import numpy as np
import pytest
import torch

from espalier.app.config.parse import parse_config
from espalier.app.ground.errors import UserError
from espalier.app.tasks.node import ClientNode
from espalier.app.tasks.partition import PARTITIONS, partition
from espalier.app.wiring.task_of_run import build_task
from tests.app.runs import run_app, same_weights, summary

POOLED = "tests.app.own_tasks:SharedOut"
SMALL = {"num-clients": 6, "num-edges": 2, "data.min-samples": 5, "alpha": 0.3, "edge-alpha": 0.2}


def halves(num_clients):
    """Clients 0, 1, ... have every sixth example, and so on."""
    return [np.arange(client, 300, num_clients) for client in range(num_clients)]


@pytest.mark.parametrize("scheme", PARTITIONS)
def test_clients_have_what_the_partition_of_its_labels_gives_them(scheme):
    task = build_task(parse_config({"task": POOLED, "partition": scheme, **SMALL}))
    pool = task.own.pool()
    options = {"scheme": scheme, "num_clients": 6, "num_edges": 2, "seed": 0, "min_samples": 5}
    parts = partition(pool.train.labels.numpy(), pool.test.labels.numpy(), **options, alpha=0.3, edge_alpha=0.2)
    for client, held in enumerate(parts):
        one = task.new_client_task(task.new_model(), ClientNode(client))
        assert torch.equal(one.train.inputs, pool.train.inputs[held.train])
        assert torch.equal(one.test.labels, pool.test.labels[held.test])
    assert torch.equal(task.test_examples().inputs, pool.test.inputs)
    assert len(task.centralised_task().train) == 300


def test_a_run_on_a_pool_learns_and_a_partition_of_ones_own_is_taken(tmp_path):
    settings = {"task": POOLED, "num_clients": 6, "global_rounds": 4, "learning_rate": 1.0}
    drawn = run_app(tmp_path / "drawn", **settings, partition="edge-dirichlet", alpha=0.5, min_samples=2)
    assert summary(drawn)["test"]["accuracy"] > 0.8
    written = run_app(tmp_path / "written", **settings, partition=f"{__name__}:halves")
    assert summary(written)["test"]["accuracy"] > 0.8
    assert not same_weights(drawn, written)


def test_labels_that_are_no_classes_are_shared_out_evenly():
    values = {"task": f"{POOLED}(labels='numbers')", "num-clients": 7}
    task = build_task(parse_config({**values, "partition": "iid"}))
    sizes = [len(task.client_examples(client)[0]) for client in range(7)]
    assert (sum(sizes), max(sizes) - min(sizes)) == (300, 1)
    with pytest.raises(UserError, match="partition = 'dirichlet': allowed is 'iid' or a function of your own for task"):
        build_task(parse_config(values)).client_examples(0)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ("no pool", "allowed is one whose pool.. returns an espalier.app.tasks.Pool, not a tuple"),
        ("untrained", "allowed is one whose pool.. has examples of each class to train on, not none of 2"),
    ],
)
def test_a_pool_that_can_not_be_shared_out_is_named(labels, message):
    with pytest.raises(UserError, match=message):
        build_task(parse_config({"task": f"{POOLED}(labels={labels!r})"})).client_examples(0)
