"""Who takes part."""

import logging
import time
from threading import Timer
from typing import get_args

import pytest

from espalier.app.client import app as client_app
from espalier.app.config.sections import OWN, VIDEO_CACHING, Data, Deploy
from espalier.app.errors import UserError
from espalier.app.federation import assign_edges, gather_clients, gather_devices
from espalier.app.tasks.data import DATASETS
from espalier.app.tasks.models import MODELS
from espalier.app.tasks.partition import PARTITIONS
from espalier.sim.in_process_grid import InProcessGrid
from tests.app.assembling import config_of, engine_of


class Arriving(InProcessGrid):
    """Nodes connect one by one: those of high partition ids first."""

    def __init__(self, num_nodes, seconds):
        super().__init__(client_app, num_nodes, run_config={"num-clients": 3})
        self.started, self.seconds = time.monotonic(), seconds
        self.order = sorted(self._nodes, key=lambda n: -self._nodes[n].partition_id)

    def get_node_ids(self):
        return self.order[: 1 + int((time.monotonic() - self.started) / self.seconds)]


def test_clients_are_awaited_whoever_comes_first():
    profiles = gather_clients(Arriving(5, 0.05), 3, Deploy(wait_for_nodes=20))
    assert [profile.partition_id for profile in profiles] == [0, 1, 2]


def failing_at_first(on_failure=lambda grid, node_id: None):
    """Return a grid of three clients, of which one gives no profile when it is first asked."""
    failures = []

    def app(message, context):
        if context.node_config["partition-id"] == 1 and not failures:
            failures.append(context.node_id)
            on_failure(grid, context.node_id)
            raise RuntimeError("the disk is not mounted yet")
        return client_app(message, context)

    grid = InProcessGrid(app, 3, run_config={"num-clients": 3})
    return grid, failures


def test_a_client_that_failed_at_first_is_asked_again_after_a_while(monkeypatch):
    monkeypatch.setattr("espalier.app.federation.FIRST_PAUSE_SECONDS", 0.05)
    grid, failures = failing_at_first()
    assert [profile.partition_id for profile in gather_clients(grid, 3, Deploy(wait_for_nodes=20))] == [0, 1, 2]
    assert len(failures) == 1


def test_a_client_that_failed_and_was_started_again_is_asked_at_once(monkeypatch):
    monkeypatch.setattr("espalier.app.federation.FIRST_PAUSE_SECONDS", 1e6)

    def start_again(grid, node_id):
        grid.disconnect(node_id)
        Timer(0.5, grid.connect, [node_id]).start()

    grid, failures = failing_at_first(start_again)
    assert [profile.partition_id for profile in gather_clients(grid, 3, Deploy(wait_for_nodes=20))] == [0, 1, 2]
    assert len(failures) == 1


def test_clients_that_never_come_are_named():
    grid = Arriving(5, 0.01)
    grid.order = grid.order[:4]  # partitions 4, 3, 2, 1
    with pytest.raises(UserError, match=r"no profile from clients \[0\]"):
        gather_clients(grid, 3, Deploy(wait_for_nodes=1))


@pytest.mark.parametrize("count", [0, -5])
def test_a_client_without_examples_is_named(count):
    def without(message, context):
        reply = client_app(message, context)
        if context.node_config["partition-id"] == 1:
            reply.content["profile"]["num-train-examples"] = count
        return reply

    with pytest.raises(UserError, match=f"client 1 has {count} training examples: allowed is 1 or more"):
        gather_clients(InProcessGrid(without, 3, run_config={"num-clients": 3}), 3, Deploy())


def test_a_device_that_comes_later_as_a_client_that_is_there_is_named_with_it():
    deploy = Deploy(role="edge", edge_name="west", edge_folder="/x", edge_clients=2, wait_for_nodes=20)

    def no_profile_of_one(message, context):
        if context.node_id != silent:
            return client_app(message, context)
        grid.connect(second)
        raise RuntimeError("no data")

    node_configs = [{"partition-id": 1}] * 3
    grid = InProcessGrid(no_profile_of_one, 3, run_config={"num-clients": 2}, node_configs=node_configs)
    first, silent, second = grid.get_node_ids()
    grid.disconnect(second)
    with pytest.raises(UserError, match=f"nodes {first} and {second} both have partition-id 1: give every node one"):
        gather_devices(grid, 2, deploy)


@pytest.mark.parametrize(
    ("key", "names"),
    [("dataset", (*DATASETS, VIDEO_CACHING)), ("partition", (*PARTITIONS, OWN)), ("model", ("auto", *MODELS))],
)
def test_the_config_allows_what_there_is(key, names):
    assert sorted(get_args(Data.model_fields[key].annotation)) == sorted(names)


def joined(caplog, num_clients, node_configs=None, **settings):
    caplog.set_level(logging.INFO, "espalier")
    config = config_of(num_clients=num_clients, **settings)
    grid = engine_of(config, node_configs).grid
    caplog.clear()
    assign_edges(gather_clients(grid, num_clients, config.deploy), None if config.is_flat else config.edges)
    return [record.getMessage() for record in caplog.records if record.name == "espalier"]


def test_every_client_that_joined_has_a_line_with_its_edge(caplog):
    node_configs = [{"edge-name": name} for name in ("west", "east", "west")]
    assert joined(caplog, 3, node_configs) == [
        "client 0 joined (edge west)",
        "client 1 joined (edge east)",
        "client 2 joined (edge west)",
    ]
    assert joined(caplog, 2, algorithm="fedavg") == ["client 0 joined", "client 1 joined"]


def test_many_clients_that_joined_have_one_line(caplog):
    assert len(joined(caplog, 20)) == 20
    assert joined(caplog, 21, num_edges=3) == ["21 clients joined (3 edges)"]
    assert joined(caplog, 21, algorithm="fedavg") == ["21 clients joined"]
