"""Who takes part."""

import logging
import time
from threading import Timer

import pytest

from espalier.app.client import app as client_app
from espalier.app.ground.errors import UserError
from espalier.app.settings.sections import Deploy
from espalier.app.wiring.federation import assign_edges, gather_clients, gather_devices
from espalier.app.wiring.one_server import clients_and_edges
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
    monkeypatch.setattr("espalier.app.wiring.federation.FIRST_PAUSE_SECONDS", 0.05)
    grid, failures = failing_at_first()
    assert [profile.partition_id for profile in gather_clients(grid, 3, Deploy(wait_for_nodes=20))] == [0, 1, 2]
    assert len(failures) == 1


def test_a_client_that_took_longer_to_fail_than_there_is_to_wait_is_asked_again(monkeypatch):
    monkeypatch.setattr("espalier.app.wiring.federation.FIRST_PAUSE_SECONDS", 0.05)
    grid, failures = failing_at_first(lambda grid, node_id: time.sleep(1.5))
    assert [profile.partition_id for profile in gather_clients(grid, 3, Deploy(wait_for_nodes=1))] == [0, 1, 2]
    assert len(failures) == 1


def test_a_client_that_failed_and_was_started_again_is_asked_at_once(monkeypatch):
    monkeypatch.setattr("espalier.app.wiring.federation.FIRST_PAUSE_SECONDS", 1e6)

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


def told(caplog):
    return [record.getMessage() for record in caplog.records if record.name == "espalier"]


def federation_of(*partitions, edges=(), empty=(), failing=()):
    """Return a grid of nodes with these partition ids, and the node ids in this order."""
    edges = [*edges, *[""] * (len(partitions) - len(edges))]

    def answer(message, context):
        if context.node_id in {nodes[i] for i in failing}:
            raise RuntimeError("no data here")
        reply = client_app(message, context)
        if context.node_id in {nodes[i] for i in empty}:
            reply.content["profile"]["num-train-examples"] = 0
        return reply

    configs = [{"partition-id": i, "edge-name": name} for i, name in zip(partitions, edges, strict=True)]
    grid = InProcessGrid(answer, len(partitions), run_config={"num-clients": 4}, node_configs=configs)
    nodes = [node_id for node_id, _ in sorted(grid._nodes.items(), key=lambda item: item[1].partition_id)]
    return grid, nodes


@pytest.mark.parametrize(
    ("federation", "fault"),
    [
        (federation_of(0, 1, 2, 3), "its partition-id is 3: allowed is 0 to 2"),
        (federation_of(0, 1, 2, 3, empty=[3]), "it has 0 training examples: allowed is 1 or more"),
        (
            federation_of(0, 1, 2, 3, edges=["", "", "", "mine"]),
            "its edge-name is 'mine': allowed is one of edge-names",
        ),
    ],
)
def test_a_bad_node_stops_nobody_and_the_log_says_how_to_lock_it_out(federation, fault, caplog):
    grid, nodes = federation
    grid.disconnect(nodes[2])
    Timer(0.3, grid.connect, [nodes[2]]).start()  # the last good one comes when the bad one is there
    profiles = gather_clients(grid, 3, Deploy(wait_for_nodes=20), edge_names=["west", "east"])
    assert [profile.node_id for profile in profiles] == nodes[:3]
    (line,) = told(caplog)
    assert line.startswith(f"node {nodes[3]} is left out: {fault}")
    assert line.endswith(f"(to lock its key out: flwr supernode unregister {nodes[3]} CONNECTION)")


def test_of_nodes_that_say_they_are_one_client_a_good_one_is_taken(caplog):
    grid, nodes = federation_of(0, 1, 1)
    bad, good = sorted(nodes[1:])
    grid._nodes[bad].config["edge-name"], grid._nodes[good].config["edge-name"] = "mine", "west"
    profiles = gather_clients(grid, 2, Deploy(wait_for_nodes=20), edge_names=["west"])
    assert [profile.node_id for profile in profiles] == [nodes[0], good]
    (line,) = told(caplog)
    assert line.startswith(f"node {bad} is left out: its edge-name is 'mine'")


