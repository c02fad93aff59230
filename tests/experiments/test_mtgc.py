"""MTGC's comparison: a partition at two levels with clients of one size, and a table of what is recorded."""

import math
from pathlib import Path
from statistics import fmean, stdev

import numpy as np
import pytest

from espalier.app.comparison.runs import FinishedRun
from espalier.app.config.parse import read_toml
from espalier.app.ground.errors import UserError
from experiments import mtgc
from experiments.mtgc import ROWS, main, of_seeds, rounds_to, two_level
from experiments.recorded_rounds import RoundLine, by_run
from experiments.recorded_runs import read_lines, write_lines

ROOT = Path(__file__).parents[2]
RECORDED = ROOT / "docs/data/mtgc.csv"
SHOWN = list(ROWS.planned)
LABELS = np.repeat(np.arange(10), 5000)


def line(row, seed, number, accuracy):
    return RoundLine(row, seed, number, accuracy, 1000 * number, "abc", "a machine, 2 cores")


@pytest.mark.parametrize("seed", range(3))
def test_clients_have_one_size_and_classes_are_skewed_at_both_levels(seed):
    parts = two_level(LABELS, 100, 10, seed)
    assert sorted(np.concatenate(parts)) == list(range(len(LABELS)))
    assert {len(part) for part in parts} == {500}
    counts = np.array([np.bincount(LABELS[part], minlength=10) for part in parts])
    edges = counts.reshape(10, 10, 10).sum(axis=1)
    assert (edges.sum(axis=1) == 5000).all()
    # Of Dir(0.1) over ten classes the largest share is 0.66 in the mean; sums of one size leave less of it.
    assert 0.3 < (edges.max(axis=1) / 5000).mean() < 0.7
    assert 0.6 < (counts.max(axis=1) / 500).mean() < 0.95
    again = two_level(LABELS, 100, 10, seed)
    assert all(np.array_equal(a, b) for a, b in zip(parts, again, strict=True))


def test_sizes_that_do_not_divide_leave_nobody_and_nothing_out():
    parts = two_level(LABELS[:49_973], 100, 10, 1)
    assert sorted(np.concatenate(parts)) == list(range(49_973))
    assert min(map(len, parts)) == 499


def finished(**settings):
    own = ROWS.planned["HFedAvg"]
    return FinishedRun(Path("run"), {**own, **settings}, {}, {})


def test_a_run_is_of_the_row_whose_settings_it_has():
    for row, settings in ROWS.planned.items():
        assert ROWS.row_of(finished(**settings)) == row
    assert ROWS.row_of(finished(**{"edge-strategy": "FedProx(proximal_mu=0.0001)"})) == "FedProx"
    for other in ({"edge-strategy": "Krum"}, {"algorithm": "feddyn"}, {"edge-strategy": "FedProx(proximal_mu=1.0)"}):
        with pytest.raises(UserError, match=r"allowed are those of a row of mtgc-rows\.toml"):
            ROWS.row_of(finished(**other))


def test_rounds_are_counted_to_the_first_that_is_there(tmp_path, capsys):
    rounds = [line("MTGC", 0, 1, 0.2), line("MTGC", 0, 2, 0.31), line("MTGC", 0, 3, 0.29)]
    assert [rounds_to(target, rounds) for target in (0.2, 0.3, 0.35)] == [1, 2, None]
    assert [of_seeds(found) for found in ([4], [4, 6], [None, 3, None])] == ["4.0", "5.0±1.4", "1 of 3 seeds"]
    write_lines(RoundLine, tmp_path / "runs.csv", [*rounds, line("HFedAvg", 0, 3, 0.36)])
    main(["--csv", str(tmp_path / "runs.csv")])
    assert capsys.readouterr().out.splitlines()[2:] == [
        "| HFedAvg | 3.0 | 3.0 | 0.360 | 0.360 |",
        "| MTGC | 2.0 | 0 of 1 seeds | 0.290 | 0.310 |",
    ]


def test_the_page_shows_what_is_recorded(capsys):
    main(["--csv", str(RECORDED)])
    assert capsys.readouterr().out in (ROOT / "docs/tables.md").read_text()
    runs = by_run(read_lines(RoundLine, RECORDED), SHOWN)
    assert list(runs) == [(row, seed) for row in SHOWN for seed in range(3)]
    assert {len(rounds) for rounds in runs.values()} == {read_toml(mtgc.SETTINGS)["global-rounds"]}


def test_what_the_page_says_of_the_order_holds():
    runs = by_run(read_lines(RoundLine, RECORDED), SHOWN)

    def means(figure):
        return {row: fmean(figure(runs[row, seed]) for seed in range(3)) for row in SHOWN}

    for target in mtgc.TARGETS:
        found = {row: [rounds_to(target, runs[row, seed]) or math.inf for seed in range(3)] for row in SHOWN}
        first, second, *_ = sorted(found.values(), key=fmean)
        assert found["MTGC"] == first
        assert 0 < fmean(second) - fmean(first) < max(stdev(first), stdev(second))
    last = means(lambda rounds: rounds[-1].accuracy)
    spread = stdev(runs["SCAFFOLD", seed][-1].accuracy for seed in range(3))
    assert 0 <= last["SCAFFOLD"] - last["MTGC"] < spread
    assert max(last.values()) == last["SCAFFOLD"]
    assert abs(last["FedProx"] - last["HFedAvg"]) < 0.001
