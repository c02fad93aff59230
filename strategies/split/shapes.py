"""What a model takes and gives at its cuts, found by a sample."""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from espalier.clients.shared.cut import copied
from espalier.clients.shared.generators import kept_torch
from espalier.clients.shared.layouts import layout_of

from .cuts import legal_cuts


class AtCut(NamedTuple):
    """What activations behind a cut are: the shape of one sample's, and how a mini-batch's lie in memory."""

    shape: tuple[int, ...]
    layout: torch.memory_format


@torch.no_grad()
def forms_at_cuts(model: nn.Sequential, example: Any) -> dict[int, AtCut]:
    """Return what activations are behind every legal cut, by the number of blocks in front of it.

    `example` is as for `example_input`.
    """
    was_training = model.training
    model.eval()
    sample, forms = example_input(model, example), {}
    legal = legal_cuts(model)
    for cut, block in enumerate(list(model)[:-1], start=1):
        sample = block(sample)
        if cut in legal:
            forms[cut] = AtCut(tuple(sample.shape[1:]), layout_of(sample))
    model.train(was_training)
    return forms


def cut_shapes(model: nn.Sequential, example: Any) -> dict[int, tuple[int, ...]]:
    """Return the shape of one sample's activations behind every legal cut, as `forms_at_cuts` does."""
    return {cut: form.shape for cut, form in forms_at_cuts(model, example).items()}


def example_input(model: nn.Module, example: Any) -> Any:
    """Return a batch of one for a model: `example` itself, or zeros where it is a shape, a tuple of integers."""
    if isinstance(example, tuple) and all(isinstance(size, int) for size in example):
        return next(model.parameters()).new_zeros(1, *example)
    return example


def check_activations(values: Tensor, cut_shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """Raise ValueError for what is not a mini-batch of activations, (N, *cut_shape), of at least one sample."""
    if values.dtype != dtype:
        raise ValueError(f"activations have dtype {values.dtype}, expected {dtype}")
    if tuple(values.shape[1:]) != cut_shape or not len(values):
        expected = ", ".join(map(str, cut_shape))
        raise ValueError(f"activations have shape {tuple(values.shape)}, expected (N, {expected})")


@torch.no_grad()
def draws_random_numbers(blocks: nn.Module, input_shape: tuple[int, ...]) -> bool:
    """Return whether training blocks draws from PyTorch's generator, as dropout does."""
    trial = copied(blocks).cpu().train()
    with kept_torch(torch.device("cpu")):
        before = torch.default_generator.get_state()
        trial(next(trial.parameters()).new_zeros(2, *input_shape))
        return not torch.equal(before, torch.default_generator.get_state())
