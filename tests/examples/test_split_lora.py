import importlib
from pathlib import Path

import pytest
import torch

from espalier.app.command_line import main
from espalier.app.meters.bytes import record_bytes
from espalier.clients.shared.arrays import to_record
from tests.app.runs import lines, run_app, same_weights, summary, weights

EXAMPLE = Path(__file__).parents[2] / "examples" / "split-lora"
RANKS, CUTS = (2, 4), (1, 1, 2, 2)
ARGUMENTS = f"(layers=2, size=16, ranks={RANKS}, passages=24)"
SMALL = {"task": f"split_lora.text:NextCharacter{ARGUMENTS}", "optimizer": "adam", "learning_rate": 0.01}
SMALL |= {"engine": "in-process", "num_clients": 4, "edge_rounds": 1, "local_epochs": 2, "fine_tune_steps": 0}
SPLIT = SMALL | {"algorithm": "hsfl", "cut_layer": ",".join(map(str, CUTS)), "global_rounds": 3}
# Whole models have no edge's blocks, so each client's rank is for those blocks alone that it has where it is cut.
IN_FLOAT64 = f"""
from split_lora.text import NextCharacter

class Double(NextCharacter):
    def model(self):
        return super().model().double()

    def corner(self, client, name, shape):
        is_own = name.startswith(("stem.", "transformer_h_1.")[:{CUTS}[client]])
        return super().corner(client, name, shape) if is_own else shape
"""


@pytest.fixture(autouse=True)
def _importable(monkeypatch):
    pytest.importorskip("transformers")
    monkeypatch.syspath_prepend(EXAMPLE)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run of two tiers, with a rank and a cut for each client."""
    pytest.importorskip("transformers")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(EXAMPLE)
        yield run_app(tmp_path_factory.mktemp("lora") / "run", **SPLIT)


def adapters(blocks, rank):
    """Return the values of the adapters of a layer of these blocks: of a layer 16 wide, and of the head."""
    layer = (16 + 48) + (16 + 16) + (16 + 64) + (64 + 16)  # attention in and out, and both of the small network
    return rank * (layer * blocks)


def test_adapters_alone_travel_and_each_client_gets_those_of_its_rank_and_its_blocks(trained):
    model = weights(trained)
    assert {name.rpartition(".")[2] for name in model} == {"down", "up"}
    assert {name.split(".")[0] for name in model} == {"stem", "transformer_h_1", "head"}
    assert sum(weight.numel() for weight in model.values()) == adapters(2, 4) + 4 * (16 + 96)

    of_rank = importlib.import_module("split_lora.adapters").of_rank
    sent = 0
    for client in range(4):
        blocks = ("stem.", "transformer_h_1.")[: CUTS[client]]
        own = {n: w[tuple(map(slice, of_rank(n, w.shape, RANKS[client % 2])))] for n, w in model.items()}
        own = {name: weight.contiguous() for name, weight in own.items() if name.startswith(blocks)}
        assert sum(weight.numel() for weight in own.values()) == adapters(CUTS[client], RANKS[client % 2])
        sent += record_bytes(to_record(own))
    # In each of 3 rounds; and each of 2 edges gets and gives all adapters.
    for direction in ("uplink", "downlink"):
        edge, cloud = (summary(trained)["bytes_by_kind"][tier][direction] for tier in ("edge", "cloud"))
        assert edge["client-block"] == 3 * sent
        assert cloud["model"] == 3 * 2 * record_bytes(to_record(model))
    assert not any(line["failures"] for line in lines(trained, "edge"))


def test_perplexity_falls_and_is_printed_before_and_after(trained):
    before, after = importlib.import_module("split_lora.perplexity").perplexities(trained)
    assert after == pytest.approx(summary(trained)["test"]["perplexity"], rel=1e-6)
    assert before > 96  # worse than a guess among all characters
    assert after < 0.6 * before


def test_it_is_resumed_to_the_same_bits(trained, tmp_path):
    folder = run_app(tmp_path / "run", **SPLIT | {"global_rounds": 2})
    assert main([f"resume={folder}", "global-rounds=3"]) == 0
    assert same_weights(trained, folder)


def test_split_is_unsplit_with_a_rank_and_a_cut_for_each_client(tmp_path, monkeypatch):
    (tmp_path / "in_float64.py").write_text(IN_FLOAT64)
    monkeypatch.syspath_prepend(tmp_path)
    task = {"task": f"in_float64:Double{ARGUMENTS}", "global_rounds": 2}
    split = run_app(tmp_path / "split", **SPLIT | task)
    whole = run_app(tmp_path / "whole", algorithm="h-fedavg", **SMALL | task)
    assert weights(split).keys() == weights(whole).keys()
    for name, values in weights(whole).items():
        assert values.dtype == torch.float64
        assert not name.endswith("up") or values.abs().max() > 0.001  # which start at 0
        torch.testing.assert_close(weights(split)[name], values, rtol=0, atol=1e-12)
    assert summary(split)["test"] == pytest.approx(summary(whole)["test"], abs=1e-9)


def test_streams_give_the_same_bits(trained, tmp_path):
    assert same_weights(trained, run_app(tmp_path / "run", split_transport="stream", **SPLIT))
