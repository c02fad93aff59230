"""The table of asynchronous modes in the docs is that of the recorded runs, and a run ends when it is right enough."""

from pathlib import Path

import pytest

from espalier.app.config.parse import parse_config
from espalier.app.config.unused import unused_keys
from experiments import asynchronous
from experiments.records import read_rows, write_rows

ROOT = Path(__file__).parents[2]
RECORDED = read_rows(ROOT / "docs/data/asynchronous.csv", asynchronous.COLUMNS)


def test_the_table_of_the_docs_is_that_of_the_recorded_runs():
    assert "\n".join(asynchronous.table_lines(RECORDED)) in (ROOT / "docs/asynchronous-gains.md").read_text()


def test_all_modes_and_seeds_are_recorded_and_got_there():
    runs = {
        (setting, mode, seed)
        for setting in asynchronous.SETTINGS
        for mode in asynchronous.MODES[setting]
        for seed in asynchronous.SEEDS
    }
    assert {(row["setting"], row["mode"], row["seed"]) for row in RECORDED} == runs
    reached = [line for line in asynchronous.table(RECORDED) if line.sooner]
    assert len(reached) * len(asynchronous.SEEDS) == len(runs)
    assert not any(row["commit"].endswith("+changes") for row in RECORDED)


def test_fedbuff_is_sooner_by_what_the_page_says():
    sooner = {(line.setting, line.mode): line.sooner for line in asynchronous.table(RECORDED)}
    for setting in asynchronous.SETTINGS:
        assert min(sooner[setting, "fedbuff"]) > 1.3
    assert 1 < min(sooner["radio", "semi-synchronous"]) < max(sooner["radio", "semi-synchronous"]) < 1.3


def test_fedbuff_has_as_many_more_updates_in_a_second_as_the_page_says():
    nodes = {"digits": 20, "cifar10": 20, "radio": 4, "radio-cells": 48}
    ratios = {}
    for setting, size in nodes.items():
        buffer = asynchronous.MODES[setting]["fedbuff"]["async.buffer-size"]
        for seed in asynchronous.SEEDS:
            waits, goes_on = (last_row(setting, mode, seed) for mode in ("synchronous", "fedbuff"))
            more = buffer * goes_on["round"] / goes_on["seconds"] / (size * waits["round"] / waits["seconds"])
            ratios.setdefault(setting, []).append(round(more, 1))
    texts = {setting: f"{min(own):.1f} to {max(own):.1f}" for setting, own in ratios.items()}
    page = " ".join((ROOT / "docs/asynchronous-gains.md").read_text().split())
    lists = ", ".join(f"{text} times in `{setting}`" for setting, text in texts.items())
    assert lists in page


def last_row(setting, mode, seed):
    return [row for row in RECORDED if (row["setting"], row["mode"], row["seed"]) == (setting, mode, seed)][-1]


def test_a_run_ends_when_it_is_right_often_enough_three_times_in_a_row():
    small = {"num-clients": 3, "batches-per-epoch": 1, "local-epochs": 1}
    rows = asynchronous.rows_of_run("digits", "synchronous", 0, 0.0, **small)
    assert [row["round"] for row in rows] == [1, 2, 3]
    assert rows[0].keys() == set(asynchronous.COLUMNS)
    assert asynchronous.seconds_to(0.0, rows) == rows[2]["seconds"]
    assert asynchronous.seconds_to(1.1, rows) is None


def test_a_model_is_right_often_enough_at_three_evaluations_in_a_row():
    assert asynchronous.position_of(0.5, [0.5, 0.6, 0.4, 0.5, 0.5, 0.7, 0.8]) == 5
    assert asynchronous.position_of(0.5, [0.5, 0.6, 0.4, 0.5, 0.5]) is None
    assert asynchronous.position_of(0.5, []) is None


def test_an_interrupt_is_no_target_that_was_reached(monkeypatch):
    def interrupted(self, number, rounds, line):
        raise KeyboardInterrupt

    monkeypatch.setattr(asynchronous.UntilAccurate, "round_over", interrupted)
    with pytest.raises(KeyboardInterrupt):
        asynchronous.rows_of_run("digits", "fedbuff", 0, 1.0, **{"num-clients": 3, "batches-per-epoch": 1})


