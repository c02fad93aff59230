"""The table of associations is that of the recorded instances, and one of them comes out again."""

from pathlib import Path

import pytest

from benchmarks import association
from experiments.records import read_rows

ROOT = Path(__file__).parents[2]
RECORDED = read_rows(ROOT / "docs/data/association.csv", association.COLUMNS)


def test_the_table_of_the_docs_is_that_of_the_recorded_instances():
    assert "\n".join(association.table(RECORDED)) in (ROOT / "docs/association.md").read_text(encoding="utf-8")
    made = [(edges, seed) for edges in association.EDGES for seed in range(association.INSTANCES)]
    assert [(row["edges"], row["seed"]) for row in RECORDED] == made
    assert not any(row["commit"].endswith("+changes") for row in RECORDED)


def test_a_recorded_instance_comes_out_again():
    row = RECORDED[1]
    again = association.row_of(row["clients"], row["edges"], row["seed"])
    for key in ("optimum", *association.ASSOCIATIONS):
        assert again[key] == pytest.approx(row[key], rel=1e-5, abs=2e-4), key


def test_the_cheapest_is_never_dearer_than_the_nearest():
    assert all(0 <= row["cheapest"] <= row["nearest"] for row in RECORDED)
