"""When an asynchronous tier aggregates, and what an update that began with an older model counts for."""

from dataclasses import dataclass
from math import inf
from typing import Protocol

import numpy as np
from flwr.app import Array, ArrayRecord

from espalier.clients.shared.arrays import values_of
from espalier.clients.shared.statistics import is_statistic
from espalier.clients.shared.tensor_array import record_by_reference

from .staleness import Staleness


class Mode(Protocol):
    """Decides when a tier aggregates, and how updates get there.

    Attributes
    ----------
    size : int, optional
        Number of updates that are aggregated; None: of everybody who is at work.
    deadline_seconds : float
        Time after which what is in is aggregated; infinite for none.
    begins_again : bool
        Whether a node that has ended begins again before the aggregation.
    """

    @property
    def size(self) -> int | None: ...  # noqa: D102

    @property
    def deadline_seconds(self) -> float: ...  # noqa: D102

    @property
    def begins_again(self) -> bool: ...  # noqa: D102

    def applied(self, model: ArrayRecord, began_with: ArrayRecord, update: ArrayRecord, staleness: int) -> ArrayRecord:
        """Return the model to aggregate for an update; of statistics, such as BatchNorm's, see `moved`.

        Parameters
        ----------
        model : ArrayRecord
            The tier's own, now.
        began_with : ArrayRecord
            The one that the node got.
        update : ArrayRecord
            The one that came back.
        staleness : int
            Aggregations in between.
        """


@dataclass(frozen=True)
class FedBuff:
    """Aggregate as soon as some updates are in (Nguyen et al., AISTATS 2022, Algorithm 1).

    The strategy gets the tier's model moved by each update's own change times the weight of its staleness. With
    FedAvg, and clients that weigh the same, that is the paper's ``w + (1/K) sum_k s(t_k) (w_k - w_began)`` with a
    server rate of 1; with FedAdam or FedAvgM the server's rate is theirs.

    Parameters
    ----------
    size : int
        Updates in an aggregation (the paper's K), at least 1.
    staleness : Callable[[int], float]
        Weight by staleness.

    Raises
    ------
    ValueError
        If the size is less than 1.
    """

    size: int
    staleness: Staleness
    deadline_seconds = inf
    begins_again = True

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ValueError(f"size = {self.size}: must be an integer >= 1")

    def applied(self, model: ArrayRecord, began_with: ArrayRecord, update: ArrayRecord, staleness: int) -> ArrayRecord:
        """Return the model, moved as the update moved the one it began with."""
        return moved(model, began_with, update, self.staleness(staleness), is_fresh=staleness == 0)


@dataclass(frozen=True)
class FedAsync:
    """Aggregate every update by itself (Xie et al., arXiv:1903.03934): ``(1 - a s(t)) w + a s(t) w_k``.

    Parameters
    ----------
    mixing : float
        The paper's a, more than 0 and at most 1.
    staleness : Callable[[int], float]
        The paper's s.

    Raises
    ------
    ValueError
        If `mixing` is not allowed.
    """

    mixing: float
    staleness: Staleness
    size = 1
    deadline_seconds = inf
    begins_again = True

    def __post_init__(self) -> None:
        if not 0 < self.mixing <= 1:
            raise ValueError(f"mixing = {self.mixing}: must be a number > 0 and <= 1")

    def applied(self, model: ArrayRecord, began_with: ArrayRecord, update: ArrayRecord, staleness: int) -> ArrayRecord:
        """Return the tier's model mixed with the update's."""
        return moved(model, model, update, self.mixing * self.staleness(staleness), is_fresh=True)


@dataclass(frozen=True)
class SemiSynchronous:
    """Aggregate at a deadline what is in, late updates of earlier rounds too; nobody begins within a round.

    Without a deadline it is the synchronous round. If nothing is in at the deadline, the first update that comes is
    waited for.

    Parameters
    ----------
    deadline_seconds : float
        From the begin of a round; infinite for none.
    staleness : Callable[[int], float]
        Weight of late updates, as for `FedBuff`.

    Raises
    ------
    ValueError
        If the deadline is not more than 0.
    """

    deadline_seconds: float
    staleness: Staleness
    size = None
    begins_again = False

    def __post_init__(self) -> None:
        if not self.deadline_seconds > 0:
            raise ValueError(f"deadline_seconds = {self.deadline_seconds}: must be a number > 0")

    def applied(self, model: ArrayRecord, began_with: ArrayRecord, update: ArrayRecord, staleness: int) -> ArrayRecord:
        """Return the model, moved as the update moved the one it began with."""
        return moved(model, began_with, update, self.staleness(staleness), is_fresh=staleness == 0)


def moved(
    model: ArrayRecord, began_with: ArrayRecord, update: ArrayRecord, weight: float, *, is_fresh: bool
) -> ArrayRecord:
    """Return ``model + weight * (update - began_with)``, in the types of the model.

    Statistics, such as BatchNorm's variances, are mixed: ``model + weight * (update - model)``. Moved like weights they
    would leave what is possible where several updates make the same change.

    Parameters
    ----------
    model, began_with, update : ArrayRecord
        With the same names, shapes and kinds of numbers.
    weight : float
        Of the change. Integers, such as BatchNorm's counters, are rounded.
    is_fresh : bool
        Whether `began_with` is the model itself; with weight 1 the update is then returned as it is, to the bit.
    """
    if is_fresh and weight == 1:
        return update
    arrays = {}
    for name, array in model.items():
        now, values = values_of(array), values_of(update[name])
        origin = now if is_statistic(name) else values_of(began_with[name])
        if now.dtype.kind in "fc":
            with np.errstate(over="ignore", invalid="ignore"):  # what is too large is found when it is aggregated
                result = now + weight * (values - origin)
        else:
            result = np.rint(now + weight * (values.astype(np.float64) - origin))
        arrays[name] = Array(np.asarray(result, now.dtype))
    return record_by_reference(arrays)
