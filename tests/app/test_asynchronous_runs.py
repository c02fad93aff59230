"""Runs whose cloud waits for nobody: what they equal, what they depend on, and that they go on to the same bits."""

import csv
import json

import numpy as np
import pytest

from espalier.app.command_line import main
from espalier.app.ground.errors import Interrupted
from espalier.app.reports.progress import LogProgress
from espalier.app.run.run import engine_of, run
from espalier.sim.clock import draw_client_seconds
from tests.app.assembling import config_of
from tests.app.runs import key_of, lines, run_app, same_weights, summary

SMALL = {"batch_size": 8, "local_epochs": 1, "batches_per_epoch": 2, "learning_rate": 0.1, "engine": "in-process"}
EDGES = SMALL | {"num_clients": 6, "num_edges": 3, "edge_rounds": 2}
WITHIN = EDGES | {"algorithm": "h-fedavg", "async_tier": "edges"}
FLAT = SMALL | {"algorithm": "fedavg", "num_clients": 5}
PLANNED = EDGES | {"algorithm": "h-fedavg-ub", "dataset": "video-caching", "max_local_rounds": 2}
PLANNED |= {"report_evaluate_every": 0}  # most of the time of such a run
BULYAN = {"cloud_strategy": "Bulyan", "num_clients": 5, "num_edges": 5}


class StopsAfterTwo(LogProgress):
    """Interrupts a run after its second global round."""

    def round_over(self, number, rounds, line):
        if number == 2:
            raise KeyboardInterrupt


def figures(folder):
    """All that metrics.jsonl says but wall times."""
    wall = ("seconds", "wall_seconds")
    return [
        {k: v for k, v in line.items() if k not in wall}
        for scope in ("edge", "global")
        for line in lines(folder, scope)
    ]


@pytest.mark.parametrize("algorithm", ["h-fedavg", "hsfl", "sfl-v2", "phsfl"])
def test_equal_speeds_and_a_buffer_for_all_edges_are_the_synchronous_run(tmp_path, algorithm):
    settings = EDGES | {"algorithm": algorithm, "num_clients": 3}
    plain = run_app(tmp_path / "plain", **settings)
    own = run_app(tmp_path / "own", async_mode="fedbuff", async_buffer_size=3, async_sigma=0.0, **settings)
    assert same_weights(own, plain)
    assert [line["accuracy"] for line in lines(own, "global")] == [line["accuracy"] for line in lines(plain, "global")]
    assert [line["bytes"] for line in lines(own, "edge")] == [line["bytes"] for line in lines(plain, "edge")]
    assert [line["simulated_seconds"] for line in lines(own, "global")] == [120.0, 240.0]


@pytest.mark.parametrize(
    ("settings", "seconds", "idle"),
    [
        ({"algorithm": "sl"}, 240.0, 0.5),
        ({"algorithm": "sfl-v2", "server_order": "one-by-one"}, 240.0, 0.5),
        ({"algorithm": "sfl-v2"}, 120.0, 0.0),
        ({"algorithm": "h-fedavg"}, 120.0, 0.0),
    ],
)
def test_clients_that_train_one_after_the_other_take_all_of_their_times(settings, seconds, idle, tmp_path):
    """Two clients at each edge take a minute each, in two edge rounds."""
    own = EDGES | {"async_mode": "semi-synchronous", "async_sigma": 0.0, "num_clients": 4, "num_edges": 2}
    folder = run_app(tmp_path / "run", **own | settings)
    assert [line["simulated_seconds"] for line in lines(folder, "global")] == [seconds, 2 * seconds]
    assert lines(folder, "global")[-1]["async"]["idle_share"] == {"edges": 0.0, "clients": idle}


def test_parts_of_edges_of_whom_nobody_can_train_are_no_updates(tmp_path):
    gains = "".join(f"{client // 2},{client},{1e-9 if client < 2 else 1e-25}\n" for client in range(8))
    (tmp_path / "gains.csv").write_text(f"cell,client,gain\n{gains}")
    settings = {"algorithm": "rawhfl", "num_clients": 8, "num_edges": 4, "edge_rounds": 1, "selected_per_edge": 1}
    settings |= {"deadline_seconds": 2.0, "radio_trace": str(tmp_path / "gains.csv"), "async_mode": "fedasync"}
    folder = run_app(tmp_path / "run", **SMALL, **settings, global_rounds=1)
    assert [bool(line["participants"][0]) for line in lines(folder, "edge")] == [True, False, False, False]
    assert lines(folder, "global")[-1]["async"]["staleness"] == {"0": 1}


