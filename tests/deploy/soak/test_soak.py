"""A soak finds what is left over, what has grown and what differs; its faults follow from the seed."""

import json
import signal
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import pytest
import torch
from local import Program

from tests.strategies.split.proxy import StreamProxy

from .__main__ import Soak
from .chaos import Chaos
from .resources import Holding, holdings, processes_of, totals
from .supervisor import Unit
from .verdict import WORKING, difference, faults_of_lines, grown_too_much, growth, more_at_rest, rounds_of


def held(pid=1, age=0.0, program="flwr-serverapp", threads=10, files=15, megabytes=370.0):
    return Holding(age, pid, age, program, threads, files, megabytes)


def test_a_process_that_is_left_over_is_found_and_one_that_is_missing():
    before = totals([held(1), held(2), held(3, program="flower-superlink")])
    assert more_at_rest(before, before) == []
    assert more_at_rest(before, totals([held(1), held(2)])) == ["flower-superlink: 0 processes, 1 before"]
    more = totals([held(1), held(2), held(4), held(3, program="flower-superlink"), held(5, program=WORKING)])
    assert more_at_rest(before, more) == [
        "flwr-clientapp: 1 processes, 0 before",
        "flwr-serverapp: 3 processes, 2 before",
    ]


def test_devices_may_stay_at_rest_one_process_each_that_does_not_grow():
    two = totals([held(i, program=WORKING) for i in range(2)])
    three = totals([held(i, program=WORKING) for i in range(3)])
    assert more_at_rest(two, three, 3) == more_at_rest(three, two, 3) == more_at_rest({}, three, 3) == []
    assert more_at_rest(two, three, 2) == ["flwr-clientapp: 3 processes, 2 before"]
    grown = totals([held(i, program=WORKING, megabytes=403.0) for i in range(3)])
    assert more_at_rest(two, grown, 3) == ["flwr-clientapp: 33.0 megabytes more in the mean of 3 processes"]


@pytest.mark.parametrize(("amount", "value"), [("threads", 17), ("files", 32), ("megabytes", 403.0)])
def test_what_a_process_holds_more_is_found(amount, value):
    (fault,) = more_at_rest(totals([held(1)]), totals([held(2, **{amount: value})]))
    assert fault.startswith("flwr-serverapp: ")
    assert amount in fault


def test_growth_is_that_of_one_process_since_its_own_first_five_minutes():
    ages = range(0, 3600, 10)
    leak = [held(7, age, megabytes=370 + age / 60) for age in ages]
    steady = [held(8, age, megabytes=370 + 70 * (age in (100, 3400)), threads=10 + age % 3) for age in ages]
    short = [held(9, age, megabytes=370 + age) for age in range(0, 500, 10)]
    found = growth([*leak, *steady, *short])
    assert found["flwr-serverapp"]["lived"] == 2
    assert found["flwr-serverapp"]["megabytes"] == pytest.approx(49.8, abs=0.1)
    assert grown_too_much(found) == ["flwr-serverapp: a process grew by 49.8 megabytes"]
    assert grown_too_much(growth([*steady, *short])) == []


def test_rounds_that_are_missing_or_there_twice_are_found(tmp_path):
    def line(number, edge, failures=(), trained=True):
        return {"round": number, "scope": "edge", "edge": edge, "failures": list(failures), "trained": trained}

    def write(*lines):
        numbers = sorted({each["round"] for each in lines})
        lines += tuple({"round": n, "scope": "global", "edges_left_out": []} for n in numbers)
        (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(each) + "\n" for each in lines))

    write(line(1, "a"), line(1, "b", [{"client": 3}]), line(2, "a"), line(2, "b"))
    assert faults_of_lines(tmp_path) == []
    assert rounds_of(tmp_path)["with clients left out"] == 1
    assert rounds_of(tmp_path)["with everybody"] == 1
    write(line(1, "a"), line(1, "b"), line(2, "a"))
    assert faults_of_lines(tmp_path) == ["not every edge's round is in metrics.jsonl once"]
    write(line(1, "a"), line(3, "a"))
    assert len(faults_of_lines(tmp_path)) == 2


