"""Evaluation of a model on a client's own test set."""

from collections.abc import Callable
from typing import Any

import torch
from flwr.app import Message
from torch import Tensor, nn

from .messages.arrays import to_weights
from .messages.train import ACCURACY, LOSS, Evaluate, Evaluated
from .nested import concatenate, take
from .task import ClientTask, Examples, Objective


def evaluate(message: Message, task: ClientTask) -> Message:
    """Answer an instruction to evaluate the weights in the message on the client's test set."""
    task.model.load_state_dict(to_weights(Evaluate.from_content(message.content).arrays))
    figures = figures_on(task.model, task.test, task.prepare, task.device, task.objective)
    top = dict(zip(task.top_m, top_accuracies(task), strict=True))
    return Message(Evaluated(figures, len(task.test), top).to_content(), reply_to=message)


@torch.inference_mode()
def figures_on(
    model: nn.Module,
    examples: Examples,
    prepare: Callable[[Any], Any],
    device: torch.device,
    objective: Objective,
    batch_size: int = 512,
) -> dict[str, float]:
    """Return the mean loss and the other figures of a model in eval mode over `examples`, by name.

    Loss and accuracy are 0 for an empty set, for which there are no other figures.
    """
    model.eval()
    loss, correct = torch.zeros((), device=device), torch.zeros((), device=device)
    kept, all_labels = [], examples.labels.to(device)
    for start in range(0, len(examples), batch_size):
        batch = slice(start, start + batch_size)
        outputs, labels = model(prepare(take(examples.inputs, batch, device))), all_labels[batch]
        loss += objective.loss(outputs, labels, reduction="sum")
        if objective.metrics is None:
            correct += (outputs.argmax(1) == labels).sum()
        else:
            kept.append(outputs)
    count = max(len(examples), 1)
    figures = {LOSS: float(loss) / count}
    if objective.metrics is None:
        return figures | {ACCURACY: float(correct) / count}
    return {**objective.metrics(concatenate(kept), all_labels), **figures} if kept else figures


@torch.inference_mode()
def top_accuracies(task: ClientTask) -> list[float]:
    """Return the top-M accuracy of `task.model` on its test examples for each M of `task.top_m`."""
    if not task.top_m:
        return []
    task.model.eval()
    outputs = task.model(task.prepare(take(task.test.inputs, slice(None), task.device)))
    shares = top_m_accuracies(outputs, task.test.labels.to(task.device), max(task.top_m)).tolist()
    return [shares[m - 1] for m in task.top_m]


def top_m_accuracies(scores: Tensor, labels: Tensor, largest_m: int = 10) -> Tensor:
    """Return how often the label is among the M contents with the highest scores, for M from 1 to `largest_m`.

    Parameters
    ----------
    scores : Tensor
        Shape (N, C), e.g. logits; or (C,), the same for all examples.
    labels : Tensor
        Shape (N,), int64.
    largest_m : int (default: 10)
        At least 1.

    Returns
    -------
    Tensor
        Shape (largest_m,), float64, on the CPU, never decreasing; zeros for no examples. A score that is as high as
        the label's counts as higher, and so does one that is not a number.
    """
    scores = scores.expand(len(labels), -1)
    lower = (scores < scores.gather(1, labels[:, None])).sum(1)
    place = scores.shape[1] - 1 - lower
    # On the CPU: a GPU divides by a number by multiplying with its inverse, which can change the last bit.
    hits = torch.bincount(place, minlength=largest_m)[:largest_m].cumsum(0).cpu()
    return hits.double() / max(len(labels), 1)