def test_clients_that_all_are_waited_for_are_the_synchronous_run(tmp_path):
    plain = run_app(tmp_path / "plain", **FLAT)
    own = run_app(tmp_path / "own", async_mode="semi-synchronous", **FLAT)
    assert same_weights(own, plain)
    seconds = draw_client_seconds(5, 0, median_seconds=60.0, sigma=1.0)
    slowest = max(seconds.of(client, 1) for client in range(5))
    assert summary(own)["simulated_seconds"] == pytest.approx(2 * slowest)
    assert "async" not in summary(plain)


@pytest.mark.parametrize(
    "settings",
    [
        EDGES | {"async_mode": "fedbuff", "async_buffer_size": 2, "cloud_strategy": "FedAdam(eta=0.05)"},
        EDGES | {"async_mode": "fedasync", "async_max_staleness": 2, "algorithm": "hsfl", "label_policy": "labels"},
        FLAT | {"async_mode": "fedbuff", "async_concurrency": 3},
        FLAT | {"async_mode": "semi-synchronous", "async_deadline_seconds": 50.0, "async_staleness": "hinge(10, 4)"},
        PLANNED | {"async_mode": "fedbuff", "async_buffer_size": 1},
        WITHIN | {"async_mode": "fedbuff", "async_buffer_size": 1, "edge_strategy": "FedAdam(eta=0.05)"},
    ],
    ids=["fedbuff over edges", "fedasync over split edges", "fedbuff", "semi-synchronous", "planned", "within edges"],
)
def test_a_run_depends_on_its_seed_alone_and_goes_on_to_the_same_bits(tmp_path, settings):
    whole, again = run_app(tmp_path / "whole", global_rounds=5, **settings), tmp_path / "again"
    config = config_of(global_rounds=5, output_dir=str(again), report_plots=False, **settings)
    with pytest.raises(Interrupted), engine_of(config) as engine:
        run(config, engine, StopsAfterTwo(), tmp_path)
    assert main([f"resume={again}"]) == 0
    assert same_weights(again, whole)
    assert figures(again) == figures(whole)
    assert summary(again)["async"] == summary(whole)["async"]
    times = [line["simulated_seconds"] for line in lines(whole, "global")]
    assert times == sorted(times)
    assert times[-1] > 0


def test_an_edge_line_has_the_bytes_of_the_parts_that_came_in(tmp_path):
    sizes = {"algorithm": "h-fedavg", "num_clients": 8, "num_edges": 4, "global_rounds": 5}
    settings = EDGES | sizes | {"async_mode": "fedbuff", "async_buffer_size": 2}
    folder = run_app(tmp_path / "run", **settings)
    came, per_client = 0, 55_942
    for line in lines(folder, "edge"):
        trainings = sum(map(len, line["participants"]))
        assert trainings in (4, 8)  # two clients in two edge rounds, and an edge may come in twice
        assert line["bytes"]["edge"]["uplink"]["model"] == line["bytes"]["edge"]["downlink"]["model"]
        assert line["bytes"]["edge"]["uplink"]["model"] == trainings * per_client
        assert line["bytes"]["cloud"]["uplink"]["model"] == line["bytes"]["cloud"]["downlink"]["model"]
        came += trainings * per_client
    at_work = lines(folder, "global")[-1]["async"]["at_work"] * 4 * per_client
    sent = sum(line["bytes"]["edge"]["uplink"]["model"] for line in lines(folder, "global"))
    assert came + at_work == sent


@pytest.mark.usefixtures("with_png")
def test_a_run_draws_what_became_of_updates(tmp_path):
    folder = run_app(tmp_path / "run", report_plots=True, **EDGES | {"async_mode": "fedbuff", "async_buffer_size": 2})
    assert (folder / "async.png").exists()


