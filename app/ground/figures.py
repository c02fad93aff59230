"""Figures of clients and rounds, by name: which there are, what they spread over, and what can be compared."""

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean, pstdev
from typing import Any, TypeGuard

from espalier.app.ground.fields import FIELDS
from espalier.clients.messages.train import ACCURACY, LOSS

MOST = 1e150  # of a figure that is compared: the square of a larger one is no number


def figure_names(test: Mapping[str, Any] | None) -> list[str]:
    """Return what models are judged by in a run, the loss last.

    Parameters
    ----------
    test : Mapping[str, Any], optional
        Figures of a round on the whole test pool; None where there are none: loss and accuracy.
    """
    return [name for name in test or (ACCURACY,) if name not in FIELDS | {LOSS}] + [LOSS]


def is_number(value: object) -> TypeGuard[float]:
    """Return whether a metric is one number, not a list."""
    return isinstance(value, int | float)


def is_figure(value: object) -> bool:
    """Return whether what a file of a run holds is a number that can be compared with others."""
    return is_number(value) and not isinstance(value, bool) and abs(value) <= MOST


def spreads_of(clients: Iterable[Mapping[str, Any]], names: Sequence[str]) -> dict[str, dict[str, float | None]]:
    """Return the spread of each figure over those clients whose test sets have it."""
    clients = list(clients)
    return {name: spread([float(own[name]) for own in clients if is_number(own.get(name))]) for name in names}


def spread(values: Sequence[float]) -> dict[str, float | None]:
    """Return mean, standard deviation (of the population), minimum and maximum; None of what are no numbers."""
    if not values or not all(map(math.isfinite, values)):
        return dict.fromkeys(("mean", "std", "min", "max"))
    return {"mean": fmean(values), "std": pstdev(values), "min": min(values), "max": max(values)}


def finite(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return metrics with None for NaN and Inf, which JSON does not know."""
    return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in metrics.items()}


def drawn_figures(evaluated: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the figures of evaluated rounds that can be drawn: first what models are judged by, the loss last.

    A round without clients' figures has those on the whole test pool.
    """
    every = figure_names(evaluated[-1].get("test"))
    drawn = [
        {name: (line.get(name) or {}).get("mean") for name in every} if "clients" in line else line["test"]
        for line in evaluated
    ]
    names = [name for name in every if any(figures.get(name) is not None for figures in drawn)]
    return names or every[:1]  # a ranking has no loss
