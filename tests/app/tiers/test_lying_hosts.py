"""A run of the cloud over edge hosts of which one lies: it is left out, or what it says is cut short."""

import numpy as np
import pytest
from flwr.app import ArrayRecord

from espalier.app.ground import checkpoint
from espalier.app.ground.checkpoint import from_bytes, load_state, to_bytes
from espalier.app.tiers.edge_host import EdgeRun
from tests.app.runs import lines, summary
from tests.app.tiers.hosts import SMALL, edge_hosts, run_cloud

CLIENTS_OF = {"edge-0": [0, 1], "edge-1": [2, 3]}


class Text:
    """Stands for an ArrayRecord of text, as any other program can send one."""


@pytest.fixture
def lying(monkeypatch):
    """Return a function that lets edge-1 send what another one makes of its answers to requests to train."""
    pack, honest = checkpoint._pack, EdgeRun.answer

    def packed(value, arrays):
        if not isinstance(value, Text):
            return pack(value, arrays)
        arrays.append(np.array(["x"]))
        return {"arrays": {"dict": [["w", {"array": len(arrays) - 1}]]}}

    def lying(lie, kind="train.edge"):
        def answer(self, message_type, request):
            data = honest(self, message_type, request)
            return to_bytes(lie(from_bytes(data))) if (self.name, message_type) == ("edge-1", kind) else data

        monkeypatch.setattr(checkpoint, "_pack", packed)
        monkeypatch.setattr(EdgeRun, "answer", answer)

    return lying


def run_with_hosts(tmp_path, short_path, **settings):
    settings = SMALL | settings
    with edge_hosts(short_path, CLIENTS_OF, **settings) as hosts:
        return run_cloud(tmp_path / "cloud", hosts, **settings)


def reasons(folder, scope="edge"):
    return [one["reason"] for line in lines(folder, scope) for one in line["failures"]]


def test_text_in_a_state_leaves_its_edge_out(tmp_path, short_path, lying):
    lying(lambda told: told | {"state": {"edge": {"w": Text()}, "world": None}})
    folder = run_with_hosts(tmp_path, short_path)
    assert [line["edges_left_out"] for line in lines(folder, "global")] == [["edge-1"]] * 2
    assert set(reasons(folder)) == {"its answer can't be read: it is not packed data (ValueError)"}
    assert load_state(folder / "state.npz")["round"] == 2


def test_failures_without_number_are_one_for_each_client(tmp_path, short_path, lying):
    def lie(told):
        told["rounds"][0]["failures"] = [(2, "a reason")] * 10_000
        return told

    lying(lie)
    folder = run_with_hosts(tmp_path, short_path)
    assert reasons(folder) == ["a reason"] * 2
    assert summary(folder)["replies_left_out"] == 2
    assert (folder / "metrics.jsonl").stat().st_size < 10_000


@pytest.mark.usefixtures("with_blank_pictures")
def test_kinds_of_bytes_that_there_are_not_leave_their_edge_out(tmp_path, short_path, lying, with_plots):
    def lie(told):
        told["counted"]["sent"].append(("uplink", "x" * 2 * 10**7, 1))
        return told

    lying(lie)
    folder = run_with_hosts(tmp_path, short_path, global_rounds=1)
    assert [line["edges_left_out"] for line in lines(folder, "global")] == [["edge-1"]]
    assert (folder / "metrics.jsonl").stat().st_size < 10_000
    assert (folder / "bytes.png").exists()


@pytest.mark.parametrize("heads", ["another shape", "none"])
def test_heads_that_are_none_of_the_model_leave_their_edge_out(tmp_path, short_path, lying, heads):
    def lie(told):
        cut = {
            client: ArrayRecord({name: type(array)(array.numpy()[1:]) for name, array in head.items()})
            for client, head in told["heads"].items()
        }
        return told | {"heads": cut if heads == "another shape" else {}}

    lying(lie, "train.edge_heads")
    folder = run_with_hosts(tmp_path, short_path, algorithm="phsfl", fine_tune_steps=2, global_rounds=1)
    (line,) = lines(folder, "personalised")
    assert list(line["clients"]) == ["0", "1"]
    assert len(reasons(folder, "personalised")) == 1
