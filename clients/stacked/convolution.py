"""The convolutions of n models at once, of inputs (B, n * C, H, W), in two forms with equal results to rounding.

On a CPU a convolution in n groups is the faster one. A batch of n matrix products is for GPUs, which have kernels for
it. ``python -m benchmarks.convolutions`` tells which is the faster on a machine.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def in_groups(layer: nn.Conv2d, weight: Tensor, bias: Tensor | None, inputs: Tensor) -> Tensor:
    """Return the outputs (B, n * O, H', W') as one convolution in n times the layer's groups.

    Parameters
    ----------
    layer : nn.Conv2d
        One model's layer, for its settings; `padding_mode` is "zeros".
    weight : Tensor
        The models' kernels, (n, O, C / groups, kernel height, kernel width).
    bias : Tensor or None
        (n, O).
    inputs : Tensor
        (B, n * C, H, W).
    """
    offset = None if bias is None else bias.flatten()
    groups = len(weight) * layer.groups
    return F.conv2d(inputs, weight.flatten(0, 1), offset, layer.stride, layer.padding, layer.dilation, groups)


def as_products(layer: nn.Conv2d, weight: Tensor, bias: Tensor | None, inputs: Tensor) -> Tensor:
    """Return what `in_groups` does, as a batch of products of kernels and the windows that they meet.

    The windows are copied out: an input takes kernel height * kernel width / (stride height * stride width) times its
    memory.
    """
    windows = F.pad(inputs, _padding(layer))
    for dim, size, stride, dilation in zip((2, 3), layer.kernel_size, layer.stride, layer.dilation, strict=True):
        windows = windows.unfold(dim, dilation * (size - 1) + 1, stride)
        if dilation > 1:
            windows = windows[..., ::dilation]
    batches, _, height, width, *_ = windows.shape
    groups = len(weight) * layer.groups
    # (groups, C / groups, kernel height, kernel width, B, H', W'), so that the innermost axis is read along a row.
    columns = windows.unflatten(1, (groups, -1)).permute(1, 2, 5, 6, 0, 3, 4)
    kernels = weight.reshape(groups, -1, weight[0, 0].numel())
    columns = columns.reshape(groups, kernels.shape[2], batches * height * width)
    if bias is None:
        outputs = torch.bmm(kernels, columns)
    else:
        outputs = torch.baddbmm(bias.reshape(groups, -1, 1), kernels, columns)
    return outputs.unflatten(2, (batches, height, width)).permute(2, 0, 1, 3, 4).flatten(1, 2)


def _padding(layer: nn.Conv2d) -> list[int]:
    """Return the zeros to the left and right, above and below."""
    if layer.padding == "valid":
        return [0] * 4
    if isinstance(layer.padding, tuple):
        height, width = layer.padding
        return [width, width, height, height]
    totals = [dilation * (size - 1) for size, dilation in zip(layer.kernel_size, layer.dilation, strict=True)]
    return [side for total in reversed(totals) for side in (total // 2, total - total // 2)]
