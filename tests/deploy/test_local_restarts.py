"""SuperNodes of ``deploy/local.py``: one that ends by itself is started again, one that always ends is not for ever."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import local
import pytest
from flwr_run import began_of
from local import Federation, Program

from .faults import wait_for


class Short(Federation):
    """A federation whose SuperNodes are programs of the test's."""

    script = "import time; time.sleep(60)"

    def start_supernode(self, i):
        log = self.folder / f"supernode-{i}.log"
        with log.open("a") as output:
            process = subprocess.Popen([sys.executable, "-c", self.script], stdout=output, start_new_session=True)
        return Program(f"SuperNode {i}", process, log)


@pytest.fixture
def made(tmp_path, monkeypatch):
    monkeypatch.setattr(local, "LOOK_SECONDS", 0.02)
    monkeypatch.setattr(local, "RESTART_SECONDS", 0.1)
    made = Short(tmp_path, "", {}, None, ["", ""])
    made.supernodes += [made.start_supernode(i) for i in range(2)]
    yield made
    for program in made.supernodes:
        program.process.kill()
        program.process.wait()


def test_the_one_that_was_killed_is_started_again_after_a_pause_and_no_other(made, capsys):
    first, other = (program.process for program in made.supernodes)
    with local.kept_going([made]):
        os.kill(first.pid, signal.SIGKILL)
        killed = time.monotonic()
        wait_for(lambda: made.supernodes[0].process is not first, 10, "second start", pause=0.01)
        assert time.monotonic() >= killed + local.RESTART_SECONDS
    assert made.supernodes[0].process.poll() is None
    assert made.supernodes[1].process is other
    assert capsys.readouterr().err == f"SuperNode 0 of {made.folder.name} ended with status -9, and starts again\n"


def test_what_a_killed_one_has_left_ends_before_the_next(made):
    made.script = "import subprocess; print(subprocess.Popen(['sleep', '60']).pid, flush=True); input()"
    made.supernodes[0].process.kill()
    made.supernodes[0].process.wait()
    made.supernodes[0] = left = made.start_supernode(0)
    wait_for(lambda: left.log.read_text().strip(), 10, "a process of the SuperNode's own", pause=0.01)
    child = int(left.log.read_text())
    assert began_of(child)
    with local.kept_going([made]):
        left.process.kill()
        wait_for(lambda: made.supernodes[0] is not left, 10, "second start", pause=0.01)
    wait_for(lambda: not began_of(child), 10, "end of what it has left", pause=0.05)


def test_nothing_is_started_again_when_all_is_over(made):
    first = made.supernodes[0].process
    with local.kept_going([made]):
        pass
    first.kill()
    first.wait()
    time.sleep(0.3)
    assert made.supernodes[0].process is first


def test_one_that_always_ends_at_once_is_given_up_with_the_end_of_its_log(made, monkeypatch, capsys):
    monkeypatch.setattr(local, "MOST_SHORT_LIVES", 3)
    monkeypatch.setattr(local, "RESTART_SECONDS", 0.0)
    made.script = "print('refused'); raise SystemExit(1)"
    name = f"SuperNode 0 of {made.folder.name}"
    said = ""

    def is_given_up():
        nonlocal said
        said += capsys.readouterr().err
        return "stays down" in said

    with local.kept_going([made]):
        made.supernodes[0].process.kill()
        wait_for(is_given_up, 20, "end", pause=0.02)
    assert said == (
        f"{name} ended with status -9, and starts again\n"
        f"{name} ended with status 1, and starts again\n"
        f"{name} ended 3 times in a row and stays down:\nrefused\nrefused\n"
    )


def test_devices_and_gateways_are_counted_apart(made):
    assert local.counted_supernodes(made) == "2"
    assert local.counted_supernodes(replace(made, edges=[made] * 3)) == "6, and 2 gateways of edges"