def test_edges_that_all_wait_for_all_their_clients_are_the_synchronous_run(tmp_path):
    plain = run_app(tmp_path / "plain", **EDGES | {"algorithm": "h-fedavg"})
    own = run_app(tmp_path / "own", async_mode="semi-synchronous", **WITHIN)
    equal = run_app(tmp_path / "equal", async_mode="fedbuff", async_buffer_size=2, async_sigma=0.0, **WITHIN)
    seconds = draw_client_seconds(6, 0, median_seconds=60.0, sigma=1.0)
    slowest = max(seconds.of(client, 1) for client in range(6))
    for folder, round_seconds in ((own, 2 * slowest), (equal, 120.0)):
        assert same_weights(folder, plain)
        for one, other in zip(lines(folder, "edge"), lines(plain, "edge"), strict=True):
            assert one["participants"] == other["participants"]
            assert one["bytes"] == other["bytes"]
        assert [line["simulated_seconds"] for line in lines(folder, "global")] == pytest.approx(
            [round_seconds, 2 * round_seconds]
        )
        assert summary(folder)["async"]["staleness"] == {"0": 24}
    assert summary(equal)["async"]["idle_share"] == {"clients": 0.0}


def test_one_edge_is_the_flat_run(tmp_path):
    settings = {"async_mode": "fedbuff", "async_buffer_size": 2, "global_rounds": 5}
    flat = run_app(tmp_path / "flat", **FLAT | settings)
    edge = run_app(tmp_path / "edge", **FLAT | WITHIN | settings | {"num_clients": 5, "num_edges": 1, "edge_rounds": 1})
    assert same_weights(flat, edge)
    for one, other in zip(lines(flat, "global"), lines(edge, "global"), strict=True):
        assert one["simulated_seconds"] == other["simulated_seconds"]
        arrivals = [{k: v for k, v in own.items() if k != "edge"} for own in other["async"]["arrivals"]]
        assert one["async"] == other["async"] | {"arrivals": arrivals}


def test_clients_work_on_while_their_edge_waits_for_another(tmp_path):
    trace = tmp_path / "trace.csv"
    with trace.open("w", newline="") as file:
        csv.writer(file).writerows([("client", "seconds"), (0, 1), (1, 10), (2, 4), (3, 4)])
    own = {"num_clients": 4, "num_edges": 2, "edge_rounds": 1, "async_mode": "fedbuff", "async_buffer_size": 1}
    folder = run_app(tmp_path / "run", async_trace=str(trace), global_rounds=3, **WITHIN | own)
    rounds = lines(folder, "global")
    # edge-0 has client 0 after 1 s and waits until 4 s for edge-1, which has client 2, and client 3 too when round 2
    # begins; round 2 ends with client 0 at 5 s, and round 3 with those of edge-1 at 9 s.
    assert [line["simulated_seconds"] for line in rounds] == [4.0, 5.0, 9.0]
    arrivals = [
        [(one["who"], one["seconds"], one["staleness"]) for one in line["async"]["arrivals"]] for line in rounds
    ]
    assert arrivals == [
        [("client 0", 1.0, 0), ("client 2", 4.0, 0)],
        [("client 3", 4.0, 1), ("client 0", 5.0, 0)],
        [("client 0", 6.0, 0), ("client 2", 9.0, 0)],
    ]
    worked = [1 + 4 + 4 + 4, 1 + 1, 1 + 4 + 4 + 4]
    idle = [1 - seconds / (4 * length) for seconds, length in zip(worked, (4, 1, 4), strict=True)]
    assert [line["async"]["idle_share"]["clients"] for line in rounds] == pytest.approx(idle, abs=1e-6)


