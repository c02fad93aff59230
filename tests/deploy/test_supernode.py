"""A SuperNode's process ends with what it is for."""

import subprocess
import sys

import pytest

from .faults import ROOT

# As Flower's command does, it leaves a thread that nothing ends.
SCRIPT = """
import sys, threading
sys.path.insert(0, {deploy!r})
import supernode
def command():
    threading.Thread(target=threading.Event().wait, daemon={is_daemon}).start()
    {last}
supernode.run_to_the_end(command)
"""


@pytest.mark.parametrize(
    ("last", "status", "said"),
    [
        ("return", 1, "flower-supernode is over"),
        ("raise TimeoutError('handshake')", 1, "TimeoutError: handshake"),
        ("sys.exit(3)", 3, ""),
    ],
)
def test_it_ends_when_its_work_has_ended_however_that_was(last, status, said):
    script = SCRIPT.format(deploy=str(ROOT / "deploy"), last=last, is_daemon="exit" in last)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == status
    assert said in done.stderr
