"""What the runs of a setting come to together: mean, standard deviation and 95 % interval over seeds."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import fmean, stdev

from scipy.special import stdtrit

from espalier.app.ground.errors import bad_value

OPTION = "--spread"


@dataclass(frozen=True)
class OverSeeds:
    """A figure of the runs of a setting.

    Parameters
    ----------
    mean : float
        Over the runs.
    std : float, optional
        Standard deviation of the sample (n - 1); None of one run.
    ci95 : float, optional
        Half the width of the 95 % interval of the mean, by Student's t; None of one run.
    """

    mean: float
    std: float | None
    ci95: float | None


def over_seeds(values: Sequence[float]) -> OverSeeds:
    """Return what the figures of at least one run come to."""
    std = stdev(values) if len(values) > 1 else None
    return OverSeeds(fmean(values), std, None if std is None else std * half_width(len(values)))


def half_width(runs: int) -> float:
    """Return half the width of the 95 % interval of a mean of at least two runs, in standard deviations of a run."""
    return float(stdtrit(runs - 1, 0.975)) / sqrt(runs)


@dataclass(frozen=True)
class Spread:
    """What stands behind ``+-`` in tables, and what bands show.

    Parameters
    ----------
    name : str
        As the option takes it, and in the tables' columns.
    band : str
        What a figure's title says of its bands.
    about : str
        What a table says of it.
    of : Callable[[OverSeeds], float | None]
        Takes it from a figure.
    """

    name: str
    band: str
    about: str
    of: Callable[[OverSeeds], float | None]


STD = Spread("std", "1 std", "standard deviation of the sample (n - 1) over seeds", lambda figure: figure.std)
CI95 = Spread("ci95", "95 % interval", "95 % interval of the mean over seeds (Student's t)", lambda figure: figure.ci95)
SPREADS = {spread.name: spread for spread in (STD, CI95)}


def spread_named(text: str) -> Spread:
    """Return the spread of a name; UserError if there is none."""
    if text not in SPREADS:
        raise bad_value(OPTION, text, ", ".join(SPREADS))
    return SPREADS[text]
