"""How a model computes: in which numbers, and with its images laid out how."""

from dataclasses import dataclass
from types import MethodType
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from .nested import map_tensors, tensors_of

Model = TypeVar("Model", bound=nn.Module)


@dataclass(frozen=True)
class Arithmetic:
    """How a model computes; its weights, and what goes from block to block, are float32 with any.

    Parameters
    ----------
    in_bfloat16 : bool (default: False)
        Products and convolutions are of numbers with 8 bits of mantissa, in PyTorch's automatic mixed precision.
    channels_last : bool (default: False)
        The channels of a pixel lie together in memory.
    """

    in_bfloat16: bool = False
    channels_last: bool = False

    def of(self, model: Model) -> Model:
        """Return the model, which computes so from now on; so do its copies, and those of its blocks.

        Each block of an nn.Sequential computes by itself, so a model computes the same wherever it is cut.
        """
        if self.channels_last:
            model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        if self.in_bfloat16:
            for block in _blocks_of(model):
                # Bound, so that a copy of the block calls its own.
                block.forward = MethodType(_in_bfloat16, block)
        return model


AS_USUAL = Arithmetic()


def _blocks_of(model: nn.Module) -> list[nn.Module]:
    if isinstance(model, nn.Sequential) and type(model).forward is nn.Sequential.forward:
        return list(model)
    return [model]


def _in_bfloat16(block: nn.Module, *inputs: Any) -> Any:
    (device, *_) = {tensor.device.type for tensor in tensors_of(inputs)}
    # Nothing to keep: a block's weights are read once in a pass, and may be others in the next.
    with torch.autocast(device, torch.bfloat16, cache_enabled=False):
        return map_tensors(_as_float32, type(block).forward(block, *inputs))


def _as_float32(values: Tensor) -> Tensor:
    return values.float() if values.dtype == torch.bfloat16 else values
