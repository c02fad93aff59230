"""Split runs of the app whose mini-batches go through streams."""

import logging

import pytest
from certificates import make_certificates
from torch import nn

from espalier.app.command_line import main
from espalier.app.settings.sections import StreamSettings
from espalier.app.wiring.one_server import checked_task, streams_of
from espalier.app.wiring.streams import (
    checked_address,
    largest_frame_bytes,
    largest_message_bytes,
    listen_on,
)
from espalier.app.wiring.task_of_run import build_task
from tests.app.assembling import config_of, engine_of
from tests.app.runs import lines, run_app, same_weights, summary, weights

SHORT = {"batches_per_epoch": 2, "batch_size": 16, "local_epochs": 1, "edge_rounds": 1, "fine_tune_steps": 0}
STREAM = {"split_transport": "stream"}


def test_a_run_over_streams_is_the_run_over_messages(tmp_path):
    settings = {"algorithm": "phsfl", "cut_layer": "1,2,3", "num_clients": 4, "global_rounds": 1, **SHORT}
    by_messages = run_app(tmp_path / "messages", **settings)
    by_stream = run_app(tmp_path / "stream", **settings, **STREAM)
    assert same_weights(by_messages, by_stream)
    kinds, expected = (summary(folder)["bytes_by_kind"]["edge"] for folder in (by_stream, by_messages))
    frames = 4 * 2
    for direction, kind in (("uplink", "activations"), ("uplink", "indices"), ("downlink", "cut-gradient")):
        # Records have NumPy's header, of no more than 128 bytes, and some text besides.
        assert 0 < expected[direction][kind] - kinds[direction][kind] <= 200 * frames
    assert kinds["uplink"]["indices"] == frames * 16 * 4
    assert kinds["uplink"]["client-block"] == expected["uplink"]["client-block"]


def test_equal_weights_are_the_same_over_streams_and_messages_and_unsplit(tmp_path):
    settings = {"weighting": "equal", "num_clients": 4, "global_rounds": 1, **SHORT}
    by_stream = run_app(tmp_path / "stream", algorithm="hsfl", **settings, **STREAM)
    assert same_weights(by_stream, run_app(tmp_path / "messages", algorithm="hsfl", **settings))
    left, right = weights(by_stream), weights(run_app(tmp_path / "unsplit", algorithm="h-fedavg", **settings))
    by_examples = weights(run_app(tmp_path / "examples", algorithm="hsfl", **settings | {"weighting": "examples"}))
    assert max(float((left[name] - right[name]).abs().max()) for name in left) < 1e-6
    assert max(float((left[name] - by_examples[name]).abs().max()) for name in left) > 1e-4


def test_mini_batches_in_parts_give_the_run_to_rounding(tmp_path):
    settings = {"algorithm": "hsfl", "num_clients": 4, "global_rounds": 1, **SHORT, **STREAM}
    whole = run_app(tmp_path / "whole", **settings)
    in_parts = run_app(tmp_path / "parts", **settings, stream_micro_batches=3)
    left, right = weights(whole), weights(in_parts)
    assert 0 < max(float((left[name] - right[name]).abs().max()) for name in left) < 1e-6
    kinds = [summary(folder)["bytes_by_kind"]["edge"] for folder in (whole, in_parts)]
    told = [by_direction["downlink"].pop("config") for by_direction in kinds]
    assert kinds[0] == kinds[1]
    assert told[0] < told[1]  # of how many parts


def test_sfl_v2_gives_way_to_messages_where_clients_run_one_after_the_other(tmp_path, caplog):
    settings = {"algorithm": "sfl-v2", "num_clients": 3, "global_rounds": 2, **SHORT}
    by_messages = run_app(tmp_path / "messages", **settings)
    with caplog.at_level(logging.WARNING, "espalier"):
        by_stream = run_app(tmp_path / "stream", **settings, **STREAM)
    assert same_weights(by_messages, by_stream)
    assert summary(by_stream)["failures"] == 0
    assert len([m for m in caplog.messages if "this edge goes on by messages" in m]) == 1


