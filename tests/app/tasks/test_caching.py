"""Video caching as a task: nobody learns from a request that has not been made."""

import pytest
import torch

from espalier.app.config.parse import parse_config
from espalier.app.tasks import caching
from espalier.app.tasks.node import ClientNode
from espalier.app.wiring.task_of_run import build_task
from espalier.clients.whole.unique_rows import unique_row_sgd

KEYS = {"dataset": "video-caching", "num-clients": 6, "num-edges": 2, "edge-rounds": 2, "batches-per-epoch": 1}


def test_centralised_knows_no_later_request():
    config = parse_config(KEYS | {"algorithm": "centralised"})
    task, clients = build_task(config).centralised_task(), build_task(config).clients
    for server_round in (1, 2, 5):
        passed = 100 + 4 * 2 * (server_round - 1)
        seen = task.train.labels[: task.num_train(server_round)]
        expected = torch.cat([client.train.labels[client.train_slots < passed] for client in clients])
        assert torch.equal(seen.sort().values, expected.sort().values)


@pytest.mark.parametrize(("algorithm", "passed"), [("fedavg-ub", 100 + 4 * 2), ("h-fedavg-ub", 100 + 4)])
def test_in_a_flat_round_the_slots_of_all_its_edge_rounds_pass(algorithm, passed):
    config = parse_config(KEYS | {"algorithm": algorithm})
    task = build_task(config).new_client_task(build_task(config).new_model(), ClientNode(partition_id=0))
    assert task.num_train(2) == int((build_task(config).clients[0].train_slots < passed).sum())


def test_there_are_requests_for_all_edge_rounds():
    config = parse_config(KEYS | {"global-rounds": 5, "edge-rounds": 6})
    last = max(int(data.train_slots[-1]) for data in build_task(config).clients)
    assert 100 + 4 * 29 <= last < 100 + 4 * 30


@pytest.mark.parametrize(("similar", "and_back"), [("most-similar", True), ("most-similar-not-back", False)])
def test_the_config_says_how_clients_choose(similar, and_back):
    config = parse_config(KEYS | {"caching.exploitation": "1", "caching.similar": similar})
    for data in build_task(config).clients:
        assert set(data.table[:, 0].tolist()) == {1.0}
        labels = data.test.labels
        assert bool((labels[2:] == labels[:-2]).any()) == and_back


def test_what_is_not_the_same_data_has_another_fingerprint():
    changes = [
        {},
        {"seed": 1},
        {"num-clients": 8},
        {"caching.exploitation": "0.5"},
        {"caching.similar": "most-similar-not-back"},
        {"caching.initial-slots": 99},
        {"caching.slots-per-edge-round": 5},
    ]
    prints = [build_task(parse_config(KEYS | change)).data_fingerprint() for change in changes]
    assert len(set(prints)) == len(changes)
    assert build_task(parse_config(KEYS | {"global-rounds": 7})).data_fingerprint() == prints[0]


def test_before_the_first_round_there_are_the_requests_of_the_initial_slots():
    config = parse_config(KEYS)
    available = build_task(config).available(build_task(config).clients[0].train_slots, 2)
    assert available(0) == available(1) > 0


def test_centralised_has_every_request_with_its_own_features():
    config = parse_config(KEYS | {"algorithm": "centralised", "device": "cpu"})
    task, clients = build_task(config).centralised_task(), build_task(config).clients
    in_time = torch.cat([data.train_slots for data in clients]).argsort(stable=True)
    features = torch.cat([data.table[data.train.inputs] for data in clients])[in_time]
    assert torch.equal(task.prepare(task.train.inputs), features)
    assert torch.equal(task.train.labels, torch.cat([data.train.labels for data in clients])[in_time])


def test_many_mini_batches_are_collapsed_in_portions(monkeypatch):
    config = parse_config(KEYS | {"device": "cpu"})
    data, whole, portions = (
        build_task(config).clients[0],
        build_task(config).new_model(),
        build_task(config).new_model(),
    )
    batches = torch.arange(50).split(7)  # three, three and two, of which the last has one example
    expected = unique_row_sgd(whole, data.table, data.train.inputs, data.train.labels, batches, 0.1)
    monkeypatch.setattr(caching, "MANY_BATCHES", 3)
    task = build_task(config).new_client_task(portions, ClientNode(partition_id=0))
    assert task.sgd(portions, data.train, batches, 0.1) == pytest.approx(expected, rel=1e-6)
    for ours, reference in zip(portions.parameters(), whole.parameters(), strict=True):
        torch.testing.assert_close(ours, reference, rtol=1e-5, atol=1e-6)
