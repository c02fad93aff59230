"""What a sweep that optimises tries: Optuna draws values from those that did well before."""

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from espalier.app.comparison.groups import CASE
from espalier.app.comparison.targets import BOUNDS
from espalier.app.config.parse import parse_config
from espalier.app.ground.errors import UserError, bad_value
from espalier.app.ground.registered import load_built_in
from espalier.app.sweeps.grid import Sweep

OPTION = "--optimise"
AT_A_TIME = 4  # trials drawn from the same results: however many are run at a time, they are the same ones
NUMBER = r"[-+]?\d+(?:\.\d*)?(?:e[-+]?\d+)?"
RANGE = re.compile(rf"({NUMBER})\.\.({NUMBER})(:log)?", re.IGNORECASE)
DIGITS = 6
SEED = "seed"


@dataclass(frozen=True)
class Aim:
    """What is optimised.

    Parameters
    ----------
    figure : str
        A column of ``runs.csv``.
    rises : bool
        Whether more of it is better.
    """

    figure: str
    rises: bool


@dataclass(frozen=True)
class Between:
    """Numbers between two; whole ones where both are such, and the setting takes no others.

    Parameters
    ----------
    low, high : int or float
        The least and the greatest.
    log : bool
        Whether their logarithm is drawn evenly.
    """

    low: float
    high: float
    log: bool


Space = Mapping[str, Between | Sequence[Any]]


@dataclass(frozen=True)
class Trial:
    """Values that were tried.

    Parameters
    ----------
    values : Mapping[str, Any]
        By key, or by the name of `CASE`.
    figure : float or None
        What they came to; None where a run failed or had no such figure.
    """

    values: Mapping[str, Any]
    figure: float | None


def aim_of(text: str) -> Aim:
    """Return what ``accuracy``, ``loss``, ``max:auc`` or ``min:uplink_bytes`` says; UserError for another text."""
    way, colon, figure = text.partition(":")
    if colon and way in ("min", "max") and figure:
        return Aim(figure, way == "max")
    if text in BOUNDS:
        return Aim(text, BOUNDS[text] == ">=")
    raise bad_value(OPTION, text, "accuracy, loss, or of any other column of runs.csv max:NAME or min:NAME")


def space_of(sweep: Sweep) -> Space:
    """Return what a sweep leaves open: keys of several values, its cases, and ranges such as ``0.001..1:log``.

    Seeds are not chosen among: each trial is run with all.

    Raises
    ------
    UserError
        If that is nothing, or a range is none.
    """
    space: dict[str, Between | Sequence[Any]] = {CASE: list(sweep.cases)} if len(sweep.cases) > 1 else {}
    space |= {key: values for key, values in sweep.swept.items() if key != SEED}
    for key, value in sweep.fixed.items():
        if isinstance(value, str) and (found := RANGE.fullmatch(value)):
            if key == SEED:
                raise bad_value(SEED, value, "numbers with commas between them: each trial is run with all")
            space[key] = _range(key, value, *found.groups())
    if not space:
        raise UserError(
            f"{OPTION}: nothing to choose: allowed is alpha=0.1,0.5, or a range, learning-rate=0.001..1:log"
        )
    return space


def _range(key: str, text: str, low: str, high: str, log: str | None) -> Between:
    takes_whole = not isinstance(parse_config({}).as_dict().get(key), float)
    is_whole = takes_whole and all(re.fullmatch(r"[-+]?\d+", end) for end in (low, high))
    ends = [(int if is_whole else float)(end) for end in (low, high)]
    if not (all(map(math.isfinite, ends)) and ends[0] < ends[1]) or (log and ends[0] <= 0):
        raise bad_value(key, text, "LOW..HIGH with LOW < HIGH, and with :log behind it LOW > 0")
    return Between(ends[0], ends[1], bool(log))


def search(
    space: Space,
    aim: Aim,
    seed: int,
    count: int,
    figures_of: Callable[[Sequence[Mapping[str, Any]]], list[float | None]],
) -> Iterator[Trial]:
    """Yield trials, by a tree-structured Parzen estimator. The same figures lead to the same trials.

    Parameters
    ----------
    space : Space
        What there is to choose, by key.
    aim : Aim
        What is optimised.
    seed : int
        Of the sampler, which takes 32 bits of it.
    count : int
        Trials.
    figures_of : Callable[[Sequence[Mapping[str, Any]]], list[float | None]]
        Returns what each of some trials' values come to, None for a failure.

    Raises
    ------
    UserError
        If Optuna is not installed.
    """
    logs = load_built_in("optuna:logging", OPTION, aim.figure, "optuna", "'espalier-fl[optuna]'")
    logs.set_verbosity(logs.WARNING)
    import optuna

    direction = "maximize" if aim.rises else "minimize"
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed % 2**32), direction=direction)
    for first in range(0, count, AT_A_TIME):
        asked = [study.ask() for _ in range(min(AT_A_TIME, count - first))]
        values = [{key: _drawn(trial, key, open_) for key, open_ in space.items()} for trial in asked]
        for trial, chosen, figure in zip(asked, values, figures_of(values), strict=True):
            study.tell(trial, figure, state=optuna.trial.TrialState.FAIL if figure is None else None)
            yield Trial(chosen, figure)


def _drawn(trial: Any, key: str, open_: Between | Sequence[Any]) -> Any:
    if not isinstance(open_, Between):
        return open_[trial.suggest_categorical(key, range(len(open_)))]
    if isinstance(open_.low, int):
        return trial.suggest_int(key, open_.low, open_.high, log=open_.log)
    drawn = trial.suggest_float(key, open_.low, open_.high, log=open_.log)
    return min(max(float(f"{drawn:.{DIGITS}g}"), open_.low), open_.high)  # as a folder's name and a table have it


def best_of(trials: Sequence[Trial], aim: Aim) -> Trial | None:
    """Return the first of the best trials, None if all failed."""
    over = [trial for trial in trials if trial.figure is not None]
    sign = 1 if aim.rises else -1
    return max(over, key=lambda trial: sign * (trial.figure or 0.0), default=None)


def ends_of(space: Space) -> Iterator[dict[str, Any]]:
    """Yield the least and the greatest values of all ranges, each with values of lists: trials are between them."""
    for is_high in (False, True):
        yield {
            key: (own.high if is_high else own.low) if isinstance(own, Between) else own[-is_high]
            for key, own in space.items()
        }


def as_sweep(sweep: Sweep, space: Space, values: Mapping[str, Any]) -> Sweep:
    """Return the sweep of one trial: its values, and all seeds."""
    fixed = {key: value for key, value in sweep.fixed.items() if key not in space}
    swept = {key: [value] for key, value in values.items() if key != CASE}
    if SEED in sweep.swept:
        swept[SEED] = sweep.swept[SEED]
    cases = {values[CASE]: sweep.cases[values[CASE]]} if CASE in values else dict(sweep.cases)
    return Sweep(fixed, swept, cases, sweep.name)
