"""A results folder belongs to one process at a time."""

import os
import re
import resource
import socket
import subprocess
import sys
from datetime import datetime, timedelta

import pytest

from espalier.app.command_line import main
from espalier.app.ground.checkpoint import load_state
from espalier.app.ground.errors import UserError
from espalier.app.reports.folder import ResultsFolder
from espalier.app.reports.owner import disown, is_owned, own, why_lost
from espalier.app.run.run import run_edge
from tests.app.assembling import config_of, engine_of
from tests.app.runs import lines, run_app, same_weights

SMALL = {"num_clients": 2, "batches_per_epoch": 1}


def resume(folder, *arguments):
    command = [sys.executable, "-m", "espalier", f"resume={folder}", *arguments]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def test_a_second_process_is_told_who_has_the_folder(tmp_path):
    folder = run_app(tmp_path / "run", global_rounds=1, **SMALL)
    with ResultsFolder.reopen(folder, {}, {}):
        second = resume(folder)
        _, error = second.communicate(timeout=60)
    assert second.returncode == 2
    assert re.fullmatch(
        rf"error: resume = '{folder}': allowed is a folder that nobody else writes to: "
        rf"process {os.getpid()} on {re.escape(socket.gethostname())} since [-\d]+ [\d:+]+ has it\n",
        error,
    )
    assert "lock" not in os.listdir(folder)


def test_of_two_that_resume_at_once_one_does_or_one_after_the_other(tmp_path):
    folder = run_app(tmp_path / "run", global_rounds=1, **SMALL)
    both = [resume(folder, "global-rounds=12") for _ in range(2)]
    errors = [process.communicate(timeout=60)[1] for process in both]
    assert sorted(process.returncode for process in both) in ([0, 2], [0, 0])
    assert [process.returncode == 2 for process in both] == ["has it" in error for error in errors]
    assert same_weights(folder, run_app(tmp_path / "whole", global_rounds=12, **SMALL))


def test_who_looks_at_a_folder_leaves_nothing_in_it(tmp_path, monkeypatch):
    lock = own(tmp_path, "output-dir")
    assert is_owned(tmp_path)
    opened = os.open

    def open_late(path, flags, *mode, **options):  # the owner has gone since
        disown(lock)
        return opened(path, flags, *mode, **options)

    monkeypatch.setattr(os, "open", open_late)
    assert not is_owned(tmp_path)
    assert os.listdir(tmp_path) == []


TRACKER = """
import os


class Tracker:
    def run_begins(self, settings, folder):
        self.lock = folder / "lock"

    def round_over(self, number, line):
        if number == 2:
            os.remove(self.lock)
            if {is_taken}:
                self.lock.write_text("process 1 on another machine")
"""


@pytest.mark.parametrize("is_taken", [False, True])
def test_a_run_whose_lock_was_removed_stops_and_the_folder_goes_on(is_taken, tmp_path, monkeypatch, capsys):
    (tmp_path / f"tracks_{is_taken}.py").write_text(TRACKER.format(is_taken=is_taken))
    monkeypatch.syspath_prepend(tmp_path)
    tracker, folder = f"tracks_{is_taken}:Tracker", tmp_path / "run"
    keys = [
        "num-clients=2",
        "batches-per-epoch=1",
        "global-rounds=3",
        "report.plots=false",
        f"report.tracker={tracker}",
    ]
    assert main([*keys, f"output-dir={folder}"]) == 2
    has_it = ", and process 1 on another machine has it now" if is_taken else ""
    assert capsys.readouterr().err == (
        f"error: {folder}: is no longer this run's: its file lock was removed{has_it}; "
        "it stops, and its saved rounds stay\n"
    )
    assert (folder / "lock").exists() == is_taken
    assert load_state(folder / "state.npz")["round"] == 1

    (tmp_path / f"tracks_{is_taken}.py").write_text("class Tracker:\n    def round_over(self, *line): ...\n")
    del sys.modules[f"tracks_{is_taken}"]
    assert main([f"resume={folder}"]) == 0
    assert [line["round"] for line in lines(folder, "global")] == [1, 2, 3]


def test_who_has_lost_a_folder_leaves_the_lock_of_the_next(tmp_path):
    first = own(tmp_path, "output-dir")
    (tmp_path / "lock").unlink()
    second = own(tmp_path, "output-dir")
    disown(first)
    assert is_owned(tmp_path)
    assert why_lost(second) == ""
    disown(second)
    assert os.listdir(tmp_path) == []


def test_of_two_that_begin_in_one_folder_one_does(tmp_path):
    values = config_of().as_dict()
    (tmp_path / "run").mkdir()
    (tmp_path / "run/config.json.part").write_text("{")  # of a run that was killed before it was begun
    with (
        ResultsFolder.create(tmp_path / "run", values),
        pytest.raises(UserError, match=r"writes to: process .* has it"),
    ):
        ResultsFolder.create(tmp_path / "run", values)
    with pytest.raises(UserError, match="a new or empty folder"):
        ResultsFolder.create(tmp_path / "run", values)
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["config.json"]


def test_runs_that_begin_in_the_same_second_get_folders_of_their_own(tmp_path):
    path, values = tmp_path / "20260101-120000-sl-digits-seed0", config_of().as_dict()
    with (
        ResultsFolder.create_beside_others(path, values) as first,
        ResultsFolder.create_beside_others(path, values) as second,
        ResultsFolder.create_beside_others(path, values) as third,
    ):
        assert [folder.path.name[len(path.name) :] for folder in (first, second, third)] == ["", "+", "++"]


def test_a_run_begins_although_another_has_the_folder_of_its_second(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    began = datetime.now()
    for seconds in range(30):
        name = f"{began + timedelta(seconds=seconds):%Y%m%d-%H%M%S}-fedavg-digits-seed0"
        (tmp_path / "results" / name).mkdir(parents=True)
        (tmp_path / "results" / name / "summary.json").touch()
    assert (
        main(["algorithm=fedavg", "num-clients=2", "global-rounds=1", "batches-per-epoch=1", "report.plots=false"]) == 0
    )
    (made,) = (tmp_path / "results").glob("*/config.json")
    assert made.parent.name.endswith("-fedavg-digits-seed0+")


def test_the_folder_of_an_edge_host_is_its_own_while_it_serves(tmp_path):
    config = config_of(
        num_clients=2,
        num_edges=1,
        engine="flower",
        **{"deploy_role": "edge", "deploy_edge_name": "west", "deploy_edge_clients": 2},
        deploy_edge_folder=str(tmp_path / "socket"),
        output_dir=str(tmp_path / "run"),
    )
    seen = []

    def is_over():
        seen.append((tmp_path / "run/lock").read_text())
        with pytest.raises(UserError, match="nobody else writes to"):
            ResultsFolder.create(tmp_path / "run", {})
        return True

    run_edge(config, engine_of(config), tmp_path, is_over)
    assert len(seen) == 1
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["config.json"]


def test_a_file_that_may_not_grow_is_not_cut_off(tmp_path):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1024, hard))
    try:
        with pytest.raises(UserError, match=r"a folder that can be written \(File too large\)"):
            ResultsFolder.create(tmp_path / "run", config_of().as_dict())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list((tmp_path / "run").iterdir()) == []
