"""The best round of a run, by the examples that clients hold back from training."""

from collections.abc import Mapping, Sequence
from typing import Any

from espalier.clients.messages.train import ACCURACY, LOSS


def ranked_by(figures: Mapping[str, Any]) -> str:
    """Return the name of the figure by which rounds are compared: the accuracy, or the loss where there is none."""
    return ACCURACY if ACCURACY in figures else LOSS


def validation_score(line: Mapping[str, Any]) -> float | None:
    """Return what the rounds of a run are compared by, higher is better; None in a round that says nothing of it.

    It is the mean accuracy over clients on the examples held back, or where labels are no classes minus their mean
    loss.

    Parameters
    ----------
    line : Mapping[str, Any]
        The round's global line.
    """
    figures = line.get("validation") or {}
    name = ranked_by(figures)
    mean = figures.get(name, {}).get("mean")
    return mean if mean is None or name == ACCURACY else -mean


def best_line(lines: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """Return the global line of the best round, of equal ones the first; None where nothing was held back."""
    scored = [
        (score, line) for line in lines if line["scope"] == "global" and (score := validation_score(line)) is not None
    ]
    return max(scored, key=lambda pair: pair[0])[1] if scored else None
