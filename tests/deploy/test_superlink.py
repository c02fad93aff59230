"""A SuperLink, and a SuperNode, end when the program that starts apps for them is gone."""

import os
import signal
import time

import pytest
from local import federation

from .faults import command_of, descendants

START_SECONDS, END_SECONDS = 60, 30


def superexec_of(pid):
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if found := [child for child in descendants(pid) if "flower-superexec" in command_of(child)]:
            return found[0]
        time.sleep(0.2)
    pytest.fail("it has started none")


@pytest.mark.deploy
def test_they_end_without_it_with_a_line_and_status_1(tmp_path):
    with federation(tmp_path, ["partition-id=0"]) as made:
        programs = {"flower-supernode": made.supernodes[0], "flower-superlink": made.superlink}
        found = {name: superexec_of(program.process.pid) for name, program in programs.items()}
        time.sleep(4)  # until it has been seen
        assert [program.process.poll() for program in programs.values()] == [None, None]
        for pid in found.values():
            os.kill(pid, signal.SIGKILL)
        for name, program in programs.items():
            assert program.process.wait(END_SECONDS) == 1
            assert f"{name} ends: flower-superexec, which starts apps for it, is gone" in program.log.read_text()
