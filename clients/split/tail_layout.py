"""How what comes into a client's tail lies in memory where the model is whole."""

import torch
from torch import Tensor

from ..shared.cut import Cut, as_blocks
from ..shared.generators import seeded_torch
from ..shared.layouts import layout_of
from ..shared.nested import rows_on
from ..task import ClientTask


@torch.no_grad()
def tail_layout(task: ClientTask, tail: int, features: Tensor) -> torch.memory_format:
    """Return the layout of features, which travel in another way; an example shows that of images (N, C, H, W)."""
    if features.dim() != 4:
        return torch.contiguous_format
    blocks = Cut(0, tail).server_side(as_blocks(task.model)).eval()
    with seeded_torch(0, task.device):  # to prepare an example may draw
        example = task.prepare(rows_on(task.train.inputs, torch.zeros(1, dtype=torch.long), task.device))
    return layout_of(blocks(example))
