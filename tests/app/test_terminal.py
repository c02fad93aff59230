"""A run is written whatever becomes of the terminal that it prints to."""

import os
import sys
from io import StringIO

import pytest

from espalier.app.command_line import main
from tests.app.own_tasks import Points
from tests.app.runs import lines, summary

has_full = pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no /dev/full")
TINY = ("num-clients=2", "num-edges=1", "edge-rounds=1", "global-rounds=3", "batches-per-epoch=1", "report.plots=false")


class Closes(Points):
    """Closes what the run prints to."""

    def loss(self, outputs, labels):
        sys.stdout.close()
        return super().loss(outputs, labels)


def piped_to_nobody():
    """Return what is open to write to a pipe whose reader has gone, as that of ``| head`` does."""
    reader, writer = os.pipe()
    os.close(reader)
    return os.fdopen(writer, "w", buffering=1)


def full():
    return open("/dev/full", "w")


def closed():
    file = StringIO()
    file.close()
    return file


def absent():
    """Return what Python has for a standard output that was closed before it began."""


@pytest.mark.parametrize(
    ("stream", "told"), [(piped_to_nobody, 1), (closed, 1), (absent, 0), pytest.param(full, 1, marks=has_full)]
)
def test_a_terminal_that_is_gone_costs_no_round(tmp_path, monkeypatch, capsys, stream, told):
    monkeypatch.setattr(sys, "stdout", stream())
    assert main([*TINY, f"output-dir={tmp_path / 'run'}"]) == 0
    if sys.stdout:
        sys.stdout.close()
    monkeypatch.undo()
    assert summary(tmp_path / "run")["rounds"] == 3
    assert (tmp_path / "run/model.pt").exists()
    said = capsys.readouterr().err.splitlines()
    assert [line.split(" (")[0] for line in said] == ["standard output can't be written any more"] * told


def test_a_task_that_closes_the_terminal_has_closed_it_for_itself_alone(tmp_path, capsys):
    task = f"task={__name__}:Closes"
    assert main([*TINY, task, f"output-dir={tmp_path / 'run'}"]) == 0
    assert len(lines(tmp_path / "run", "global")) == 3
    captured = capsys.readouterr()
    assert captured.out.splitlines()[-1] == f"results: {tmp_path / 'run'}"
    assert captured.err == ""


@has_full
def test_whoever_can_be_told_nothing_still_gets_the_results(tmp_path, monkeypatch):
    with full() as out, full() as err:
        monkeypatch.setattr(sys, "stdout", out)
        monkeypatch.setattr(sys, "stderr", err)
        assert main([*TINY, f"output-dir={tmp_path / 'run'}"]) == 0
        assert main([*TINY, "learning-rate=-1"]) == 2
        assert main(["compare", str(tmp_path / "run"), f"--output={tmp_path / 'tables'}"]) == 0
        monkeypatch.undo()
    assert summary(tmp_path / "run")["rounds"] == 3
    assert list((tmp_path / "tables").iterdir())
