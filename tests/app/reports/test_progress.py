"""The time left in a log is told by the edge rounds that are over."""

import os
import re
from io import StringIO

import pytest
from rich.console import Console

from espalier.app.command_line import main
from espalier.app.reports import progress
from espalier.app.reports.progress import BarProgress, LogProgress, progress_on
from espalier.strategies import Update


def test_edges_that_the_cloud_did_not_choose_are_over_with_the_round(monkeypatch, caplog):
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    shown = LogProgress(every_seconds=20.0)
    shown.begin(done=0, total=40)  # 10 rounds of 4 edges, of which one trains
    with caplog.at_level("INFO", "espalier"):
        for number in range(1, 11):
            now[0] += 60
            shown.on_edge_round(number, "edge-0", Update())
            shown.round_over(number, 10, {})
    lines = [record.getMessage() for record in caplog.records]
    assert [line for line in lines if line.startswith("round")] == [
        f"round {number}/10  ETA {10 - number}:00" for number in range(1, 11)
    ]
    assert lines[2] == "edge-0, edge round 2  ETA 14:00"  # 5 of 40 took 2 minutes


def test_a_run_that_goes_on_counts_what_it_has_made_itself(monkeypatch, caplog):
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    shown = LogProgress()
    shown.begin(done=20, total=40)
    now[0] += 30
    with caplog.at_level("INFO", "espalier"):
        shown.round_over(6, 10, {"accuracy": {"mean": 0.25}, "loss": {"mean": 1.5}})
    assert caplog.records[-1].getMessage() == "round 6/10  accuracy 0.2500  loss 1.5000  ETA 2:00"


def test_a_file_gets_a_line_per_round_and_a_terminal_a_bar(monkeypatch, tmp_path):
    monkeypatch.setenv("FORCE_COLOR", "1")  # as in CI, where rich takes a file for a terminal
    monkeypatch.setenv("TERM", "xterm")
    master, slave = os.openpty()
    with os.fdopen(slave, "w") as terminal, (tmp_path / "log").open("w") as file:
        assert isinstance(progress_on(Console(file=file)), LogProgress)
        assert isinstance(progress_on(Console(file=terminal)), BarProgress)
        monkeypatch.setenv("TERM", "dumb")
        assert isinstance(progress_on(Console(file=terminal)), LogProgress)
    os.close(master)


def test_a_bar_has_names_of_figures_as_they_are():
    written = StringIO()
    bar = BarProgress(Console(file=written, force_terminal=True, color_system=None, width=120))
    bar.begin(0, 2)
    bar.round_over(1, 2, {"test": {"f1[macro]": 0.5, "loss": 1.0}})
    bar.end()
    assert "round 1/2  test f1[macro] 0.5000  test loss 1.0000" in written.getvalue()


@pytest.mark.parametrize(("share", "of"), [(1.0, ""), (0.0, "test ")])
def test_the_command_prints_each_round_once_where_its_output_is_no_terminal(tmp_path, capsys, share, of):
    given = ["algorithm=fedavg", "num-clients=2", "global-rounds=3", "batches-per-epoch=1", "report.plots=false"]
    assert main([*given, f"report.evaluate-clients={share}", f"output-dir={tmp_path / 'run'}"]) == 0
    rounds = [line for line in capsys.readouterr().out.splitlines() if line.startswith("round ")]
    pattern = rf"round (\d)/3  {of}accuracy [01]\.\d{{4}}  {of}loss \d+\.\d{{4}}  ETA \d+:\d\d"
    assert [match and match[1] for match in (re.fullmatch(pattern, line) for line in rounds)] == ["1", "2", "3"]
