"""A line for a run whose model diverged: what a user makes of NaN, of absurd numbers and of a loss that grew."""

import math
import re
from dataclasses import dataclass, field
from logging import getLogger

from espalier.app.reports.metrics import in_digits
from espalier.app.reports.observers import RoundReport
from espalier.clients.messages.train import LOSS
from espalier.strategies import Round

logger = getLogger("espalier")

# More than models come to that are right less often than by chance and sure of it; training only made it worse.
TIMES_UNTRAINED = 5.0
# What the reasons of replies say that are left out for their numbers, and not for being late, of another shape or so.
NUMBERS = re.compile(r"\b(nan|inf)\b|too large| long(,| towards)|too long|expected a loss", re.IGNORECASE)


@dataclass
class DivergenceWarning:
    """Warns once when a model diverges, and says what to try.

    A model has diverged when its loss on the whole test pool is not finite or `TIMES_UNTRAINED` times that of the
    untrained model, or when at least half of a round's training replies are left out for their numbers: a minority that
    is left out may be hostile.

    Parameters
    ----------
    untrained : float, optional
        Loss of the model before any training, on the whole test pool; None where it is not known.
    advice : str
        What to try.
    """

    untrained: float | None
    advice: str
    is_over: bool = field(default=False, init=False)

    def round_over(self, report: RoundReport) -> None:
        """Look at a round, until one is found in which the model diverges."""
        why = "" if self.is_over else self._from_loss(report) or _from_replies(report.outcome)
        if why:
            self.is_over = True
            logger.warning("round %d: the model diverged: %s; %s", report.outcome.number, why, self.advice)

    def _from_loss(self, report: RoundReport) -> str:
        loss = (report.test or {}).get(LOSS)
        if loss is None:
            return ""
        if not math.isfinite(loss):
            return f"its loss is {loss}"
        if self.untrained is None or self.untrained <= 0 or loss < TIMES_UNTRAINED * self.untrained:
            return ""
        return f"its loss is {in_digits(loss)}, and was {in_digits(self.untrained)} before training"


def _from_replies(outcome: Round) -> str:
    updates = [update for edge in outcome.edges.values() for update in edge.updates]
    asked = sum(len(update.participants) + len(update.failures) for update in updates)
    absurd = sum(bool(NUMBERS.search(failure.reason)) for update in updates for failure in update.failures)
    if not absurd or 2 * absurd < asked:
        return ""
    return f"{absurd} of {asked} replies are left out, since their numbers are NaN or absurdly large"
