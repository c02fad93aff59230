"""What is counted of a message."""

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

from espalier.app.client import app as client_app
from espalier.app.meters.bytes import ByteMeter, config_bytes, payload_bytes
from espalier.app.reports.progress import LogProgress
from espalier.app.run.run import run
from espalier.strategies import Update
from tests.app.assembling import config_of, engine_of
from tests.app.runs import summary


def test_a_config_counts_its_keys_and_values():
    full = ConfigRecord({"rate": 0.1, "on": False, "name": "west", "steps": [1, 2]})
    assert config_bytes(full) == full.count_bytes() == len("rateonnamesteps") + 8 + 1 + 4 + 2 * 8


@pytest.mark.parametrize("empty", ["", b"", []])
def test_what_is_empty_in_a_config_counts_its_key(empty):
    record = ConfigRecord({"rate": 0.1, "edge": empty})
    assert payload_bytes("train", RecordDict({"config": record})) == {"config": 4 + 8 + 4}


@pytest.mark.parametrize("name", ["mine", "x" * 10**6, "two\nlines"])
def test_records_of_names_that_are_not_the_runs_are_one_kind(name):
    record = ArrayRecord({"w": Array(np.zeros(3, np.uint8))})
    content = RecordDict({"activations": record, name: record.copy(), "another": record.copy()})
    counts = payload_bytes("train.split_step", content)
    assert counts.keys() == {"activations", "other"}
    assert counts["other"] == 2 * counts["activations"]


def test_what_an_edge_sends_in_its_next_part_is_not_taken_with_the_part_that_came_in():
    meter = ByteMeter({"edge": "edge", "cloud": "cloud"})
    for server_round in (1, 2):
        meter.on_bytes("west", "uplink", "activations", 10 * server_round)
        meter.on_edge_round(server_round, "west", Update())
    meter.on_bytes("west", "uplink", "activations", 700)  # of edge round 3, which goes on
    assert sum(meter.take("west", at_work=[2, 3]).values()) == 10
    assert sum(meter.drain({"west": [2, 3]}).values()) == 730
    again = ByteMeter({"edge": "edge"})
    again.load_state_dict(meter.state_dict())
    assert sum(again.take("west").values()) == 20
    meter.on_edge_round(3, "west", Update())
    assert sum(meter.take("west").values()) == 720
    assert not meter.drain()
    meter.on_bytes("east", "uplink", "activations", 1)  # whose line is never written
    assert sum(meter.drain().values()) == 1
    assert not meter.take("east")


def test_an_empty_text_in_a_clients_reply_harms_no_run(tmp_path):
    def with_a_note(message, context):
        reply = client_app(message, context)
        if message.metadata.message_type == "train":
            reply.content["note"] = ConfigRecord({"note": ""})
        return reply

    settings = {"num_clients": 2, "global_rounds": 1, "batches_per_epoch": 1, "edge_rounds": 1}
    config = config_of(**settings, engine="in-process", output_dir=str(tmp_path / "run"))
    folder = run(config, engine_of(config, client_app=with_a_note), LogProgress(), tmp_path)
    assert summary(folder)["bytes_by_kind"]["edge"]["uplink"]["config"] == 2 * len("note")


def test_tiers_without_a_name_are_not_counted():
    engine_of(config_of())  # Flower makes no message outside of a run
    meter = ByteMeter({"edge": "cloud"})
    message = Message(RecordDict({"config": ConfigRecord({"a": 1})}), 7, "train")
    meter.on_message("cloud", "west", "downlink", message)
    assert not meter.drain()
    meter.on_message("edge", "west", "downlink", message)
    ((link, count),) = meter.drain().items()
    assert (link.tier, link.kind, count) == ("cloud", "config", 9)
