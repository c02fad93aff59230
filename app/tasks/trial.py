"""An evaluation and a step of training with a model of a user's own, before the run: what does not fit shows there."""

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from espalier.app.ground.errors import FAULTS
from espalier.app.ground.fields import columns_beside
from espalier.app.ground.object_spec import error_and_place
from espalier.clients.gradients import Loss
from espalier.clients.messages.train import ACCURACY, LOSS, TAKEN_BEGINNINGS, is_own_figure
from espalier.clients.shared.nested import concatenate, rows_on, tensors_of
from espalier.clients.shared.text import LONGEST_NAME, is_name
from espalier.clients.task import Examples, LocalTraining
from espalier.clients.whole.evaluation import BATCH_SIZE, outputs_on
from espalier.clients.whole.training import make_optimizer

CPU = torch.device("cpu")
FEW = 32  # examples to evaluate on first
# Characters of a figure's name, which is sent with one of the run's own beginnings too.
LONGEST_FIGURE = LONGEST_NAME - max(map(len, TAKEN_BEGINNINGS))


class MisfitError(ValueError):
    """A task that can't be trained for; the text says what it has to be."""


@dataclass(frozen=True)
class Tried:
    """What is a user's own, beside the model.

    Parameters
    ----------
    prepare : Callable[[Any], Any]
        Makes what the model takes of a mini-batch's inputs.
    metrics : Callable[[Any, Tensor], Mapping[str, float]]
        Of outputs and labels, figures by name.
    files : Collection[str]
        Where the user's code is; errors are shown with their line in these.
    augment : Callable[[Any, torch.Generator], Any] (default: no change)
        Changes a mini-batch of training inputs before `prepare`.
    """

    prepare: Callable[[Any], Any]
    metrics: Callable[[Any, Tensor], Mapping[str, float]]
    files: Collection[str]
    augment: Callable[[Any, torch.Generator], Any] = lambda inputs, generator: inputs


def try_out(
    tried: Tried,
    new_model: Callable[[], nn.Module],
    examples: Examples,
    training: LocalTraining,
    loss: Loss,
    taken_names: frozenset[str],
) -> None:
    """Evaluate a new model, and train another one for a step.

    Parameters
    ----------
    tried : Tried
        What is the user's own.
    new_model : Callable[[], nn.Module]
        Makes a model.
    examples : Examples
        The server's test pool; a mini-batch of it is trained on.
    training : LocalTraining
        How the clients train.
    loss : Callable[[Tensor, Tensor], Tensor]
        Of outputs and labels, the mean over a mini-batch.
    taken_names : frozenset[str]
        Names that a figure can't have, beside those that a client's other metrics have.

    Raises
    ------
    MisfitError
        For the first thing that does not fit.
    """
    evaluated, trained = new_model(), new_model()
    check_metrics(tried, evaluated, examples, taken_names)
    check_training(tried, trained, examples, training, loss)
    for used in (evaluated, trained):
        check_state(used, new_model())


def check_training(
    tried: Tried, model: nn.Module, examples: Examples, training: LocalTraining, mean_loss: Loss
) -> None:
    """Raise MisfitError unless model, loss, learning rate and optimizer make a step; the model is spoilt then."""
    rows = spread_over(examples, training.batch_size)
    parameters = [weights for weights in model.parameters() if weights.requires_grad]
    if not parameters:
        raise MisfitError("one whose model has weights that train")
    with named("one whose augment(inputs, generator) gives what prepare() takes", tried):
        inputs = tried.prepare(tried.augment(rows_on(examples.inputs, rows, CPU), torch.Generator()))
    with named("one whose model trains on its data", tried):
        outputs = model.train()(inputs)
    with named("one whose loss(outputs, labels) takes what its model gives, and its labels", tried):
        loss = mean_loss(outputs, examples.labels[rows])
    if not isinstance(loss, Tensor) or loss.dim() or not loss.requires_grad:
        kind = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else f"a {type(loss).__name__}"
        if isinstance(loss, Tensor) and not loss.dim():
            kind += " without one"
        raise MisfitError(f"one whose loss(outputs, labels) gives the mean, a tensor () with a gradient, not {kind}")
    with named("one whose loss has a gradient", tried):
        loss.backward()
    wanted = "one whose learning_rate(rate, server_round) gives a number from 0 on"
    with named(wanted, tried):
        now = training.at(1)
        rate = float(now.learning_rate)
    if isinstance(now.learning_rate, str) or not 0 <= rate < math.inf:
        raise MisfitError(f"{wanted}, not {now.learning_rate!r}")
    wanted = "one whose optimizer(parameters, learning_rate) returns a torch.optim.Optimizer"
    with named(wanted, tried):
        optimizer = make_optimizer(parameters, now)
    if not all(callable(getattr(optimizer, method, None)) for method in ("step", "zero_grad")):
        raise MisfitError(f"{wanted}, not a {type(optimizer).__name__}")
    with named("one whose optimizer makes a step by the gradients alone", tried):
        optimizer.step()


