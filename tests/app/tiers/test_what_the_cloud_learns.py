"""What an edge's host tells the cloud: of its clients what the page on privacy says, and nothing of their samples."""

import numpy as np
import pytest
from flwr.app import ArrayRecord, MetricRecord

from espalier.app.ground.checkpoint import from_bytes
from espalier.app.tiers.edge_host import EdgeRun
from espalier.clients.messages.train import ARRAYS
from espalier.strategies.guards.updates import GUARD_STATE
from tests.app.tiers.hosts import SMALL, edge_hosts, run_cloud

CLIENTS_OF = {"edge-0": [0, 1], "edge-1": [2, 3]}
PROFILE = {"client", "num_train_examples", "num_test_examples", "class_counts", "device"}
FRONT, MIDDLE, TAIL = ("conv1.",), ("conv2.", "fc1."), ("head.",)


@pytest.fixture
def told(monkeypatch):
    """Return the answers of all edges' hosts, by the kind of request."""
    answers, original = {}, EdgeRun.answer

    def answer(self, message_type, request):
        data = original(self, message_type, request)
        answers.setdefault(message_type, []).append(from_bytes(data))
        return data

    monkeypatch.setattr(EdgeRun, "answer", answer)
    return answers


def arrays_in(value):
    """Return all arrays in an answer."""
    if isinstance(value, dict | ArrayRecord | MetricRecord):
        return [array for item in value.values() for array in arrays_in(item)]
    if isinstance(value, list | tuple):
        return [array for item in value for array in arrays_in(item)]
    return [value] if hasattr(value, "shape") else []


@pytest.mark.parametrize("tail", ["none", "head"])
def test_the_cloud_gets_models_figures_and_class_counts(tmp_path, short_path, told, tail):
    settings = SMALL | {"algorithm": "phsfl", "tail_layer": tail, "evaluate": "split", "fine_tune_steps": 2}
    settings |= {"global_rounds": 1}
    with edge_hosts(short_path, CLIENTS_OF, **settings) as hosts:
        run_cloud(tmp_path / "cloud", hosts, **settings)
    assert set(told) == {"query.edge", "train.edge", "evaluate.edge", "train.edge_heads"}
    for answer in told["query.edge"]:
        assert set(answer) == {"name", "config", "clients", "state", "version"}
        assert all(set(client) == PROFILE for client in answer["clients"])
    for answer in told["train.edge"]:
        assert set(answer) == {"sent", "rounds", "counted", "state", "config"}
        assert all(
            name.startswith(FRONT + MIDDLE) for name in answer["sent"][ARRAYS]
        )  # the head is frozen, at the edge
        parts = {"trained", "metrics", "weight", "participants", "failures"}
        assert all(set(one) == parts and set(one["metrics"]) == {"train_loss"} for one in answer["rounds"])
    for answer in told["evaluate.edge"]:
        assert set(answer) == {"metrics", "weight", "replies", "failures", "counted", "state", "config"}
        assert all(set(own) == {"loss", "accuracy", "num-examples"} for own in answer["replies"].values())
    for answer in told["train.edge_heads"]:
        assert set(answer) == {"heads", "metrics", "failures", "counted", "state", "config"}
        assert len(answer["heads"]) == (2 if tail == "none" else 0)
        assert all(name.startswith(TAIL) for head in answer["heads"].values() for name in head)
    for answers in told.values():
        for answer in answers:
            assert answer["state"]["edge"].keys() <= {"evaluation", GUARD_STATE}
            # Registered labels, indices and tensors of mini-batches would be vectors of integers, or come in batches.
            assert not [a for a in arrays_in(answer["state"]) if np.prod(a.shape) > 1]
