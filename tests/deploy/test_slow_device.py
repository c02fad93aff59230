"""Who was slow, on real processes: a device under an edge that has a host of its own sleeps in every edge round."""

import shutil

import pytest
from local import run_config, two_tiers

from espalier.app.features.seconds.reports import totals_of
from espalier.app.reports.folder import ResultsFolder
from tests.app.runs import app_folder, summary
from tests.app.slow_clients import SLEEP_ON_MACHINES, SLOW_CLIENT

from .faults import ROOT, finish, start

pytestmark = [pytest.mark.slow, pytest.mark.deploy]

SETTINGS = {
    "algorithm": "slow_clients:WHOLE_ON_MACHINES",
    "num_clients": 3,
    "num_edges": 2,
    "edge_rounds": 1,
    "local_epochs": 1,
    "batches_per_epoch": 1,
    "report.evaluate-every": 0,
}


def test_the_slow_device_and_its_edge_are_named_by_the_seconds_that_it_slept(tmp_path, monkeypatch):
    (tmp_path / "own").mkdir()
    shutil.copy(ROOT / "tests/app/slow_clients.py", tmp_path / "own")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "own"))
    results = tmp_path / "results"
    with two_tiers(app_folder(), 3, 2, tmp_path / "t", run_config(SETTINGS)) as cloud:
        settings = SETTINGS | {"deploy.role": "cloud", "global_rounds": 1, "report.plots": True}
        finish(start(cloud.environment, results, settings), cloud.environment)
    totals = totals_of(ResultsFolder(results).read_seconds())
    training = {client: own.mean.training for client, own in totals.clients.items()}
    assert training.keys() == {0, 1, 2}
    longer = training[SLOW_CLIENT] - min(training.values())
    assert longer == pytest.approx(SLEEP_ON_MACHINES, rel=0.1)
    slowest = summary(results)["seconds"]["slowest"]
    assert (slowest["client"]["client"], slowest["edge"]["edge"]) == (SLOW_CLIENT, totals.edge_of[SLOW_CLIENT])
    assert slowest["edge"]["training_seconds"] == pytest.approx(training[SLOW_CLIENT], abs=1e-4)
    assert (results / "seconds.png").exists()
    # Each message starts a process, and the edge's host is reached through another.
    assert totals.edges[totals.edge_of[SLOW_CLIENT]].transfer > totals.clients[SLOW_CLIENT].transfer > 1
