"""The leaks that docs/privacy-measured.md measures, where activations are clipped and get noise, and the accuracy."""

from collections.abc import Iterator
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rich.console import Console

from espalier.app.config.parse import parse_config
from espalier.app.engines.in_process import InProcess
from espalier.app.reports.folder import ResultsFolder
from espalier.app.reports.progress import BarProgress
from espalier.app.run.run import run
from espalier.sim.in_process_grid import InProcessGrid
from experiments import privacy
from experiments.attacking.noisy import with_noise
from experiments.attacking.records import Measured, Pictures

READ = "activations read"
CUT = 1
NOISES = (0.0, 0.1, 0.3, 1.0, 4.0)
ACCURACY = "accuracy"
SHORTER = {"global-rounds": 5}


def defence_of(noise: float) -> str:
    """Return what a table calls noise of a standard deviation, over the clip."""
    return f"noise {noise:g}" if noise else "none"


def observed(run_config: dict[str, Any], noise: float) -> tuple[privacy.Observer, float]:
    """Train with noise at the cut; return what was seen, and the accuracy on the test pool, of activations without."""
    observer = privacy.Observer(lambda task: with_noise(task, CUT, noise))
    with TemporaryDirectory() as folder, redirect_stdout(StringIO()):
        path = Path(folder) / "run"
        config = parse_config({**run_config, "output-dir": str(path)})
        grid = InProcessGrid(observer, config.federation.num_clients, run_config=config.as_dict(), seed=config.seed)
        run(config, InProcess(grid), BarProgress(Console(file=StringIO())), Path(folder))
        summary = ResultsFolder(path).read_json("summary.json")
    return observer, summary["test"]["accuracy"]


def measured(seed: int, noises: tuple[float, ...] = NOISES, **changes: Any) -> Iterator[Measured | Pictures]:
    """Return what the last round's messages tell with each noise; `changes` are settings of the run by their keys."""
    case = privacy.Case("digits", "hsfl", CUT, "head", privacy.OWN, seed)
    for noise in noises:
        observer, accuracy = observed({**case.run_config, **SHORTER, **changes}, noise)
        clients = list(observer.rounds[max(observer.rounds)].values())
        where = (READ, f"cut {CUT}, tail head", defence_of(noise))
        for what, measure, _, share, by_chance, samples in privacy.measured(clients, privacy.PAYLOADS[:1]):
            yield Measured(*where, f"{what}, {measure}", share, by_chance, samples)
        yield Measured(*where, ACCURACY, accuracy, 1 / privacy.NUM_CLASSES, 0)