def check_state(used: nn.Module, new: nn.Module) -> None:
    """Raise MisfitError unless a model that was used has the weights and buffers of a new one: such models travel.

    What does not travel has to stay as it is: clients take turns at one model.
    """
    if changed := sorted(used.state_dict().keys() ^ new.state_dict().keys()):
        wanted = "one whose model keeps its weights and buffers when it computes: another model can't take"
        raise MisfitError(f"{wanted} {changed[0]}; a buffer of its own does not travel with persistent=False")
    buffers, travels = dict(used.named_buffers()), new.state_dict().keys()
    for name, buffer in new.named_buffers():
        if name not in travels and not (name in buffers and _are_same(buffers[name], buffer)):
            wanted = "one whose buffers with persistent=False stay as they are, for no message holds them:"
            raise MisfitError(f"{wanted} {name} changes when it computes")
    for name, weights in new.state_dict().items():
        if not is_lazy(weights) and weights.shape != (now := used.state_dict()[name]).shape:
            forms = f"{tuple(now.shape)}, not {tuple(weights.shape)}"
            raise MisfitError(f"one whose model keeps the shapes of its weights and buffers: {name} becomes {forms}")


def _are_same(buffer: Tensor, other: Tensor) -> bool:
    """Return whether two buffers hold the same; a table may grow with its inputs."""
    if buffer.shape != other.shape:
        return True
    if buffer.layout != torch.strided:
        buffer, other = buffer.to_dense(), other.to_dense()
    return bool(((buffer == other) | ((buffer != buffer) & (other != other))).all())  # a mask may hold NaN


def check_metrics(tried: Tried, model: nn.Module, examples: Examples, taken_names: frozenset[str]) -> None:
    """Raise MisfitError unless the task's own figures are numbers, by names that nothing else has."""
    try:
        figures = figures_of(tried, model, examples, spread_over(examples, min(FEW, len(examples))))
    except MisfitError:
        raise
    except FAULTS:  # there are figures that can't be had of a few, where these are of one class
        with named("one whose metrics(outputs, labels) returns numbers by name", tried):
            figures = figures_of(tried, model, examples, torch.arange(len(examples)))
    for name in figures:
        if not isinstance(name, str) or not 0 < len(name) <= LONGEST_FIGURE or not is_name(name):
            wanted = f"one whose metrics() have names of 1 to {LONGEST_FIGURE} characters that can be printed"
            raise MisfitError(f"{wanted}, not {name!r}")
    taken_names |= columns_beside((*figures, ACCURACY, LOSS))
    for name in figures:
        if name in taken_names or not is_own_figure(name):
            beginnings = ", ".join(map(repr, TAKEN_BEGINNINGS))
            wanted = "one whose metrics() have names that a run does not use itself, and that do not begin with"
            raise MisfitError(f"{wanted} {beginnings}, not {name!r}")


@torch.no_grad()
def figures_of(tried: Tried, model: nn.Module, examples: Examples, rows: Tensor) -> Mapping[Any, float]:
    """Return the task's own figures of a model on some examples, in eval mode; raises whatever is wrong with them."""
    chosen = Examples(rows_on(examples.inputs, rows, CPU), examples.labels[rows])
    batches = list(outputs_on(model, chosen, tried.prepare, CPU))
    check_rows(batches[0], min(len(rows), BATCH_SIZE), has_one_batch=len(examples) <= BATCH_SIZE)
    outputs = concatenate(batches)
    figures = tried.metrics(outputs, chosen.labels)
    if not isinstance(figures, Mapping):
        raise TypeError(f"it returns a {type(figures).__name__}")
    return {name: float(value) for name, value in figures.items()}


def check_rows(outputs: Any, count: int, *, has_one_batch: bool) -> None:
    """Raise MisfitError unless outputs have a row per example; of one batch the first ones, by which labels go."""
    tensors = tensors_of(outputs)
    rows = [tensor.shape[0] if tensor.dim() else None for tensor in tensors]
    if None in rows or rows[0] != count or not (has_one_batch or set(rows) == {count}):
        shapes = " and ".join(str(tuple(tensor.shape)) for tensor in tensors)
        raise MisfitError(f"one whose model gives a row for each example, not outputs {shapes} for {count}")


def spread_over(examples: Examples, count: int) -> Tensor:
    """Return the rows of so many examples from the first to the last; of fewer examples some rows come again."""
    return torch.linspace(0, len(examples) - 1, count).long()


@contextmanager
def named(wanted: str, tried: Tried) -> Iterator[None]:
    """Make a MisfitError of whatever goes wrong inside the block, with the line of the user's file where it did."""
    try:
        yield
    except FAULTS as error:  # all of it is foreign code
        raise MisfitError(f"{wanted} ({error_and_place(error, tried.files)})") from None
