"""Who was slow: a client that sleeps is named, by its seconds, on every engine and by every transport."""

import json
import os
import shutil
from collections import Counter

import pytest

from espalier.app.features.seconds.reports import slowest_summary, totals_of
from espalier.app.meters.seconds import Seconds
from espalier.app.reports.final import report_again
from espalier.app.reports.folder import ResultsFolder
from tests.app.runs import ROOT, flwr_run, lines, run_app, same_weights, summary
from tests.app.slow_clients import SLEEP, SLEEP_ON_MACHINES, SLOW_CLIENT
from tests.app.tiers.served import run_served

SHORT = {
    "num_clients": 4,
    "num_edges": 2,
    "edge_rounds": 1,
    "global_rounds": 2,
    "local_epochs": 1,
    "batches_per_epoch": 1,
    "report.evaluate-every": 0,
    "fine_tune_steps": 0,
}
WHOLE, SPLIT, QUICK = ({"algorithm": f"tests.app.slow_clients:{name}"} for name in ("WHOLE", "SPLIT", "QUICK"))
TWO_WORKERS = {"engine": "ray", "ray.workers": 2}


def check_slow_client(folder, seconds=SLEEP, others=(0, 2, 3), within=0.15):
    """Check that the slow client trained for so many seconds longer than the quickest, and that reports name it.

    By the last round: in the first one whoever is first makes its process ready. On a crowded machine the slow client
    computes for longer; who waits for another one's sleep as well would come to twice as much.
    """
    every = ResultsFolder(folder).read_seconds()
    assert summary(folder)["seconds"] == slowest_summary(every)["seconds"]
    totals, slowest = totals_of(every[-1:]), slowest_summary(every[-1:])["seconds"]["slowest"]
    means = {client: own.mean for client, own in totals.clients.items()}
    assert means.keys() == {SLOW_CLIENT, *others}
    longer = means[SLOW_CLIENT].training - min(means[client].training for client in others)
    assert seconds - within < longer < seconds + max(within, 0.8 * SLEEP)
    assert (slowest["client"]["client"], slowest["client"]["edge"]) == (SLOW_CLIENT, "edge-0")
    assert slowest["edge"]["edge"] == "edge-0"
    assert slowest["edge"]["training_seconds"] == pytest.approx(means[SLOW_CLIENT].training, abs=1e-5)
    return totals


IN_PROCESS = {
    "whole": WHOLE,
    "fused": SPLIT,
    "messages": SPLIT | {"split.execution": "messages"},
    "streams": SPLIT | {"split.transport": "stream"},
    "edges that wait for nobody": WHOLE | {"async.mode": "semi-synchronous"},
}


@pytest.mark.parametrize("settings", IN_PROCESS.values(), ids=IN_PROCESS)
def test_in_one_process_others_wait_for_the_slow_client_and_nothing_is_on_the_way(tmp_path, settings):
    totals = check_slow_client(run_app(tmp_path / "run", **SHORT, **settings))
    for client, own in totals.clients.items():
        assert own.edge_rounds == 1
        assert own.transfer < 0.2 * SLEEP
        assert client == SLOW_CLIENT or own.waiting > 0.9 * SLEEP
    *_, edge = [line for line in lines(tmp_path / "run", "edge") if line["edge"] == "edge-0"]
    assert totals.edges["edge-0"].total == pytest.approx(edge["seconds"], abs=1e-3)


RAY = {
    "clients in workers": WHOLE | {"async.mode": "semi-synchronous", "async.tier": "edges"},
    "edges in workers": WHOLE,
    "split, by streams": SPLIT | {"split.transport": "stream"},
}


@pytest.mark.slow
@pytest.mark.parametrize("settings", RAY.values(), ids=RAY)
def test_workers_of_ray_tell_the_same_of_it(ray_here, tmp_path, settings):
    totals = check_slow_client(run_app(tmp_path / "run", **SHORT, **TWO_WORKERS, **settings))
    assert totals.clients[0].mean.waiting > 0.9 * SLEEP  # it shares its worker
    assert totals.clients[3].mean.own < 0.9 * SLEEP  # it has not slept


@pytest.mark.slow
@pytest.mark.deploy
def test_flowers_simulation_tells_the_same_of_it(tmp_path, monkeypatch):
    (tmp_path / "own").mkdir()
    shutil.copy(ROOT / "tests/app/slow_clients.py", tmp_path / "own")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "own"))
    settings = (
        SHORT | {"algorithm": "slow_clients:WHOLE_ON_MACHINES"} | {"output_dir": str(tmp_path / "run"), "device": "cpu"}
    )
    code, output = flwr_run("num-supernodes=4 client-resources-num-cpus=1", **settings)
    assert code == 0, output
    check_slow_client(tmp_path / "run", SLEEP_ON_MACHINES, within=0.1 * SLEEP_ON_MACHINES)


