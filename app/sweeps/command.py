"""``espalier sweep``: many runs."""

import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections import Counter
from collections.abc import Mapping, MutableMapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from espalier.app.comparison.groups import RUNS, chosen_before
from espalier.app.comparison.runs import FinishedRun, is_surely_over, read_run, write_runs
from espalier.app.ground.errors import UserError, bad_value, shown
from espalier.app.ground.logs import quiet_flower
from espalier.app.settings.engine_kinds import engine_named
from espalier.app.sweeps.grid import PlannedRun, check_data, planned_runs, read_sweep, run_by_folder
from espalier.app.sweeps.optimise import optimised, said
from espalier.app.sweeps.progress import SweepProgress
from espalier.app.sweeps.search import aim_of
from espalier.app.sweeps.workers import make
from espalier.app.tasks.common import compute_device
from espalier.clients.device.machine import cpu_count

TRIALS = 20
HELP = """Make all combinations of the values that keys take, each as a run in a folder of its own.

  espalier sweep experiment.toml algorithm=hsfl,phsfl alpha=0.1,0.5 seed=0,1,2
  espalier sweep experiment.toml                      with a table [sweep] of lists in it: seed = [0, 1, 2]
  espalier sweep learning-rate=0.001..1:log cut-layer=1,2 seed=0,1 --optimise accuracy --trials 20
  espalier sweep cloud-strategy='FedAvg,FedAdam(eta=0.05, tau=0.1)' cut-layer='"1,2",3' output-dir=results/strategies

Runs that are over are not made again, and those that were interrupted go on: type the same again. The folder, or
output-dir, gets runs.csv with a line for each run that is over. docs/sweeps.md says more.
"""


def main(arguments: Sequence[str]) -> int:
    """Make what a command line asks for and return the exit code: 1 if a run failed."""
    parser = ArgumentParser("espalier sweep", description=HELP, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("given", nargs="+", metavar="FILE.toml|KEY=VALUE,VALUE", help="later ones win")
    workers = "runs at a time (default: cores / train.torch-threads; one with engine=ray, and on a GPU)"
    parser.add_argument("--workers", type=int, default=0, help=workers)
    better = "choose values by this figure, with Optuna: accuracy, loss, max:NAME or min:NAME"
    parser.add_argument("--optimise", metavar="FIGURE", help=better)
    parser.add_argument("--trials", type=int, help="with --optimise: how many values to try (default: 20)")
    options = parser.parse_intermixed_args(arguments)
    quiet_flower()
    try:
        if options.workers < 0:
            raise bad_value("--workers", options.workers, "a number of processes, or 0")
        if options.trials is not None and (options.trials < 1 or not options.optimise):
            raise bad_value("--trials", options.trials, "1 or more, with --optimise")
        sweep = read_sweep(options.given)
        chosen_before(sweep.folder, ())  # a table that can't be read must not be written over
        made = _Made(sweep.folder, options.workers)
        if options.optimise:
            aim = aim_of(options.optimise)
            print(said(optimised(sweep, aim, options.trials or TRIALS, made.make), aim))
        else:
            made.make(planned_runs(sweep))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"error: {error.filename or 'output-dir'}: can't be written ({error.strerror})", file=sys.stderr)
        return 2
    for name, why in made.failed.items():
        print(f"failed: {name}: {why}", file=sys.stderr)
    over = len(made.places) - len(made.failed)
    print(f"{over} of {len(made.places)} runs are over, {made.count} of them made now")
    print(f"results: {sweep.folder / RUNS}")
    return int(bool(made.failed))


