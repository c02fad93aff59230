"""A run is written whatever becomes of the terminal that it prints to."""

import os
import sys
from io import BytesIO, StringIO, TextIOWrapper

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


@pytest.mark.parametrize("command", [["--version"], ["--help"], ["help", "split"]])
@pytest.mark.parametrize(
    ("stream", "code", "line"),
    [
        (piped_to_nobody, 0, ""),
        pytest.param(full, 2, "error: standard output can't be written (No space left on device)\n", marks=has_full),
    ],
)
def test_what_can_not_be_shown_is_one_line_or_none(monkeypatch, capsys, command, stream, code, line):
    with stream() as out:
        monkeypatch.setattr(sys, "stdout", out)
        assert main(command) == code
        monkeypatch.undo()
    assert capsys.readouterr().err == line


@pytest.mark.parametrize("encoding", ["latin-1", "ascii"])
def test_what_is_printed_has_other_letters_written_as_in_a_python_string(tmp_path, monkeypatch, encoding):
    folder, printed = tmp_path / "Ж", BytesIO()
    monkeypatch.setattr(sys, "stdout", TextIOWrapper(printed, encoding, line_buffering=True))
    assert main([*TINY, f"output-dir={folder}"]) == 0
    text = printed.getvalue().decode(encoding)
    monkeypatch.undo()
    assert text.splitlines()[-1] == f"results: {tmp_path}/\\u0416"
    assert summary(folder)["rounds"] == 3


def test_a_folder_whose_name_is_no_text_can_be_swept_into_and_compared(tmp_path, capsys):
    folder = tmp_path / os.fsdecode(b"\xff")
    try:
        folder.mkdir()
    except OSError:
        pytest.skip("this file system has names that are texts only")
    for _ in range(2):  # the second time it reads its own table
        assert main(["sweep", *TINY, "global-rounds=1", "seed=0", f"output-dir={folder}"]) == 0
    assert "/\\udcff/seed-0" in (folder / "runs.csv").read_text(encoding="utf-8")
    assert main(["compare", str(folder)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"comparison: {tmp_path}/\\udcff/comparison"
