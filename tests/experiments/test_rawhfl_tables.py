"""The tables of the RawHFL paper are of the runs that sweeps have made, or of what is recorded of them."""

import csv
import json
import sys
from pathlib import Path
from statistics import fmean, pstdev

import pytest

from espalier.app.ground.errors import UserError
from espalier.app.sweeps.grid import planned_runs, read_sweep
from experiments import rawhfl_tables
from experiments.rawhfl_tables import PAPER, Result, Run, main, read_record, spread, write_record

ROOT = Path(__file__).parents[2]
A, B, CENTRAL = Run(3, "RawHFL Z=4", 0), Run(3, "RawHFL Z=4", 1), Run(3, "Central-SGD", 0)


def tables(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["rawhfl_tables.py", *map(str, arguments)])
    main()


def write_runs(folder, *runs):
    """Write a sweep's table of runs and, of each run's own files, what the tables read."""
    folder.mkdir(parents=True)
    with (folder / "runs.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["case", "seed", "accuracy", "energy_joules", "folder"])
        for case, seed, accuracy, over_clients, joules, name in runs:
            own = folder / name
            own.mkdir()
            summary = {"global": {"accuracy": {"mean": accuracy, "std": over_clients}}}
            (own / "summary.json").write_text(json.dumps(summary))
            makers = [{"commit": commit, "machine": "m"} for commit in ("begun", "resumed")]
            (own / "made-by.json").write_text(json.dumps(makers))
            writer.writerow([case, seed, accuracy, joules, own])


def test_a_sweep_may_have_moved_and_has_the_papers_rows(tmp_path):
    write_runs(tmp_path / "made" / "table2", ("RawHFL Z=4", 0, 0.70, 0.01, 8.0, "first"))
    (tmp_path / "made").rename(tmp_path / "here")
    ((_, folder),) = rawhfl_tables.read_sweep(tmp_path / "here", 2).values()
    assert folder == tmp_path / "here" / "table2" / "first"
    (tmp_path / "here" / "table2" / "runs.csv").write_text("seed,accuracy,folder\n0,0.5,first\n")
    with pytest.raises(UserError, match=r"runs.csv: allowed is a sweep with experiments/sweeps/rawhfl-rows.toml"):
        rawhfl_tables.read_sweep(tmp_path / "here", 2)


def test_what_is_recorded_is_read_back(tmp_path):
    record = tmp_path / "runs.csv"
    assert read_record(record) == {}
    finished = {A: Result(0.7, 8.25, 0.01, "c", "m"), CENTRAL: Result(0.6999, None)}
    write_record(record, finished)
    assert read_record(record) == finished


def test_a_file_that_is_no_record_is_named(tmp_path):
    (tmp_path / "other.csv").write_text("row,seed\nx,0\n")
    with pytest.raises(UserError, match=r"--record = '.*other.csv': allowed is a CSV file as this script writes it"):
        read_record(tmp_path / "other.csv")


def test_the_runs_of_sweeps_are_printed_beside_the_paper(tmp_path, monkeypatch, capsys):
    drawn = []
    monkeypatch.setattr(rawhfl_tables, "draw_table", lambda *what: drawn.append(what))
    write_runs(
        tmp_path / "table3",
        ("RawHFL Z=4", 0, 0.70, 0.01, 8.0, "first"),
        ("RawHFL Z=4", 1, 0.69, 0.03, 9.0, "second"),
        ("Central-SGD", 0, 0.7, 0.25, "", "third"),
    )
    tables(monkeypatch, tmp_path, "--seeds", 0, 1, "--csv", tmp_path / "all.csv")
    printed = [line.split() for line in capsys.readouterr().out.splitlines()]
    figures = ["0.6950", "+-", "0.0050", "0.7013", "0.0200", "0.0142", "8.50", "+-", "0.50", "2848"]
    assert ["RawHFL", "Z=4", "2", *figures] in printed
    folder = tmp_path / "table3"
    folders = {"RawHFL Z=4": folder / "first", "Central-SGD": folder / "third"}
    assert drawn == [(tmp_path / "table3.png", 3, folders, 0)]
    made_by = ("resumed", "m")
    expected = {
        A: Result(0.70, 8.0, 0.01, *made_by),
        B: Result(0.69, 9.0, 0.03, *made_by),
        CENTRAL: Result(0.7, None, 0.25, *made_by),
    }
    assert read_record(tmp_path / "all.csv") == expected


def test_a_single_run_has_no_spread():
    assert spread([0.25], 4).rstrip() == "0.2500"
    assert spread([1000.0, 1002.0], 2) == "1,001.00 +- 1.00"


def test_a_folder_without_runs_gets_one_line(tmp_path, monkeypatch):
    with pytest.raises(SystemExit, match=r"^error: .* holds no run that is over"):
        tables(monkeypatch, tmp_path)


@pytest.mark.parametrize("table", [2, 3, 4])
def test_a_sweep_makes_every_row_of_a_table(table):
    files = [ROOT / f"experiments/{name}.toml" for name in (f"rawhfl-table{table}", "sweeps/rawhfl-rows")]
    runs = planned_runs(read_sweep(list(map(str, files))))
    assert {run.chosen["case"] for run in runs} == set(PAPER)
    assert len(runs) == 3 * len(PAPER)
    assert {str(run.settings["caching.exploitation"]) for run in runs} == {{2: "0.3", 3: "0.7", 4: "0.1-0.8"}[table]}
    selected = {run.chosen["case"]: run.settings["plan.selected-per-edge"] for run in runs}
    assert [selected[f"RawHFL Z={number}"] for number in (2, 4, 6)] == [2, 4, 6]


def test_the_page_shows_what_is_recorded(tmp_path, monkeypatch, capsys):
    tables(monkeypatch, tmp_path, "--record", ROOT / "docs/data/rawhfl-runs.csv")
    printed = "\n".join(line.rstrip() for line in capsys.readouterr().out.strip("\n").splitlines())
    assert printed in (ROOT / "docs/video-caching.md").read_text()


def three(form, values):
    first, second, third = (format(value, form) for value in values)
    return f"{first}, {second} and {third}"


def test_the_papers_medians_of_a_cells_joules_are_those_of_all_cells():
    page = " ".join((ROOT / "docs/reproduction.md").read_text().split())
    each = [f"{PAPER[f'RawHFL Z={number}'].joules / 400:.1f}" for number in (2, 4, 6)]
    assert f"of all four cells together: its Table II has {each[0]}, {each[1]} and {each[2]} J on average" in page


def test_which_accuracies_match_the_papers_follows_from_the_record():
    page = " ".join((ROOT / "docs/video-caching.md").read_text().split())
    record = read_record(ROOT / "docs/data/rawhfl-runs.csv")
    ours = {
        row: [fmean(record[Run(table, row, seed)].accuracy for seed in range(3)) for table in (2, 3, 4)]
        for row in PAPER
    }
    apart = {row: max(abs(a / b - 1) for a, b in zip(ours[row], PAPER[row].accuracy, strict=True)) for row in PAPER}
    differ = {row for row, most in apart.items() if most > 0.04}
    assert differ == {"H-FedAvg-M1", "H-FedAvg-M2", "Top-Popular"}
    assert "match the paper's, except for those of M1, M2 and Top-Popular" in page


def test_how_the_spread_over_clients_compares_with_what_is_published():
    page = " ".join((ROOT / "docs/video-caching.md").read_text().split())
    record = read_record(ROOT / "docs/data/rawhfl-one-slot-runs.csv")
    times = {
        row: [
            fmean(result.over_clients for run, result in record.items() if run[:2] == (table, row))
            / PAPER[row].over_clients[table - 2]
            for table in (2, 3, 4)
        ]
        for row in ("RawHFL Z=4", "Top-Popular")
    }
    first, *others = times["RawHFL Z=4"]
    assert others == pytest.approx([1, 1], abs=0.1)
    assert f"close to the published +- in Tables III and IV and {first:.1f} times as large in Table II" in page
    least, most = min(times["Top-Popular"]), max(times["Top-Popular"])
    assert f"Top-Popular's is {least:.1f} to {most:.1f} times as large" in page


def test_the_page_has_what_m2_takes_and_gives_with_one_local_round():
    page = " ".join((ROOT / "docs/video-caching.md").read_text().split())
    one, many = (read_record(ROOT / f"docs/data/{name}.csv") for name in ("rawhfl-m2-one-round", "rawhfl-runs"))
    runs = [one[Run(3, "H-FedAvg-M2", seed)] for seed in range(3)]
    everybody = [many[Run(3, "H-FedAvg-UB", seed)].joules for seed in range(3)]
    fifty = [many[Run(3, "H-FedAvg-M2", seed)].joules for seed in range(3)]

    assert f"M2 gets {three('.3f', [run.accuracy for run in runs])} with seeds" in page
    assert f"it takes {three(',.0f', [run.joules for run in runs])} J" in page
    shares = [[a / b for a, b in zip(own, everybody, strict=True)] for own in ([run.joules for run in runs], fifty)]
    assert f"{three('.2f', shares[0])} of what UB takes" in page
    assert f"the share is {three('.2f', shares[1])}." in page
    published = PAPER["H-FedAvg-M2"].joules / PAPER["H-FedAvg-UB"].joules
    assert f"the paper has {published:.2f} of its UB" in page


def test_one_slot_per_edge_round_changes_no_figure_by_more_than_the_spread_over_seeds():
    one, four = (read_record(ROOT / f"docs/data/{name}.csv") for name in ("rawhfl-one-slot-runs", "rawhfl-runs"))
    for table, row in ((table, row) for table in (2, 3, 4) for row in ("RawHFL Z=4", "Top-Popular")):
        own, others = (
            [result.accuracy for run, result in runs.items() if run[:2] == (table, row)] for runs in (one, four)
        )
        seeds = range(len(own))
        assert sorted(run.seed for run in one if run[:2] == (table, row)) == list(seeds)
        difference = abs(fmean(own) - fmean(others[: len(own)]))
        assert difference < max(pstdev(own), pstdev(others))
        for seed in seeds:
            run = Run(table, row, seed)
            assert (one[run].joules is None) == (four[run].joules is None) == (row == "Top-Popular")
            assert one[run].joules is None or f"{one[run].joules:.2f}" == f"{four[run].joules:.2f}"


def test_the_sweep_with_one_slot_differs_in_that_alone():
    rows = [
        read_sweep([str(ROOT / f"experiments/{name}.toml") for name in ("rawhfl-table2", f"sweeps/{rows}")])
        for rows in ("rawhfl-rows", "rawhfl-one-slot-rows")
    ]
    four, one = ({run.chosen["case"]: dict(run.settings) for run in planned_runs(sweep)} for sweep in rows)
    for case, settings in one.items():
        assert settings == four[case] | {"caching.slots-per-edge-round": 1}
