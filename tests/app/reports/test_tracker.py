"""A tracker of one's own gets the global line of every round."""

import json
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import pytest

from espalier.app.command_line import main
from tests.app.runs import lines, run_app, same_weights, summary

ROOT = Path(__file__).parents[3]
MODULE = r"""
class Keeper:
    def __init__(self, name="none"):
        self.name, self.seen = name, []
        KEPT.append(self)

    def round_over(self, number, line):
        self.seen.append((number, line))

class Failing(Keeper):
    def round_over(self, number, line):
        super().round_over(number, dict(line))
        line.clear()
        if number == 1:
            raise ConnectionError("no\nroute")
        if number == 2:
            raise Silent

class Whole(Keeper):
    def run_begins(self, settings, folder):
        self.began = settings, folder, (folder / "summary.json").exists()

    def edges_over(self, number, lines):
        self.edges = [*getattr(self, "edges", []), (number, len(self.seen), lines)]

    def run_over(self, summary):
        self.ended = summary

    def close(self):
        self.closed = hasattr(self, "ended")

class Interrupted(Whole):
    def round_over(self, number, line):
        raise KeyboardInterrupt

class Silent(Exception):
    def __str__(self):
        raise ValueError

KEPT = []
number = 3
"""


@pytest.fixture
def own_tracker(tmp_path, monkeypatch):
    (tmp_path / "own_tracker.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("own_tracker", None)


def test_it_gets_what_metrics_jsonl_gets(tmp_path, own_tracker):
    folder = run_app(
        tmp_path / "run", num_clients=2, batches_per_epoch=1, report_tracker="own_tracker:Keeper(name='mine')"
    )
    (keeper,) = sys.modules["own_tracker"].KEPT
    assert keeper.name == "mine"
    assert [number for number, _ in keeper.seen] == [1, 2]
    assert [line["accuracy"] for _, line in keeper.seen] == [line["accuracy"] for line in lines(folder, "global")]


def test_it_gets_settings_and_final_figures_if_it_has_methods_for_them(tmp_path, own_tracker):
    settings = {"num_clients": 2, "algorithm": "phsfl", "batches_per_epoch": 1, "report_tracker": "own_tracker:Whole"}
    folder = run_app(tmp_path / "run", **settings)
    (whole,) = sys.modules["own_tracker"].KEPT
    assert whole.began == (json.loads((folder / "config.json").read_text()), folder, False)
    assert [number for number, _ in whole.seen] == [1, 2]
    assert [(number, seen) for number, seen, _ in whole.edges] == [(1, 0), (2, 1)]  # before the global line
    assert [line for _, _, of_round in whole.edges for line in of_round] == lines(folder, "edge")
    assert whole.ended == summary(folder)
    assert "personalised" in whole.ended
    assert whole.closed


def test_it_is_closed_when_a_run_is_interrupted(tmp_path, own_tracker):
    tracker = "report.tracker=own_tracker:Interrupted, own_tracker:Keeper(name='second')"
    assert main([f"output-dir={tmp_path / 'run'}", "num-clients=2", "batches-per-epoch=1", tracker]) == 130
    whole, second = sys.modules["own_tracker"].KEPT
    assert (whole.closed, second.name, second.seen) == (False, "second", [])


def test_one_whose_package_is_missing_is_told_before_training(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "trackio", None)  # as if it were not installed
    assert main([f"output-dir={tmp_path / 'run'}", "report.tracker=trackio(project='p')"]) == 2
    (error,) = capsys.readouterr().err.splitlines()
    assert error == (
        "error: report.tracker = \"trackio(project='p')\": allowed is another one: it is not installed "
        "(pip install 'espalier-fl[trackio]')"
    )
    assert not (tmp_path / "run").exists()


def test_the_trackers_in_the_docs_make_a_table_of_runs(tmp_path, monkeypatch):
    page = (ROOT / "docs/tracker.md").read_text(encoding="utf-8")
    code = page.split("```python\n")[1].split("```")[0]
    (tmp_path / "my_trackers.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    settings = {"num_clients": 2, "batches_per_epoch": 1, "report_tracker": "my_trackers:SQLite(file='runs.db')"}
    folders = [run_app(tmp_path / str(seed), seed=seed, **settings) for seed in (0, 1)]
    with closing(sqlite3.connect("runs.db")) as database:
        rows = database.execute("SELECT folder, round, accuracy FROM figures").fetchall()
        seeds = database.execute("SELECT value FROM settings WHERE key = 'seed'").fetchall()
    assert seeds == [("0",), ("1",)]
    expected = [(str(f), n, line["accuracy"]["mean"]) for f in folders for n, line in enumerate(lines(f, "global"), 1)]
    assert rows == expected
    sys.modules.pop("my_trackers").SQLite("runs.db").database.close()


def test_one_that_fails_ends_no_run_and_gets_the_next_round(tmp_path, own_tracker, caplog):
    settings = {"num_clients": 2, "batches_per_epoch": 1, "global_rounds": 3}
    folder = run_app(tmp_path / "run", report_tracker="own_tracker:Failing", **settings)
    (keeper,) = sys.modules["own_tracker"].KEPT
    assert [number for number, _ in keeper.seen] == [1, 2, 3]
    assert same_weights(folder, run_app(tmp_path / "without", **settings))
    said = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert said == [
        "report.tracker = 'own_tracker:Failing' failed in round 1, the run goes on: ConnectionError: no route"
    ]


@pytest.mark.parametrize(
    ("text", "allowed"),
    [
        ("Keeper", "package.module:NAME"),
        ("own_tracker:Missing", "what can be imported"),
        ("own_tracker:Keeper(colour=1)", "what Keeper takes"),
        ("own_tracker:dict", "what can be imported"),
        ("builtins:dict", "round_over(number, line)"),
    ],
)
def test_what_is_no_tracker_gets_one_line_before_training(own_tracker, capsys, text, allowed):
    assert main([f"report.tracker={text}"]) == 2
    error = capsys.readouterr().err.splitlines()
    assert len(error) == 1
    assert error[0].startswith(f"error: report.tracker = {text!r}: allowed is ")
    assert allowed in error[0]
