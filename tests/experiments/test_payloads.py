"""The table of payloads in the docs is that of the recorded runs, and says what was sent."""

import re
from pathlib import Path

import pytest

from experiments import payloads
from experiments.records import read_rows

ROOT = Path(__file__).parents[2]
RECORDED = ROOT / "docs/data/payloads.csv"
SMALL = {"num-clients": 2, "num-edges": 1, "global-rounds": 1, "edge-rounds": 1, "batches-per-epoch": 1}


def test_the_table_of_the_docs_is_that_of_the_recorded_runs(capsys):
    payloads.print_table("hsfl", read_rows(RECORDED, payloads.COLUMNS))
    assert capsys.readouterr().out in (ROOT / "docs/streams.md").read_text()


def test_every_payload_and_seed_is_recorded_once_with_its_commit_and_machine():
    rows = read_rows(RECORDED, payloads.COLUMNS)
    runs = [(row["setting"], row["payload"], row["seed"]) for row in rows]
    assert sorted(runs) == sorted(("hsfl", payload, seed) for payload in payloads.PAYLOADS for seed in payloads.SEEDS)
    assert all(re.fullmatch("[0-9a-f]{7,}", row["commit"]) and row["machine"] for row in rows)


def test_a_payload_has_the_share_of_bytes_that_the_page_says():
    shares = {line[0]: line[-1] for line in payloads.table("hsfl", read_rows(RECORDED, payloads.COLUMNS))}
    # 4 bytes a value, 2, or 1 and a scale; of the largest 4 and a place of 2. Weights and indices are in it too.
    expected = {"float32": 1, "float16": 0.5, "bfloat16": 0.5, "int8": 0.25, "top-25%": 0.375, "top-10%": 0.15}
    assert shares == {payload: pytest.approx(share, abs=0.012) for payload, share in expected.items()}


def test_runs_that_have_a_row_are_not_made_again(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(payloads.SETTINGS, "hsfl", payloads.SETTINGS["hsfl"] | SMALL)
    monkeypatch.setattr(payloads, "PAYLOADS", ("float32", "int8"))
    path, make, made = tmp_path / "runs.csv", payloads.row_of_run, []

    def counted(setting, payload, seed):
        made.append((payload, seed))
        return make(setting, payload, seed)

    monkeypatch.setattr(payloads, "row_of_run", counted)
    payloads.main(["--seeds", "3", "--csv", str(path)])
    first, written = capsys.readouterr().out, path.read_text()
    payloads.main(["--seeds", "3", "--csv", str(path)])
    assert made == [("float32", 3), ("int8", 3)]
    assert (capsys.readouterr().out, path.read_text()) == (first, written)
    assert written.splitlines()[0] == ",".join(payloads.COLUMNS)
    assert [line.split("|")[1].strip() for line in first.splitlines()[2:]] == ['`"float32"`', '`"int8"`']


def test_shares_are_of_what_float32_sends_with_the_same_seed():
    def row(payload, seed, accuracy, up, down):
        sent = {"uplink_bytes": up, "downlink_bytes": down}
        return {"setting": "hsfl", "payload": payload, "seed": seed, "accuracy": accuracy, **sent}

    rows = [row("float32", 0, 0.5, 60, 40), row("int8", 0, 0.25, 20, 10), row("int8", 1, 0.75, 9, 9)]
    assert payloads.table("hsfl", rows) == [
        ("float32", 0.5, 0.5, 0.5, 60, 40, 1.0),
        ("int8", 0.25, 0.25, 0.25, 20, 10, 0.3),  # seed 1 has nothing to be compared with
    ]