def test_shorter_payloads_take_fewer_bytes(tmp_path):
    settings = {"algorithm": "sfl-v1", "num_clients": 1, "global_rounds": 1, **SHORT, **STREAM}
    exact, half, quarter = (
        run_app(tmp_path / kind, stream_payload=kind, **settings) for kind in ("float32", "float16", "int8")
    )
    assert not same_weights(exact, half)
    assert not same_weights(exact, quarter)
    full, *found = (
        summary(folder)["bytes_by_kind"]["cloud"]["uplink"]["activations"] for folder in (exact, half, quarter)
    )
    samples = 2 * 16
    assert found == [full // 2, full // 4 + 4 * samples]
    largest = run_app(tmp_path / "top", stream_payload="top-25%", **settings)
    found = summary(largest)["bytes_by_kind"]["cloud"]
    assert found["uplink"]["activations"] == found["downlink"]["cut-gradient"] == full // 4 * (4 + 2) // 4


@pytest.mark.parametrize("payload", ["float32", "top-25%"])
def test_runs_over_streams_resume_to_the_same_bits(tmp_path, payload):
    settings = {"algorithm": "sl", "server_momentum": 0.5, "num_clients": 2, **SHORT, **STREAM}
    settings |= {"stream_payload": payload}
    whole = run_app(tmp_path / "whole", global_rounds=2, **settings)
    folder = run_app(tmp_path / "run", global_rounds=1, **settings)
    assert main([f"resume={folder}", "global-rounds=2"]) == 0
    assert same_weights(folder, whole)


def test_plans_reach_clients_over_streams(tmp_path):
    settings = {
        "algorithm": "hsfl",
        "selection": "resource-aware",
        "num_clients": 4,
        "selected_per_edge": 1,
        "cut_layer": "best",
        "max_local_rounds": 3,
        "planning_error_db": 3.0,
        "noise_figure_db": 20.0,
        "global_rounds": 2,
        **SHORT,
    }
    by_messages = run_app(tmp_path / "messages", **settings)
    by_stream = run_app(tmp_path / "stream", **settings, **STREAM)
    assert same_weights(by_messages, by_stream)
    failures = [[line["failures"] for line in lines(folder, "edge")] for folder in (by_messages, by_stream)]
    assert failures[0] == failures[1]


def test_a_given_certificate_is_used(tmp_path):
    make_certificates(tmp_path / "certificates", ["localhost"])
    settings = {"algorithm": "sfl-v1", "num_clients": 2, "global_rounds": 1, **SHORT}
    folder = run_app(
        tmp_path / "run",
        stream_address="localhost",
        stream_certificate=str(tmp_path / "certificates/server.crt"),
        stream_key=str(tmp_path / "certificates/server.key"),
        **settings,
        **STREAM,
    )
    assert same_weights(folder, run_app(tmp_path / "messages", **settings))


def streams_for(**settings):
    config = config_of(**settings)
    task, model = checked_task(config)
    return streams_of(config, model, task, engine_of(config).stream_patience_seconds)


def test_other_algorithms_and_the_cloud_have_no_streams():
    for settings in ({"algorithm": "fedavg"}, {"algorithm": "hsfl", "role": "cloud"}):
        with streams_for(**STREAM, **settings) as streams:
            assert streams is None
    with streams_for(algorithm="hsfl") as streams:
        assert streams is None


def test_frames_of_float64_may_be_as_large_as_they_are(tmp_path):
    settings = {"algorithm": "sfl-v1", "task": "tests.app.own_tasks:Wide", "num_clients": 1, "global_rounds": 1}
    settings |= {"batch_size": 30, "batches_per_epoch": 1, "local_epochs": 1}
    assert same_weights(run_app(tmp_path / "stream", **settings, **STREAM), run_app(tmp_path / "messages", **settings))


def test_a_model_that_can_not_be_streamed_is_one_line(tmp_path, capsys):
    task = "tests.app.own_tasks:Typed(dtype='float16')"
    assert main([f"task={task}", "algorithm=sfl-v1", "split.transport=stream", f"output-dir={tmp_path / 'run'}"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: split.transport = 'stream': allowed is 'messages' for a model of torch.float16; ")
    assert not (tmp_path / "run").exists()


def test_the_largest_frame_is_that_of_the_largest_cut():
    task = build_task(config_of(algorithm="sfl-v1"))
    model, example = task.new_model(), task.example_input()
    one, two, both = (largest_frame_bytes(model, example, cuts, "float32", 16) for cuts in ((1,), (2,), (1, 2)))
    assert one == 19 + 16 + 16 * 4 + 16 * 16 * 4 * 4 * 4
    assert two < one == both


def test_a_message_to_a_node_that_stays_holds_few_models():
    model = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5))
    own = (3 * 5 + 5 + 4 * 5) * 4 + 8
    assert largest_message_bytes(model) == 4 * own + 2**26
    assert largest_message_bytes(nn.Linear(2**15, 2**14, device="meta")) == 2**31 - 1
    assert largest_message_bytes(nn.LazyLinear(4)) == 2**31 - 1  # nobody knows yet


@pytest.mark.parametrize(
    ("settings", "is_open"),
    [
        ({"algorithm": "scaffold"}, False),
        ({"algorithm": "hsfl"}, True),
        ({"algorithm": "h-fedavg", "role": "cloud"}, True),
    ],
)
def test_tickets_of_nodes_that_stay_are_for_messages_of_the_run(settings, is_open):
    config = config_of(deploy_transport="stream", **settings)
    task, model = checked_task(config)
    with streams_of(config, model, task, float) as streams:
        assert streams.server.max_message_bytes == (2**31 - 1 if is_open else largest_message_bytes(model))


def test_a_server_listens_no_wider_than_it_must():
    for address in ("127.0.0.1", "localhost"):
        assert listen_on(address) == address
    assert listen_on("::1") == "[::1]"
    for address in ("edge.example.org", "10.0.0.7"):
        assert listen_on(address) in ("[::]", "0.0.0.0")
        assert checked_address(StreamSettings(address=address)) == address


BAD = [
    ("stream.address=''", ["stream.address = ''", "name or IP address"]),
    ("stream.address=nowhere.invalid", ["stream.address = 'nowhere.invalid'", "one that this host finds"]),
    ("stream.address='host:99'", ["stream.address = 'host:99'", "without a port"]),
    ("stream.timeout=0", ["stream.timeout = 0", "greater than or equal to 0.001"]),
    ("stream.payload=int4", ["stream.payload = 'int4'", "'int8'"]),
    ("stream.certificate='{folder}/server.crt'", ["stream.certificate", "both"]),
    ("stream.certificate='{folder}/none' stream.key='{folder}/server.key'", ["{folder}/none", "No such file"]),
    ("stream.certificate='{folder}/server.key' stream.key='{folder}/server.key'", ["stream.certificate", "PEM"]),
    ("stream.certificate='{folder}/server.crt' stream.key='{folder}/server.crt'", ["stream.key", "PEM"]),
    ("stream.certificate='{folder}/server.crt' stream.key='{folder}/ca.key'", ["stream.key", "private key of"]),
    (
        "stream.address=edge.example.org stream.certificate='{folder}/server.crt' stream.key='{folder}/server.key'",
        ["stream.certificate", "valid today, for stream.address = 'edge.example.org'"],
    ),
    ("stream.micro-batches=0", ["stream.micro-batches = 0", "greater than or equal to 1"]),
    ("stream.micro-batches=2 tail-layer=1", ["stream.micro-batches = 2", "allowed is 1 with tail-layer"]),
    (
        "stream.micro-batches=2 algorithm=sfl-v2",
        ["stream.micro-batches = 2", "allowed is 1 with split.server-order = 'interleaved', or 'one-by-one'"],
    ),
    (
        "stream.micro-batches=2 task=tests.app.own_tasks:Singles",
        [
            "stream.micro-batches = 2",
            "allowed is 1 for a model with BatchNorm1d (",
            "whose statistics are those of whole",
        ],
    ),
    (
        "stream.micro-batches=2 task=tests.app.own_tasks:Weighing",
        [
            "stream.micro-batches = 2",
            "allowed is 1 for a loss whose mean over a mini-batch is not that of its examples",
        ],
    ),
    ("stream.timeout=1e12", ["stream.timeout = 1000000000000.0", "86400"]),
    ("deploy.edge-clients=1", ["deploy.edge-clients = 1", "deploy.role = 'edge'"]),
]


@pytest.mark.parametrize(("arguments", "parts"), BAD)
def test_bad_settings_end_the_run_in_one_line(arguments, parts, tmp_path, capsys):
    folder = tmp_path / "certificates"
    make_certificates(folder, ["127.0.0.1"])
    output = tmp_path / "output"
    given = arguments.format(folder=folder).split()
    code = main(["algorithm=sfl-v1", "split.transport=stream", f"output-dir='{output}'", *given])
    line = capsys.readouterr().err
    assert code == 2
    assert line.count("\n") == 1
    assert all(part.format(folder=folder) in line for part in parts), line
    assert not output.exists()


def test_a_port_that_is_taken(tmp_path, capsys):
    with streams_for(algorithm="sfl-v1", **STREAM) as streams:
        port = streams.server.port
        assert main(["algorithm=sfl-v1", "split.transport=stream", f"stream.port={port}"]) == 2
    assert f"stream.port = {port}: allowed is a free port of 127.0.0.1" in capsys.readouterr().err
