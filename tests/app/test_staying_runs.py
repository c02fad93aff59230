"""Runs of the app on devices that stay: every algorithm goes through streams, with the bits of messages."""

import logging
from threading import Lock

import pytest
from flwr.app import ArrayRecord

from espalier.app.engines.flower import Flower
from espalier.app.reports.progress import LogProgress
from espalier.app.run.run import run
from espalier.app.wiring.clients import client_task
from espalier.clients.client_app import make_client_app
from espalier.clients.seconds import tell_seconds
from tests.app.assembling import config_of
from tests.app.runs import lines, run_app, same_weights, summary
from tests.strategies.devices import Devices

SHORT = {"num_clients": 4, "batches_per_epoch": 2, "local_epochs": 1, "edge_rounds": 1, "report_plots": False}
STAYS = {"deploy_transport": "stream"}


def devices_of(config, node_configs=None, changed=lambda message, reply: None):
    """Return devices whose ClientApps take turns, since they share a process's models; client 2's replies change."""
    lock = Lock()

    def one_at_a_time(message, context, call_next):
        with lock:
            reply = call_next(message, context)
        if context.node_config["partition-id"] == 2:
            changed(message, reply)
        return reply

    app = make_client_app(client_task, mods=[one_at_a_time, tell_seconds])
    num_clients = config.federation.num_clients
    return Devices(app, num_clients, run_config=config.as_dict(), node_configs=node_configs, seed=config.seed)


def run_on_devices(folder, node_configs=None, changed=lambda message, reply: None, **settings):
    """Run the app on devices that stay and return the results folder, and the devices."""
    config = config_of(**{"global_rounds": 2, "output_dir": str(folder), **settings, **STAYS})
    devices = devices_of(config, node_configs, changed)
    run(config, Flower(devices), LogProgress(), folder.parent)
    devices.wait_for_all()
    return folder, devices


def asked_once(devices):
    """Return whether each device got one message, by which it stayed."""
    return sorted(devices.asked) == sorted((node_id, "query.stay") for node_id in devices.get_node_ids())


@pytest.mark.parametrize(
    "settings",
    [
        {"algorithm": "fedavg-ub"},
        {"algorithm": "hsfl-scaffold", "cut_layer": "1,2"},
        {"algorithm": "phsfl", "tail_layer": 3, "fine_tune_steps": 2},
        {"algorithm": "fedper", "compress_client": "top-k"},
        {"algorithm": "scaffold", "num_edges": 2, "report_evaluate_clients": 0.5},
        {"algorithm": "mtgc"},
        {"algorithm": "apfl"},
        {"algorithm": "sl"},
        {"algorithm": "sfl-v2", "report_evaluate_clients": 0.5},
        {"algorithm": "decoupled"},
        {"algorithm": "cse-fsl"},
        {"algorithm": "rawhfl", "dataset": "video-caching"},
    ],
    ids=lambda settings: settings["algorithm"],
)
def test_a_run_through_streams_is_the_run_in_process(settings, tmp_path):
    stayed, devices = run_on_devices(tmp_path / "stayed", **SHORT, **settings)
    assert asked_once(devices)
    expected = run_app(tmp_path / "expected", **SHORT, **settings)
    assert same_weights(stayed, expected)
    for key in ("bytes_by_kind", "personalised", "accuracy", "failures"):
        assert summary(stayed).get(key) == summary(expected).get(key)
    own = [[line.get("clients") for line in lines(folder, "global")] for folder in (stayed, expected)]
    assert own[0] == own[1]


def scaled(factor):
    """Return what makes a model that comes back so many times as long."""

    def change(message, reply):
        if message.metadata.message_type == "train":
            weights = reply.content["arrays"].to_torch_state_dict()
            reply.content["arrays"] = ArrayRecord({name: factor * values for name, values in weights.items()})

    return change


@pytest.mark.parametrize(
    ("factor", "reason"),
    [(float("nan"), "NaN or Inf"), (1e12, "long, where 6.46e+09 is allowed")],
    ids=["nan", "absurd"],
)
def test_who_answers_nonsense_through_a_stream_is_left_out_by_name_and_stays(factor, reason, tmp_path):
    folder, devices = run_on_devices(
        tmp_path / "run", changed=scaled(factor), algorithm="h-fedavg", num_edges=1, **SHORT
    )
    assert asked_once(devices)
    for line in lines(folder, "edge"):
        (failure,) = line["failures"]
        assert failure["client"] == 2
        assert reason in failure["reason"]


def test_devices_that_measure_and_move_stay_too(tmp_path):
    edges = [{"edge-name": f"edge-{i % 2}"} for i in range(4)]
    moving = {"algorithm": "h-fedavg", "num_edges": 2, "deploy_nodes_move": True}
    stayed, devices = run_on_devices(tmp_path / "moving", edges, **SHORT, **moving)
    assert asked_once(devices)
    assert [line["participants"] for line in lines(stayed, "edge")] == [[[0, 2]], [[1, 3]]] * 2
    plans = {"algorithm": "h-fedavg", "num_edges": 2, "selection": "resource-aware", "plan_resources": "measured"}
    stayed, devices = run_on_devices(tmp_path / "measured", **SHORT, **plans)
    assert asked_once(devices)
    assert summary(stayed)["failures"] == 0


def test_in_flowers_simulation_nobody_stays(monkeypatch, caplog):
    monkeypatch.setattr("espalier.app.engines.flower.is_in_simulation", lambda: True)
    engine = Flower(devices_of(config_of(**SHORT)))
    with caplog.at_level(logging.WARNING, "espalier"), engine.staying(pytest.fail) as reached:
        assert reached is engine
    assert "deploy.transport = 'stream' has no effect" in caplog.text


def test_on_the_apps_own_engines_nobody_stays(tmp_path, caplog):
    run_app(tmp_path / "run", algorithm="h-fedavg", **SHORT, **STAYS)
    assert "deploy.transport = 'stream' has no effect: with engine = 'in-process'" in caplog.text
