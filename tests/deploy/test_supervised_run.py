"""A run that a supervisor keeps going, on the SuperLink of a name."""

import os
import signal
import subprocess
import sys

import pytest

from .faults import ROOT

FLWR = """#!{python}
import sys, time
print(*sys.argv[1:], file=open({record!r}, "a"))
if sys.argv[1] == "list":
    print('{{"runs": [{{"run-id": "55", "status": "running"}}, {{"run-id": "54", "status": "finished:stopped"}}]}}')
if sys.argv[1] == "run":
    print("Successfully started run 77")  # as flwr does, without a flush
    time.sleep(60 if {lasts} else 0)
    sys.exit(3)
"""


@pytest.mark.parametrize("is_ended", [True, False], ids=["ended", "its log breaks off"])
def test_its_log_comes_at_once_and_in_the_end_its_run_on_the_superlink_of_that_name_is_stopped(tmp_path, is_ended):
    record, flwr = tmp_path / "record", tmp_path / "flwr"
    flwr.write_text(FLWR.format(record=str(record), python=sys.executable, lasts=is_ended))
    flwr.chmod(0o755)
    # The script looks for programs beside its own Python first.
    (tmp_path / "python").symlink_to(sys.executable)
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT.format(deploy=str(ROOT / "deploy"), executable=str(tmp_path / "python"))],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"},
        text=True,
    )
    assert process.stdout.readline() == "stopping run 55, which an earlier start has left\n"
    assert process.stdout.readline() == "Successfully started run 77\n"
    if is_ended:
        process.send_signal(signal.SIGTERM)
    assert process.wait(30) == (130 if is_ended else 1)
    process.stdout.close()
    assert record.read_text().splitlines() == [
        "list edge --format json",
        "stop 55 edge",
        "run /app edge --stream --run-config x=1",
        "stop 77 edge",
    ]


SCRIPT = """
import sys
sys.path.insert(0, {deploy!r})
sys.executable = {executable!r}
import supervised_run
sys.exit(supervised_run.main(["/app", "edge", "--run-config", "x=1"]))
"""
