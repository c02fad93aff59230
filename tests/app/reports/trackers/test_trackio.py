"""What Trackio's local store has of a run."""

import json
import os
import tempfile

import pytest

from tests.app.reports.trackers.runs import a_failure, expected, tracked

pytestmark = pytest.mark.filterwarnings("default")
os.environ.setdefault("TRACKIO_DIR", tempfile.mkdtemp(prefix="trackio-"))  # read when it is imported
pytest.importorskip("trackio")


@pytest.mark.usefixtures("with_blank_pictures")
def test_it_has_all_figures_texts_and_files_and_a_resumed_run_goes_on(tmp_path):
    from trackio.sqlite_storage import SQLiteStorage

    project = f"nights-{tmp_path.parent.name}"
    folder = tracked(tmp_path / "run", f"trackio(project='{project}')", report_group="night")
    (name,) = SQLiteStorage.get_runs(project)
    assert name == f"run-{json.loads((folder / 'trackers.json').read_text())['trackio']}"
    settings = SQLiteStorage.get_run_config(project, name)
    assert (settings["num-clients"], settings["_Group"]) == (4, "night")
    rows = SQLiteStorage.get_logs(project, name)
    for figure, values in expected(folder).items():
        assert [row["step"] for row in rows if figure in row] == [1, 2, 3], figure
        assert [row[figure] for row in rows if figure in row] == pytest.approx(values), figure
    number, text = a_failure(folder)
    (named,) = [row["failures_named"] for row in rows if row["step"] == number and "failures_named" in row]
    assert text in named["_value"]
    assert any("pictures/rounds" in row for row in rows)
    assert len(SQLiteStorage.get_artifacts(project)) == 1
