"""What a round of training takes, by a trial beside the run."""

import pytest
import torch

from espalier.app.run.ledger import Side
from tests.app.runs import run_app, same_weights, summary

SMALL = {
    **{"num-clients": 2, "num-edges": 1, "batch-size": 16, "batches-per-epoch": 2, "local-epochs": 1},
    **{"global_rounds": 1, "fine-tune.steps": 0, "fsl-sage.fit-steps": 1},
}
EXAMPLES = 2 * 16
CONV1 = 2 * 8 * 8 * 16 * 9  # of an example: 16 channels of 8 x 8, 9 products each, 2 operations
CONV2 = 2 * 4 * 4 * 32 * 16 * 9
FC1, HEAD, AUXILIARY = 2 * 128 * 64, 2 * 64 * 10, 2 * 16 * 10


def test_bytes_are_counted_as_long_as_somebody_holds_them():
    before, side = torch.zeros(100), Side()
    with side:
        view = before[:50]
        made = before + 1
        assert side.now == side.most == 400
        part = made[10:20]
        del made
        assert side.now == 400
        del part
        assert (side.now, side.most) == (0, 400)
        matrix = torch.ones(3, 5)
        product = matrix @ matrix.T
    assert (side.now, side.most, side.flops) == (60 + 36, 400, 2 * 3 * 5 * 3)
    del product, matrix, view
    assert side.now == 0


def test_what_is_kept_for_the_backward_pass_is_counted():
    """A linear layer keeps its input, which nobody else does, until the gradient has been computed."""
    weight, side = torch.ones(8, 8, requires_grad=True), Side()
    with side:
        loss = ((torch.ones(50, 8) * 2) @ weight).sum()
        kept = side.now
        loss.backward()
    assert kept == 50 * 8 * 4 + 4
    assert side.now == 8 * 8 * 4 + 4


@pytest.fixture(scope="module")
def ledgers(tmp_path_factory):
    names = ("sfl-v1", "cse-fsl", "fedavg")
    folder = tmp_path_factory.mktemp("ledgers")
    return {
        name: summary(run_app(folder / name, algorithm=name, **SMALL, report_ledger=True))["ledger"] for name in names
    }


def test_operations_are_the_arithmetic(ledgers):
    """The backward pass takes as many again for weights and for inputs, but the first layer's inputs."""
    behind = 3 * EXAMPLES * (CONV2 + FC1 + HEAD)
    assert ledgers["sfl-v1"]["client_flops"] == 2 * EXAMPLES * CONV1
    assert ledgers["cse-fsl"]["client_flops"] == EXAMPLES * (2 * CONV1 + 3 * AUXILIARY)
    assert ledgers["sfl-v1"]["edge_flops"] == ledgers["cse-fsl"]["edge_flops"] == 2 * behind
    assert ledgers["fedavg"]["client_flops"] == 2 * EXAMPLES * CONV1 + behind
    assert ledgers["fedavg"]["edge_flops"] == 0


def test_memory_is_that_of_what_each_side_holds(ledgers):
    weights = {"in front": 160, "auxiliary": 170, "whole": 160 + 4640 + 8256 + 650}
    activations = 4 * 16 * 16 * 4 * 4  # of a mini-batch
    for name, block in {"sfl-v1": weights["in front"], "cse-fsl": 330, "fedavg": weights["whole"]}.items():
        # What came, its copy, and a gradient; and the convolution's output before pooling.
        assert 3 * 4 * block < ledgers[name]["client_peak_bytes"]
        assert ledgers[name]["client_peak_bytes"] > 4 * 16 * 16 * 8 * 8
    assert ledgers["cse-fsl"]["client_peak_bytes"] > ledgers["sfl-v1"]["client_peak_bytes"] + activations
    server = 4 * (4640 + 8256 + 650)
    assert ledgers["sfl-v1"]["edge_peak_bytes"] > 2 * server + activations
    assert server < ledgers["cse-fsl"]["edge_peak_bytes"] < ledgers["sfl-v1"]["edge_peak_bytes"]


def test_the_run_notices_nothing_of_it(tmp_path):
    settings = {**SMALL, "algorithm": "sfl-v2"}
    with_ledger = run_app(tmp_path / "with", **settings, report_ledger=True)
    without = run_app(tmp_path / "without", **settings)
    assert same_weights(with_ledger, without)
    assert "ledger" not in summary(without)