class _Made:
    """The runs of a sweep, as they are made.

    Parameters
    ----------
    folder : Path
        The sweep's.
    workers : int
        Runs at a time; 0 leaves it to the machine.

    Attributes
    ----------
    places : dict[Path, PlannedRun]
        All runs so far, by their folders.
    failed : dict[str, str]
        Those that failed, with the reason.
    count : int
        Those that were made now.
    """

    def __init__(self, folder: Path, workers: int) -> None:
        self._folder, self._workers = folder, workers
        self.places: dict[Path, PlannedRun] = {}
        self.failed: dict[str, str] = {}
        self.count = 0

    def make(self, runs: Sequence[PlannedRun]) -> dict[Path, PlannedRun]:
        """Make those that are not over, and return the folders of all; UserError if one can't be made."""
        places = run_by_folder(runs, self._folder)
        left = {path: run for path, run in places.items() if not is_surely_over(path)}
        check_data(list(left.values()))
        warn_of_equal_runs(runs)
        self._folder.mkdir(parents=True, exist_ok=True)
        count, failed = _make(places, left, self._workers or default_workers(list(places.values())), self._folder)
        self.places |= places
        self.count += count
        # One that failed may have been made now: two trials may be the same.
        again = {run.name for run in runs}
        self.failed = {name: why for name, why in self.failed.items() if name not in again} | failed
        return places


def warn_of_equal_runs(runs: Sequence[PlannedRun]) -> None:
    """Say which of the swept values have no effect: runs that differ in them alone come to the same."""
    lines = Counter(
        f"{key} = {shown(run.chosen[key])} has no effect: {why}"
        for run in runs
        for key, why in run.without_effect.items()
    )
    for line, count in lines.items():
        print(f"warning: in {count} of {len(runs)} runs {line}", file=sys.stderr)


def default_workers(runs: Sequence[PlannedRun]) -> int:
    """Return how many runs this machine's cores can make at a time; with workers of Ray's own, and on a GPU, one.

    Nobody can tell beforehand how many a GPU's memory suffices for.
    """
    if any(
        engine_named(run.settings["engine"]).has_workers or compute_device(run.settings["device"]).type != "cpu"
        for run in runs
    ):
        return 1
    return max(cpu_count() // max(run.settings["train.torch-threads"] for run in runs), 1)


def _make(
    places: Mapping[Path, PlannedRun], left: Mapping[Path, PlannedRun], workers: int, folder: Path
) -> tuple[int, dict[str, str]]:
    """Make the runs that are left, and keep ``runs.csv`` up to date; return how many were made, and which failed."""
    rounds = sum(run.settings["global-rounds"] for run in left.values())
    with SweepProgress(Console(), len(places), len(places) - len(left), rounds) as progress:
        recorder = _Recorder(progress, places, folder)
        failed = make(left, workers, recorder)
    write_table(places, folder)
    return len(recorder.made), failed


class _Recorder:
    """Passes on what it is told, and writes ``runs.csv`` whenever a run is over.

    Attributes
    ----------
    made : set[str]
        The runs that this sweep has made, or makes, and no other one.
    """

    def __init__(self, progress: SweepProgress, places: Mapping[Path, PlannedRun], folder: Path) -> None:
        self.made = set[str]()
        self.went_on = progress.went_on
        self._progress, self._places, self._folder = progress, places, folder
        self._known: dict[Path, FinishedRun] = {}

    def started(self, run: PlannedRun, rounds: int) -> None:
        """Notice that a run begins."""
        self.made.add(run.name)
        self._progress.started(run, rounds)

    def waits(self, run: PlannedRun) -> None:
        """Notice that another process makes a run."""
        self.made.discard(run.name)
        self._progress.waits(run)

    def ended(self, run: PlannedRun, path: Path, why: str) -> None:
        """Notice that a run is over."""
        if why:
            self.made.discard(run.name)
        self._progress.ended(run, path, why)
        write_table(self._places, self._folder, self._known)


def write_table(
    places: Mapping[Path, PlannedRun], folder: Path, known: MutableMapping[Path, FinishedRun] | None = None
) -> None:
    """Write ``runs.csv``: a line for each run that is over and that no process has, of this sweep and those before.

    Runs that are `known` to be over are not read again; those that are read are added.
    """
    known = {} if known is None else known
    chosen = {path: run.chosen for path, run in places.items()}
    keys = {key for run in places.values() for key in run.settings}
    try:
        before = chosen_before(folder, keys)
    except UserError as error:  # somebody has changed it meanwhile
        print(f"warning: {error}; it stays as it is", file=sys.stderr)
        return
    chosen |= {path: values for path, values in before.items() if path not in places}
    over = []
    for path, values in chosen.items():
        with suppress(UserError):
            if path not in known:
                known[path] = replace(read_run(path), lines=(), initial={})
            over.append((values, known[path]))
    write_runs(folder / RUNS, over)
