"""What MLflow's own client finds of a run in its file store."""

import json
from pathlib import Path

import pytest

from tests.app.reports.trackers.runs import a_failure, expected, tracked
from tests.app.runs import run_app

pytestmark = pytest.mark.filterwarnings("default")
pytest.importorskip("mlflow")


@pytest.mark.usefixtures("with_blank_pictures")
def test_it_has_all_figures_texts_and_files_and_a_resumed_run_goes_on(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # without it MLflow refuses this store
    from mlflow import MlflowClient

    uri = f"file:{tmp_path}/store"
    folder = tracked(tmp_path / "run", f"mlflow(uri='{uri}', experiment='nights')", report_group="night")
    client = MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name("nights")
    (run,) = client.search_runs([experiment.experiment_id], filter_string="tags.group = 'night'")
    assert json.loads((folder / "trackers.json").read_text()) == {"mlflow": run.info.run_id}
    assert (run.info.run_name, run.info.status) == ("run", "FINISHED")
    assert (run.data.params["num-clients"], run.data.params["global-rounds"]) == ("4", "2")
    for name, values in expected(folder).items():
        history = client.get_metric_history(run.info.run_id, name)
        assert [metric.step for metric in history] == [1, 2, 3], name
        assert [metric.value for metric in history] == pytest.approx(values), name
    number, text = a_failure(folder)
    files = tmp_path / "files"
    files.mkdir()
    named = client.download_artifacts(run.info.run_id, f"failures/round-{number}.txt", str(files))
    assert text in Path(named).read_text().splitlines()
    model = client.download_artifacts(run.info.run_id, "models/model.pt", str(files))
    assert Path(model).read_bytes() == (folder / "model.pt").read_bytes()
    pictures = [one.path for one in client.list_artifacts(run.info.run_id, "pictures")]
    assert "pictures/rounds.png" in pictures


def test_a_server_that_is_gone_ends_no_run(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    settings = {"num_clients": 2, "batches_per_epoch": 1, "global_rounds": 1}
    run_app(tmp_path / "run", report_tracker="mlflow(uri='http://127.0.0.1:9')", **settings)
    (said,) = [text for text in caplog.messages if "report.tracker" in text]
    assert "failed at the start, the run goes on: MlflowException: API request to http://127.0.0.1:9" in said
    assert "\n" not in said
