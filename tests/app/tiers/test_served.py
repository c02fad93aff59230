"""Edges that workers serve give what the same edges give in one process: weights, metrics and state."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord
from flwr.serverapp.strategy import FedAvg

from espalier.app.algorithms.h_fedavg import H_FEDAVG
from espalier.app.command_line import main
from espalier.app.engines.in_process import InProcess
from espalier.app.ground.checkpoint import load_state, save_state
from espalier.app.ground.errors import UserError
from espalier.app.run.run import run
from espalier.clients.half import ClientHalf
from espalier.clients.messages.train import TRAIN
from espalier.clients.shared.arrays import to_record, to_weights
from tests.app.assembling import config_of, engine_of
from tests.app.runs import lines, run_app, same_weights, summary
from tests.app.tiers.hosts import SMALL, Watching
from tests.app.tiers.served import ServingInProcess, run_served
from tests.app.tiers.test_two_tiers import same_figures, same_heads


def halved(message, context, call_next):
    """Answer with the model halfway between that which came and that which was trained."""
    reply = call_next(message, context)
    sent, trained = (to_weights(one.content["arrays"]) for one in (message, reply))
    reply.content["arrays"] = to_record({name: (sent[name] + trained[name]) / 2 for name in sent})
    return reply


HALFWAY = replace(H_FEDAVG, client=ClientHalf(mods={TRAIN: [halved]}))

VIDEO = {"dataset": "video-caching", "num_clients": 6, "learning_rate": 0.05}
VIDEO |= {"report_evaluate_every": 0}  # most of the time of such a run
PLANNED = {"selected_per_edge": 1, "max_local_rounds": 3}
CASES = {
    "h-fedavg": {
        "cloud_strategy": "FedAdam(eta=0.05)",
        "edge_strategy": "FedAvgM(server_momentum=0.5, server_learning_rate=0.9)",
        "participation": 0.5,
    },
    "hsfl": {"algorithm": "hsfl", "cut_layer": "1,2"},
    "phsfl": {"algorithm": "phsfl", "fine_tune_steps": 3, "num_edges": 3, "num_clients": 7},
    "sfl-v2": {"algorithm": "sfl-v2", "server_optimizer": "adam", "server_learning_rate": 0.01},
    "stream": {"algorithm": "phsfl", "split_transport": "stream", "stream_payload": "int8", "global_rounds": 1},
    "best-cut": PLANNED
    | {"algorithm": "hsfl", "selection": "resource-aware", "cut_layer": "best", "weighting": "equal"},
    "rawhfl": PLANNED | {"algorithm": "rawhfl"},
    "rawhfl-video": PLANNED | VIDEO | {"algorithm": "rawhfl", "selected_per_edge": 2},
    "by-loss": PLANNED | {"algorithm": "rawhfl", "plan_value": "loss", "plan_value_weight": 9.0},
    "by-loss-split": PLANNED | {"algorithm": "sfl-v2", "selection": "resource-aware", "plan_value": "loss"},
    "by-age-with-batteries": PLANNED | {"algorithm": "rawhfl", "plan_value": "age", "plan_battery_joules": 0.01},
    "m1": {"algorithm": "h-fedavg-m1"},
    "m2": PLANNED | {"algorithm": "h-fedavg-m2"},
    "ub": {"algorithm": "h-fedavg-ub"},
    "own client, side by side": {"algorithm": "tests.app.tiers.test_served:HALFWAY", "stack": 2},
    "numbers": {"algorithm": "fedbabu", "task": "tests.app.own_tasks:Numbers"},
    "fedbuff": {"async_mode": "fedbuff", "async_buffer_size": 1, "global_rounds": 4},
    "semi-synchronous": PLANNED | {"algorithm": "h-fedavg-ub", "async_mode": "semi-synchronous"},
}


def state_of(folder, *, left_out=("wall_seconds", "clients", "settings", "files")):
    """Return the state that a run left, as plain data; clients' salts are drawn anew in each run."""
    state = load_state(folder / "state.npz")
    return plain({key: value for key, value in state.items() if key not in left_out}), state["clients"].keys()


def plain(value):
    if isinstance(value, ArrayRecord):
        return {name: plain(array.numpy()) for name, array in value.items()}
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, value.tobytes()
    if isinstance(value, dict | ConfigRecord | MetricRecord):
        return {key: plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, list | tuple) else value


def same_runs(left, right):
    assert same_weights(left, right)
    assert same_heads(left, right)
    assert same_figures(left, right, bytes_too=True)
    assert state_of(left) == state_of(right)
    return True


