"""Evaluation of a model on a client's own test set."""

from collections.abc import Callable

import torch
from flwr.app import Message
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from .messages.train import Evaluate, Evaluated
from .task import ClientTask, Examples


def evaluate(message: Message, task: ClientTask) -> Message:
    """Answer an instruction to evaluate the weights in the message on the client's test set."""
    task.model.load_state_dict(Evaluate.from_content(message.content).arrays.to_torch_state_dict())
    loss, accuracy = loss_and_accuracy(task.model, task.test, task.prepare, task.device)
    top = dict(zip(task.top_m, top_accuracies(task), strict=True))
    return Message(Evaluated(loss, accuracy, len(task.test), top).to_content(), reply_to=message)


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
    """Return the top-M accuracy of `task.model` on its test examples for each M of `task.top_m`."""
    if not task.top_m:
        return []
    task.model.eval()
    outputs = task.model(task.prepare(task.test.inputs.to(task.device)))
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
