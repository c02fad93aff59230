"""What `deploy/flwr_run.py` says and returns, with a `flwr` of the test's own in its place."""

import os
import subprocess
import sys
import time

import pytest
from flwr_run import began_of, descendants, run_app, stop

STARTED = "echo 'Successfully started run 7'"
ENDS = {
    "completed": (f"{STARTED}; exit 0", 'echo \'{"runs": [{"run-id": 7, "status": "finished:completed"}]}\'', 0, ""),
    "failed": (f"{STARTED}; exit 0", 'echo \'{"runs": [{"run-id": 7, "status": "finished:failed"}]}\'', 1, ""),
    "no answer": (
        f"{STARTED}; exit 0",
        "exit 1",
        1,
        "the SuperLink does not say what became of run 7; type: flwr list",
    ),
    "no listing": (f"{STARTED}; exit 0", "echo '[]'", 1, "the SuperLink does not say what became of run 7"),
    "stream broken": (f"{STARTED}; exit 1", "exit 1", 1, "flwr run failed; stopping the run"),
    "not started": ("exit 1", "exit 1", 1, ""),
}


@pytest.mark.parametrize(("runs", "lists", "status", "says"), ENDS.values(), ids=ENDS)
def test_how_a_run_ends_is_said_and_returned(tmp_path, monkeypatch, capfd, runs, lists, status, says):
    flwr = tmp_path / "flwr"
    flwr.write_text(f'#!/bin/sh\ncase "$1" in run) {runs};; list) {lists};; stop) touch {tmp_path}/stopped;; esac\n')
    flwr.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert run_app(".", [], os.environ) == status
    error = capfd.readouterr().err
    assert says in error
    assert bool(error) == bool(says)
    assert (tmp_path / "stopped").exists() == ("stopping" in says)


def test_all_that_a_process_has_started_ends_with_it_and_nothing_else():
    script = "import subprocess, sys; subprocess.Popen(['sleep', '60'], start_new_session=True).wait()"
    process = subprocess.Popen([sys.executable, "-c", script])
    while not (children := descendants(process.pid)):
        time.sleep(0.05)
    stop(process)
    assert process.returncode is not None
    deadline = time.monotonic() + 10
    while any(began_of(pid) for pid in children) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert [began_of(pid) for pid in children] == [""] * len(children)