def test_the_time_is_that_of_a_trace(tmp_path):
    trace = tmp_path / "trace.csv"
    with trace.open("w", newline="") as file:
        csv.writer(file).writerows([("client", "seconds"), (0, 1), (0, 2), (1, 10), (2, 4), (3, 4)])
    settings = EDGES | {"num_clients": 4, "num_edges": 2, "async_mode": "fedbuff", "async_buffer_size": 1}
    folder = run_app(tmp_path / "run", async_trace=str(trace), global_rounds=3, **settings)
    # edge-0 waits 10 s for client 1 in both of its edge rounds, edge-1 4 s.
    rounds = lines(folder, "global")
    assert [line["simulated_seconds"] for line in rounds] == [8.0, 16.0, 20.0]
    assert [line["async"]["staleness"] for line in rounds] == [{"0": 1}, {"0": 1}, {"2": 1}]
    assert rounds[2]["async"]["idle_share"] == {"edges": 0.0, "clients": pytest.approx(1 - (4 * 23 / 20 + 8) / 16)}


def test_plans_say_how_long_an_edge_takes(tmp_path):
    settings = PLANNED | {"async_mode": "fedbuff", "async_buffer_size": 1, "global_rounds": 4}
    folder = run_app(tmp_path / "run", **settings)
    rounds = lines(folder, "global")
    ends = {}
    for line in lines(folder, "edge"):
        own = [plan["seconds"] for plan in line["plans"]][:2]  # of its first part
        ends.setdefault(line["edge"], (line["round"], sum(own)))
    for number, end in ends.values():
        assert rounds[number - 1]["simulated_seconds"] == pytest.approx(end)
    assert set(rounds[0]["async"]["idle_share"]) == {"edges"}
    # Edges that are still at work have spent their joules too.
    assert ["plans_at_work" in line for line in rounds] == [False, False, False, True]
    joules = rounds[-1]["energy_joules"]["so_far"]
    assert summary(folder)["energy_joules"]["total"] == pytest.approx(joules)
    with (folder / "clients.csv").open(newline="") as file:
        spent = [float(row["compute_joules"]) + float(row["upload_joules"]) for row in csv.DictReader(file)]
    assert sum(spent) == pytest.approx(joules)


