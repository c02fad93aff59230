"""Convolutions side by side: both forms give what each model's own layer gives, and its gradients."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from espalier.clients.stacked.convolution import as_products, in_groups

LAYERS = {
    "plain": nn.Conv2d(4, 6, 3),
    "padded": nn.Conv2d(4, 6, 3, padding=1),
    "uneven": nn.Conv2d(4, 6, (3, 2), stride=(2, 1), padding=(0, 2), dilation=(1, 3)),
    "in groups": nn.Conv2d(4, 6, 3, padding=1, groups=2),
    "depthwise": nn.Conv2d(4, 8, 3, padding=1, groups=4, bias=False),
    "pointwise": nn.Conv2d(4, 6, 1, stride=2, bias=False),
    "same": nn.Conv2d(4, 6, (2, 3), padding="same", dilation=(3, 1)),
    "valid": nn.Conv2d(4, 6, 2, padding="valid"),
}


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")
@pytest.mark.parametrize("layer", LAYERS.values(), ids=LAYERS)
@pytest.mark.parametrize("form", [in_groups, as_products])
def test_outputs_and_gradients_are_those_of_each_model_alone(layer, form):
    draw = torch.Generator().manual_seed(0)
    shapes = [(5, 4, 9, 8), layer.weight.shape, (layer.out_channels,)][: 2 + (layer.bias is not None)]
    leaves = [torch.randn((3, *shape), generator=draw, dtype=torch.float64).requires_grad_() for shape in shapes]
    inputs, weight, bias = (*leaves, None)[:3]
    how = layer.stride, layer.padding, layer.dilation, layer.groups
    alone = torch.stack(
        [F.conv2d(inputs[i], weight[i], None if bias is None else bias[i], *how) for i in range(3)],
    )
    joined = form(layer, weight, bias, inputs.transpose(0, 1).flatten(1, 2))
    together = joined.unflatten(1, (3, -1)).transpose(0, 1)
    torch.testing.assert_close(together, alone, rtol=0, atol=1e-12)
    upstream = torch.randn(alone.shape, generator=draw, dtype=torch.float64)
    gradients, expected = (torch.autograd.grad(outputs, leaves, upstream) for outputs in (together, alone))
    torch.testing.assert_close(gradients, expected, rtol=0, atol=1e-12)