def test_times_are_no_part_of_what_is_trained_or_counted(tmp_path):
    slow, quick = (run_app(tmp_path / name, **SHORT, **own) for name, own in (("slow", WHOLE), ("quick", QUICK)))
    assert same_weights(slow, quick)
    for scope in ("edge", "global"):
        left, right = (
            [{k: v for k, v in line.items() if k not in ("seconds", "wall_seconds")} for line in lines(folder, scope)]
            for folder in (slow, quick)
        )
        assert left == right


def rounds_told(folder):
    """Return, for every line, the edge rounds whose seconds it has, and those that arrived in it, by edge."""
    every = ResultsFolder(folder).read_seconds()
    told = [{name: own["edge_rounds"] for name, own in line["edges"].items()} for line in every]
    came = [Counter(one["who"] for one in line["async"]["arrivals"]) for line in lines(folder, "global")]
    return told, [{name: 2 * count for name, count in line.items()} for line in came]


@pytest.mark.parametrize("served", [False, True])
def test_a_line_has_the_seconds_of_the_parts_that_arrived_in_it(tmp_path, served):
    settings = SHORT | {"edge_rounds": 2, "async.mode": "fedbuff", "async.buffer-size": 2, "global_rounds": 5}
    trace = tmp_path / "trace.csv"
    trace.write_text("client,seconds\n0,10\n1,10\n2,35\n3,35\n")
    settings |= {"async.trace": str(trace)}
    folder = (run_served if served else run_app)(tmp_path / "run", **settings)
    told, came = rounds_told(folder)
    assert told == came
    assert {4, 2} <= {count for line in told for count in line.values()}
    for line in ResultsFolder(folder).read_seconds():
        for client in line["clients"].values():
            assert client["edge_rounds"] == line["edges"][client["edge"]]["edge_rounds"]
    if not served:
        run_app("", **settings | {"resume": str(folder), "global_rounds": 10})
        told, came = rounds_told(folder)
        assert told[:5] == came[:5]
        # A part that was under way has no seconds, and no others are told for it: one edge had been waited for.
        missing = [came.get(edge, 0) - own for line, came in zip(told, came, strict=True) for edge, own in line.items()]
        assert (min(missing), sum(missing)) == (0, 2)


def test_a_resumed_run_keeps_the_lines_of_its_rounds_and_needs_none(tmp_path):
    folder = run_app(tmp_path / "run", **SHORT)
    file = folder / "seconds.jsonl"
    first = file.read_text().splitlines()
    file.write_text("\n".join([*first, json.dumps(json.loads(first[1]) | {"round": 3}), '{"round": 4, "sc']))
    assert run_resumed(folder, 3) == [1, 2, 3]
    assert file.read_text().splitlines()[:2] == first
    file.write_text("\0\0")
    assert run_resumed(folder, 4) == [4]
    file.unlink()
    assert run_resumed(folder, 5) == [5]
    assert same_weights(folder, run_app(tmp_path / "straight", **SHORT | {"global_rounds": 5}))


def run_resumed(folder, rounds):
    """Go on up to a round, and return the rounds whose seconds are told."""
    run_app("", **SHORT | {"resume": str(folder), "global_rounds": rounds})
    return [line["round"] for line in ResultsFolder(folder).read_seconds()]


DAMAGED = (
    {"clients": []},
    {"clients": {"x": {"edge": "edge-0", **Seconds().as_data()}}},
    {"clients": {"0": Seconds().as_data()}},
    {"edges": {"edge-0": 3}},
    {"edges": {"edge-0": Seconds().as_data() | {"edge_rounds": 1e400}}},
    {"edges": {"edge-0": Seconds().as_data() | {"training_seconds": "long"}}},
)


@pytest.mark.parametrize("damage", DAMAGED, ids=str)
def test_lines_that_a_run_does_not_write_are_not_reported(tmp_path, damage):
    folder = run_app(tmp_path / "run", **SHORT | {"global_rounds": 1})
    (line,) = ResultsFolder(folder).read_seconds()
    (folder / "seconds.jsonl").write_text(json.dumps(line | damage) + "\n")
    report_again(folder)
    assert "seconds" not in summary(folder)


def test_a_run_of_an_earlier_edition_is_reported_without_them(tmp_path):
    folder = run_app(tmp_path / "run", **SHORT)
    os.unlink(folder / "seconds.jsonl")
    report_again(folder)
    assert "seconds" not in summary(folder)
    assert not (folder / "seconds.png").exists()
