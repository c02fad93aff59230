"""Video caching as a task: nobody learns from a request that has not been made."""

import pytest
import torch

from app.config import parse_config
from app.tasks.caching import client_data, new_client_task, new_model
from app.tasks.family import family
from app.tasks.node import Node

KEYS = {"dataset": "video-caching", "num-clients": 6, "num-edges": 2, "edge-rounds": 2, "batches-per-epoch": 1}


def test_centralised_knows_no_later_request():
    config = parse_config(KEYS | {"algorithm": "centralised"})
    task, clients = family(config).centralised_task(config), client_data(config)
    for server_round in (1, 2, 5):
        passed = 100 + 4 * 2 * (server_round - 1)
        seen = task.train.labels[: task.num_train(server_round)]
        expected = torch.cat([client.train.labels[client.train_slots < passed] for client in clients])
        assert torch.equal(seen.sort().values, expected.sort().values)


@pytest.mark.parametrize(("algorithm", "passed"), [("fedavg-ub", 100 + 4 * 2), ("h-fedavg-ub", 100 + 4)])
def test_in_a_flat_round_the_slots_of_all_its_edge_rounds_pass(algorithm, passed):
    config = parse_config(KEYS | {"algorithm": algorithm})
    task = new_client_task(config, new_model(config), Node(partition_id=0))
    assert task.num_train(2) == int((client_data(config)[0].train_slots < passed).sum())
