"""What crosses the cuts of a client's model, where what has come, or goes, does not show it: an example does."""

from typing import Any

import torch
from torch import Tensor, nn

from ..shared.crossing import ROWS, SEQUENCES, Crossing, has_ambiguous_axes
from ..shared.cut import Cut, as_blocks
from ..shared.generators import seeded_torch
from ..shared.nested import rows_on
from ..task import ClientTask

IMAGES = 4


def front_crossing(task: ClientTask, first: int, output: Any, num_samples: int) -> Crossing:
    """Return how what the first blocks gave for a mini-batch crosses the cut behind them.

    Parameters
    ----------
    task : ClientTask
        The client's.
    first : int
        How many blocks they are.
    output : Any
        What they gave.
    num_samples : int
        Of the mini-batch.
    """
    if has_ambiguous_axes(output, num_samples) and num_samples > 1:
        return _of_example(task, Cut.of(model := as_blocks(task.model), first).front(model))
    return Crossing.of(output, num_samples)


def tail_crossing(task: ClientTask, tail: int, features: Tensor) -> Crossing:
    """Return how features, which came as rows, are what the blocks from `tail` on take."""
    if features.dim() not in (SEQUENCES, IMAGES):
        return ROWS
    return _of_example(task, Cut(0, tail).server_side(as_blocks(task.model)))


@torch.no_grad()
def _of_example(task: ClientTask, blocks: nn.Sequential) -> Crossing:
    with seeded_torch(0, task.device):  # to prepare an example may draw
        example = task.prepare(rows_on(task.train.inputs, torch.zeros(1, dtype=torch.long), task.device))
    return Crossing.of(blocks.eval()(example), 1)
