"""Runs on Ray: the bits of one process, whatever the number of workers, and whoever of them dies."""

import os

import pytest

from tests.app.runs import run_app
from tests.app.tiers.test_served import same_runs

MORTAL = "tests.app.own_tasks:Mortal"
# 7 clients are not alike over 2, 3 or 4 workers.
SMALL = {"num_clients": 7, "batch_size": 8, "local_epochs": 1, "learning_rate": 0.1, "fine_tune_steps": 2}
TWO_TIERS = {"num_edges": 3}
STATEFUL = {
    "cloud_strategy": "FedAdam(eta=0.05)",
    "edge_strategy": "FedAvgM(server_momentum=0.5, server_learning_rate=0.9)",
    "participation": 0.7,
}
CASES = {
    "fedavg": {},
    "sfl-v1": {"optimizer": "adam"},
    "sfl-v2": {"momentum": 0.5, "server_momentum": 0.5},
    "sl": {},
    "h-fedavg": TWO_TIERS | STATEFUL,
    "phsfl": TWO_TIERS,
    "rawhfl": TWO_TIERS | {"selected_per_edge": 1, "max_local_rounds": 2},
}
SPLIT = ("sfl-v1", "sfl-v2", "sl", "phsfl")


def mortal(folder):
    return f"{MORTAL}(folder={str(folder)!r}, driver={os.getpid()})"


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", CASES)
def test_a_worker_that_dies_in_each_tiers_requests_changes_no_bit(ray_here, tmp_path, algorithm, capsys):
    settings = SMALL | CASES[algorithm] | {"algorithm": algorithm, "task": mortal(tmp_path)}
    here = run_app(tmp_path / "here", **settings)
    stages = {"train", "evaluate"} | ({"heads"} if algorithm in SPLIT else set())
    capsys.readouterr()
    there = run_app(tmp_path / "there", engine="ray", ray_workers=len(stages) + 1, **settings)
    assert same_runs(here, there)
    assert {mark.name for mark in tmp_path.glob("died-in-*")} == {f"died-in-{stage}" for stage in stages}
    said = [line for line in capsys.readouterr().out.splitlines() if " died: " in line]
    assert [line.split(": ")[1] for line in said] == [
        f"its nodes go to others, of which {n} are left" for n in range(len(stages), 0, -1)
    ]
