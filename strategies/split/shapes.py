"""What a model takes and gives at its cuts, found by a sample."""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from espalier.clients.shared.crossing import ROWS, Crossing
from espalier.clients.shared.cut import copied
from espalier.clients.shared.generators import kept_torch

from .cuts import legal_cuts


class AtCut(NamedTuple):
    """What activations behind a cut are: the shape of one sample's, and how they are where the model is whole."""

    shape: tuple[int, ...]
    crossing: Crossing


@torch.no_grad()
def forms_at_cuts(model: nn.Sequential, example: Any) -> dict[int, AtCut]:
    """Return what activations are behind every legal cut, by the number of blocks in front of it.

    `example` is as for `example_input`.
    """
    was_training = model.training
    model.eval()
    sample, forms = example_input(model, example), {}
    legal = legal_cuts(model)
    try:
        for cut, block in enumerate(list(model)[:-1], start=1):
            sample = block(sample)
            if cut in legal:
                crossing = Crossing.of(sample, 1)
                forms[cut] = AtCut(tuple(crossing.rows(sample).shape[1:]), crossing)
    finally:
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


def check_lengths(lengths: Tensor | None, values: Tensor, crossing: Crossing) -> None:
    """Raise ValueError unless activations (N, T, ...) come with lengths (N,) from 1 to T where blocks pass these on."""
    if lengths is None or not crossing.has_lengths:
        if (lengths is not None) == crossing.has_lengths:
            return
        raise ValueError(f"activations come {'without' if lengths is None else 'with'} lengths")
    if lengths.is_floating_point() or lengths.shape != values.shape[:1] or values.dim() < 2:
        shapes = f"shape {tuple(lengths.shape)} for activations of shape {tuple(values.shape)}"
        raise ValueError(f"lengths are {lengths.dtype} of {shapes}")
    if len(lengths) and not 1 <= int(lengths.min()) <= int(lengths.max()) <= values.shape[1]:
        raise ValueError(f"a length is out of range, allowed is 1 to {values.shape[1]}")


@torch.no_grad()
def draws_random_numbers(blocks: nn.Module, input_shape: tuple[int, ...], crossing: Crossing = ROWS) -> bool:
    """Return whether training blocks draws from PyTorch's generator, as dropout does."""
    trial = copied(blocks).cpu().train()
    lengths = torch.full((2,), input_shape[0]) if crossing.has_lengths else None
    with kept_torch(torch.device("cpu")):
        before = torch.default_generator.get_state()
        trial(crossing.given(next(trial.parameters()).new_zeros(2, *input_shape), lengths))
        return not torch.equal(before, torch.default_generator.get_state())
