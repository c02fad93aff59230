"""Who belongs to which edge."""

import re
from dataclasses import replace
from itertools import chain, repeat

import pytest
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import message_size_mod

from espalier.clients.device.profile import profile_reply
from espalier.clients.messages.frames import StreamTicket
from espalier.clients.messages.profile import ProfileQuery
from espalier.sim.in_process_grid import InProcessGrid
from espalier.strategies import (
    DeviceProfile,
    Profile,
    ask_profiles,
    ask_to_measure,
    group_by_edge,
    topology,
    wait_for_nodes,
)
from tests.strategies.toys import toy_grid


def profiles(count, edges=None):
    return [Profile(100 - i, i, (edges or {}).get(i, ""), 5, 2, (5,)) for i in range(count)]


def profiled_grid(num_nodes, partition_of=lambda i: i, silent=()):
    app = ClientApp()

    @app.query("profile")
    def profile(message, context):
        i = context.node_config["partition-id"]
        if i in silent:
            raise RuntimeError("no idea")
        return profile_reply(
            message,
            partition_id=partition_of(i),
            num_train_examples=10 * i,
            num_test_examples=i,
            class_counts=[i, 0],
            edge_name="north" if i % 2 else "",
        )

    return InProcessGrid(app, num_nodes, seed=3)


def test_who_keeps_all_others_waiting_is_named_now_and_then_and_still_waited_for(caplog, monkeypatch):
    monkeypatch.setattr(topology, "FIRST_NAMED_SECONDS", 0.0)
    is_lost = topology.naming("its profile")
    with caplog.at_level("INFO", "espalier"):
        assert [is_lost(5), is_lost(5), is_lost(6)] == [False] * 3
    assert caplog.messages == ["waiting for node 5: it has not sent its profile yet"]
    caplog.clear()
    with caplog.at_level("INFO", "espalier"):
        assert len(ask_profiles(profiled_grid(2))) == 2
    assert caplog.messages == []  # nobody kept anybody waiting


@pytest.mark.parametrize(("count", "edges", "sizes"), [(8, 2, [4, 4]), (10, 4, [3, 2, 3, 2]), (3, 3, [1, 1, 1])])
def test_blocks_of_partition_ids_differ_by_one_at_most(count, edges, sizes):
    topology = group_by_edge(profiles(count), edges)
    assert list(topology) == [f"edge-{i}" for i in range(edges)]
    assert [len(members) for members in topology.values()] == sizes
    assert [node_id for members in topology.values() for node_id in members] == [100 - i for i in range(count)]


def test_a_node_can_name_its_edge():
    topology = group_by_edge(profiles(4, {1: "north", 3: "edge-0"}), 2)
    assert topology == {"edge-0": [100, 97], "edge-1": [98], "north": [99]}


@pytest.mark.parametrize("edges", [0, 5])
def test_an_edge_needs_a_node(edges):
    with pytest.raises(ValueError, match=f"{edges} edges for 4 nodes"):
        group_by_edge(profiles(4), edges)


def test_profiles_come_in_client_order_whatever_the_node_ids():
    grid = profiled_grid(5)
    answered = ask_profiles(grid)
    assert [p.partition_id for p in answered] == [0, 1, 2, 3, 4]
    assert [p.node_id for p in answered] != sorted(grid.get_node_ids())
    assert answered[3] == Profile(answered[3].node_id, 3, "north", 30, 3, (3, 0))


def test_nodes_without_a_profile_are_left_out():
    assert [p.partition_id for p in ask_profiles(profiled_grid(4, silent=(2,)))] == [0, 1, 3]


def test_flowers_mod_that_counts_bytes_can_be_around_a_profile():
    app = ClientApp(mods=[message_size_mod])

    @app.query("profile")
    def profile(message, context):
        return profile_reply(message, partition_id=context.node_config["partition-id"])

    answered = ask_profiles(InProcessGrid(app, 2))
    assert [(p.partition_id, p.edge, p.class_counts) for p in answered] == [(0, "", ()), (1, "", ())]


GOOD = {"partition-id": 1, "edge-name": "", "num-train-examples": 1, "num-test-examples": 1, "class-counts": [1]}


@pytest.mark.parametrize(
    "profile",
    [
        {},
        GOOD | {"partition-id": -1},
        GOOD | {"num-train-examples": float("inf")},
        GOOD | {"num-train-examples": -1},
        GOOD | {"num-test-examples": -1},
        GOOD | {"class-counts": 3},
        GOOD | {"class-counts": ["x"]},
        GOOD | {"cycles-per-example": 1.0},
    ],
)
def test_a_node_with_a_bad_profile_gave_none(profile, caplog):
    def answer(message, context):
        is_bad = context.node_config["partition-id"] == 1
        record = ConfigRecord(profile if is_bad else GOOD | {"partition-id": 0})
        return Message(RecordDict({"profile": record}), reply_to=message)

    grid = InProcessGrid(answer, 2)
    assert [p.partition_id for p in ask_profiles(grid)] == [0]
    (line,) = [record.getMessage() for record in caplog.records]
    assert re.match(r"node \d+ gave no profile: it can't be read \(", line)


def test_of_two_nodes_with_one_partition_id_one_is_left_out(caplog):
    profiles = ask_profiles(profiled_grid(3, partition_of=lambda i: min(i, 1)))
    assert [profile.partition_id for profile in profiles] == [0, 1]
    (line,) = caplog.messages
    taken = profiles[1].node_id
    assert f"its partition-id, 1, is that of node {taken}: give every node one of its own" in line
    assert not line.startswith(f"node {taken} ")


def test_waiting_for_nodes(monkeypatch):
    grid = toy_grid(4)
    everyone = grid.get_node_ids()
    answers = chain([[], everyone[:2]], repeat(everyone))
    monkeypatch.setattr(grid, "get_node_ids", lambda: next(answers))
    assert wait_for_nodes(grid, 4) == everyone
    monkeypatch.setattr(grid, "get_node_ids", lambda: everyone[:2])
    with pytest.raises(TimeoutError, match=r'2 of 4 SuperNodes .* "num-supernodes=4 client-resources-num-cpus=1"'):
        wait_for_nodes(grid, 4, timeout_seconds=0)


# Devices.

DEVICE = DeviceProfile(4, 6e8, 1.5e9, 2**30, 1e6, 2e7, 3.0, 0.2, 2e-28)


def measuring_grid(num_nodes):
    app = ClientApp()

    @app.query("profile")
    def profile(message, context):
        asked = ProfileQuery.from_content(message.content)
        device = replace(DEVICE, cpu_count=asked.ticket.max_bytes) if asked.ticket else DEVICE
        partition_id = context.node_config["partition-id"]
        return profile_reply(message, partition_id=partition_id, device=device if asked.measure else None)

    return InProcessGrid(app, num_nodes)


def test_devices_measure_only_when_they_are_asked_to():
    grid = measuring_grid(2)
    assert [profile.device for profile in ask_profiles(grid)] == [None, None]
    assert [profile.device for profile in ask_profiles(grid, measure=ask_to_measure)] == [DEVICE, DEVICE]


def test_every_node_can_be_asked_with_a_ticket_of_its_own():
    grid = measuring_grid(3)

    def measure(node_id):
        return ProfileQuery(measure=True, ticket=StreamTicket("", b"", "", node_id % 1000))

    profiles = ask_profiles(grid, measure=measure)
    assert [profile.device.cpu_count for profile in profiles] == [profile.node_id % 1000 for profile in profiles]
