"""Copies of some blocks that train side by side, each from its own weights and by its own gradients."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..task import LocalTraining
from .model import StackedModel, stacked_states

ADAM_BETAS, ADAM_EPSILON = (0.9, 0.999), 1e-8  # as PyTorch has them

# Tensors of all copies, (n, ...) each, by what they are ("state", and what an optimizer keeps) and the weights' name.
Tensors = dict[tuple[str, str], Tensor]


@dataclass(frozen=True)
class Held:
    """What the optimizer of a copy goes on with.

    Parameters
    ----------
    tensors : Tensors
        By what they are and the weights' name.
    steps : int
        The steps that it has made.
    """

    tensors: Tensors
    steps: int


@dataclass(frozen=True)
class Pass:
    """A forward pass of some of the copies.

    Parameters
    ----------
    rows : list[int]
        The copies.
    outputs : Tensor
        What comes out, (len(rows), B, ...).
    leaves : list[Tensor]
        The weights that train, (len(rows), ...) each, to take gradients by.
    tensors : Tensors
        What the copies have.
    """

    rows: list[int]
    outputs: Tensor
    leaves: list[Tensor]
    tensors: Tensors


class StackedBlocks:
    """n copies of some blocks, and their optimizers.

    Parameters
    ----------
    model : StackedModel
        Computes the blocks.
    states : Sequence[Mapping[str, Tensor]]
        What each copy starts from.
    trained : Sequence[str]
        The names of the weights that train.
    training : LocalTraining
        The settings of the optimizers.
    device : torch.device
        Where they compute.
    """

    def __init__(
        self,
        model: StackedModel,
        states: Sequence[Mapping[str, Tensor]],
        trained: Sequence[str],
        training: LocalTraining,
        device: torch.device,
    ) -> None:
        self._model = model
        self._trained = list(trained)
        self._training = training
        self._size = len(states)
        self._read: dict[str, Tensor] | None = None  # the states as they are now, on the CPU
        self._all: Tensors = {("state", name): tensor for name, tensor in stacked_states(states, device).items()}
        for kind in kept_by_optimizer(training):
            self._all |= {(kind, name): torch.zeros_like(self._all["state", name]) for name in trained}

    def go_on(self, held: Sequence[Held | None]) -> int:
        """Let optimizers go on with what `held` gave, one per copy and of as many steps; return these."""
        for row, own in enumerate(held):
            for key, tensor in own.tensors.items() if own else ():
                self._all[key][row] = tensor
        return held[0].steps if held[0] else 0

    def held(self, row: int, steps: int) -> Held:
        """Return what the optimizer of a copy has after so many steps."""
        kinds = kept_by_optimizer(self._training)
        return Held({key: own[row].clone() for key, own in self._all.items() if key[0] in kinds}, steps)

    def forward(self, rows: Sequence[int], inputs: Tensor, generators: Sequence[torch.Generator]) -> Pass:
        """Let some copies compute; the others stay as they are.

        Parameters
        ----------
        rows : Sequence[int]
            The copies that have a mini-batch.
        inputs : Tensor
            The mini-batches, (len(rows), B, ...).
        generators : Sequence[torch.Generator]
            What the dropout of each draws from.
        """
        self._read = None  # BatchNorm's statistics change
        # Nearly always it is all of them, and nothing is copied.
        whole = len(rows) == self._size
        these = self._all if whole else {key: tensor[list(rows)] for key, tensor in self._all.items()}
        state = {name: tensor for (kind, name), tensor in these.items() if kind == "state"}
        leaves = [state[name].detach().requires_grad_() for name in self._trained]
        state |= dict(zip(self._trained, leaves, strict=True))
        return Pass(list(rows), self._model(state, inputs, generators), leaves, these)

    @torch.no_grad()
    def step(self, made: Pass, gradients: Sequence[Tensor], number: int, kept: Sequence[int] | None = None) -> None:
        """Make step `number`, from 1, of the optimizers of the copies in a forward pass.

        Parameters
        ----------
        made : Pass
            The forward pass.
        gradients : Sequence[Tensor]
            Of its leaves.
        number : int
            How many steps each copy has made with this one.
        kept : Sequence[int], optional (default: None)
            The places of the copies that make it; the weights of the others stay, and their clients have to leave.
            None: all do.
        """
        self._read = None
        rows, these, own = made.rows, made.tensors, list(gradients)
        if kept is not None and len(kept) < len(rows):
            rows, own = [rows[place] for place in kept], [gradient[kept] for gradient in own]
            these = {key: tensor[kept] for key, tensor in these.items()}
        optimizer_step(self._training, these, self._trained, own, number)
        if these is not self._all:
            for key, tensor in these.items():
                self._all[key][rows] = tensor

    @torch.no_grad()
    def move(self, rows: Sequence[int], by: Mapping[str, Tensor], times: float) -> None:
        """Add `times` as much as given to the weights of some copies, by name (len(rows), ...)."""
        if by:
            self._read = None
        for name, change in by.items():
            self._all["state", name][list(rows)] += times * change

    def state(self, row: int) -> dict[str, Tensor]:
        """Return the state of a copy, on the CPU; where the copies are there too, it changes with the next step."""
        if self._read is None:  # those of all copies at once: a GPU is waited for once for each of the weights
            self._read = {name: tensor.cpu() for (kind, name), tensor in self._all.items() if kind == "state"}
        return {name: tensor[row] for name, tensor in self._read.items()}


def kept_by_optimizer(training: LocalTraining) -> tuple[str, ...]:
    """Return what an optimizer keeps of every weight from step to step."""
    if training.optimizer == "adam":
        return ("mean", "square")
    return ("momentum",) if training.momentum else ()


def optimizer_step(
    training: LocalTraining, tensors: Tensors, names: Sequence[str], gradients: list[Tensor], number: int
) -> None:
    """Make step `number`, from 1, of SGD or Adam as PyTorch does; the weights and what it keeps change in place."""
    if not names:
        return
    weights = [tensors["state", name] for name in names]
    if training.weight_decay:
        gradients = list(torch._foreach_add(gradients, weights, alpha=training.weight_decay))
    rate = training.learning_rate
    if training.optimizer == "adam":
        (beta, beta_of_square), epsilon = ADAM_BETAS, ADAM_EPSILON
        means, squares = ([tensors[kind, name] for name in names] for kind in ("mean", "square"))
        torch._foreach_lerp_(means, gradients, 1 - beta)
        torch._foreach_mul_(squares, beta_of_square)
        torch._foreach_addcmul_(squares, gradients, gradients, 1 - beta_of_square)
        scales = torch._foreach_div(torch._foreach_sqrt(squares), (1 - beta_of_square**number) ** 0.5)
        torch._foreach_addcdiv_(weights, means, torch._foreach_add(scales, epsilon), -rate / (1 - beta**number))
        return
    if training.momentum:
        momenta = [tensors["momentum", name] for name in names]
        torch._foreach_mul_(momenta, training.momentum)
        torch._foreach_add_(momenta, gradients)
        gradients = momenta
    torch._foreach_add_(weights, gradients, alpha=-rate)
