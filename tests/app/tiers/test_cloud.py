"""The cloud finds its edges, or says in one line why not."""

import re

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message, RecordDict

from espalier import __version__
from espalier.app.ground.checkpoint import to_bytes
from espalier.app.ground.errors import UserError
from espalier.app.settings.sections import Deploy
from espalier.app.tiers.cloud import EdgeHost, ask_edges, check_edges, check_same_config, gather_edges, remote_edges
from espalier.clients.messages.edge import PAYLOAD, to_payload
from espalier.sim.in_process_grid import InProcessGrid
from tests.app.assembling import config_of
from tests.app.tiers.hosts import SMALL, cloud_engine, edge_hosts
from tests.app.wiring.test_federation import at_looks

TWO = {"edge-0": [0, 1], "edge-1": [2, 3]}


def gathered(hosts, config, devices=0):
    edges = gather_edges(cloud_engine(hosts, config, devices).grid, config.edges, config.deploy)
    check_edges(config.as_dict(), edges, config.federation.num_clients)
    return edges


def refused(hosts, match, **settings):
    config = config_of(role="cloud", **SMALL | settings)
    with pytest.raises(UserError, match=match) as error:
        gathered(hosts, config, devices=1)
    assert "\n" not in str(error.value)


def test_edges_and_their_clients_are_found(short_path):
    config = config_of(role="cloud", **SMALL)
    with edge_hosts(short_path, TWO, **SMALL) as hosts:
        edges = gathered(hosts, config, devices=2)
    assert {edge.name: [profile.partition_id for profile in edge.clients] for edge in edges} == TWO
    assert all(len(profile.class_counts) == 10 for edge in edges for profile in edge.clients)


def test_too_few_and_too_many_edges_are_counted_and_named(short_path):
    with edge_hosts(short_path, TWO, **SMALL) as hosts:
        refused(hosts[:1], "num-edges = 2: only these edges answered: 'edge-0'. A gateway is")
        refused([], "num-edges = 2: only these edges answered: none")
        refused(hosts, "num-edges = 1: allowed is 2, the number of edges that answered", num_edges=1)


def test_two_gateways_of_one_edge_are_named(short_path):
    with edge_hosts(short_path, TWO, **SMALL) as hosts:
        refused([hosts[0], hosts[0]], r"nodes \d+ and \d+ are both gateways of edge 'edge-0'")


def test_missing_and_double_clients_are_named(short_path):
    with edge_hosts(short_path, {"west": [0, 1], "east": [1, 2]}, **SMALL) as hosts:
        refused(hosts, "partition-id = 1 at edge 'west' and at 'east'|partition-id = 1 at edge 'east' and at 'west'")
    with edge_hosts(short_path, {"north": [0], "south": [3]}, **SMALL) as hosts:
        refused(hosts, r"num-clients = 4: no edge has clients \[1, 2\]")


def test_an_edge_that_trains_otherwise_is_named_with_key_and_both_values(short_path):
    with edge_hosts(short_path, TWO, **SMALL) as hosts:
        for settings, line in (
            ({"seed": 7}, "seed = 7, but 0 at edge 'edge-"),
            ({"learning_rate": 0.2}, "learning-rate = 0.2, but 0.1 at edge"),
            ({"edge_rounds": 5}, "edge-rounds = 5, but 2 at edge"),
            ({"edge_strategy": "FedAdam"}, "edge-strategy = 'FedAdam', but 'FedAvg' at edge"),
            ({"torch_threads": 2}, "train.torch-threads = 2, but 1 at edge"),
            ({"stream_payload": "int8"}, "stream.payload = 'int8', but 'float32' at edge"),
        ):
            refused(hosts, re.escape(line), **settings)


def test_learning_rates_that_fall_over_global_rounds_need_as_many_at_the_edges(short_path):
    with edge_hosts(short_path, TWO, **SMALL | {"global_rounds": 5, "schedule": "cosine"}) as hosts:
        refused(hosts, re.escape("global-rounds = 9, but 5 at edge"), global_rounds=9, schedule="cosine")


def test_what_is_the_hosts_own_may_differ(short_path):
    own = {"global_rounds": 9, "cloud_strategy": "FedAdam", "evaluate_every": 3}
    own |= {"report.tracker": "tensorboard", "report.ledger": True}
    config = config_of(role="cloud", **SMALL | own)
    with edge_hosts(short_path, TWO, **SMALL | {"reply_timeout": 9, "stream_port": 1234}) as hosts:
        edges = gathered(hosts, config)
    for edge in edges:
        check_same_config(config.as_dict(), edge.name, edge.config)


def test_where_streams_round_all_edges_stream(short_path):
    rounding = SMALL | {"algorithm": "hsfl", "stream_payload": "int8"}
    with edge_hosts(short_path, TWO, **rounding) as hosts:
        line = "split.transport = 'stream', but 'messages' at edge"
        refused(hosts, re.escape(line), algorithm="hsfl", stream_payload="int8", split_transport="stream")


