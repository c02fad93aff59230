"""What trackers cost a run.

``python -m benchmarks.trackers [ROUNDS]`` makes runs of ``h-fedavg`` on digits with 8 clients, of 100 global rounds by
default, without a tracker and with each whose package is installed, five times in turns and every time another one
first. With prometheus-client there is also a run that serves its figures and is read every second. It prints the
seconds of a run (median), and in percent what a tracker adds to the run beside it (median). Files go into a temporary
folder; W&B is offline, and MLflow writes into its file store.
"""

import contextlib
import io
import os
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from statistics import median

from espalier.app.command_line import main as espalier
from espalier.app.settings.tracker_kinds import TRACKERS

TURNS, NONE, PROMETHEUS, PORT = 5, "none", "prometheus", 19_100
OPTIONS = {"mlflow": "uri='file:{folder}/mlflow'", "wandb": "mode='offline'"}


def seconds_of(name: str, rounds: int, folder: Path) -> float:
    """Make a run, and return its wall time to its last file."""
    settings = [f"global-rounds={rounds}", "report.plots=false", f"output-dir={folder}"]
    if name == PROMETHEUS:
        settings.append(f"deploy.metrics-port={PORT}")
    elif name != NONE:
        settings.append(f"report.tracker={name}({OPTIONS.get(name, '').format(folder=folder.parent)})")
    began = time.perf_counter()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as errors, read_often():
        code = espalier(settings)
    if code or "report.tracker" in errors.getvalue():
        raise SystemExit(errors.getvalue())
    return time.perf_counter() - began


@contextlib.contextmanager
def read_often() -> Iterator[None]:
    """Read what a run serves every second, if it does."""
    over = threading.Event()

    def read() -> None:
        while not over.wait(1.0):
            with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{PORT}/metrics") as answer:
                answer.read()

    reader = threading.Thread(target=read)
    reader.start()
    try:
        yield
    finally:
        over.set()
        reader.join()


def main() -> None:
    """Measure and print."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    names = [NONE, *(kind.name for kind in TRACKERS.values() if find_spec(kind.requires))]
    names += [PROMETHEUS] if find_spec("prometheus_client") else []
    seconds: dict[str, list[float]] = {name: [] for name in names}
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {"MLFLOW_ALLOW_FILE_STORE": "true", "WANDB_SILENT": "true", "TRACKIO_DIR": f"{folder}/trackio"}
        for name in names:  # imports
            seconds_of(name, 1, Path(folder) / f"warm-{name}")
        for turn in range(TURNS):
            for i in range(len(names)):
                name = names[(turn + i) % len(names)]
                seconds[name].append(seconds_of(name, rounds, Path(folder) / f"{name}-{turn}"))
    for name, times in seconds.items():
        added = median(one / other - 1 for one, other in zip(times, seconds[NONE], strict=True))
        print(f"{name:<12}{median(times):8.2f} s{f'{added:+9.1%}' if name != NONE else ''}")


if __name__ == "__main__":
    main()
