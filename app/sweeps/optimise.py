"""``espalier sweep --optimise``: the runs of trials, one lot after the other."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from espalier.app.comparison.runs import read_run
from espalier.app.ground.errors import UserError, bad_value, shown
from espalier.app.sweeps.grid import PlannedRun, Sweep, planned_runs
from espalier.app.sweeps.search import OPTION, SEED, Aim, Trial, as_sweep, best_of, ends_of, search, space_of

# Makes runs, and returns their folders.
Make = Callable[[Sequence[PlannedRun]], Mapping[Path, PlannedRun]]


def optimised(sweep: Sweep, aim: Aim, count: int, make: Make) -> list[Trial]:
    """Make the runs of trials and return these, in order.

    Trials follow from the seed and from what the ones before came to. So one who types the same again, or more trials,
    gets those that are over from the sweep's folder, and goes on.

    Parameters
    ----------
    sweep : Sweep
        What is open, and what is not; its first seed is the search's, too.
    aim : Aim
        What is optimised: a mean over the seeds' runs.
    count : int
        Trials.
    make : Make
        Makes those of some runs that are not over.

    Raises
    ------
    UserError
        If there is nothing to choose, values are not allowed, or the runs have no such figure.
    """
    space = space_of(sweep)
    for ends in ends_of(space):
        planned_runs(as_sweep(sweep, space, ends))
    seeds = sweep.swept.get(SEED, [sweep.fixed.get(SEED, 0)])

    def figures_of(values: Sequence[Mapping[str, Any]]) -> list[float | None]:
        trials = [planned_runs(as_sweep(sweep, space, chosen)) for chosen in values]
        runs = {run.name: run for trial in trials for run in trial}  # two trials may be the same
        made = make(list(runs.values()))

        def folder_of(run: PlannedRun) -> Path:  # of cases that have become alike there is one for both
            return next(path for path, own in made.items() if own.is_made_with(run.settings))

        return [_mean([_figure(folder_of(run), aim.figure) for run in trial]) for trial in trials]

    return list(search(space, aim, seeds[0] if isinstance(seeds[0], int) else 0, count, figures_of))


def said(trials: Sequence[Trial], aim: Aim) -> str:
    """Return the best trial in words."""
    best = best_of(trials, aim)
    if best is None:
        return f"no trial of {len(trials)} came to a figure {aim.figure}"
    number = trials.index(best) + 1
    values = ", ".join(f"{key} = {shown(value)}" for key, value in best.values.items())
    return f"best of {len(trials)} trials: {number}, {values}: {aim.figure} {best.figure:.6g}"


def _figure(path: Path, name: str) -> float | None:
    """Return a figure of a run, None if the run failed; UserError if runs have no such figure."""
    try:
        run = read_run(path)
    except UserError:  # it is not over
        return None
    if not run.lacking and name not in run.figures:
        known = ", ".join(sorted(key for key, value in run.figures.items() if value is not None))
        raise bad_value(OPTION, name, f"a figure of these runs: {known}")
    return run.figures.get(name)


def _mean(figures: Sequence[float | None]) -> float | None:
    known = [figure for figure in figures if figure is not None]
    return sum(known) / len(known) if len(known) == len(figures) else None
