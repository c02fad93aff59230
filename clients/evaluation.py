"""Evaluation of a model on a client's own test set."""

from collections.abc import Callable

import torch
from flwr.app import Message, MetricRecord, RecordDict
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from .messages import ACCURACY, LOSS, METRICS, NUM_EXAMPLES, TOP
from .task import ClientTask, Examples
from .training import load_weights


def evaluate(message: Message, task: ClientTask) -> Message:
    """Answer an instruction to evaluate the weights in the message on the client's test set."""
    load_weights(task.model, message.content)
    loss, accuracy = loss_and_accuracy(task.model, task.test, task.prepare, task.device)
    metrics = MetricRecord({LOSS: loss, ACCURACY: accuracy, NUM_EXAMPLES: len(task.test)})
    for m, share in zip(task.top_m, top_accuracies(task), strict=True):
        metrics[f"{TOP}{m}"] = share
    return Message(RecordDict({METRICS: metrics}), reply_to=message)


@torch.inference_mode()
def loss_and_accuracy(
    model: nn.Module,
    examples: Examples,
    prepare: Callable[[Tensor], Tensor],
    device: torch.device,
    batch_size: int = 512,
) -> tuple[float, float]:
    """Return the mean cross-entropy and the share of correct predictions over `examples`, in eval mode.

    Both are 0 for an empty set.
    """
    model.eval()
    loss, correct = torch.zeros((), device=device), torch.zeros((), device=device)
    for inputs, labels in zip(
        examples.inputs.split(batch_size), examples.labels.to(device).split(batch_size), strict=True
    ):
        outputs = model(prepare(inputs.to(device)))
        loss += cross_entropy(outputs, labels, reduction="sum")
        correct += (outputs.argmax(1) == labels).sum()
    count = max(len(examples), 1)
    return float(loss) / count, float(correct) / count


@torch.inference_mode()
def top_accuracies(task: ClientTask) -> list[float]:
    """Return, for each M of `task.top_m`, the share of test examples whose label is among the M likeliest classes.

    All are 0 for an empty test set.
    """
    if not task.top_m or not len(task.test):
        return [0.0] * len(task.top_m)
    task.model.eval()
    outputs = task.model(task.prepare(task.test.inputs.to(task.device)))
    found = outputs.topk(max(task.top_m), dim=1).indices == task.test.labels.to(task.device)[:, None]
    shares = found.to(torch.float64).mean(0).cumsum(0)
    return [float(shares[m - 1]) for m in task.top_m]
