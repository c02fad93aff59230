"""Sweeps make what is missing, whatever ended them; a run that fails stops no other."""

import csv
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from threading import Timer

import pytest

from espalier.app.command_line import main
from espalier.app.comparison.runs import is_over, read_run, write_runs
from espalier.app.reports.owner import is_owned
from espalier.app.sweeps import command
from espalier.app.sweeps.child import interrupted_with
from espalier.app.sweeps.command import write_table
from espalier.app.sweeps.grid import planned_runs, read_sweep
from tests.app.runs import ROOT, lines, run_app, same_weights

SETTINGS = {"algorithm": "fedavg", "num_clients": 4, "local_epochs": 1, "batches_per_epoch": 1, "global_rounds": 15}
STUDY = """
algorithm = "fedavg"
num-clients = 4
local-epochs = 1
batches-per-epoch = 1
global-rounds = 15
report.plots = false
[sweep.case.first]
seed = 0
[sweep.case.bad]
report.tracker = "no_such_module:Tracker"
[sweep.case.second]
seed = 1
"""
IN_PLACE = ("folder", "wall_seconds")


def start(*arguments):
    command = [sys.executable, "-m", "espalier", "sweep", *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def wait_for(condition):
    until = time.monotonic() + 200
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.02)


def has_rounds(folder):
    return (folder / "metrics.jsonl").exists() and len((folder / "metrics.jsonl").read_text().splitlines()) >= 2


def table(path):
    with path.open(newline="") as file:
        return [{k: v for k, v in line.items() if k not in IN_PLACE} for line in csv.DictReader(file)]


@pytest.mark.slow
def test_a_sweep_that_was_killed_makes_what_is_missing_and_its_table_is_that_of_single_runs(tmp_path, capsys):
    (tmp_path / "study.toml").write_text(STUDY)
    folder = tmp_path / "sweep"
    what = (tmp_path / "study.toml", f"output-dir={folder}", "--workers", 1)
    first, second, bad = (folder / f"{name}_seed-{seed}" for name, seed in (("first", 0), ("second", 1), ("bad", 0)))

    process = start(*what)
    wait_for(lambda: has_rounds(second))
    process.kill()
    process.communicate()
    wait_for(lambda: not is_owned(second))  # its run ends with it
    assert is_over(first)
    assert not is_over(second)
    written = (first / "summary.json").stat().st_mtime_ns

    assert main(["sweep", *map(str, what)]) == 1
    printed, failed = capsys.readouterr()
    assert (first / "summary.json").stat().st_mtime_ns == written
    assert f"{second.name}: goes on after round" in printed
    assert "failed: bad_seed-0: exit code 2, report.tracker = 'no_such_module:Tracker'" in failed
    assert printed.splitlines()[-1] == f"results: {folder / 'runs.csv'}"
    assert printed.splitlines()[-2] == "2 of 3 runs are over, 1 of them made now"
    assert not bad.exists()

    alone = [run_app(tmp_path / f"alone-{seed}", seed=seed, **SETTINGS) for seed in (0, 1)]
    chosen = [{"case": "first"}, {"case": "second"}]
    write_runs(tmp_path / "alone.csv", list(zip(chosen, map(read_run, alone), strict=True)))
    assert table(folder / "runs.csv") == table(tmp_path / "alone.csv")
    assert all(map(same_weights, (first, second), alone))
    groups = [json.loads((one / "config.json").read_text())["report.group"] for one in (first, second, *alone)]
    assert groups == ["sweep", "sweep", "", ""]


@pytest.mark.slow
def test_an_interrupt_ends_all_runs_and_says_how_to_go_on(tmp_path):
    what = [f"{key.replace('_', '-')}={value}" for key, value in {**SETTINGS, "global_rounds": 10_000}.items()]
    process = start(*what, "report.plots=false", f"output-dir={tmp_path / 'sweep'}", "seed=0,1", "--workers", "1")
    folder = tmp_path / "sweep/seed-0"
    wait_for(lambda: has_rounds(folder))
    process.send_signal(signal.SIGINT)
    printed = process.communicate(timeout=100)[0]
    assert process.returncode == 130
    assert printed.splitlines()[-1].startswith("interrupted; to go on: espalier sweep algorithm=fedavg")
    assert not is_owned(folder)
    assert "interrupted; to go on after the last whole round" in (tmp_path / "sweep/logs/seed-0.log").read_text()
    assert lines(folder, "global")
    assert not (tmp_path / "sweep/seed-1").exists()


def test_a_process_is_interrupted_when_its_pipe_ends():
    def end_and_wait():
        Timer(0.1, os.close, [writer]).start()
        time.sleep(20)

    reader, writer = os.pipe()
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # as in a background job of a shell
    try:
        interrupted_with(reader)
        with pytest.raises(KeyboardInterrupt):
            end_and_wait()
    finally:
        signal.signal(signal.SIGINT, before)
        os.close(reader)


def test_a_run_that_is_known_to_be_over_is_not_read_again(tmp_path):
    planned = planned_runs(read_sweep(["algorithm=fedavg", "num-clients=2", "global-rounds=1", "seed=0,1"]))
    places = {tmp_path / run.name: run for run in planned}
    for path, run in places.items():
        run_app(path, algorithm="fedavg", num_clients=2, global_rounds=1, seed=run.settings["seed"])
    known = {}
    write_table(places, tmp_path, known)
    written = (tmp_path / "runs.csv").read_text()
    assert len(table(tmp_path / "runs.csv")) == len(known) == 2
    (next(iter(places)) / "metrics.jsonl").unlink()
    write_table(places, tmp_path, known)
    assert (tmp_path / "runs.csv").read_text() == written
    write_table(places, tmp_path)
    assert len(table(tmp_path / "runs.csv")) == 1


def test_a_run_that_failed_in_one_trial_and_is_made_in_the_next_has_not_failed(tmp_path, monkeypatch):
    runs = planned_runs(read_sweep(["algorithm=fedavg", "num-clients=2", "seed=0,1"]))
    lots = iter([{run.name: "killed" for run in runs}, {}])
    monkeypatch.setattr(command, "_make", lambda *given: (0, next(lots)))
    made = command._Made(tmp_path, 1)
    made.make(runs)
    assert set(made.failed) == {"seed-0", "seed-1"}
    made.make(runs[:1])
    assert set(made.failed) == {"seed-1"}


@pytest.mark.parametrize("name", ["sweep", "compare"])
def test_an_interrupt_while_libraries_are_imported_says_how_to_go_on(name, tmp_path):
    late = "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n"
    (tmp_path / "rich.py").write_text(late)  # which the command line imports
    given = [name, "seed=0,1", f"output-dir={tmp_path / 'it is here'}"]
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    process = subprocess.run(
        [sys.executable, "-m", "espalier", *given], env=environment, capture_output=True, text=True, check=False
    )
    assert process.returncode == 130
    assert process.stderr == f"interrupted; to go on: {shlex.join(['espalier', *given])}\n"
