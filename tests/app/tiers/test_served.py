"""Edges that workers serve give what the same edges give in one process: weights, metrics and state."""

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord

from espalier.app.checkpoint import load_state
from tests.app.runs import run_app, same_weights
from tests.app.tiers.hosts import SMALL
from tests.app.tiers.served import run_served
from tests.app.tiers.test_two_tiers import same_figures, same_heads

VIDEO = {"dataset": "video-caching", "num_clients": 6, "learning_rate": 0.05}
PLANNED = {"selected_per_edge": 1, "max_local_rounds": 3}
CASES = {
    "h-fedavg": {
        "cloud_strategy": "FedAdam(eta=0.05)",
        "edge_strategy": "FedAvgM(server_momentum=0.5, server_learning_rate=0.9)",
        "participation": 0.5,
    },
    "hsfl": {"algorithm": "hsfl", "cut_layer": "1,2"},
    "phsfl": {"algorithm": "phsfl", "fine_tune_steps": 3, "num_edges": 3, "num_clients": 7},
    "sfl-v2": {"algorithm": "sfl-v2", "server_optimizer": "adam", "server_learning_rate": 0.01},
    "stream": {"algorithm": "phsfl", "split_transport": "stream", "stream_payload": "int8"},
    "best-cut": PLANNED
    | {"algorithm": "hsfl", "selection": "resource-aware", "cut_layer": "best", "weighting": "equal"},
    "rawhfl": PLANNED | {"algorithm": "rawhfl"},
    "rawhfl-video": PLANNED | VIDEO | {"algorithm": "rawhfl", "selected_per_edge": 2},
    "m1": VIDEO | {"algorithm": "h-fedavg-m1"},
    "m2": PLANNED | {"algorithm": "h-fedavg-m2"},
    "ub": {"algorithm": "h-fedavg-ub"},
    "own-task": {"task": "tests.app.own_tasks:Steered", "algorithm": "phsfl", "batch_size": 8},
}


def state_of(folder, *, left_out=("wall_seconds", "clients")):
    """Return the state that a run left, as plain data; clients' salts are drawn anew in each run."""
    state = load_state(folder / "state.npz")
    return plain({key: value for key, value in state.items() if key not in left_out}), state["clients"].keys()


def plain(value):
    if isinstance(value, ArrayRecord):
        return {name: plain(array.numpy()) for name, array in value.items()}
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, value.tobytes()
    if isinstance(value, dict | ConfigRecord | MetricRecord):
        return {key: plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, list | tuple) else value


def same_runs(left, right):
    assert same_weights(left, right)
    assert same_heads(left, right)
    assert same_figures(left, right, bytes_too=True)
    assert state_of(left) == state_of(right)
    return True


@pytest.mark.parametrize("name", CASES)
def test_served_edges_give_what_one_process_gives(tmp_path, name):
    settings = SMALL | CASES[name]
    here = run_app(tmp_path / "here", **settings)
    served = run_served(tmp_path / "served", **settings)
    assert same_runs(here, served)
