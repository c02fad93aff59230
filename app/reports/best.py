"""The best round of a run, by the examples that clients hold back from training."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from espalier.clients.messages.train import ACCURACY, LOSS

Score = tuple[float, float]


def ranked_by(figures: Mapping[str, Any]) -> str:
    """Return the name of the figure by which rounds are compared: the accuracy, or the loss where there is none."""
    return ACCURACY if ACCURACY in figures else LOSS


def validation_score(line: Mapping[str, Any]) -> Score | None:
    """Return what the rounds of a run are compared by, higher is better; None in a round that says nothing of it.

    It is the mean accuracy over clients on the examples held back, and of equal ones minus the mean loss, which few
    examples leave equal less often. Where labels are no classes it is minus the mean loss alone.

    Parameters
    ----------
    line : Mapping[str, Any]
        The round's global line.
    """
    figures = line.get("validation") or {}
    mean, loss = (figures.get(name, {}).get("mean") for name in (ranked_by(figures), LOSS))
    if mean is None:
        return None
    own = -math.inf if loss is None else -loss
    return (mean, own) if ranked_by(figures) == ACCURACY else (own, own)


def best_line(lines: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """Return the global line of the best round, of equal ones the first; None where nothing was held back."""
    scored = [
        (score, line) for line in lines if line["scope"] == "global" and (score := validation_score(line)) is not None
    ]
    return max(scored, key=lambda pair: pair[0])[1] if scored else None
