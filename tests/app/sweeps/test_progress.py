"""How long a sweep takes is told by the rounds that it has made."""

from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from espalier.app.sweeps import progress
from espalier.app.sweeps.grid import planned_runs, read_sweep
from espalier.app.sweeps.progress import SweepProgress, seconds_left


def test_rounds_left_take_as_long_as_those_made_and_no_less_than_the_one_being_made():
    assert seconds_left(3, 7, last=30.0, now=30.0) == 70.0
    assert seconds_left(3, 7, last=30.0, now=39.0) == 70.0
    assert seconds_left(3, 7, last=30.0, now=60.0) == 105.0
    assert seconds_left(10, 0, last=30.0, now=60.0) == 0.0


@pytest.mark.parametrize(("why", "rounds"), [("no client trained", 2), ("", 2), ("", 10)])
def test_rounds_that_a_run_did_not_make_are_neither_made_nor_left(monkeypatch, why, rounds):
    now, text = [0.0], StringIO()
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    runs = planned_runs(read_sweep(["seed=0,1,2", "global-rounds=10"]))
    with SweepProgress(Console(file=text), num_runs=3, already=0, rounds_left=30, every_seconds=0.0) as shown:
        shown.started(runs[0], 0)
        now[0] = 20.0
        shown.went_on(runs[0], rounds)
        shown.ended(runs[0], Path("nowhere"), why)
        shown.started(runs[1], 0)
        now[0] = 50.0
        shown.went_on(runs[1], 5)
    minutes, seconds = divmod(int(50 / (rounds + 5) * (5 + 10)), 60)
    assert text.getvalue().splitlines()[-1].endswith(f"round 5/10, sweep ETA 0:{minutes:02}:{seconds:02}")