@pytest.mark.parametrize(("other", "expected"), [(0.0, 0.0), (0.25, 0.25), (float("nan"), float("nan"))])
def test_weights_that_differ_are_found_also_where_one_is_not_a_number(other, expected, tmp_path):
    for name, value in (("left", 0.0), ("right", other)):
        (tmp_path / name).mkdir()
        torch.save({"a": torch.zeros(2), "b": torch.tensor([0.0, value])}, tmp_path / name / "model.pt")
    found = difference(tmp_path / "left", tmp_path / "right")
    assert found == pytest.approx(expected, abs=0, nan_ok=True)


@pytest.fixture
def unit(tmp_path):
    """Return a supervised program that sleeps, with a path of the test's folder in its environment."""

    def start():
        environment = {"MARK": f"{tmp_path}/x"}
        script = "import time; print('up', flush=True); time.sleep(60)"
        process = subprocess.Popen([sys.executable, "-c", script], env=environment, stdout=subprocess.PIPE)
        # A process has its environment some time after Popen returns: before that it is nobody's.
        with process.stdout:
            assert process.stdout.readline() == b"up\n"
        return Program("sleeper", process, tmp_path / "log")

    unit = Unit("sleeper", "device", start, lambda: unit.program.process.pid)
    yield unit
    if unit.is_running:
        unit.kill(unit.program.process.pid)
        unit.wait(10)


def test_a_unit_is_stopped_goes_on_is_killed_and_started_again(unit, tmp_path, monkeypatch):
    monkeypatch.setattr("tests.deploy.soak.supervisor.RESTART_SECONDS", 1.0)
    assert unit.look()
    pid = unit.victim()
    assert processes_of(tmp_path) == [pid]
    unit.stop(pid)
    assert state_of(pid) == "T"
    unit.go_on()
    assert state_of(pid) in "SRD"
    unit.kill(pid)
    assert unit.wait(10) == -signal.SIGKILL
    assert holdings([pid]) == []
    assert not unit.look()
    time.sleep(1.1)
    assert unit.look()
    assert unit.starts == 2
    assert processes_of(tmp_path) == [unit.victim()] != [pid]


def test_nothing_has_recovered_where_programs_still_have_to_be_started_again(unit, tmp_path, monkeypatch):
    monkeypatch.setattr("tests.deploy.soak.supervisor.RESTART_SECONDS", 0.5)
    monkeypatch.setattr("tests.deploy.soak.__main__.SETTLED_SECONDS", 2.0)
    tiers = SimpleNamespace(units=[unit], rounds=lambda: 0, missing=lambda: [], folder=tmp_path)
    soak = Soak(tiers, None, tmp_path, seed=0)
    unit.look()
    refused = [threading.Timer(seconds, lambda: unit.kill(unit.victim())) for seconds in (0.0, 1.5)]
    for one in refused:
        one.start()
    soak.recover()
    assert not any(one.is_alive() for one in refused)
    assert unit.starts == 3
    assert unit.is_running


def state_of(pid):
    time.sleep(0.05)
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0]


class Target(Unit):
    """A unit that is always there and that nothing happens to."""

    is_running = True

    def kill(self, pid):
        pass

    def stop(self, pid):
        self.stopped = [pid]

    def go_on(self):
        self.stopped = []


def faults(seed, seconds=3600):
    """Return the faults of an hour in which nothing takes time."""
    units = [Target(f"{kind} {i}", kind, lambda: None, lambda: 1) for kind in ("device", "superlink") for i in (0, 1)]
    said, proxy = [], StreamProxy()
    chaos = Chaos(units, proxy, seed, lambda: len(said), lambda **fields: said.append(fields))
    chaos.begin(0.0)
    for step in range(2 * seconds):
        chaos.step(step / 2)
    chaos.end()
    proxy.close()
    assert not any(unit.stopped for unit in units)
    return said


def test_faults_follow_from_the_seed():
    first = faults(0)
    assert first == faults(0) != faults(1)
    kinds = [fault["kind"] for fault in first]
    assert 30 <= kinds.count("kill") <= 60  # one in 60 to 120 s
    assert 350 <= kinds.count("stop") <= 450  # three of four, of one in 3 to 9 s