@pytest.mark.parametrize("name", CASES)
def test_served_edges_give_what_one_process_gives(tmp_path, name):
    settings = SMALL | CASES[name]
    here = run_app(tmp_path / "here", **settings)
    served = run_served(tmp_path / "served", **settings)
    assert same_runs(here, served)


def test_with_the_same_plan_measuring_changes_no_bit(tmp_path):
    settings = SMALL | {"algorithm": "rawhfl", "selected_per_edge": 2, "max_local_rounds": 2}
    settings |= {"plan_theta": 1.0, "plan_deadline_seconds": 1e6, "global_rounds": 1}
    here = run_app(tmp_path / "here", **settings)
    served = run_served(tmp_path / "served", plan_resources="measured", **settings)
    assert same_weights(here, served)
    world = json.loads((served / "world.json").read_text())
    highest = {client["client"]: client["max_frequency_hz"] for client in world["clients"]}
    for line in lines(served, "edge"):
        for plan in line["plans"]:
            for client, frequency_hz in zip(plan["selected"], plan["frequency_hz"], strict=True):
                assert 0 < frequency_hz <= highest[client]


@pytest.mark.parametrize("name", ["h-fedavg", "phsfl", "rawhfl-video", "by-loss"])
def test_a_folder_of_one_way_is_resumed_in_the_other(tmp_path, name):
    settings = SMALL | CASES[name] | {"global_rounds": 4}
    whole = run_app(tmp_path / "whole", **settings)

    def interrupt(number):
        if number % 2 == 1:
            raise KeyboardInterrupt

    folder = tmp_path / "in-turn"
    with pytest.raises(KeyboardInterrupt):
        run_served(folder, progress=Watching(interrupt), **settings)
    again = settings | {"output_dir": "", "resume": str(folder)}
    config = config_of(**again, engine="in-process")
    with pytest.raises(KeyboardInterrupt):
        run(config, engine_of(config), Watching(interrupt), tmp_path)
    run_served(folder, **again)
    assert same_weights(whole, folder)
    assert same_heads(whole, folder)
    assert same_figures(whole, folder)
    assert state_of(whole) == state_of(folder)


@pytest.mark.parametrize("algorithm", ["scaffold", "hsfl-scaffold"])
def test_edges_in_workers_forget_once_what_clients_have_lost(tmp_path, algorithm):
    settings = SMALL | {"algorithm": algorithm, "global_rounds": 1}
    here = run_app(tmp_path / "here", **settings)
    state = load_state(here / "state.npz")
    save_state(here / "state.npz", state | {"clients": {}})
    served = Path(shutil.copytree(here, tmp_path / "served"))
    assert main([f"resume={here}", "global-rounds=3"]) == 0
    run_served(served, **settings | {"output_dir": "", "resume": str(served), "global_rounds": 3})
    assert same_weights(here, served)


OF_EDGE = ("strategies", "edges", "edge-1")
UNFIT = [
    ((*OF_EDGE, "server_momentum"), 9.0, "FedAvgM.server_momentum is 0.5 in this run"),
    ((*OF_EDGE, "momentum_vector"), [np.zeros((3, 7, 2))], "Error: "),
    (("clients",), {"x": b""}, "ValueError: states of unknown clients: [\"'x'\"]"),
    (("clients",), {"99": b""}, "ValueError: states of unknown clients"),
    (("clients",), {"1": b"\xff"}, "DecodeError"),
    (("clients",), {"1": 5}, "TypeError"),
]


@pytest.mark.parametrize(("path", "wrong", "part"), UNFIT)
def test_an_edges_state_that_is_none_stops_the_run_in_one_line(tmp_path, path, wrong, part):
    settings = SMALL | CASES["h-fedavg"] | {"global_rounds": 1}
    folder = run_served(tmp_path / "run", **settings)
    state = load_state(folder / "state.npz")
    holder = state
    for key in path[:-1]:
        holder = holder[key]
    assert path[-1] in holder
    holder[path[-1]] = wrong
    save_state(folder / "state.npz", state)
    again = settings | {"output_dir": "", "resume": str(folder), "global_rounds": 2}
    with pytest.raises(UserError, match=f"^{re.escape(str(folder))}/state.npz: .*{re.escape(part)}") as error:
        run_served(folder, **again)
    assert "\n" not in str(error.value)
    assert len(lines(folder, "global")) == 1


