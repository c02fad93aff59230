"""The table of codecs in the docs is that of the recorded runs, and says what was sent."""

from pathlib import Path

import pytest

from experiments import compression
from experiments.records import read_rows

ROOT = Path(__file__).parents[2]
RECORDED = ROOT / "docs/data/compression.csv"
SMALL = {"num-clients": 2, "num-edges": 1, "global-rounds": 1, "edge-rounds": 1, "batches-per-epoch": 1}


def recorded():
    return read_rows(RECORDED, compression.COLUMNS)


def test_the_table_of_the_docs_is_that_of_the_recorded_runs(capsys):
    compression.print_table(recorded())
    assert capsys.readouterr().out in (ROOT / "docs/compression.md").read_text()


def test_every_codec_is_recorded_and_sends_the_share_that_the_page_says():
    up = {row["codec"]: row["from_clients_bytes"] for row in recorded()}
    assert tuple(up) == compression.CODECS
    # 4 bytes a value; 2; 1; 4 bits and 2; of a tenth, and a hundredth, 4 and a place of 2. Headers are in it too.
    expected = [1, 0.5, 0.25, 0.125, 0.0625, 0.15, 0.015]
    assert [up[codec] / up["none"] for codec in up] == [pytest.approx(share, abs=0.012) for share in expected]


def test_runs_that_have_a_row_are_not_made_again(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(compression, "SETTING", compression.SETTING | SMALL)
    monkeypatch.setattr(compression, "CODECS", ("none", "int8"))
    path = tmp_path / "runs.csv"
    compression.main(["--seeds", "3", "--csv", str(path)])
    first, written = capsys.readouterr().out, path.read_text()
    monkeypatch.setattr(compression, "row_of_run", None)
    compression.main(["--seeds", "3", "--csv", str(path)])
    assert (capsys.readouterr().out, path.read_text()) == (first, written)
