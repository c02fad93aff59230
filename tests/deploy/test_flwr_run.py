"""What `deploy/flwr_run.py` says and returns, with a `flwr` of the test's own in its place."""

import os
import signal
import subprocess
import sys
import time
from threading import Thread

import flwr_run
import pytest
from flwr_run import began_of, descendants, run_app, stop

from .faults import ROOT, wait_for

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


@pytest.mark.parametrize(
    ("run", "stop", "is_impatient"),
    [("trap '' TERM; ", "", False), ("", "sleep 2; ", True)],
    ids=["flwr goes on", "again while the run is stopped"],
)
def test_ctrl_c_stops_the_run(tmp_path, run, stop, is_impatient):
    flwr = tmp_path / "flwr"
    run += "echo 'Successfully started run 7'; exec sleep 30"
    stop = f"touch {tmp_path}/stopping; {stop}touch {tmp_path}/stopped"
    flwr.write_text(f'#!/bin/sh\ncase "$1" in run) {run};; stop) {stop};; esac\n')
    flwr.chmod(0o755)
    script = "import os, sys; from flwr_run import run_app; sys.exit(run_app('.', [], os.environ))"
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT / "deploy")}
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdout.readline() == "Successfully started run 7\n"
        process.send_signal(signal.SIGINT)
        if is_impatient:
            wait_for((tmp_path / "stopping").exists, 20, "the stop of the run", pause=0.02)
            process.send_signal(signal.SIGINT)
            process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 130
        assert process.stderr.read() == "interrupted; stopping the run\n"
    assert (tmp_path / "stopped").exists()


def test_interrupted_while_the_superlink_starts_it_says_so(tmp_path):
    superlink = tmp_path / "flower-superlink"
    superlink.write_text(f"#!/bin/sh\ntouch {tmp_path}/started\nexec sleep 60\n")
    superlink.chmod(0o755)
    # It looks for programs beside its own Python first.
    (tmp_path / "python").symlink_to(sys.executable)
    script = f"import sys; sys.executable = '{tmp_path}/python'; from flwr_run import flwr_run; sys.exit(flwr_run('.'))"
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "deploy")}
    with subprocess.Popen(
        [sys.executable, "-c", script], stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        wait_for((tmp_path / "started").exists, 20, "the start of the SuperLink", pause=0.02)
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 130
        assert process.stderr.read() == "interrupted\n"


def test_all_that_a_process_has_started_ends_with_it():
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


def test_the_superlink_of_flwr_run_is_ended_with_its_runs_and_no_other(tmp_path, monkeypatch, capsys):
    flwr = tmp_path / "flwr"  # asks the SuperLink that is the user's default, not the one that was found
    flwr.write_text(f"#!/bin/sh\ntouch {tmp_path}/asked\n")
    flwr.chmod(0o755)
    (tmp_path / "python").symlink_to(sys.executable)  # beside which programs are looked for first
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "home"))
    ours = ["flower-superlink", "--insecure", "--simulation", "--log-file"]
    run = "import subprocess; subprocess.run(['sleep', '60'], start_new_session=True)"
    sleep = [sys.executable, "-c", run]
    with (
        subprocess.Popen([*sleep, *ours, f"{tmp_path}/home/local-superlink/superlink.log"]) as left_behind,
        subprocess.Popen([*sleep, *ours, f"{tmp_path}/other/local-superlink/superlink.log"]) as other,
    ):
        ender = Thread(target=left_behind.wait)  # whose parent would be gone
        ender.start()
        while not (runs := descendants(left_behind.pid)):
            time.sleep(0.05)
        assert flwr_run.stop_background() == 0
        assert other.poll() is None
        stop(other)
    assert left_behind.returncode == -signal.SIGTERM
    assert not (tmp_path / "asked").exists()
    wait_for(lambda: not any(map(began_of, runs)), 10, "the end of its runs")
    assert capsys.readouterr().out == f"ended the SuperLink of flwr run, process {left_behind.pid}\n"
    assert flwr_run.stop_background() == 0
    assert capsys.readouterr().out == "no SuperLink of flwr run is in the background\n"


def test_a_process_that_has_the_number_of_one_that_is_gone_goes_on(monkeypatch):
    process, other = (subprocess.Popen(["sleep", "60"]) for _ in range(2))
    times = iter(["when it was listed", "when it is to be ended"])
    monkeypatch.setattr(flwr_run, "descendants", lambda pid: [other.pid])
    monkeypatch.setattr(flwr_run, "began_of", lambda pid: next(times))
    stop(process)
    assert other.poll() is None
    other.kill()
    other.wait()
