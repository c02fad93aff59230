"""Two sweeps in one folder make each run once."""

import csv
import json
import os
import re
import shutil
import statistics
import subprocess
import sys

import pytest
import torch
from rich.console import Console

from espalier.app.comparison.runs import is_over
from espalier.app.ground.errors import UserError
from espalier.app.reports.owner import disown, own
from espalier.app.sweeps import workers
from espalier.app.sweeps.command import default_workers, main, write_table
from espalier.app.sweeps.grid import planned_runs, read_sweep
from espalier.app.sweeps.progress import SweepProgress
from espalier.app.sweeps.workers import Child, make, python_of


def finish(path, run):
    """Write what tells that a run is over."""
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps(dict(run.settings)))
    counted = {"bytes": {}, "failures": 0, "wall_seconds": 1.0}
    (path / "metrics.jsonl").write_text(json.dumps({"round": 1, "scope": "global", "trained": 1, **counted}) + "\n")
    figures = {"global": {}, "test": {"accuracy": 0.5}, **counted}
    (path / "summary.json").write_text(json.dumps({"rounds": run.settings["global-rounds"], **figures}))
    torch.save({}, path / "model.pt")


class Other:
    """Another sweep, which goes on with its run when it is told that this one waits."""

    def __init__(self, ends):
        self.ends, self.told = ends, []

    def started(self, run, rounds):
        self.told.append("started")

    def went_on(self, run, rounds):
        pass

    def waits(self, run):
        self.told.append("waits")
        self.ends(run)

    def ended(self, run, path, why):
        self.told.append(why or "over")


@pytest.fixture
def planned(tmp_path):
    (run,) = planned_runs(read_sweep(["algorithm=fedavg", "num-clients=4", "global-rounds=1"]))
    return tmp_path / run.name, run


def failing(log):
    """Return a process that finds its folder taken."""
    log.write_text("error: another process has it\n")
    return subprocess.Popen([sys.executable, "-c", "raise SystemExit(2)"], stdin=subprocess.PIPE)


@pytest.mark.parametrize("is_quick", [False, True], ids=["makes it still", "has made it"])
def test_a_run_that_another_sweep_begins_while_the_child_starts_is_left_to_it(planned, monkeypatch, is_quick):
    path, run = planned
    locks = []

    def end(run):
        if locks:
            finish(path, run)
            disown(locks.pop())

    def start(run, path, cores):
        path.mkdir()
        locks.append(own(path, "output-dir"))
        if is_quick:
            end(run)
        return Child(run, path, failing(path.parent / "log"), path.parent / "log")

    monkeypatch.setattr(workers.Child, "start", start)
    other = Other(end)
    assert make({path: run}, 1, other) == {}
    assert other.told == ["started", "waits", "over"]


def test_a_run_that_another_sweep_has_made_meanwhile_is_not_counted_as_made(tmp_path, monkeypatch, capsys):
    log = tmp_path / "log"

    def start(run, path, cores):
        finish(path, run)
        status = run.settings["seed"]  # the second one finds its run made
        log.write_text("")
        return Child(run, path, subprocess.Popen([sys.executable, "-c", f"raise SystemExit({status})"]), log)

    monkeypatch.setattr(workers.Child, "start", start)
    settings = ["algorithm=fedavg", "num-clients=4", "global-rounds=1", "seed=0,1"]
    assert main([*settings, f"output-dir={tmp_path / 'sweep'}"]) == 0
    assert "2 of 2 runs are over, 1 of them made now" in capsys.readouterr().out.splitlines()


@pytest.mark.parametrize("is_first", [False, True], ids=["espalier", "python -m espalier"])
def test_a_child_finds_modules_where_the_sweep_does(tmp_path, monkeypatch, is_first):
    (tmp_path / "statistics.py").write_text("")
    (tmp_path / "own_module.py").write_text("import statistics, sys\nprint(statistics.__file__, sys.argv[1:])\n")
    places = [str(tmp_path), *sys.path] if is_first else [*sys.path, str(tmp_path)]
    monkeypatch.setattr(sys, "path", places)
    command = [*python_of("own_module"), "1", "seed=0"]
    said = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    found = tmp_path / "statistics.py" if is_first else statistics.__file__
    assert said == f"{found} ['1', 'seed=0']\n"


