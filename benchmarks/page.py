"""What the page of a run costs, beside the run's own costs.

``python -m benchmarks.page`` makes a run of 10,000 clients on 10 edges over 100 rounds, of whom 100 train in each
and all are evaluated in two, on the task of `benchmarks.scale`. It prints its CPU seconds, the size of its lines, the
CPU seconds to write its page, the page's size, and the seconds until Chromium has drawn it from a disk, where Chromium
and its driver are installed.

Then it makes a run of 100 short rounds of ``h-fedavg`` on digits with 8 clients and reads it as ``espalier watch``
does while a page is open. It prints the CPU seconds of both, and those of reading in percent of the run's.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from benchmarks.browser import CHROMIUM, DRIVER, browser
from espalier.app.ground.errors import UserError
from espalier.app.page.command import PAGE, write_page
from espalier.app.page.runs import Runs
from espalier.app.page.server import EVERY_SECONDS, Source

MANY = {
    "task": "benchmarks.scale:Tiny",
    "num-clients": 10_000,
    "num-edges": 10,
    "edge-rounds": 1,
    "global-rounds": 100,
    "local-epochs": 1,
    "batch-size": 8,
    "participation": 0.01,
    "report.evaluate-every": 50,
    "report.plots": False,
}
FEW = {"global-rounds": 100, "batches-per-epoch": 4, "report.plots": False}


def started(folder: Path, settings: dict[str, object]) -> subprocess.Popen[bytes]:
    """Start a run."""
    arguments = [f"{key}={json.dumps(value)}" for key, value in settings.items()]
    command = [sys.executable, "-m", "espalier", *arguments, f"output-dir={folder}"]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def ended(run: subprocess.Popen[bytes]) -> float:
    """Wait for a run and return its CPU seconds."""
    _, status, usage = os.wait4(run.pid, 0)
    run.returncode = os.waitstatus_to_exitcode(status)
    if run.returncode:
        raise SystemExit(f"the run failed: {run.args!r}")
    return usage.ru_utime + usage.ru_stime


def page_of_many(root: Path) -> None:
    """Measure and print what a large page costs."""
    folder = root / "many"
    cpu = ended(started(folder, MANY))
    lines = sum((folder / name).stat().st_size for name in ("metrics.jsonl", "seconds.jsonl"))
    print(f"run of 10,000 clients, 100 rounds: {cpu:.1f} CPU s; its lines have {lines / 1e6:.1f} MB", flush=True)
    used = time.process_time()
    write_page(folder / PAGE, Runs([folder]))
    seconds, size = time.process_time() - used, (folder / PAGE).stat().st_size
    print(
        f"its page: {size / 1e6:.2f} MB, written in {seconds:.1f} CPU s, {seconds / cpu:.1%} of the run's", flush=True
    )
    if not (CHROMIUM and DRIVER):
        print("no Chromium and driver here: the page was not opened")
        return
    with browser() as own:
        own.open((folder / PAGE).as_uri())
        drawn = own.run("return performance.getEntriesByType('navigation')[0].domComplete")
        print(f"drawn by Chromium after {drawn / 1e3:.2f} s", flush=True)


def watching(root: Path) -> None:
    """Measure and print what it costs to watch a run."""
    run, source, used = started(root / "few", FEW), Source(Runs([root / "few"])), 0.0
    while run.poll() is None:
        began = time.process_time()
        with suppress(UserError):  # the run has not begun
            source.latest()
        used += time.process_time() - began
        if (root / "few" / "summary.json").exists():
            break
        time.sleep(EVERY_SECONDS)
    cpu = ended(run)
    print(f"run of 100 rounds: {cpu:.1f} CPU s; to watch it: {used:.2f} CPU s, {used / cpu:.1%}")


def main() -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as folder:
        page_of_many(Path(folder))
        watching(Path(folder))


if __name__ == "__main__":
    main()
