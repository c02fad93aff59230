"""A SuperNode's process ends with what it is for."""

import subprocess
import sys
from pathlib import Path

import flwr
import pytest

from .faults import ROOT

# As Flower's command does, it leaves a thread that nothing ends.
SCRIPT = """
import logging, os, subprocess, sys, threading
from pathlib import Path
sys.path.insert(0, {deploy!r})
import supernode
def command():
    threading.Thread(target=threading.Event().wait, daemon={is_daemon}).start()
    {last}
def is_alive(pid):
    try:
        return Path("/proc", pid, "stat").read_text().split()[2] != "Z"
    except OSError:
        return False
supernode.run_to_the_end(command, supernode.start_this_again)
"""
# The first time it is started it logs what Flower does, and the second time it ends.
IGNORES = """
    if (child := Path("child")).exists():
        process, started, by_that = child.read_text().split()
        print(os.getpid() == int(process), Path("/proc", started).exists(), is_alive(by_that))
        sys.exit(3)
    shell = subprocess.Popen(["sh", "-c", "sleep 100 & echo $!; wait"], stdout=subprocess.PIPE, text=True)
    child.write_text(f"{os.getpid()} {shell.pid} {shell.stdout.readline()}")
    try:
        logging.getLogger("flwr").error("Run ID %s is not in `RUNNING` status. Ignoring message %s.", 1, "a")
    except Exception:
        print("Flower goes on")
"""


def run(last, folder, is_daemon):
    script = SCRIPT.format(deploy=str(ROOT / "deploy"), last=last, is_daemon=is_daemon)
    command = [sys.executable, "-c", script]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, cwd=folder)


@pytest.mark.parametrize(
    ("last", "status", "said"),
    [
        ("return", 1, "flower-supernode is over"),
        ("raise TimeoutError('handshake')", 1, "TimeoutError: handshake"),
        ("sys.exit(3)", 3, ""),
    ],
)
def test_it_ends_when_its_work_has_ended_however_that_was(last, status, said, tmp_path):
    done = run(last, tmp_path, is_daemon="exit" in last)
    assert done.returncode == status
    assert said in done.stderr


def test_it_starts_again_in_its_place_when_a_run_ends_in_the_middle_of_a_message(tmp_path):
    done = run(IGNORES.strip(), tmp_path, is_daemon=True)
    assert done.returncode == 3, done.stderr
    # The same process, and nothing, not even a zombie, of what it had started; and what that had started is over.
    assert done.stdout == "True False False\n"
    assert done.stderr == "flower-supernode starts again: a run ended in the middle of a message\n"


def test_a_reply_that_is_dropped_is_no_reason_to_start_again(tmp_path):
    last = """
    log = logging.getLogger("flwr")
    log.error("Sending: %s message (ID: %s)", "train", "b")
    log.error("Run ID %s is not in `RUNNING` status. Ignoring message %s.", 1, "b")
    log.error("Receiving: %s message (ID: %s)", "train", "c")
    sys.exit(3)
"""
    done = run(last.strip(), tmp_path, is_daemon=True)
    assert done.returncode == 3, done.stderr
    assert "starts again" not in done.stderr


def test_the_installed_flower_says_so():
    file = Path(flwr.__file__).parent / "supernode/start_client_internal.py"
    lines = [line.strip() for line in file.read_text(encoding="utf-8").splitlines()]
    ignored = '"Run ID %s is not in `RUNNING` status. Ignoring message %s.",'
    wanted = '"Receiving: %s message (ID: %s)",', ignored, '"Sending: %s message (ID: %s)",'
    written = [line for line in lines if line in wanted]
    # From 1.43 on the line is the same where a reply is dropped.
    assert written in ([*wanted], [*wanted, ignored])
