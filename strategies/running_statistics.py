"""Statistics in a model that a strategy made of others: averaged, and possible."""

from collections.abc import Mapping, Sequence
from functools import reduce

import numpy as np
from flwr.app import Array, ArrayRecord

from espalier.clients.shared.arrays import values_of
from espalier.clients.shared.statistics import VARIANCE, is_beside_weights, last_name
from espalier.clients.shared.tensor_array import record_by_reference

Models = Sequence[Mapping[str, Array]]


def with_averages(made: ArrayRecord, models: Models, weights: Sequence[float], *, always: bool) -> ArrayRecord:
    """Return the model that a strategy made, its statistics and integers, such as counters, those that FedAvg makes.

    Those of a strategy that chooses among models, or averages them in a way of its own, as FedMedian and Krum do, stand
    as they are: none of its numbers is beyond those of the models.

    Parameters
    ----------
    made : ArrayRecord
        What the strategy made.
    models : Sequence[Mapping[str, Array]]
        Of what it was given, with the same arrays.
    weights : Sequence[float]
        By which FedAvg averages the models.
    always : bool
        Whether the strategy is known to move the model, whatever its numbers are.
    """
    beside = [name for name, array in models[0].items() if is_beside_weights(name, values_of(array).dtype)]
    averages = {name: _average(name, models, weights) for name in beside}
    if all(np.array_equal(values_of(made[name]), average) for name, average in averages.items()):
        return made
    if not always and not any(_is_beyond(made[name], [model[name] for model in models]) for name in made):
        return made
    return _with(made, averages)


def with_possible_variances(made: ArrayRecord) -> ArrayRecord:
    """Return a model whose variances are not below zero, where noise or a rounding may have taken them."""
    variances = {name: np.maximum(values_of(made[name]), 0) for name in made if last_name(name) == VARIANCE}
    return _with(made, variances)


def _average(name: str, models: Models, weights: Sequence[float]) -> np.ndarray:
    """Return an average with FedAvg's bits."""
    total = sum(weights)
    return np.asarray(sum(values_of(m[name]) * (w / total) for m, w in zip(models, weights, strict=True)))


def _is_beyond(made: Array, own: Sequence[Array]) -> bool:
    """Return whether a number is less than all of the models' own, or more, by more than averages are rounded by."""
    values, every = values_of(made), [values_of(array) for array in own]
    if every[0].dtype.kind != "f":
        return False
    low, high = reduce(np.minimum, every), reduce(np.maximum, every)
    slack = 4 * len(every) * np.finfo(every[0].dtype).eps * np.maximum(np.abs(low), np.abs(high))
    return bool(((values < low - slack) | (values > high + slack)).any())


def _with(made: ArrayRecord, values: Mapping[str, np.ndarray]) -> ArrayRecord:
    return record_by_reference({**made, **{name: Array(array) for name, array in values.items()}})