def test_a_run_that_fails_by_itself_has_failed(planned, monkeypatch):
    path, run = planned
    log = path.parent / "log"
    monkeypatch.setattr(workers.Child, "start", lambda run, path, cores: Child(run, path, failing(log), log))
    other = Other(lambda run: None)
    assert make({path: run}, 1, other) == {run.name: f"exit code 2, another process has it (see {log})"}
    assert other.told == ["started", f"exit code 2, another process has it (see {log})"]


def test_a_process_that_ends_without_a_summary_has_failed(planned, monkeypatch):
    path, run = planned
    log = path.parent / "log"
    log.write_text("")

    def start(run, path, cores):
        process = subprocess.Popen([sys.executable, "-c", "raise SystemExit(0)"], stdin=subprocess.PIPE)
        return Child(run, path, process, log)

    monkeypatch.setattr(workers.Child, "start", start)
    assert make({path: run}, 1, Other(lambda run: None)) == {run.name: f"exit code 0, and no summary.json (see {log})"}


def test_a_process_that_says_nothing_is_not_blamed_for_what_one_before_it_said(planned, monkeypatch):
    path, run = planned
    log = path.parent / "logs" / f"{path.name}.log"
    log.parent.mkdir()
    log.write_text("error: an old fault\n")
    monkeypatch.setattr(workers.sys, "executable", shutil.which("false"))
    assert make({path: run}, 1, Other(lambda run: None)) == {run.name: f"exit code 1 (see {log})"}


def test_the_table_keeps_the_runs_of_sweeps_before(tmp_path):
    def sweep(*given):
        runs = planned_runs(read_sweep(["algorithm=fedavg", "num-clients=4", "global-rounds=1", *given]))
        places = {tmp_path / run.name: run for run in runs}
        for path, run in places.items():
            finish(path, run)
        write_table(places, tmp_path)
        with (tmp_path / "runs.csv").open(newline="") as file:
            return [(line["alpha"], line.get("learning-rate"), line["seed"]) for line in csv.DictReader(file)]

    assert sweep("alpha=0.1,0.5") == [("0.1", None, "0"), ("0.5", None, "0")]
    assert sweep("alpha=0.5,0.7") == [("0.5", None, "0"), ("0.7", None, "0"), ("0.1", None, "0")]
    shutil.rmtree(next(tmp_path.glob("*0.7*")))
    of_one_alpha = [("0.1", "0.1", "0"), ("0.1", "0.2", "0")]
    assert sweep("alpha=0.1", "learning-rate=0.1,0.2") == [*of_one_alpha, ("0.5", "0.1", "0"), ("0.1", "0.1", "0")]


@pytest.mark.parametrize("table", [b"seed;folder\n0;run\n", "alpha,folder\n0.5,S\xfcd\n".encode("latin-1")])
def test_a_table_that_cannot_be_read_is_not_written_over(table, tmp_path, capsys):
    (tmp_path / "runs.csv").write_bytes(table)
    assert main(["algorithm=fedavg", "num-clients=4", f"output-dir={tmp_path}", "seed=0,1"]) == 2
    allowed = "allowed is the table that a sweep wrote, or none"
    assert capsys.readouterr().err == f"error: {tmp_path / 'runs.csv'}: can't be read; {allowed}\n"
    assert (tmp_path / "runs.csv").read_bytes() == table
    write_table({}, tmp_path)  # as where it was changed while the sweep ran
    assert capsys.readouterr().err == f"warning: {tmp_path / 'runs.csv'}: can't be read; {allowed}; it stays as it is\n"
    assert (tmp_path / "runs.csv").read_bytes() == table


def test_a_damaged_summary_is_named(planned):
    path, run = planned
    finish(path, run)
    assert is_over(path)
    good = (path / "summary.json").read_text()
    for damaged in ('{"a": 3}', "[]", "3", good.replace('"rounds": 1', '"rounds": "1"')):
        (path / "summary.json").write_text(damaged)
        with pytest.raises(UserError, match=re.escape(f"{path / 'summary.json'}: is damaged")):
            is_over(path)


def test_runs_on_a_gpu_are_made_one_at_a_time(planned, monkeypatch):
    _, run = planned
    assert default_workers([run]) == len(os.sched_getaffinity(0))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert default_workers([run]) == 1
    (on_cpu,) = planned_runs(read_sweep(["algorithm=fedavg", "device=cpu"]))
    assert default_workers([on_cpu]) == len(os.sched_getaffinity(0))


