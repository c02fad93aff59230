"""What blocks pass on over a cut, and how it travels: as a tensor with a row per sample, with lengths beside it.

Between two blocks may be images in either memory layout, sequences whose first axis is time, (T, N, ...), and a pair of
sequences and their lengths, as `torch.nn.utils.rnn.pack_padded_sequence` takes them.
"""

from typing import Any, NamedTuple, Self, cast

import numpy as np
import torch
from torch import Tensor

from .layouts import laid_out, layout_of


class Crossing(NamedTuple):
    """How what the one block gives and the other takes differs from rows in PyTorch's usual layout.

    Parameters
    ----------
    layout : torch.memory_format (default: torch.contiguous_format)
        How images lie in memory.
    time_first : bool (default: False)
        The tensor is (T, N, ...).
    has_lengths : bool (default: False)
        It is the first of a pair: the other one are the samples' lengths, whole numbers of shape (N,).
    """

    layout: torch.memory_format = torch.contiguous_format
    time_first: bool = False
    has_lengths: bool = False

    @classmethod
    def of(cls, output: Any, num_samples: int) -> Self:
        """Return how what a block gave for so many samples differs; of one sample no other axis is taken for theirs.

        Raises
        ------
        ValueError
            If it is neither a tensor nor a tensor with lengths.
        """
        values, lengths = parts_of(output)
        time_first = values.dim() == SEQUENCES and values.shape[0] != num_samples and values.shape[1] == num_samples
        return cls(layout_of(values), time_first, lengths is not None)

    def rows(self, output: Any) -> Tensor:
        """Return the tensor of what a block gave, with a row per sample."""
        values, _ = parts_of(output)
        return values.transpose(0, 1) if self.time_first else values

    def given(self, rows: Tensor, lengths: Tensor | None = None) -> Any:
        """Return a copy of rows, and their lengths, as the next block takes them."""
        values = laid_out(rows.transpose(0, 1) if self.time_first else rows, self.layout)
        return (values, lengths) if self.has_lengths else values


SEQUENCES = 3  # dimensions of activations whose first axis may be time: (T, N, E)
ROWS = Crossing()


def parts_of(output: Any) -> tuple[Tensor, Tensor | None]:
    """Return the tensor that a block gave, and the lengths where there are some; ValueError for anything else."""
    if isinstance(output, Tensor):
        return output, None
    if isinstance(output, tuple | list) and len(output) == 2 and all(isinstance(part, Tensor) for part in output):
        values, lengths = cast(tuple[Tensor, Tensor], tuple(output))
        if lengths.dim() == 1 and not (lengths.is_floating_point() or lengths.is_complex()):
            return values, lengths
    raise ValueError(f"a block gives a {type(output).__name__}: allowed are a tensor, or a tensor and lengths (N,)")


def as_numbers(lengths: Tensor | None) -> np.ndarray | None:
    """Return lengths as they travel, int32."""
    return None if lengths is None else lengths.to(torch.int32).cpu().numpy()


def has_ambiguous_axes(output: Any, num_samples: int) -> bool:
    """Return whether sizes do not tell time from samples, because there are as many of both."""
    values, _ = parts_of(output)
    return values.dim() == SEQUENCES and values.shape[0] == values.shape[1] == num_samples
