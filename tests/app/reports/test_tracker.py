"""A tracker of one's own gets the global line of every round."""

import sys

import pytest

from espalier.app.command_line import main
from tests.app.runs import lines, run_app, same_weights

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
