"""Clipped updates, and the noise of differential privacy."""

import math
import random
from collections.abc import Collection, Mapping

import numpy as np
import torch
from torch import Tensor, nn

from .correction import Weights
from .statistics import VARIANCE, last_name


def noise_generator(seed: int | None, *whose: int | str) -> np.random.Generator:
    """Return what noise is drawn from.

    Parameters
    ----------
    seed : int, optional
        Of the run. None: the noise follows no seed, but the entropy of the system.
    *whose : int or str
        Who draws, what for, and in which round. The same give the same noise in every process.
    """
    if seed is None:
        return np.random.default_rng()
    return np.random.default_rng(random.Random("/".join(map(str, ("privacy", seed, *whose)))).getrandbits(128))


def length_of(update: Mapping[str, Tensor]) -> float:
    """Return the L2 norm of all numbers that are not integers, in double precision."""
    parts = [float(torch.linalg.vector_norm(own.double())) for own in update.values() if own.is_floating_point()]
    return math.hypot(*parts)


def clipped(model: Weights, sent: Weights, clip: float) -> Weights:
    """Return a model whose update is no longer than a bound, to rounding.

    Parameters
    ----------
    model : Mapping[str, Tensor]
        What came of training. A shorter update leaves it as it is, to the bit.
    sent : Mapping[str, Tensor]
        What it was made of: tensors of the same names, shapes and types.
    clip : float
        The longest L2 norm of ``model - sent``, over all tensors together but those of integers; 0: any.

    Raises
    ------
    ValueError
        If names, shapes or types are others, or the update has no finite length.
    """
    check_same_form(model, sent)
    update = {name: own - sent[name] for name, own in model.items() if own.is_floating_point()}
    length = length_of(update)
    if not math.isfinite(length):
        raise ValueError("its update has no finite length")
    if not clip or length <= clip:
        return model
    return {**model, **{name: sent[name] + own * (clip / length) for name, own in update.items()}}


def with_finite_update(model: Weights, sent: Weights) -> Weights:
    """Return a model with the numbers that were sent where its update has no finite length, integers as they are.

    Parameters and errors as of `clipped`: an update of zero is within every bound, and looks like others under noise.
    """
    check_same_form(model, sent)
    if math.isfinite(length_of({name: own - sent[name] for name, own in model.items() if own.is_floating_point()})):
        return model
    return {name: sent[name] if own.is_floating_point() else own for name, own in model.items()}


def noised(
    model: Weights, deviation: float, draws: np.random.Generator, untrained: Collection[str] = frozenset()
) -> Weights:
    """Return a model with independent Gaussian noise of a standard deviation at every number that is no integer.

    Weights that do not train have none. Where the deviation is 0, it is the same model.
    """
    if not deviation:
        return model
    noisy = dict(model)
    for name in sorted(name for name, own in model.items() if own.is_floating_point() and name not in untrained):
        noise = torch.from_numpy(np.asarray(deviation * draws.standard_normal(tuple(model[name].shape))))
        noisy[name] = model[name] + noise.to(model[name].device, model[name].dtype)
    return noisy


def frozen_weights(model: nn.Module) -> set[str]:
    """Return the names of weights that no gradient moves."""
    return {name for name, weight in model.named_parameters() if not weight.requires_grad}


def with_possible_variances(model: Weights) -> Weights:
    """Return a model whose running variances are not below zero, where noise may have taken them."""
    return {name: own.clamp(min=0) if last_name(name) == VARIANCE else own for name, own in model.items()}


def check_same_form(model: Weights, sent: Weights) -> None:
    """Raise ValueError unless two models have tensors of the same names, shapes and types."""
    if model.keys() != sent.keys():
        raise ValueError("its model has other arrays than the one that it was sent")
    for name, own in model.items():
        if (own.shape, own.dtype) != (sent[name].shape, sent[name].dtype):
            raise ValueError(f"its {name} is of another shape or type than the one that it was sent")