def rows_of(setting, mode, seed, seconds, *accuracies):
    """Three evaluations, a second apart."""
    kept = {"setting": setting, "mode": mode, "seed": seed, "commit": "abc", "machine": "x86_64"}
    return [
        kept | {"round": number, "seconds": seconds - 2.0 + i, "accuracy": accuracy}
        for number, (i, accuracy) in enumerate(zip(range(3), accuracies, strict=True), 1)
    ]


def test_a_table_has_seconds_and_times_sooner_over_seeds():
    taken = {("synchronous", 0): 30.0, ("synchronous", 1): 20.0, ("fedbuff", 0): 10.0, ("fedbuff", 1): 10.0}
    rows = [row for (mode, seed), end in taken.items() for row in rows_of("digits", mode, seed, end, 0.8, 0.75, 0.9)]
    assert asynchronous.table(rows) == [
        ("digits", "synchronous", [30.0, 20.0], [1.0, 1.0]),
        ("digits", "semi-synchronous", [], []),
        ("digits", "fedbuff", [10.0, 10.0], [3.0, 2.0]),
    ]
    assert asynchronous.table_lines(rows)[2:] == [
        "| digits | synchronous | 25 | 20 to 30 | 1.00 | 1.00 to 1.00 |",
        "| digits | semi-synchronous | - | - | - | - |",
        "| digits | fedbuff | 10 | 10 to 10 | 2.50 | 2.00 to 3.00 |",
    ]


@pytest.mark.usefixtures("with_png")
def test_a_table_and_a_figure_where_the_synchronous_run_does_not_get_there(tmp_path):
    rows = [
        row
        for setting in ("digits", "radio", "radio-cells")
        for seed in (3, 5)
        for mode, last in (("synchronous", 0.8 if seed == 3 else 0.1), ("fedbuff", 0.8))
        for row in rows_of(setting, mode, seed, 8.0, 0.8, 0.8, last)
    ]
    assert [line for line in asynchronous.table(rows) if line.mode != "semi-synchronous"] == [
        (setting, mode, seconds, [])
        for setting in ("digits", "radio", "radio-cells")
        for mode, seconds in (("synchronous", []), ("fedbuff", [8.0, 8.0]))
    ]
    assert asynchronous.table_lines(rows)[-1] == "| radio-cells | fedbuff | 8 | 8 to 8 | - | - |"
    asynchronous.draw(tmp_path / "figure.png", rows)
    assert (tmp_path / "figure.png").exists()


def test_runs_that_have_rows_are_not_made_again(tmp_path, monkeypatch, capsys):
    made = []

    def rows_of_run(setting, mode, seed, target, **changes):
        made.append((setting, mode, seed, changes))
        return rows_of(setting, mode, seed, 8.0, 1.0, 1.0, 1.0)

    monkeypatch.setattr(asynchronous, "rows_of_run", rows_of_run)
    path = tmp_path / "rows.csv"
    write_rows(path, asynchronous.COLUMNS, rows_of("digits", "fedbuff", 1, 4.0, 1.0, 1.0, 1.0))
    asynchronous.main(["--csv", str(path), "--seeds", "1", "--setting", "digits"])
    assert [mode for _, mode, *_ in made] == ["synchronous", "semi-synchronous"]
    assert capsys.readouterr().out.splitlines()[-1] == "| digits | fedbuff | 4 | 4 to 4 | 2.00 | 2.00 to 2.00 |"
    asynchronous.main(["--csv", str(path), "--seeds", "1", "--setting", "cifar10", "--data-dir", "results/data"])
    assert made[-1] == ("cifar10", "fedbuff", 1, {"data-dir": "results/data"})
    assert len(read_rows(path, asynchronous.COLUMNS)) == 18


def test_cifar10_without_a_folder_is_one_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match=r"^error: data-dir"):
        asynchronous.main(["--setting", "cifar10"])


@pytest.mark.parametrize("setting", asynchronous.SETTINGS)
def test_a_run_has_use_for_all_settings(setting, tmp_path):
    folder = {"data-dir": str(tmp_path)} if setting == "cifar10" else {}
    for own in asynchronous.MODES[setting].values():
        config = parse_config({"engine": "in-process", **asynchronous.SETTINGS[setting], **own, **folder})
        assert unused_keys(config) == {}
