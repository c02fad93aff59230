"""Models that compute in bfloat16, or with channels last: by themselves, in copies, and cut."""

from copy import deepcopy

import pytest
import torch
from torch import nn

from espalier.app.tasks.models import build_model
from espalier.clients.shared.arithmetic import AS_USUAL, Arithmetic

NARROW, LAST = Arithmetic(in_bfloat16=True), Arithmetic(channels_last=True)
FORMS = [NARROW, LAST, Arithmetic(in_bfloat16=True, channels_last=True)]


def images(count=4):
    return torch.rand(count, 3, 8, 8, generator=torch.Generator().manual_seed(0))


def small():
    return build_model("small-cnn", image_shape=(3, 8, 8), num_classes=10, seed=0)


class Twice(nn.Module):
    """A model that is no row of blocks."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 6)

    def forward(self, inputs):
        return {"sum": self.layer(self.layer(inputs["left"])) + inputs["right"], "count": inputs["count"]}


def test_as_usual_a_model_is_as_it_was():
    model = small()
    assert AS_USUAL.of(model) is model
    assert torch.equal(model(images()), small()(images()))


def test_a_product_is_that_of_numbers_rounded_to_bfloat16():
    model = NARROW.of(nn.Sequential(nn.Linear(6, 5)))
    inputs = torch.rand(3, 6)
    layer = model[0]
    narrow = nn.functional.linear(inputs.bfloat16(), layer.weight.bfloat16(), layer.bias.bfloat16())
    assert torch.equal(model(inputs), narrow.float())


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_a_model_computes_nearly_the_same_in_float32_weights_and_gradients(form):
    usual, model = small(), form.of(small())
    assert all(torch.equal(a, b) for a, b in zip(usual.state_dict().values(), model.state_dict().values(), strict=True))
    outputs = [one(images()) for one in (usual, model)]
    for one in outputs:
        one.square().sum().backward()
    tolerance = 0.05 if form.in_bfloat16 else 1e-5
    pairs = [
        [one.detach() for one in outputs],
        *zip(*([p.grad for p in one.parameters()] for one in (usual, model)), strict=True),
    ]
    for expected, found in pairs:
        assert found.dtype == torch.float32
        assert float((found - expected).norm() / expected.norm()) < tolerance
    assert not (form.in_bfloat16 and torch.equal(*outputs))
    if form.channels_last:
        assert model[0][0].weight.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_a_model_computes_the_same_wherever_it_is_cut(form):
    model = form.of(small())
    for cut in range(1, len(model)):
        front, back = deepcopy(model[:cut]), deepcopy(model[cut:])
        crossing = front(images()).clone(memory_format=torch.contiguous_format)
        assert crossing.dtype == torch.float32
        assert torch.equal(model(images()), back(crossing)) or form.channels_last
        assert torch.equal(model(images()), back(front(images())))


def test_a_copy_computes_with_weights_of_its_own():
    model = NARROW.of(small())
    before, copied = model(images()), deepcopy(model)
    with torch.no_grad():
        for weights in copied.parameters():
            weights.zero_()
    assert not copied(images()).any()
    assert torch.equal(model(images()), before)


def test_inputs_and_outputs_of_any_nesting_keep_what_is_no_such_number():
    inputs = {"left": torch.rand(2, 6), "right": torch.rand(2, 6), "count": torch.tensor([3, 4])}
    found = NARROW.of(Twice())(inputs)
    assert found["sum"].dtype == torch.float32
    assert torch.equal(found["count"], inputs["count"])


def test_outside_of_a_model_numbers_are_as_wide_as_before():
    model = NARROW.of(small())
    with pytest.raises(RuntimeError):
        model(torch.rand(1, 4, 8, 8))
    assert not torch.is_autocast_enabled("cpu")
    assert nn.Linear(3, 2)(torch.rand(1, 3)).dtype == torch.float32
