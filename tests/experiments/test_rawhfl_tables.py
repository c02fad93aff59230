"""The tables of the RawHFL paper: a finished run is recorded once, and the tables are of what is recorded."""

import json
import sys
from pathlib import Path

import pytest

from experiments import rawhfl_tables
from experiments.rawhfl_tables import ROWS, Result, Run, add_to_record, folder_of, main, read_record, spread

DOCS = Path(__file__).parents[2] / "docs"
A, B, CENTRAL = Run(3, "RawHFL Z=4", 0), Run(3, "RawHFL Z=4", 1), Run(3, "Central-SGD", 0)


def tables(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["rawhfl_tables.py", *map(str, arguments)])
    return main()


def write_summary(folder, accuracy, joules):
    folder.mkdir(parents=True)
    summary = {"global": {"accuracy": {"mean": accuracy}}} | ({"energy_joules": {"total": joules}} if joules else {})
    (folder / "summary.json").write_text(json.dumps(summary))


def test_what_is_recorded_is_read_back(tmp_path):
    record = tmp_path / "new" / "runs.csv"
    assert read_record(record) == {}
    add_to_record(record, A, Result(0.7, 8.25))
    add_to_record(record, CENTRAL, Result(0.6999, None))
    assert read_record(record) == {A: Result(0.7, 8.25), CENTRAL: Result(0.6999, None)}


def test_finished_runs_are_recorded_once_and_printed_beside_the_paper(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(rawhfl_tables, "draw_table", lambda *_: None)
    monkeypatch.setattr(rawhfl_tables.subprocess, "run", lambda *_, **__: pytest.fail("ran what was finished"))
    write_summary(folder_of(tmp_path, A), 0.70, 8.0)
    write_summary(folder_of(tmp_path, CENTRAL), 0.7, None)
    add_to_record(tmp_path / "runs.csv", B, Result(0.69, 9.0))
    choice = ["--tables", 3, "--seeds", 0, 1, "--rows", "RawHFL Z=4"]
    assert tables(monkeypatch, tmp_path, *choice) == 0
    assert read_record(tmp_path / "runs.csv") == {B: Result(0.69, 9.0), A: Result(0.70, 8.0)}
    tables(monkeypatch, tmp_path, *choice)
    assert len((tmp_path / "runs.csv").read_text().splitlines()) == 3
    assert capsys.readouterr().out.splitlines()[-1].split() == (
        ["RawHFL", "Z=4", "2", "0.6950", "+-", "0.0050", "0.7013", "8.50", "+-", "0.50", "2848"]
    )


def test_a_single_run_has_no_spread():
    assert spread([0.25], 4).rstrip() == "0.2500"
    assert spread([1000.0, 1002.0], 2) == "1,001.00 +- 1.00"


def test_a_run_that_fails_is_named_and_not_recorded(tmp_path, monkeypatch, capfd):
    monkeypatch.setitem(ROWS, "RawHFL Z=4", {"plan.selected-per-edge": 13})
    assert tables(monkeypatch, tmp_path, "--tables", 3, "--seeds", 0, "--rows", "RawHFL Z=4") == 1
    assert read_record(tmp_path / "runs.csv") == {}
    error = capfd.readouterr().err
    assert "plan.selected-per-edge" in error
    assert f"{folder_of(tmp_path, A)}: the run failed" in error


def test_the_page_shows_what_is_recorded(tmp_path, monkeypatch, capsys):
    assert tables(monkeypatch, tmp_path, "--only-print", "--record", DOCS / "rawhfl-runs.csv") == 0
    printed = "\n".join(line.rstrip() for line in capsys.readouterr().out.strip("\n").splitlines())
    assert printed in (DOCS / "video-caching.md").read_text()