@pytest.mark.parametrize(("wait_for_nodes", "seconds"), [(3600, 20), (5, 5)])
def test_a_round_waits_no_longer_than_an_edge_takes_to_start(wait_for_nodes, seconds):
    make_edge = remote_edges([EdgeHost("west", 1, [], {}, {}, "")], 2, Deploy(wait_for_nodes=wait_for_nodes))
    assert make_edge("west", 2).wait_seconds == seconds


CLIENT = {"client": 0, "num_train_examples": 1, "num_test_examples": 1, "class_counts": [1], "device": {}}
INTRODUCTION = {"name": "west", "clients": [CLIENT], "config": {"seed": 0}, "state": {}}


@pytest.mark.parametrize(
    "answer",
    [
        ArrayRecord({PAYLOAD: Array("uint8", (3,), "numpy.ndarray", b"")}),
        ArrayRecord({PAYLOAD: Array("uint8", (3,), "numpy.ndarray", b"PK\x03\x04")}),
        INTRODUCTION | {"name": ""},
        INTRODUCTION | {"name": "two\nlines"},
        INTRODUCTION | {"name": None},
        INTRODUCTION | {"clients": [CLIENT | {"client": float("inf")}]},
        INTRODUCTION | {"clients": [np.zeros(3)]},
        INTRODUCTION | {"clients": [CLIENT | {"device": {"cycles-per-example": 1.0}}]},
        INTRODUCTION | {"config": {1: 2, "seed": 0}},
        INTRODUCTION | {"config": {"seed": np.zeros(2)}},
        INTRODUCTION | {"config": None},
        INTRODUCTION | {"version": 1},
        INTRODUCTION | {"version": "1\n2"},
        {},
    ],
)
def test_a_node_whose_introduction_can_not_be_used_is_left_out_in_one_line(answer, caplog):
    def respond(message, context):
        wire = answer if context.node_config["partition-id"] else INTRODUCTION
        record = wire if isinstance(wire, ArrayRecord) else to_payload(to_bytes(wire))
        return Message(RecordDict({PAYLOAD: record}), reply_to=message)

    grid = InProcessGrid(respond, 2)
    edges = list(ask_edges(grid, Deploy(wait_for_nodes=0), grid.get_node_ids()).values())
    assert [(edge.name, len(edge.clients)) for edge in edges] == [("west", 1)]
    (line,) = [record.getMessage() for record in caplog.records]
    assert "is left out: its answer " in line
    assert "\n" not in line


@pytest.mark.parametrize("algorithm", ["h-fedavg-m1", "h-fedavg-m2"])
def test_rules_over_all_cells_are_refused(algorithm):
    with pytest.raises(UserError, match=f"algorithm = '{algorithm}': allowed is another one for deploy.role = 'cloud'"):
        config_of(role="cloud", algorithm=algorithm, batches_per_epoch=2)


@pytest.mark.parametrize(
    ("own", "said"),
    [
        ({"version": __version__}, []),
        ({"version": "0.1.9"}, [f"edge 'west' runs 0.1.9, the cloud {__version__}: install the same on both"]),
        ({}, [f"edge 'west' runs an older version, the cloud {__version__}: install the same on both"]),
    ],
)
def test_an_edge_of_another_version_is_told(caplog, own, said):
    answer = to_payload(to_bytes(INTRODUCTION | own))
    grid = InProcessGrid(lambda message, context: Message(RecordDict({PAYLOAD: answer}), reply_to=message), 1)
    gather_edges(grid, 1, Deploy(wait_for_nodes=0))
    assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == said


def test_a_gateway_that_has_gone_gives_its_place_to_another_one(caplog):
    caplog.set_level("INFO", "espalier")
    names, told = {}, []

    def answer(message, context):
        told.append(context.node_id)
        edge = INTRODUCTION | {"name": names[context.node_id], "version": __version__}
        return Message(RecordDict({PAYLOAD: to_payload(to_bytes(edge))}), reply_to=message)

    grid = InProcessGrid(answer, 4)
    first, other, late, foreign = grid._nodes
    names |= {first: "west", other: "west", late: "east", foreign: "north"}
    grid.disconnect(other)
    grid.disconnect(late)
    at_looks(grid, lambda: grid.disconnect(first), lambda: grid.connect(other), lambda: grid.connect(late))
    edges = gather_edges(grid, 2, Deploy(wait_for_nodes=5), ["west", "east"])
    assert [(edge.name, edge.gateway) for edge in edges] == [("west", other), ("east", late)]
    lines = [record.getMessage() for record in caplog.records if record.name == "espalier"]
    assert sorted(line.split(": ")[0] for line in lines) == sorted([
        f"node {foreign} is left out",
        *(f"edge {names[node]!r} joined, with clients 0 (gateway" for node in (first, other, late)),
    ])  # fmt: skip
    assert sorted(told) == sorted((first, other, late, foreign))
