import importlib
from pathlib import Path

import pytest
import torch

import espalier.app.tasks.torchvision_compat  # noqa: F401, beside some builds of PyTorch peft can't do without
from espalier.app.meters.bytes import record_bytes
from espalier.clients.shared.arrays import to_record
from tests.app.runs import lines, run_app, same_weights, summary, weights

EXAMPLE = Path(__file__).parents[2] / "examples" / "split-lora"
ARGUMENTS = "(layers=2, size=16, rank=4, passages=48)"
SMALL = {"task": f"split_lora.text:NextCharacter{ARGUMENTS}", "optimizer": "adam", "learning_rate": 0.005}
SMALL |= {"engine": "in-process", "num_clients": 4, "edge_rounds": 1, "local_epochs": 1, "global_rounds": 1}
SPLIT = SMALL | {"algorithm": "hsfl"}
IN_FLOAT64 = """
from split_lora.text import NextCharacter

class Double(NextCharacter):
    def model(self):
        return super().model().double()
"""


@pytest.fixture(autouse=True)
def _importable(monkeypatch):
    pytest.importorskip("transformers")
    pytest.importorskip("peft")
    monkeypatch.syspath_prepend(EXAMPLE)


def test_adapters_alone_train_and_travel_and_the_loss_falls(tmp_path):
    start = importlib.import_module("split_lora.text").NextCharacter(layers=2, size=16, rank=4).model()
    folder = run_app(tmp_path / "run", **SPLIT | {"global_rounds": 3, "local_epochs": 3, "fine_tune_steps": 0})
    model, final = weights(folder), summary(folder)
    adapters = {name for name, _ in start.named_parameters() if ".lora_A." in name or ".lora_B." in name}
    assert set(model) == adapters
    assert {name.split(".")[0] for name in adapters} == {"stem", "transformer_h_1", "head"}
    assert sum(weight.numel() for weight in model.values()) == 2 * 1024 + 448  # of two layers, and of the head

    first, *_, last = (line["loss"]["mean"] for line in lines(folder, "global"))
    assert last < first - 0.3
    assert not any(line["failures"] for line in lines(folder, "edge"))  # nobody's activations grew beyond the guard's

    # Each of 4 clients gets and gives the adapters of the first block in each of 3 rounds, and each of 2 edges all.
    stem = {name: weight for name, weight in model.items() if name.startswith("stem.")}
    for direction in ("uplink", "downlink"):
        edge, cloud = (final["bytes_by_kind"][tier][direction] for tier in ("edge", "cloud"))
        assert edge["client-block"] == 3 * 4 * record_bytes(to_record(stem))
        assert cloud["model"] == 3 * 2 * record_bytes(to_record(model))


@pytest.mark.parametrize("cut", [1, 2])
def test_split_is_unsplit(tmp_path, monkeypatch, cut):
    (tmp_path / "in_float64.py").write_text(IN_FLOAT64)
    monkeypatch.syspath_prepend(tmp_path)
    task = {"task": f"in_float64:Double{ARGUMENTS}"}
    split = run_app(tmp_path / "split", cut_layer=cut, **SPLIT | task | {"fine_tune_steps": 0})
    whole = run_app(tmp_path / "whole", algorithm="h-fedavg", **SMALL | task)
    assert weights(split).keys() == weights(whole).keys()
    for name, values in weights(whole).items():
        assert values.dtype == torch.float64
        assert "lora_B" not in name or values.abs().max() > 0.001  # which start at 0
        torch.testing.assert_close(weights(split)[name], values, rtol=0, atol=1e-12)


def test_messages_and_evaluation_through_the_cut_give_the_same(tmp_path):
    first = run_app(tmp_path / "1", **SPLIT)
    again = run_app(tmp_path / "2", split_evaluate="split", split_execution="messages", **SPLIT)
    assert same_weights(first, again)
    assert summary(first)["test"] == summary(again)["test"]
    assert summary(first)["personalised"] == summary(again)["personalised"]
