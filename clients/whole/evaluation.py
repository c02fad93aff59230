"""Evaluation of a model on a client's own test set."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from flwr.app import Context, Message
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from ..memory import OWN_WEIGHTS, kept
from ..messages.labels import IGNORED
from ..messages.train import ACCURACY, LOSS, PERSONAL, Evaluate, Evaluated
from ..shared.arrays import to_weights
from ..shared.nested import concatenate, rows_on
from ..shared.tied import as_loaded, other_names, with_other_names
from ..task import ClientTask, Examples, Objective

BATCH_SIZE = 512


def evaluate(message: Message, context: Context, task: ClientTask) -> Message:
    """Answer an instruction to evaluate the weights in the message on the client's test set.

    Weights that never leave the client are its own. Where it has a model of its own beside, that is evaluated too.
    """
    sent = to_weights(Evaluate.from_content(message.content).arrays)
    state = {**sent, **(kept(context, OWN_WEIGHTS) or task.own)}
    personal = {}
    if task.half.personal is not None:
        others = other_names(task.model)
        own_model = task.half.personal(as_loaded(state, others), kept(context))
        task.model.load_state_dict(with_other_names(own_model, others))
        own = figures_on(task.model, task.test, task.prepare, task.device, task.objective)
        personal = {PERSONAL + name: value for name, value in own.items()}
    return Message(evaluated_state(task, state, personal).to_content(), reply_to=message)


def evaluated_state(task: ClientTask, state: Mapping[str, Tensor], beside: Mapping[str, float]) -> Evaluated:
    """Return what a client tells of the state of a whole model, with figures that are known `beside`."""
    task.model.load_state_dict(state)
    figures, held_back = (
        figures_on(task.model, examples, task.prepare, task.device, task.objective) if examples is not None else {}
        for examples in (task.test, task.validation)
    )
    return evaluated(task, {**figures, **beside}, held_back, top_accuracies(task))


def evaluated(
    task: ClientTask, figures: Mapping[str, float], held_back: Mapping[str, float], shares: Sequence[float]
) -> Evaluated:
    """Return what a client tells of a model: of a task's own figures those that are finite numbers.

    Parameters
    ----------
    task : ClientTask
        The client's.
    figures, held_back : Mapping[str, float]
        On its test examples, and on those held back from training.
    shares : Sequence[float]
        Top-M accuracy for each M of `task.top_m`.
    """
    top = dict(zip(task.top_m, shares, strict=True))
    figures, held_back = _told(figures), _told(held_back)
    if task.validation is None:
        return Evaluated(figures, len(task.test), top)
    # Where none are held back the names are the same, as most clients have them; their number tells.
    validation = held_back if len(task.validation) else dict.fromkeys(figures, 0.0)
    return Evaluated(figures, len(task.test), top, validation, len(task.validation))


def _told(figures: Mapping[str, float]) -> dict[str, float]:
    """Return figures without those of the task's own that a test set has not, such as an AUC of a single class."""
    return {name: value for name, value in figures.items() if name in (ACCURACY, LOSS) or math.isfinite(value)}


@torch.inference_mode()
def figures_on(
    model: nn.Module,
    examples: Examples,
    prepare: Callable[[Any], Any],
    device: torch.device,
    objective: Objective,
    batch_size: int = BATCH_SIZE,
) -> dict[str, float]:
    """Return the loss and the other figures of a model in eval mode over all of `examples`, by name.

    `batch_size` changes none of them, but for rounding. Loss and accuracy are 0 for an empty set, for which there are
    no other figures.
    """
    return figures_of(outputs_on(model, examples, prepare, device, batch_size), examples.labels, device, objective)


def outputs_on(
    model: nn.Module,
    examples: Examples,
    prepare: Callable[[Any], Any],
    device: torch.device,
    batch_size: int = BATCH_SIZE,
) -> Iterator[Any]:
    """Yield what a model, or its first blocks, in eval mode make of `examples`, by batches."""
    model.eval()
    for start in range(0, len(examples), batch_size):
        yield model(prepare(rows_on(examples.inputs, slice(start, start + batch_size), device)))


@torch.inference_mode()
def figures_of(
    batches: Iterable[Any], all_labels: Tensor, device: torch.device, objective: Objective
) -> dict[str, float]:
    """Return the figures of a model's outputs, as `figures_on`, which come in batches in the order of the labels.

    Cross-entropy and accuracy are added up. Of another loss, such as a mean with weights, its values for parts do not
    tell the value for all: it is called once, with all outputs.
    """
    if not len(all_labels):
        return dict.fromkeys(objective.figures, 0.0)
    labels = all_labels.to(device)
    if objective.metrics is None and objective.loss is cross_entropy:
        return _cross_entropy_and_accuracy(batches, labels)
    outputs = concatenate(list(batches))
    # Copies, for each may change them in place.
    loss = float((objective.test_loss or objective.loss)(outputs, labels.clone()))
    if objective.metrics is None:
        return {LOSS: loss, ACCURACY: float((outputs.argmax(1) == labels).sum()) / labels.numel()}
    return {**objective.metrics(outputs, labels.clone()), LOSS: loss}


def _cross_entropy_and_accuracy(batches: Iterable[Tensor], labels: Tensor) -> dict[str, float]:
    """Return the means over all labels but those that PyTorch's cross-entropy ignores."""
    loss, correct, start = torch.zeros((), device=labels.device), torch.zeros((), device=labels.device), 0
    for outputs in batches:
        of_batch = labels[start : start + len(outputs)]
        start += len(outputs)
        loss = loss + cross_entropy(outputs, of_batch, reduction="sum")  # of the more precise data type
        correct += (outputs.argmax(1) == of_batch).sum()
    count = int((labels != IGNORED).sum())
    return {LOSS: float(loss) / count, ACCURACY: float(correct) / count} if count else {LOSS: math.nan, ACCURACY: 0.0}


@torch.inference_mode()
def top_accuracies(task: ClientTask) -> list[float]:
    """Return the top-M accuracy of `task.model` on its test examples for each M of `task.top_m`."""
    if not task.top_m:
        return []
    task.model.eval()
    return top_accuracies_of(task.model(task.prepare(rows_on(task.test.inputs, slice(None), task.device))), task)


def top_accuracies_of(outputs: Tensor, task: ClientTask) -> list[float]:
    """Return the top-M accuracy of outputs, of shape (N, C), for the test examples for each M of `task.top_m`."""
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
