"""What is in the files that W&B writes offline."""

import json
from pathlib import Path

import pytest

from tests.app.reports.trackers.runs import a_failure, expected, tracked

pytestmark = pytest.mark.filterwarnings("default")
pytest.importorskip("wandb")
BLOCK = 2**15  # the file is a log of LevelDB's, behind seven bytes of its own


def records(path: Path):
    """Return what a file holds, in W&B's own type."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, place, whole, found = path.read_bytes(), 7, b"", []
    while place < len(data):
        if BLOCK - place % BLOCK < 7:  # no header fits there
            place += BLOCK - place % BLOCK
            continue
        length, kind = int.from_bytes(data[place + 4 : place + 6], "little"), data[place + 6]
        whole += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # whole, or the last part
            found.append(Record.FromString(whole))
            whole = b""
    return found


@pytest.mark.usefixtures("with_blank_pictures")
def test_it_has_all_figures_texts_and_files_and_a_resumed_run_goes_on(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_SILENT", "true")
    folder = tracked(tmp_path / "run", "wandb(project='nights', mode='offline')", report_group="night")
    runs = sorted((folder / "wandb").glob("offline-run-*/run-*.wandb"))
    assert len(runs) == 2
    found = [record for path in runs for record in records(path)]
    begun = [record.run for record in found if record.HasField("run")]
    (kept,) = {run.run_id for run in begun}
    assert json.loads((folder / "trackers.json").read_text()) == {"wandb": kept}
    assert {(run.project, run.run_group, run.display_name) for run in begun} == {("nights", "night", "run")}
    rows = [
        {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
        for record in found
        if record.HasField("history")
    ]
    for name, values in expected(folder).items():
        assert [row["round"] for row in rows if name in row] == [1, 2, 3], name
        assert [row[name] for row in rows if name in row] == pytest.approx(values), name
    number, text = a_failure(folder)
    path = "failures_named/path"
    (table,) = [row[path] for row in rows if row["round"] == number and path in row]
    (named,) = folder.glob(f"wandb/offline-run-*/files/{table}")
    assert [number, text] in json.loads(named.read_text())["data"]
    assert [one for one in found if one.HasField("artifact") and one.artifact.type == "model"]
    assert any("pictures/rounds" in name for row in rows for name in row)


def test_an_option_that_there_is_not_is_told_before_training(tmp_path, capsys):
    from espalier.app.command_line import main

    assert main([f"output-dir={tmp_path / 'run'}", "report.tracker=wandb(colour='red')"]) == 2
    (error,) = capsys.readouterr().err.splitlines()
    assert error.startswith("error: report.tracker = \"wandb(colour='red')\": allowed is what wandb takes")
    assert not (tmp_path / "run").exists()
