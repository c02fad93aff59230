"""Local training of several clients at once, each from its own weights on its own mini-batches.

What comes out is what `espalier.clients.whole.training` gives for each of them, to rounding.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ..randomness import client_generator
from ..shared.generators import kept_torch
from ..shared.local_round import WHOLE_PASS, Pass
from ..task import ClientTask, LocalTraining
from ..whole.training import batches_there, round_batches
from .blocks import StackedBlocks
from .correction import StackedCorrection
from .losses import stacked_losses
from .model import StackedModel, beside


def stacked_sgd(
    model: StackedModel,
    tasks: Sequence[ClientTask],
    starts: Sequence[Mapping[str, Tensor]],
    server_round: int,
    trainings: Sequence[LocalTraining],
    dues: Sequence[Pass] = (),
) -> tuple[list[dict[str, Tensor]], list[float]]:
    """Train several clients; return the states of their models, and their mean losses over the examples seen.

    Parameters
    ----------
    model : StackedModel
        Computes the models.
    tasks : Sequence[ClientTask]
        The clients.
    starts : Sequence[Mapping[str, Tensor]]
        The state that each one's model starts from.
    server_round : int
        Selects the mini-batches, and what dropout drops.
    trainings : Sequence[LocalTraining]
        How each trains; they differ in `local_epochs` alone.
    dues : Sequence[Pass] (default: all of the models, on all mini-batches)
        What trains in each, on which mini-batches, and what corrects its steps; they are `alike`.

    Raises
    ------
    ValueError
        If a client has nothing to train on in this round.

    Notes
    -----
    In step k those clients advance that have a k-th mini-batch, and together those whose k-th mini-batches are equally
    large. So no mini-batch is padded, and BatchNorm's statistics are those of each one's own.
    """
    dues = dues or [WHOLE_PASS] * len(tasks)
    each = list(zip(tasks, trainings, dues, strict=True))
    batches = [round_batches(task, server_round, training, due) for task, training, due in each]
    numbers = [due.batches or range(len(own)) for due, own in zip(dues, batches, strict=True)]
    there = [list(batches_there(task.train, own)) for task, own in zip(tasks, batches, strict=True)]
    dropout = [client_generator(t.seed, t.partition_id, server_round, due.dropout_purpose()) for t, _, due in each]
    trained = dues[0].among([name for name, weights in tasks[0].model.named_parameters() if weights.requires_grad])
    device = tasks[0].device
    blocks = StackedBlocks(model, starts, trained, trainings[0], device)
    states_of_optimizers = [due.optimizer for due in dues]
    before = blocks.go_on([own.held if own else None for own in states_of_optimizers])
    corrected = StackedCorrection([due.correction for due in dues], trained, device)
    precision = torch.promote_types(torch.float32, next(tasks[0].model.parameters()).dtype)
    totals, seen = torch.zeros(len(tasks), device=device, dtype=precision), torch.zeros(len(tasks))
    for number in range(max(map(len, batches))):
        for rows, size in of_equal_size(batches, number):
            examples = [(tasks[row], there[row][number]) for row in rows]
            draws = [dropout[row] for row in rows]
            inputs = [
                prepared(*one, server_round, numbers[row][number], own)
                for row, one, own in zip(rows, examples, draws, strict=True)
            ]
            made = blocks.forward(rows, beside(inputs), draws)
            losses = mini_batch_losses(examples, made.outputs)
            # Of the sum, since no client's loss depends on the weights of another.
            gradients = list(torch.autograd.grad(losses.sum(), made.leaves))
            blocks.step(made, corrected.pulled(rows, made.leaves, gradients), before + number + 1)
            corrected.drift(rows, blocks, trainings[0].learning_rate)
            totals[rows] += losses.detach().to(precision) * size
            seen[rows] += size
    for row, own in enumerate(states_of_optimizers):
        if own is not None:
            own.held = blocks.held(row, before + len(batches[row]))
    states = [blocks.state(row) for row in range(len(tasks))]
    return states, (totals.cpu() / seen.clamp(min=1)).tolist()


def prepared(task: ClientTask, batch: Tensor, server_round: int, step: int, draws: torch.Generator) -> Tensor:
    """Return `ClientTask.training_inputs`; what is drawn to prepare them comes from `draws`."""
    if not task.prepare_draws:
        return task.training_inputs(batch, server_round, step)
    with kept_torch(torch.device("cpu")):
        torch.default_generator.set_state(draws.get_state())
        made: Tensor = task.training_inputs(batch, server_round, step)
        draws.set_state(torch.default_generator.get_state())
    return made


def mini_batch_losses(examples: Sequence[tuple[ClientTask, Tensor]], outputs: Tensor) -> Tensor:
    """Return the losses (n,) of n clients from their outputs (n, B, ...)."""
    labels = [task.train.labels[batch].to(task.device) for task, batch in examples]
    return stacked_losses([task.objective.loss for task, _ in examples], outputs, labels)


def of_equal_size(batches: Sequence[Sequence[Tensor]], number: int) -> list[tuple[list[int], int]]:
    """Return the rows of clients that have a mini-batch of this number, those of one size together, with the size."""
    rows_of: dict[int, list[int]] = {}
    for row, own in enumerate(batches):
        if number < len(own):
            rows_of.setdefault(len(own[number]), []).append(row)
    return [(rows, size) for size, rows in rows_of.items()]
