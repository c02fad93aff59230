"""An evaluation and a step of training with a task of a user's own, before the run: what does not fit shows there."""

import math
import traceback
from collections.abc import Mapping
from inspect import getsourcefile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from espalier.app.object_spec import error_line
from espalier.app.tasks.own import OwnTask
from espalier.clients.messages.text import LONGEST_NAME, is_name
from espalier.clients.messages.train import LOSS, NUM_EXAMPLES, TOP, VALIDATION
from espalier.clients.nested import take
from espalier.clients.task import Examples, LocalTraining, Objective
from espalier.clients.training import make_optimizer

CPU = torch.device("cpu")
FEW, MORE = 2, 32  # examples to train on, and to evaluate on
TAKEN_NAMES = frozenset({LOSS, NUM_EXAMPLES})
TAKEN_BEGINNINGS = ("train_", "num-", TOP, VALIDATION)


class MisfitError(ValueError):
    """A task that can't be trained for; the text says what it has to be."""


def try_out(
    own: OwnTask,
    model: nn.Module,
    examples: Examples,
    training: LocalTraining,
    objective: Objective,
    taken_names: frozenset[str],
) -> None:
    """Evaluate a model and train it for a step; it is spoilt then.

    Parameters
    ----------
    own : OwnTask
        The user's task.
    model : nn.Module
        A new one.
    examples : Examples
        The server's test pool; some of it are trained on.
    training, objective : LocalTraining, Objective
        What the clients' tasks have.
    taken_names : frozenset[str]
        Names that a figure can't have, beside those that a client's other metrics have.

    Raises
    ------
    MisfitError
        For the first thing that does not fit.
    """
    check_metrics(own, model, examples, taken_names)
    check_training(own, model, examples, training, objective)


def check_training(
    own: OwnTask, model: nn.Module, examples: Examples, training: LocalTraining, objective: Objective
) -> None:
    """Raise MisfitError unless model, loss, learning rate and optimizer make a step."""
    rows = torch.arange(FEW) % len(examples)
    parameters = [weights for weights in model.parameters() if weights.requires_grad]
    if not parameters:
        raise MisfitError("one whose model has weights that train")
    try:
        outputs = model.train()(own.prepare(take(examples.inputs, rows, CPU)))
    except Exception as error:  # all of it is foreign code
        raise MisfitError(f"one whose model trains on its data ({found(error, own)})") from None
    try:
        loss = objective.loss(outputs, examples.labels[rows])
    except Exception as error:
        wanted = "one whose loss(outputs, labels) takes what its model gives, and its labels"
        raise MisfitError(f"{wanted} ({found(error, own)})") from None
    if not isinstance(loss, Tensor) or loss.dim() or not loss.requires_grad:
        kind = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else f"a {type(loss).__name__}"
        if isinstance(loss, Tensor) and not loss.dim():
            kind += " without one"
        raise MisfitError(f"one whose loss(outputs, labels) gives the mean, a tensor () with a gradient, not {kind}")
    try:
        loss.backward()
        now = training.at(1)
    except Exception as error:
        raise MisfitError(f"one whose loss and learning rates can be had ({found(error, own)})") from None
    rate = now.learning_rate
    if not isinstance(rate, int | float) or not 0 <= rate < math.inf:
        raise MisfitError(f"one whose learning_rate(rate, server_round) gives a number from 0 on, not {rate!r}")
    try:
        optimizer = make_optimizer(parameters, now)
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise TypeError(f"it returns a {type(optimizer).__name__}")
        optimizer.step()
    except Exception as error:
        wanted = "one whose optimizer(parameters, learning_rate) returns a torch.optim.Optimizer"
        raise MisfitError(f"{wanted} ({found(error, own)})") from None


@torch.inference_mode()
def check_metrics(own: OwnTask, model: nn.Module, examples: Examples, taken_names: frozenset[str]) -> None:
    """Raise MisfitError unless the task's own figures are numbers, by names that nothing else has."""
    rows = torch.linspace(0, len(examples) - 1, min(MORE, len(examples))).long()
    try:
        figures = figures_of(own, model, examples, rows)
    except Exception:
        try:  # of all: there are figures that can't be had of a few, where these are of one class
            figures = figures_of(own, model, examples, torch.arange(len(examples)))
        except Exception as error:
            wanted = "one whose metrics(outputs, labels) returns numbers by name"
            raise MisfitError(f"{wanted} ({found(error, own)})") from None
    for name in figures:
        if not isinstance(name, str) or not is_name(name):
            wanted = f"one whose metrics() have names of 1 to {LONGEST_NAME} characters that can be printed"
            raise MisfitError(f"{wanted}, not {name!r}")
        if name in TAKEN_NAMES | taken_names or name.startswith(TAKEN_BEGINNINGS):
            raise MisfitError(f"one whose metrics() have names that a run does not use itself, as it does {name!r}")


def figures_of(own: OwnTask, model: nn.Module, examples: Examples, rows: Tensor) -> Mapping[Any, float]:
    """Return the task's own figures of a model on some examples, in eval mode; raises whatever is wrong with them."""
    outputs = model.eval()(own.prepare(take(examples.inputs, rows, CPU)))
    figures = own.metrics(outputs, examples.labels[rows])
    if not isinstance(figures, Mapping):
        raise TypeError(f"it returns a {type(figures).__name__}")
    return {name: float(value) for name, value in figures.items()}


def found(error: Exception, own: OwnTask) -> str:
    """Return an error in one line, with the place where it was in the file of the user's task."""
    file = getsourcefile(type(own))
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    return error_line(error) + (f", {Path(file).name}:{lines[-1]}" if file and lines else "")