@pytest.mark.parametrize("edge", ["edge-0", "edge-1"])
def test_edges_that_take_turns_with_a_state_that_is_none_stop_the_run_in_one_line(tmp_path, edge):
    settings = SMALL | CASES["h-fedavg"] | CASES["fedbuff"] | {"async_concurrency": 1, "evaluate_every": 0}
    folder = run_served(tmp_path / "run", **settings | {"global_rounds": 2})
    state = load_state(folder / "state.npz")
    state["strategies"]["edges"][edge]["momentum_vector"] = [np.zeros((3, 7, 2))]
    save_state(folder / "state.npz", state)
    again = settings | {"output_dir": "", "resume": str(folder), "global_rounds": 16}
    with pytest.raises(UserError, match=f"^{re.escape(str(folder))}/state.npz: ") as error:
        run_served(folder, **again)
    assert "\n" not in str(error.value)


class TwiceInProcess(ServingInProcess):
    """Each request is answered by two workers, and the first answer is lost."""

    num_workers = 3

    def serve_edges(self, make_app, sizes):
        grid = super().serve_edges(make_app, sizes)
        answer = grid._client_app
        grid._client_app = lambda message, context: (answer(message, context), answer(message, context))[1]
        return grid


@pytest.mark.parametrize("name", ["sfl-v2", "rawhfl-video"])
def test_a_request_that_is_done_again_elsewhere_gives_the_same_bits(tmp_path, name):
    settings = SMALL | CASES[name]
    here = run_app(tmp_path / "here", **settings)
    assert same_runs(here, run_served(tmp_path / "served", engine_kind=TwiceInProcess, **settings))


def test_an_edge_whose_worker_fails_is_left_out_of_that_round_alone(tmp_path, caplog):
    settings = SMALL | CASES["h-fedavg"] | {"global_rounds": 3}

    def fails(name, message_type, count):
        return (name, message_type, count) == ("edge-1", "train.edge", 2)

    folder = run_served(tmp_path / "served", fails=fails, **settings)
    assert [line["edges_left_out"] for line in lines(folder, "global")] == [[], ["edge-1"], []]
    left_out = [line for line in lines(folder, "edge") if line["failures"]]
    assert [(line["round"], line["edge"]) for line in left_out] == [(2, "edge-1")]
    reason = "RuntimeError: the worker is gone"
    assert left_out[0]["failures"] == [{"edge_round": 1, "client": None, "reason": reason}]
    assert left_out[0]["bytes"].get("edge", {}).get("downlink", {}).get("model") is None
    texts = [record.getMessage() for record in caplog.records]
    assert texts.count(f"round 2, edge round 1: edge-1 left out: {reason}") == 1
    assert summary(folder)["failures"] == 1


class Fails(FedAvg):
    """Fails from its second round on."""

    def aggregate_train(self, server_round, replies):
        if server_round > 1:
            raise KeyError("no such column")
        return super().aggregate_train(server_round, replies)


def failing_value(standing):
    """Fail from the second edge round on."""
    if standing.edge_round > 1:
        raise KeyError("no such column")
    return standing.age


@pytest.mark.parametrize(
    ("settings", "key", "fault"),
    [
        ({"edge_strategy": f"{__name__}:Fails"}, "edge-strategy", "KeyError: "),
        (CASES["rawhfl"] | {"plan_value": f"{__name__}:failing_value"}, "plan.value", "plan.value = "),
    ],
)
def test_what_fails_in_code_of_ones_own_ends_the_run_as_in_one_process(tmp_path, settings, key, fault):
    settings = SMALL | settings
    with pytest.raises(UserError, match=f"^{key} = .*no such column"):
        run_served(tmp_path / "here", engine_kind=InProcess, **settings)
    with pytest.raises(UserError, match=f"^edge 'edge-0' failed: {fault}.*no such column") as error:
        run_served(tmp_path / "served", **settings)
    assert "\n" not in str(error.value)


def test_an_edge_that_can_not_be_made_stops_the_run_in_one_line(tmp_path):
    def fails(name, message_type, count):
        return name == "edge-1" and message_type == "query.edge"

    with pytest.raises(UserError, match="an edge can't be made: RuntimeError: the worker is gone") as error:
        run_served(tmp_path / "served", fails=fails, **SMALL)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "served").exists()


def test_what_clients_fail_on_is_logged_once_and_counted_as_in_one_process(tmp_path, caplog):
    caplog.set_level("INFO", "espalier")
    settings = SMALL | CASES["rawhfl"] | {"plan_deadline_seconds": 5.0, "radio_planning_error_db": 20.0}
    here = run_app(tmp_path / "here", **settings)
    logged = lines_of_failures(caplog)
    caplog.clear()
    served = run_served(tmp_path / "served", **settings)
    assert same_figures(here, served, bytes_too=True)
    assert lines_of_failures(caplog) == logged != []


def lines_of_failures(caplog):
    """Return them sorted: edges that are served log all edge rounds of a global round at once."""
    texts = [record.getMessage() for record in caplog.records]
    return sorted(text for text in texts if "left out" in text or "in each cell" in text)
