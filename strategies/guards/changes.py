"""How far a model that comes back is from the one that was sent."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from espalier.clients.shared.statistics import VARIANCE, is_statistic

Arrays = Mapping[str, np.ndarray]

ROUNDINGS: Final = 8  # of a statistic that was made a gradient and is made a statistic again


@dataclass(frozen=True)
class Change:
    """How far a model is from the one that was sent.

    Parameters
    ----------
    length : float
        Of the weights' difference.
    inward : float
        How far the weights go towards zero; 0 where that can't be said.
    statistics : float
        Length of the difference of the running statistics, which follow a client's data, not its steps. Variances count
        by their roots, so that it has the unit of the data.
    """

    length: float
    inward: float
    statistics: float


def change(sent: Arrays, model: Arrays, size: float, rate: float | None) -> Change:
    """Return how far a model is from the one that was sent.

    Parameters
    ----------
    sent, model : Mapping[str, np.ndarray]
        What was sent, and what came back.
    size : float
        Length of the weights that were sent.
    rate : float, optional
        None: a model came back. A number: gradients did, which the model goes down at this rate.
    """
    square, along, statistics = 0.0, 0.0, 0.0
    with np.errstate(over="ignore", invalid="ignore"):
        for name, origin in _floats(sent):
            if is_statistic(name):
                now = _statistic_after(origin, model[name], rate)
                own = (in_unit_of_data(name, now) - in_unit_of_data(name, origin)).reshape(-1)
                statistics += float(np.einsum("i,i->", own, own))
                continue
            update = (model[name] - origin if rate is None else model[name]).reshape(-1)
            square += float(np.einsum("i,i->", update, update))
            along += float(np.einsum("i,i->", update, origin.reshape(-1)))
    factor = 1.0 if rate is None else -rate
    inward = -factor * along / size if size > 0 else 0.0
    return Change(abs(factor) * math.sqrt(square), inward if math.isfinite(inward) else 0.0, math.sqrt(statistics))


def size_of_weights(arrays: Arrays) -> float:
    """Return the length of a model's weights."""
    return _length(values for name, values in _floats(arrays) if not is_statistic(name))


def size_of_statistics(arrays: Arrays) -> float:
    """Return the length of a model's running statistics, see `Change`."""
    return _length(in_unit_of_data(name, values) for name, values in _floats(arrays) if is_statistic(name))


def in_unit_of_data(name: str, values: np.ndarray) -> np.ndarray:
    """Return a running statistic in the unit of the data; a variance below zero, which no data have, is NaN."""
    return np.sqrt(values) if name.endswith(VARIANCE) else values


def shortened(
    sent: Arrays, model: Arrays, weights: float, statistics: float, rate: float | None
) -> dict[str, np.ndarray]:
    """Return the model whose weights and statistics changed in the same direction, and so many times less far."""
    shorter = dict(model)
    for name, origin in _floats(sent):
        values = model[name]
        if is_statistic(name) and statistics > 1:
            own = in_unit_of_data(name, origin)
            nearer = own + (in_unit_of_data(name, _statistic_after(origin, values, rate)) - own) / statistics
            nearer = nearer**2 if name.endswith(VARIANCE) else nearer
            shorter[name] = (nearer if rate is None else (origin - nearer) / rate).astype(values.dtype)
        elif not is_statistic(name) and weights > 1:
            start = origin if rate is None else np.zeros_like(origin)
            shorter[name] = (start + (values - start) / weights).astype(values.dtype)
    return shorter


def _statistic_after(origin: np.ndarray, values: np.ndarray, rate: float | None) -> np.ndarray:
    """Return a statistic that came back; of a gradient, what is less than zero by roundings alone is zero."""
    if rate is None:
        return values
    after = origin - rate * values
    return np.where((after < 0) & (after >= -ROUNDINGS * np.finfo(values.dtype).eps * np.abs(origin)), 0, after)


def _length(parts: Iterator[np.ndarray]) -> float:
    with np.errstate(over="ignore", invalid="ignore"):
        flat = [values.reshape(-1) for values in parts]
        return math.sqrt(sum(float(np.einsum("i,i->", values, values)) for values in flat))


def _floats(arrays: Arrays) -> Iterator[tuple[str, np.ndarray]]:
    """Return what has a length; counters, such as BatchNorm's, have none."""
    for name, values in arrays.items():
        if values.dtype.kind == "f":
            yield name, values if values.itemsize > 2 else values.astype(np.float32)
