"""Which form of the convolutions of clients side by side is faster, on a CPU and on a GPU.

``python -m benchmarks.convolutions`` computes the convolutions of `small-cnn` on the digits (mini-batches of 16) and of
`cnn` on colour images (32), for 8 clients, with their gradients: one client after the other, in groups, and as batched
matrix products (`espalier.clients.stacked.convolution`). It prints milliseconds for each form, the median of rounds in
turns: CPU time with one thread, and time on the GPU where there is one.
"""

import time
from collections.abc import Callable
from statistics import median

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from espalier.app.tasks.common import set_up_torch
from espalier.clients.stacked.convolution import as_products, in_groups

CLIENTS, ROUNDS = 8, 20
# A layer's input and output channels, the side of its inputs in pixels, and the mini-batch.
LAYERS = {
    "small-cnn, first": (1, 16, 8, 16),
    "small-cnn, second": (16, 32, 4, 16),
    "cnn, first": (3, 64, 32, 32),
    "cnn, second": (64, 128, 8, 32),
}


def main() -> None:
    """Measure and print."""
    for device in ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",):
        set_up_torch(device, 1)
        print(f"{device:<22}{'alone':>10}{'in groups':>12}{'products':>12}   ms for {CLIENTS} clients")
        for name, (channels, filters, side, batch) in LAYERS.items():
            layer = nn.Conv2d(channels, filters, 3, padding=1)
            shapes = [(batch, CLIENTS * channels, side, side), (CLIENTS, *layer.weight.shape), (CLIENTS, filters)]
            inputs, *weights = [torch.randn(shape, device=device) for shape in shapes]
            if device == "cpu":
                inputs = inputs.contiguous(memory_format=torch.channels_last)  # as in StackedModel
            inputs.requires_grad_(name.endswith("second"))  # nobody needs the gradient of a client's images
            tensors = [inputs, *(one.requires_grad_() for one in weights)]
            forms = (alone, in_groups, as_products)
            times = [[seconds(form, layer, tensors) for form in forms] for _ in range(ROUNDS)]
            one, groups, products = (1e3 * median(column) for column in zip(*times[1:], strict=True))
            print(f"{name:<22}{one:>10.3f}{groups:>12.3f}{products:>12.3f}")


def alone(layer: nn.Conv2d, weight: Tensor, bias: Tensor, inputs: Tensor) -> Tensor:
    """Return what the other forms do, one model after the other."""
    own = zip(inputs.chunk(len(weight), 1), weight, bias, strict=True)
    return torch.cat([F.conv2d(*one, layer.stride, layer.padding) for one in own], 1)


def seconds(form: Callable[..., Tensor], layer: nn.Conv2d, tensors: list[Tensor]) -> float:
    """Return the time of a forward and a backward pass."""
    inputs, weight, bias = tensors
    on_cpu = inputs.device.type == "cpu"
    clock = time.process_time if on_cpu else time.perf_counter
    began = clock()
    outputs = form(layer, weight, bias, inputs)
    torch.autograd.grad(outputs.sum(), [one for one in tensors if one.requires_grad])
    if not on_cpu:
        torch.cuda.synchronize()
    return clock() - began


if __name__ == "__main__":
    main()
