"""Whether the clients of a task can train side by side."""

import torch
from torch import nn

from espalier.app.errors import bad_value
from espalier.app.tasks.task import Task
from espalier.clients.stacked_model import check_stackable


def check_stack(stack: int, task: Task, model: nn.Module, device: torch.device) -> None:
    """Raise UserError where clients of a task can't train side by side."""
    # PyTorch's GPU draws for a dropout layer in an order that depends on how its input lies in memory.
    if device.type != "cpu" and any(isinstance(layer, nn.Dropout) for layer in model.modules()):
        raise bad_value("stack", stack, f"0 for a model with dropout where models compute on {device.type}")
    if task.counts_requests:
        raise bad_value("stack", stack, "0 for dataset = 'video-caching', whose clients have a faster way of their own")
    if callable(task.training.optimizer):
        raise bad_value("stack", stack, "0 for a task with an optimizer of its own")
    try:
        check_stackable(model, task.example_input())
    except ValueError as error:
        raise bad_value("stack", stack, f"0 for this model: {error}") from None
