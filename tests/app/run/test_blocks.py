"""``espalier blocks``: every cut with what it takes, as the model itself has it."""

from collections import OrderedDict

import pytest
import torch
from torch import nn

from espalier.app.command_line import main
from espalier.app.run.blocks import blocks_of, blocks_table, in_units
from espalier.app.tasks.models import build_model
from tests.app.runs import run_app, same_weights


class Images:
    def __init__(self, shape):
        self.shape = shape

    def example_input(self):
        return torch.zeros(1, *self.shape)


@pytest.mark.parametrize(("name", "shape"), [("small-cnn", (1, 8, 8)), ("resnet18", (3, 32, 32))])
def test_sizes_are_those_of_the_model(name, shape):
    model = build_model(name, image_shape=shape, num_classes=10, seed=0)
    blocks = blocks_of(Images(shape), model)
    assert [block.name for block in blocks] == [name for name, _ in model.named_children()]
    values, model = torch.zeros(1, *shape), model.eval()
    so_far = 0
    for block, layer in zip(blocks, model, strict=True):
        values = layer(values)
        so_far += sum(tensor.nbytes for tensor in layer.state_dict().values())
        assert block.client_weights == so_far
        if not block.no_cut:
            assert block.shape == tuple(values.shape[1:])
            assert block.activations == values.nbytes
    assert sum(block.weights for block in blocks) == so_far
    assert [block.client_flops for block in blocks] == sorted(block.client_flops for block in blocks)
    assert [block.no_cut for block in blocks if block.no_cut] == ["the head"]
    assert max(map(len, blocks_table(blocks, "model").splitlines())) <= 80


def test_the_table_has_names_as_a_model_has_them():
    model = nn.Sequential(OrderedDict({"conv[a]": nn.Linear(4, 8), "head": nn.Linear(8, 3)}))
    assert "conv[a]" in blocks_table(blocks_of(Images((4,)), model), "blocks of [b]")


def test_operations_are_counted():
    blocks = blocks_of(Images((4,)), nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 3)))
    assert [block.client_flops for block in blocks] == [2 * 4 * 8, 2 * (4 * 8 + 8 * 3)]


def test_blocks_that_share_a_weight_are_named():
    first, head = nn.Linear(4, 4), nn.Linear(4, 4)
    head.weight = first.weight
    assert blocks_of(Images((4,)), nn.Sequential(first, head))[0].no_cut == "1.weight is on both sides"


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0"), (999, "999"), (1000, "1 k"), (18_432, "18.43 k"), (44_788_000, "44.79 M")],
)
def test_counts_have_units(count, text):
    assert in_units(count) == text


def test_it_is_printed(capsys):
    assert main(["blocks"]) == 0
    printed = capsys.readouterr().out
    assert "dataset = 'digits', model = 'auto': 4 blocks" in printed
    assert [name for name in ("conv1", "conv2", "fc1", "the head") if name in printed] == [
        "conv1",
        "conv2",
        "fc1",
        "the head",
    ]


def test_a_mistake_is_one_line(capsys):
    assert main(["blocks", "model=resnet18"]) == 2
    assert capsys.readouterr().err.startswith("error: model = 'resnet18': allowed is ")


def test_a_cut_by_name_is_the_cut_by_number(tmp_path):
    tiny = {"algorithm": "hsfl", "num_clients": 2, "num_edges": 1, "global_rounds": 1, "batches_per_epoch": 1}
    by_number = run_app(tmp_path / "number", cut_layer="2,1", **tiny)
    by_name = run_app(tmp_path / "name", cut_layer="conv2, conv1", **tiny)
    assert same_weights(by_number, by_name)
    assert (by_number / "summary.json").read_text().count("bits") == (by_name / "summary.json").read_text().count(
        "bits"
    )
