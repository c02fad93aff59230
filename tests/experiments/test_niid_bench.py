"""niid_bench's comparison: the model of its table, and a table of what is recorded."""

from pathlib import Path

import numpy as np
import pytest
import torch

from espalier.app.comparison.runs import FinishedRun
from espalier.app.ground.errors import UserError
from experiments.niid_bench import (
    ALL,
    LEAST,
    PUBLISHED,
    ROWS,
    algorithm_of,
    cnn,
    main,
    published_of,
    published_split,
    row_of,
)
from experiments.recorded_rounds import RoundLine, by_run
from experiments.recorded_runs import read_lines, write_lines

ROOT = Path(__file__).parents[2]
RECORDED = ROOT / "docs/data/niid-bench.csv"


def test_the_model_has_the_published_sizes():
    model = cnn(10, (3, 32, 32))
    assert [sum(p.numel() for p in block.parameters()) for block in model] == [456, 2_416, 58_284, 850]
    assert model(torch.zeros(2, 3, 32, 32)).shape == (2, 10)


def test_the_sweep_has_the_published_rows():
    assert {algorithm_of(row) for row in ROWS.planned} == set(PUBLISHED)


def test_their_split_divides_every_class_and_the_first_clients_have_what_they_have_there():
    labels = np.repeat(np.arange(10), 5_000)
    held = published_split(labels, 10)
    assert np.array_equal(np.sort(np.concatenate(held)), np.arange(50_000))
    counts = np.array([np.bincount(labels[part], minlength=10) for part in held])
    assert counts.sum(axis=1).tolist() == [1785, 5453, 5426, 5263, 7013, 5062, 5051, 6092, 5142, 3713]
    # Printed by the baseline's own lines.
    assert counts[1].tolist() == [214, 73, 91, 3014, 562, 902, 597, 0, 0, 0]
    assert counts[5].tolist() == [159, 28, 2370, 448, 2057, 0, 0, 0, 0, 0]


def test_the_table_counts_rounds_from_one_and_says_where_a_run_ended_before(tmp_path, capsys):
    def rounds(row, seed, last):
        figures = [(number, number / 100, number) for number in range(1, last + 1)]
        return [RoundLine(row, seed, *figure, "abc", "a machine, 2 cores") for figure in figures]

    write_lines(RoundLine, tmp_path / "runs.csv", [*rounds("FedProx 0.01", 0, 30), *rounds("FedAvg", 0, 50)])
    main(["--csv", str(tmp_path / "runs.csv")])
    assert capsys.readouterr().out.splitlines()[2:] == [
        "| FedAvg | 0.0500 | 0.1000 | 0.2000 | 0.5000 | 0.2000 | 0.5000 | 0.6247 |",
        "| FedProx 0.01 | 0.0500 | 0.1000 | 0.2000 | - | 0.2000 | - | 0.6563 |",
    ]


def test_the_page_shows_what_is_recorded(capsys):
    main(["--csv", str(RECORDED)])
    assert capsys.readouterr().out in (ROOT / "docs/tables.md").read_text()
    runs = by_run(read_lines(RoundLine, RECORDED), list(ROWS.planned))
    found = {row: [line.accuracy for line in rounds] for (row, seed), rounds in runs.items() if seed == 0}
    of_20 = {row: max(rounds[:LEAST]) for row, rounds in found.items()}
    of_all = {row: max(rounds) for row, rounds in found.items() if len(rounds) == ALL}
    above = {row: round(accuracy - published_of(row), 3) for row, accuracy in of_all.items()}
    assert above == {
        "FedAvg": 0.057,
        "SCAFFOLD": 0.006,
        "FedNova": 0.035,
        "FedProx 0.01": 0.020,
        "FedAvg, their split": -0.012,
        "SCAFFOLD, their split": -0.022,
        "FedNova, their split": -0.002,
        "FedProx 0.01, their split": -0.042,
    }
    theirs = [row for row in found if "their" in row and algorithm_of(row) != "FedAvg"]
    last_ten = {row: np.mean(rounds[-10:]) for row, rounds in found.items()}

    def above_fedavg(figures):
        return {algorithm_of(row): round(figures[row] - figures["FedAvg, their split"], 3) for row in theirs}

    assert above_fedavg(of_all) == {"SCAFFOLD": 0.047, "FedNova": 0.024, "FedProx": 0.002}
    assert above_fedavg(last_ten) == {"SCAFFOLD": 0.040, "FedNova": -0.001, "FedProx": 0.002}

    def lead(algorithm, seed, last):
        bests = [
            max(line.accuracy for line in runs[f"{name}, their split", seed][:last]) for name in (algorithm, "FedAvg")
        ]
        return bests[0] - bests[1]

    page = (ROOT / "docs/tables.md").read_text()
    for name, row in (("SCAFFOLD", "SCAFFOLD"), ("FedNova", "FedNova"), ("FedProx", "FedProx 0.01")):
        for last in (LEAST, ALL):
            both = [f"{row}, their split", "FedAvg, their split"]
            long = [seed for seed in range(3) if min(len(runs[of, seed]) for of in both) >= last]
            cells = [f"{lead(row, seed, last):.3f}" if seed in long else "-" for seed in range(3)]
            assert f"| {name}, {last} rounds | {' | '.join(cells)} |" in page
    rivals = "SCAFFOLD", "FedNova", "FedProx 0.01"
    assert [row for row in rivals if all(lead(row, seed, LEAST) > 0 for seed in range(3))] == ["SCAFFOLD"]

    def late(row, seed):
        return np.mean([line.accuracy for line in runs[f"{row}, their split", seed][-10:]])

    assert [round(late("SCAFFOLD", seed) - late("FedAvg", seed), 3) for seed in range(3)] == [0.040, 0.023, 0.007]
    published = {name: round(accuracy - PUBLISHED["FedAvg"], 3) for name, accuracy in PUBLISHED.items()}
    assert published == {"FedAvg": 0.0, "SCAFFOLD": 0.056, "FedNova": 0.014, "FedProx": 0.032}
    others = ("SCAFFOLD, IID", "FedNova, IID", "FedProx 0.01, IID")
    assert [round(of_20[row] - of_20["FedAvg, IID"], 3) for row in others] == [0.010, 0.0, -0.009]
    assert [round(published_of(row) - published_of("FedAvg, IID"), 3) for row in others] == [0.003, -0.006, -0.001]
    assert of_20["FedAvg, IID"] - of_20["FedAvg"] == pytest.approx(0.0159)
    ours = [row for row in found if "," not in row]
    assert all(figures[row] < figures["FedAvg"] + 0.005 for figures in (of_20, of_all) for row in ours)


def test_a_run_of_fewer_rounds_is_not_recorded():
    run = FinishedRun(Path("run"), {**ROWS.planned["FedAvg"], "global-rounds": 10}, {}, {})
    with pytest.raises(UserError, match=r"^run: global-rounds = 10: allowed is 20 or more$"):
        row_of(run)
