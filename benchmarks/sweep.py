"""What a second worker gives a sweep of 12 runs, and what a killed one leaves to make.

``python -m benchmarks.sweep`` sweeps HSFL and PHSFL at two concentrations and three seeds on the digits, 20 global
rounds each: with one worker, with two, and with two that are killed when half of the runs are over, and started again.
It prints the seconds by the clock of the first two and their ratio, how many runs the last one made when it was started
again, and whether all three tables say the same.
"""

import csv
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SWEEP = ["algorithm=hsfl,phsfl", "alpha=0.1,0.5", "seed=0,1,2"]
SAME = ["global-rounds=20", "batches-per-epoch=4", "batch-size=16", "train.torch-threads=1"]
RUNS = 12
IN_PLACE = ("folder", "wall_seconds")  # of a run's line in the table


def sweep(folder: Path, workers: int) -> subprocess.Popen[bytes]:
    """Start the sweep in a folder."""
    command = [
        sys.executable,
        "-m",
        "espalier",
        "sweep",
        *SWEEP,
        *SAME,
        f"output-dir={folder}",
        "--workers",
        str(workers),
    ]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL)


def made(folder: Path) -> set[Path]:
    """Return the summaries of the runs that are over."""
    return set(folder.glob("*/summary.json"))


def table(folder: Path) -> list[dict[str, str]]:
    """Return what the table says of the runs, without where they are and how long they took."""
    with (folder / "runs.csv").open(newline="", encoding="utf-8") as file:
        return [{key: value for key, value in line.items() if key not in IN_PLACE} for line in csv.DictReader(file)]


def main() -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as name:
        folders = [Path(name) / kind for kind in ("one", "two", "killed")]
        seconds = []
        for workers, folder in enumerate(folders[:2], start=1):
            began = time.perf_counter()
            assert sweep(folder, workers).wait() == 0
            seconds.append(time.perf_counter() - began)
            print(f"{workers} worker(s)      {seconds[-1]:8.1f} s")
        print(f"ratio            {seconds[0] / seconds[1]:8.2f}")
        killed = folders[2]
        process = sweep(killed, 2)
        while len(made(killed)) < RUNS // 2:
            time.sleep(0.1)
        process.kill()
        process.wait()
        first = {summary: summary.stat().st_mtime_ns for summary in made(killed)}
        assert sweep(killed, 2).wait() == 0
        again = sum(summary.stat().st_mtime_ns != written for summary, written in first.items())
        later = len(made(killed)) - len(first)
        print(f"killed after {len(first)} of {RUNS} runs: then {later} more are made, and {again} of the first again")
        print(f"the same tables: {table(folders[0]) == table(folders[1]) == table(killed)}")


if __name__ == "__main__":
    main()