def test_a_second_node_that_says_it_is_a_client_is_left_out(caplog):
    grid, nodes = federation_of(0, 1, 2, 1)
    profiles = gather_clients(grid, 3, Deploy())
    first, second = sorted((nodes[1], nodes[3]))
    assert [profile.node_id for profile in profiles] == [nodes[0], first, nodes[2]]
    assert [line for line in told(caplog) if str(second) in line] == [
        f"node {second} is left out: its partition-id, 1, is that of node {first}: give every node one of its own"
    ]


def test_what_is_wrong_with_a_node_is_said_once_however_often_it_is_asked(caplog, monkeypatch):
    monkeypatch.setattr("espalier.app.wiring.federation.FIRST_PAUSE_SECONDS", 0.1)
    grid, nodes = federation_of(0, 1, 1, 2, failing=[3])
    with pytest.raises(UserError, match=r"^no profile from clients \[2\]: the log says what they failed on$"):
        gather_clients(grid, 3, Deploy(wait_for_nodes=2))
    first, second = sorted(nodes[1:3])
    assert sorted(told(caplog)) == sorted([
        f"node {second} is left out: its partition-id, 1, is that of node {first}: give every node one of its own",
        f"node {nodes[3]} gave no profile: RuntimeError: no data here",
    ])  # fmt: skip


def test_a_device_that_is_none_of_the_runs_clients_is_left_out(caplog):
    deploy = Deploy(role="edge", edge_name="west", edge_folder="/x", edge_clients=1, wait_for_nodes=20)
    grid, nodes = federation_of(0, 3)
    assert [profile.node_id for profile in gather_devices(grid, 3, deploy)] == nodes[:1]
    (said,) = told(caplog)
    assert said.startswith(f"node {nodes[1]} is left out: its partition-id is 3: allowed is 0 to 2 (")


def test_a_device_that_comes_later_as_a_client_that_is_there_is_left_out(caplog):
    deploy = Deploy(role="edge", edge_name="west", edge_folder="/x", edge_clients=2, wait_for_nodes=20)
    grid, nodes = federation_of(1, 1, 0, 2, edges=["", "", "", "east"])
    grid.disconnect(nodes[1])
    grid.disconnect(nodes[2])
    Timer(0.3, grid.connect, [nodes[1]]).start()
    Timer(1.0, grid.connect, [nodes[2]]).start()
    profiles = gather_devices(grid, 2, deploy)
    assert [profile.node_id for profile in profiles] == [nodes[2], nodes[0]]
    other, second = told(caplog)
    assert other.startswith(f"node {nodes[3]} is left out: its edge-name is 'east': allowed is 'west'")
    assert second.startswith(f"node {nodes[1]} is left out: its partition-id, 1, is that of node {nodes[0]}")


def at_looks(grid, *steps):
    """Do one thing before each look at the connected nodes but the first."""
    look, left = grid.get_node_ids, [lambda: None, *steps]

    def get_node_ids():
        if left:
            left.pop(0)()
        return look()

    grid.get_node_ids = get_node_ids


def started_again(grid, node_id, key, value):
    """Return steps in which a node is stopped, and comes back with another value in its config."""

    def come_back():
        grid._nodes[node_id].config[key] = value
        grid.connect(node_id)

    return lambda: grid.disconnect(node_id), come_back


def test_an_edge_name_that_is_corrected_while_others_are_awaited_holds():
    grid, nodes = federation_of(0, 1, 2, 3, edges=["wset", "west", "east"])
    grid.disconnect(nodes[2])
    at_looks(grid, *started_again(grid, nodes[0], "edge-name", "west"), lambda: grid.connect(nodes[2]))
    profiles = gather_clients(grid, 3, Deploy(wait_for_nodes=5))
    assert [profile.edge for profile in profiles] == ["west", "west", "east"]