def test_an_edge_line_has_the_plans_of_its_own_edge_rounds(tmp_path):
    sizes = {"num_clients": 8, "num_edges": 4, "global_rounds": 6, "edge_rounds": 2, "plan_deadline_seconds": 3.0}
    settings = (
        EDGES | sizes | {"algorithm": "rawhfl", "selected_per_edge": 1, "async_mode": "fedbuff", "async_buffer_size": 2}
    )
    folder = run_app(tmp_path / "run", **settings)
    # Some begin again in the round in which they came in, and are at work when it ends.
    for line in lines(folder, "edge"):
        assert len(line["plans"]) == len(line["participants"])
        assert all(
            set(took) <= set(plan["selected"]) for took, plan in zip(line["participants"], line["plans"], strict=True)
        )
    last = lines(folder, "global")[-1]
    at_work = {name: len(plans) for name, plans in last["plans_at_work"].items()}
    assert set(at_work.values()) == {2}
    assert len(at_work) == last["async"]["at_work"] > 0


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        (
            {"async_mode": "fedasync", "algorithm": "sfl-v1"},
            "async.mode = 'fedasync': allowed is 'off' for sfl-v1 without",
        ),
        ({"async_mode": "fedbuff", "algorithm": "fedavg", "participation": 0.5}, "participation = 0.5: allowed is 1.0"),
        (
            {"async_mode": "fedbuff", "algorithm": "fedavg", "selection": "resource-aware"},
            "selection = 'resource-aware'",
        ),
        (
            {"async_mode": "fedbuff", "async_tier": "edges", "algorithm": "fedavg"},
            "async.tier = 'edges': allowed is 'cloud' for fedavg without edges",
        ),
        (
            {"async_mode": "fedbuff", "async_tier": "edges", "algorithm": "hsfl"},
            "async.tier = 'edges': allowed is 'cloud' for hsfl: only edges of 'h-fedavg' can go on without clients",
        ),
        (
            {"async_mode": "fedbuff", "async_tier": "edges", "algorithm": "h-fedavg", "participation": 0.5},
            "participation = 0.5: allowed is 1.0",
        ),
        (
            {"async_mode": "fedbuff", "async_tier": "edges", "algorithm": "h-fedavg", "async_concurrency": 9},
            "async.concurrency = 9: allowed is at most an edge's clients = ",
        ),
        (
            {"async_mode": "fedasync", "async_tier": "edges", "algorithm": "h-fedavg", "edge_strategy": "Bulyan"},
            "allowed is another one: Bulyan needs 3 updates at a time, not 1",
        ),
        ({"async_mode": "fedbuff", "async_concurrency": 3}, "async.concurrency = 3: allowed is at most num-edges = 2"),
        (
            {"async_mode": "fedbuff", "async_staleness": "hinge(1)"},
            "async.staleness = 'hinge(1)': allowed is 'constant'",
        ),
        ({"async_mode": "fedbuff", "async_staleness": "polynomial(-1)"}, "async.staleness = 'polynomial(-1)'"),
        (BULYAN | {"async_mode": "fedasync"}, "allowed is another one: Bulyan needs 3 updates at a time, not 1"),
        (BULYAN | {"async_mode": "fedbuff"}, "async.buffer-size = 0: allowed is 3 or more: Bulyan makes no model of"),
        (
            BULYAN | {"async_mode": "semi-synchronous", "async_concurrency": 2},
            "async.concurrency = 2: allowed is 3 or more",
        ),
        ({"async_mode": "fedbuff", "async_trace": "nowhere.csv"}, "async.trace = 'nowhere.csv': allowed is a CSV file"),
        ({"async_mode": "fedbuff", "async_trace": "/dev/null"}, "a CSV file with a time for each client: no column"),
        (
            {"async_mode": "fedbuff", "plan_resources": "measured", "selection": "resource-aware"},
            "async.mode = 'fedbuff'",
        ),
    ],
)
def test_what_can_not_be_is_said_in_a_line(tmp_path, capsys, settings, line):
    values = {"output_dir": str(tmp_path / "run"), "engine": "in-process"} | settings

    assert main([f"{key_of(key)}={json.dumps(value)}" for key, value in values.items()]) == 2
    assert line in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_settings_without_use_are_said(tmp_path, caplog):
    run_app(tmp_path / "off", global_rounds=1, async_sigma=2.0, **FLAT)
    run_app(tmp_path / "on", global_rounds=1, async_mode="fedasync", async_buffer_size=2, **FLAT)
    said = [record.message for record in caplog.records if "has no effect" in record.message]
    assert said == [
        "async.sigma = 2.0 has no effect: async.mode = 'off'",
        "async.buffer-size = 2 has no effect: async.mode = 'fedasync'",
    ]


def test_a_fast_client_has_the_whole_time(tmp_path):
    folder = run_app(tmp_path / "run", async_mode="fedbuff", async_buffer_size=3, global_rounds=4, **FLAT)
    assert summary(folder)["async"]["idle_share"] == {"clients": pytest.approx(0.0, abs=1e-6)}
    counts = {int(t): n for t, n in summary(folder)["async"]["staleness"].items()}
    assert sum(counts.values()) == 12
    assert np.isclose(summary(folder)["simulated_seconds"], lines(folder, "global")[-1]["simulated_seconds"])


def test_a_cloud_that_makes_no_model_is_a_failure_with_its_reason(tmp_path, capsys):
    # Seven updates, but of fewer edges, since fast ones come twice; Bulyan needs seven of them.
    cloud = {"num_clients": 16, "num_edges": 8, "cloud_strategy": "Bulyan(num_malicious_nodes=1)"}
    buffered = {"async_mode": "fedbuff", "buffer_size": 7}
    short = {"global_rounds": 2, "local_epochs": 1, "batches_per_epoch": 1, "report_plots": False}
    folder, given = tmp_path / "run", {"algorithm": "h-fedavg", **short, **cloud, **buffered}
    assert main([f"{key_of(k)}={json.dumps(v)}" for k, v in given.items()] + [f"output-dir={folder}"]) == 2
    assert f"error: {folder}: the cloud made no model in any round;" in capsys.readouterr().err
    told = [line["cloud_failures"] for line in lines(folder, "global")]
    assert told == [["the cloud made no model of 5 replies"], ["the cloud made no model of 6 replies"]]
    assert summary(folder)["failures"] == 2
    first, last = (line["test"]["loss"] for line in lines(folder, "global"))
    assert first == last
