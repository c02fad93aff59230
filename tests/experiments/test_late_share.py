"""The table of late results in the docs is that of the recorded runs, and as many were late as asked for."""

from pathlib import Path
from statistics import fmean

from experiments import late_share
from experiments.records import read_rows

ROOT = Path(__file__).parents[2]
RECORDED = read_rows(ROOT / "docs/data/late-share.csv", late_share.COLUMNS)


def recorded(error_db, way):
    return [row for row in RECORDED if (row["error_db"], row["way"]) == (error_db, way)]


def test_the_table_of_the_docs_is_that_of_the_recorded_runs():
    assert "\n".join(late_share.table(RECORDED)) in (ROOT / "docs/plans.md").read_text()


def test_all_runs_are_recorded():
    assert {(row["error_db"], row["way"], row["seed"]) for row in RECORDED} == set(late_share.runs(late_share.SEEDS))
    assert not any(row["commit"].endswith("+changes") for row in RECORDED)


def test_as_many_results_were_late_as_asked_for_and_the_model_was_as_good_as_without_an_error():
    without = fmean(row["accuracy"] for row in recorded(0.0, late_share.AS_SEEN))
    for error_db in late_share.ERRORS_DB:
        own = recorded(error_db, late_share.LATE_SHARE)
        assert 0.03 <= sum(row["late"] for row in own) / sum(row["results"] for row in own) <= 0.07
        assert abs(fmean(row["accuracy"] for row in own) - without) <= 0.02


def test_a_run_becomes_a_row():
    small = {"num-clients": 8, "plan.selected-per-edge": 1, "plan.max-local-rounds": 1, "global-rounds": 1}
    row = late_share.row_of_run(1.0, late_share.LATE_SHARE, 0, **small)
    assert row.keys() == set(late_share.COLUMNS)
    assert (row["error_db"], row["rounds"]) == (1.0, 1)
    assert 0 <= row["late"] < row["results"] <= 16  # cells of two clients can be short of one who is able to
