"""The table of asynchronous modes in the docs is that of the recorded runs, and a run ends when it is right enough."""

import re
from pathlib import Path

import pytest

from experiments import asynchronous

ROOT = Path(__file__).parents[2]
RECORDED = ROOT / "docs/asynchronous.csv"


def test_the_table_of_the_docs_is_that_of_the_recorded_runs():
    rows = re.findall(r"^\| ([a-z-]+) \| (\d+) \| (\d+) \| (\d+) \| ([\d.]+) \|$", text(), re.M)
    table = [(mode, *(pytest.approx(float(figure), abs=0.501) for figure in figures)) for mode, *figures in rows]
    expected = [line[:4] for line in asynchronous.table("digits", asynchronous.read_rows(RECORDED))]
    assert expected == [line[:4] for line in table]
    sooner = [line[4] for line in asynchronous.table("digits", asynchronous.read_rows(RECORDED))]
    assert sooner == [pytest.approx(float(row[4]), abs=0.0501) for row in rows]


def text():
    return (ROOT / "docs/asynchronous.md").read_text()


def test_all_modes_and_seeds_are_recorded_and_waiting_for_nobody_is_sooner():
    rows = asynchronous.read_rows(RECORDED)
    runs = {(row["mode"], row["seed"]) for row in rows}
    assert runs == {(mode, seed) for mode in asynchronous.MODES["digits"] for seed in asynchronous.SEEDS}
    sooner = {mode: times for mode, *_, times in asynchronous.table("digits", rows)}
    assert sooner["synchronous"] == 1
    assert sooner["fedbuff"] > 1.3
    assert sooner["semi-synchronous"] > 1.3


def test_a_run_ends_when_it_is_right_often_enough():
    small = {"num-clients": 3, "batches-per-epoch": 1, "local-epochs": 1}
    (row,) = asynchronous.rows_of_run("digits", "fedbuff", 0, 0.0, **small)
    assert row.keys() == set(asynchronous.COLUMNS)
    assert asynchronous.seconds_to(0.0, [row]) == {("digits", "fedbuff", 0): row["simulated_seconds"]}
    assert asynchronous.seconds_to(row["accuracy"] + 0.1, [row]) == {}


def test_an_interrupt_is_no_target_that_was_reached(monkeypatch):
    def interrupted(self, number, rounds, line):
        raise KeyboardInterrupt

    monkeypatch.setattr(asynchronous.UntilAccurate, "round_over", interrupted)
    with pytest.raises(KeyboardInterrupt):
        asynchronous.rows_of_run("digits", "fedbuff", 0, 1.0, **{"num-clients": 3, "batches-per-epoch": 1})


def test_a_table_and_a_figure_where_the_synchronous_run_does_not_get_there(tmp_path, capsys):
    rows = [
        {"setting": "digits", "mode": mode, "seed": seed, "round": 1, "simulated_seconds": 8.0, "accuracy": accuracy}
        for seed in (3, 5)
        for mode, accuracy in (("synchronous", 0.8 if seed == 3 else 0.1), ("fedbuff", 0.8))
    ]
    assert asynchronous.table("digits", rows) == [("fedbuff", 8.0, 8.0, 8.0, None)]
    asynchronous.print_table("digits", rows)
    assert capsys.readouterr().out.splitlines()[-1] == "| fedbuff | 8 | 8 | 8 | - |"
    asynchronous.draw(tmp_path / "figure.png", "digits", rows)
    assert (tmp_path / "figure.png").exists()
