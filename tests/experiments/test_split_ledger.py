"""The table of what split algorithms cost is that of the recorded runs, which agree with the arithmetic."""

import re
from pathlib import Path

import pytest

from experiments import split_ledger
from experiments.records import read_rows

ROOT = Path(__file__).parents[2]
ROWS = read_rows(ROOT / "docs/data/split-ledger.csv", split_ledger.COLUMNS)
BY_NAME = {row["algorithm"]: row for row in ROWS}
LOCAL = ("cse-fsl", "fsl-sage", "decoupled")


def test_the_table_of_the_docs_is_that_of_the_recorded_runs(capsys):
    split_ledger.print_table([BY_NAME[name] for name in split_ledger.ALL])
    assert capsys.readouterr().out in (ROOT / "docs/split-ledger.md").read_text()


def test_every_split_algorithm_is_recorded_once_with_its_commit_and_machine():
    assert sorted(row["algorithm"] for row in ROWS) == sorted(split_ledger.ALL)
    assert all(re.fullmatch("[0-9a-f]{7,}", row["commit"]) and row["machine"] for row in ROWS)


def test_bytes_and_operations_agree_with_the_arithmetic():
    """Some clients have mini-batches of fewer than 32 examples: none makes 320 of ten, and no client 300 or fewer."""
    conv1, auxiliary = 2 * 8 * 8 * 16 * 9, 2 * 16 * 10
    activations, block, head = 4 * 16 * 4 * 4, 4 * 160, 4 * 170
    for name, row in BY_NAME.items():
        # A head that does not train needs no gradient of its weights.
        head_steps = {"cse-fsl": 3, "decoupled": 3, "fsl-sage": 2}.get(name, 0)
        examples, rest = divmod(row["client_flops"], 2 * conv1 + head_steps * auxiliary)
        assert rest == 0
        assert 300 < examples <= 320
        least, most = (count / 5 if name in LOCAL else count for count in (250, 320))
        trained = block + head * (name in ("cse-fsl", "decoupled"))
        beside = trained * (name in ("hsfl-scaffold",))  # the control variates
        # NumPy's headers, names, indices and numbers come to 10 kB at most.
        assert 8 * (least * activations + trained) < row["uplink_bytes"]
        assert row["uplink_bytes"] < 8 * (most * activations + trained + beside + 10_000)
        if name in LOCAL:
            assert row["downlink_bytes"] < 8 * (block + head + 2_000)


def test_the_recorded_memory_is_that_of_the_code_as_it_is():
    row = split_ledger.row_of_run("sfl-v1", **{"global-rounds": 1})  # all are alike
    for name in ("client_peak_bytes", "edge_peak_bytes"):
        assert row[name] == pytest.approx(BY_NAME["sfl-v1"][name], rel=0.01)


def test_a_row_is_of_a_run():
    small = {"num-clients": 2, "global-rounds": 1, "batches-per-epoch": 2}
    row = split_ledger.row_of_run("cse-fsl", **small)
    assert set(row) == set(split_ledger.COLUMNS) - {"commit", "machine"}
    assert row["client_flops"] == 64 * (2 * (2 * 8 * 8 * 16 * 9) + 3 * 2 * 16 * 10)
    assert row["uplink_bytes"] == pytest.approx(2 * (4 * 16 * 4 * 4 * 32 + 4 * 330), rel=0.2)
