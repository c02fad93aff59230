"""Whether the clients of a task can train side by side."""

from collections.abc import Collection

import torch
from torch import nn

from espalier.app.ground.errors import bad_value
from espalier.app.tasks.task import Task
from espalier.clients.shared.cut import Cut, as_blocks, copied
from espalier.clients.stacked.model import check_stackable


def check_stack(stack: int, task: Task, model: nn.Module, device: torch.device, cuts: Collection[Cut] = ()) -> None:
    """Raise UserError where clients of a task can't train side by side, whole or on either side of cuts."""
    # PyTorch's GPU draws for a dropout layer in an order that depends on how its input lies in memory.
    if device.type != "cpu" and any(isinstance(layer, nn.Dropout) for layer in model.modules()):
        raise bad_value("stack", stack, f"0 for a model with dropout where models compute on {device.type}")
    if task.own_way:
        raise bad_value("stack", stack, f"0 {task.own_way}")
    if task.has_corners:
        raise bad_value("stack", stack, "0 for a task whose clients have corners of weights")
    if callable(task.training.optimizer):
        raise bad_value("stack", stack, "0 for a task with an optimizer of its own")
    example, where = task.example_input(), ""
    try:
        check_stackable(model, example)
        for cut in cuts:
            if cut.has_tail(blocks := as_blocks(model)):
                continue  # these train one after the other
            where = f" where it is cut behind {list(blocks._modules)[cut.first - 1]!r}"
            front = cut.front(blocks)
            check_stackable(front, example)
            with torch.no_grad():
                activations = copied(front).eval()(example)
            check_stackable(cut.server_side(blocks), activations, travels=True)
    except ValueError as error:
        raise bad_value("stack", stack, f"0 for this model{where}: {error}") from None
