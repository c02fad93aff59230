"""How far a model that comes back is from the one that was sent."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from ..running_statistics import is_statistic

Arrays = Mapping[str, np.ndarray]


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
                now = model[name] if rate is None else origin - rate * model[name]
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
    return np.sqrt(values) if name.endswith("running_var") else values


def shortened(
    sent: Arrays, model: Arrays, weights: float, statistics: float, rate: float | None
) -> dict[str, np.ndarray]:
    """Return the model whose weights and statistics changed in the same direction, and so many times less far."""
    shorter = {}
    for name, values in model.items():
        by = statistics if is_statistic(name) else weights
        origin = sent[name] if rate is None else np.zeros_like(values)
        shorter[name] = (origin + (values - origin) / by).astype(values.dtype) if values.dtype.kind == "f" else values
    return shorter


def _length(parts: Iterator[np.ndarray]) -> float:
    with np.errstate(over="ignore", invalid="ignore"):
        flat = [values.reshape(-1) for values in parts]
        return math.sqrt(sum(float(np.einsum("i,i->", values, values)) for values in flat))


def _floats(arrays: Arrays) -> Iterator[tuple[str, np.ndarray]]:
    """Return what has a length; counters, such as BatchNorm's, have none."""
    for name, values in arrays.items():
        if values.dtype.kind == "f":
            yield name, values if values.itemsize > 2 else values.astype(np.float32)