def test_a_run_that_another_sweep_has_made_is_not_made_again(planned, monkeypatch):
    path, run = planned
    finish(path, run)
    monkeypatch.setattr(workers.Child, "start", None)
    other = Other(lambda run: None)
    assert make({path: run}, 1, other) == {}
    assert other.told == ["over"]


@pytest.mark.parametrize("is_over", [True, False], ids=["is over", "is made just now"])
def test_a_run_of_other_settings_that_another_sweep_has_begun_meanwhile_is_not_taken(tmp_path, is_over):
    settings = ["algorithm=fedavg", "num-clients=4", "global-rounds=1", "seed=0,1"]
    mine, others = (planned_runs(read_sweep([*settings, f"learning-rate={rate}"])) for rate in (0.02, 0.1))
    places = {tmp_path / run.name: run for run in mine}
    path = tmp_path / others[0].name
    finish(path, others[0])
    lock = None if is_over else own(path, "output-dir")
    with pytest.raises(UserError) as error:
        make(places, 1, Other(lambda run: None))
    assert str(error.value) == (
        f"output-dir = '{tmp_path}': allowed is a folder for other runs: {path.name} in it has "
        "learning-rate = 0.1, not 0.02"
    )
    if lock:
        disown(lock)


def test_a_child_that_found_another_run_in_its_folder_has_not_made_its_own(planned, monkeypatch):
    path, run = planned
    (other,) = planned_runs(read_sweep(["algorithm=fedavg", "num-clients=4", "global-rounds=1", "alpha=0.1"]))

    def start(run, path, cores):
        finish(path, other)
        log = path.parent / "log"
        log.write_text("")
        return Child(run, path, subprocess.Popen([sys.executable, "-c", ""], stdin=subprocess.PIPE), log)

    monkeypatch.setattr(workers.Child, "start", start)
    with pytest.raises(UserError, match=r"in it has alpha = 0.1, not 0.5"):
        make({path: run}, 1, Other(lambda run: None))


def test_a_run_that_another_process_has_just_now_gets_no_line_and_stops_nothing(planned, capsys):
    path, run = planned
    held = path.parent / "held"
    finish(path, run)
    finish(held, run)
    lock = own(held, "output-dir")
    try:
        write_table({held: run, path: run}, path.parent)
        with SweepProgress(Console(), 2, 0, 2) as progress:
            progress.ended(run, held, "")
    finally:
        disown(lock)
    assert [line.split(",")[-1] for line in (path.parent / "runs.csv").read_text().splitlines()] == [
        "folder",
        str(path),
    ]
    assert f"[1/2] {run.name}: done, sweep ETA after the first round" in capsys.readouterr().out


def test_a_run_that_was_begun_in_vain_is_left_again(planned):
    path, run = planned
    with SweepProgress(Console(), 1, 0, 1) as progress:
        progress.started(run, 0)
        progress.went_on(run, 1)
        progress.waits(run)
        assert progress._left - progress._made == 1
        progress.ended(run, path, "")
        assert progress._left - progress._made == 0


@pytest.mark.parametrize(("at_a_time", "count", "share"), [(1, 3, 8), (2, 3, 4), (3, 3, 2), (5, 3, 2), (16, 20, 1)])
def test_each_run_has_its_share_of_the_cores(tmp_path, monkeypatch, at_a_time, count, share):
    seeds = ",".join(map(str, range(count)))
    runs = planned_runs(read_sweep(["algorithm=fedavg", "num-clients=4", "global-rounds=1", f"seed={seeds}"]))
    cores = []

    def start(run, path, own):
        cores.append(own)
        finish(path, run)
        return Child(run, path, subprocess.Popen([sys.executable, "-Sc", ""], stdin=subprocess.PIPE), tmp_path / "log")

    monkeypatch.setattr(workers.Child, "start", start)
    monkeypatch.setattr(workers, "cpu_count", lambda: 8)
    monkeypatch.setattr(workers, "LOOK_SECONDS", 0.01)
    (tmp_path / "log").write_text("")
    assert make({tmp_path / run.name: run for run in runs}, at_a_time, Other(lambda run: None)) == {}
    assert cores == [share] * count
