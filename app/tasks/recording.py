"""Whether a task's gradients can be recorded on a GPU, and what computes them."""

from dataclasses import replace

import torch
from torch import Tensor, nn

from espalier.app.ground.errors import FAULTS, UserError, bad_value
from espalier.app.ground.object_spec import error_line
from espalier.app.settings.sections import TrainSettings
from espalier.app.tasks.node import ClientNode
from espalier.app.tasks.task import Task
from espalier.clients.gradients import Gradients, Record, RecordedGradients, compute_gradients, cuda_graph
from espalier.clients.shared.cut import copied
from espalier.clients.whole.training import local_sgd

TRIED_STEPS = 4


def gradients_of(train: TrainSettings, device: torch.device) -> Gradients:
    """Return what computes the gradients of whole models on a device."""
    return RecordedGradients(train.batch_size) if train.cuda_graph and device.type == "cuda" else compute_gradients


def check_cuda_graph(task: Task, device: torch.device, *, trains_here: bool) -> None:
    """Raise UserError where gradients can't be recorded; whether clients elsewhere have GPUs is not known."""
    if task.own_way:
        raise _refused(task.own_way)
    if callable(task.training.optimizer):
        raise _refused("for a task with an optimizer of its own, which may keep gradients")
    if trains_here and device.type != "cuda":
        raise _refused("where torch finds no GPU")


def try_recording(task: Task, model: nn.Module, device: torch.device, record: Record = cuda_graph) -> None:
    """Raise UserError unless some steps of training with a recording give the bits that they give without.

    Parameters
    ----------
    task : Task
        Its first client trains, on the server's test pool.
    model : nn.Module
        The model. It stays as it is.
    device : torch.device
        Where models compute.
    record : Record (default: `cuda_graph`)
        How to record.
    """
    training = replace(task.training, local_epochs=1, batches_per_epoch=TRIED_STEPS)
    ways = []
    try:
        for gradients in (RecordedGradients(training.batch_size, record), compute_gradients):
            client = task.new_client_task(copied(model).to(device), ClientNode(0))
            one = replace(client, train=task.test_examples(), training=training, gradients=gradients)
            ways.append((local_sgd(one, server_round=1), *one.model.state_dict().values()))
    except FAULTS as error:  # the model may be foreign code
        raise _refused(f"for this model, which can't be recorded ({error_line(error)[:200]})") from None
    if device.type == "cuda":
        torch.cuda.empty_cache()  # examples are put where there is room
    if not all(map(_same, *ways)):
        raise _refused("for this model, whose recording computes something else")


def _same(left: Tensor | float, right: Tensor | float) -> bool:
    return torch.allclose(torch.as_tensor(left), torch.as_tensor(right), rtol=0.0, atol=0.0, equal_nan=True)


def _refused(why: str) -> UserError:
    return bad_value("train.cuda-graph", True, f"false {why}")