def test_a_partition_id_that_is_corrected_while_others_are_awaited_holds(monkeypatch):
    monkeypatch.setattr("espalier.app.wiring.federation.FIRST_PAUSE_SECONDS", 0.1)
    grid, nodes = federation_of(0, 0, 2)
    wrong, right = sorted(nodes[:2])
    at_looks(grid, *started_again(grid, wrong, "partition-id", 1))
    profiles = gather_clients(grid, 3, Deploy(wait_for_nodes=5))
    assert [profile.node_id for profile in profiles] == [right, wrong, nodes[2]]


def test_a_client_that_has_gone_gives_its_place_to_another_device(caplog):
    grid, (first, other, late, none) = federation_of(0, 0, 1, 3)
    grid.disconnect(other)
    grid.disconnect(late)
    at_looks(grid, lambda: grid.connect(other), lambda: grid.disconnect(first), lambda: grid.connect(late))
    profiles = gather_clients(grid, 2, Deploy(wait_for_nodes=5))
    assert [profile.node_id for profile in profiles] == [other, late]
    foreign, second = told(caplog)
    assert foreign.startswith(f"node {none} is left out: its partition-id is 3")
    assert second.startswith(f"node {other} is left out: its partition-id, 0, is that of node {first} (")


def test_a_device_that_has_gone_gives_its_place_to_another_one():
    deploy = Deploy(role="edge", edge_name="west", edge_folder="/x", edge_clients=2, wait_for_nodes=5)
    grid, (first, other, late, _) = federation_of(0, 0, 1, 3)
    grid.disconnect(other)
    grid.disconnect(late)
    at_looks(grid, lambda: grid.disconnect(first), lambda: grid.connect(other), lambda: grid.connect(late))
    assert [profile.node_id for profile in gather_devices(grid, 3, deploy)] == [other, late]


def joined(caplog, num_clients, node_configs=None, **settings):
    caplog.set_level(logging.INFO, "espalier")
    config = config_of(num_clients=num_clients, **settings)
    grid = engine_of(config, node_configs).grid
    caplog.clear()
    assign_edges(gather_clients(grid, num_clients, config.deploy), config.num_edges)
    return [record.getMessage() for record in caplog.records if record.name == "espalier"]


def test_every_client_that_joined_has_a_line_with_its_edge(caplog):
    node_configs = [{"edge-name": name} for name in ("west", "east", "west")]
    assert joined(caplog, 3, node_configs) == [
        "client 0 joined (edge west)",
        "client 1 joined (edge east)",
        "client 2 joined (edge west)",
    ]
    assert joined(caplog, 2, algorithm="fedavg") == ["client 0 joined", "client 1 joined"]


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (("a", "b", "c", "a"), "3 by the edge-name of nodes, ['a', 'b', 'c']: set num-edges=3, or correct NODE_CONFIG"),
        (("a", "a", "a", "a"), "1 by the edge-name of nodes, ['a']: set num-edges=1, or correct NODE_CONFIG"),
        (
            ("a", "", "", ""),
            "3 by the edge-name of nodes, ['edge-0', 'edge-1', 'a']: "
            "set edge-name for every node, or correct NODE_CONFIG",
        ),
        (("a", "b", "b", "a"), None),
        (("", "", "", ""), None),
    ],
)
def test_another_number_of_edges_than_asked_for_is_told(names, said, caplog):
    lines = joined(caplog, 4, [{"edge-name": name} for name in names], num_edges=2)
    warnings = [line for line in lines if not line.startswith("client ")]
    assert warnings == ([f"num-edges = 2, but there are {said}"] if said else [])


def test_many_clients_that_joined_have_one_line(caplog):
    assert len(joined(caplog, 20)) == 20
    assert joined(caplog, 21, num_edges=3) == ["21 clients joined (3 edges)"]
    assert joined(caplog, 21, algorithm="fedavg") == ["21 clients joined"]


def test_where_clients_are_in_one_process_nobody_waits_for_one_that_has_failed(monkeypatch):
    monkeypatch.setattr(time, "sleep", lambda seconds: pytest.fail("it waits"))
    config = config_of(task="tests.app.own_tasks:Untold", algorithm="fedavg", num_clients=3, engine="in-process")
    with pytest.raises(UserError, match=r"^no profile from clients \[1\]: the log says what they failed on$"):
        clients_and_edges(config, engine_of(config).grid, None)
