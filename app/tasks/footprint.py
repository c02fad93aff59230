"""What images take in memory, known before any is decoded: a process that takes too much is killed without a word."""

import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from torch import Tensor, nn

from espalier.app.ground.errors import UserError
from espalier.clients.device.machine import memory_bytes


def refuse_too_large(image_shape: tuple[int, int, int], takes: Mapping[str, int]) -> None:
    """Raise UserError if what images of a shape (C, H, W) take, in bytes by what it is, is more than there is."""
    _, height, width = image_shape
    available, total = available_bytes(), sum(takes.values())
    if total > available:
        parts = ", ".join(f"{what} {count:,}" for what, count in takes.items())
        raise UserError(
            f"images of {width}x{height} take at least {total:,} bytes of memory ({parts}): allowed is what fits into "
            f"{available:,}; a smaller data.image-size, or batch-size, takes less"
        )


def available_bytes() -> int:
    """Return the memory that this process can still get: what Linux says, else all of the machine's."""
    limits = [memory_bytes() or sys.maxsize]
    with suppress(OSError, ValueError):  # there is none
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        limits += [1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")]
    with suppress(OSError, ValueError):
        limits.append(int(Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii")))  # a container's
    return min(limits)


def weight_bytes(model: nn.Module) -> int:
    """Return what the weights of a model take."""
    return sum(tensor.nbytes for tensor in model.state_dict().values())


def layer_bytes(model: nn.Module, example: Tensor) -> int:
    """Return what goes into and comes out of the layer for which that is most, for an example of a mini-batch.

    Parameters
    ----------
    model : nn.Module
        On the device ``meta``, so that nothing is computed.
    example : Tensor
        On ``meta`` too: a mini-batch of one.
    """
    most = 0

    def note(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        nonlocal most
        most = max(most, output.nbytes + sum(tensor.nbytes for tensor in inputs))

    for layer in model.modules():
        if not list(layer.children()):
            layer.register_forward_hook(note)
    model(example)
    return most
