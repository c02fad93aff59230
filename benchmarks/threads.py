"""What a thread for each core gains in process.

``python -m benchmarks.threads [--csv PATH] [--rounds N]`` runs `h-fedavg`, and `hsfl` cut behind the first block, with
`cnn` on random pixels of CIFAR-10's shapes and with `small-cnn` on the digits, in process: 8 clients on 2 edges, 2 edge
rounds, one PyTorch thread, no evaluation. One worker and one for each core (`workers = 0`) take turns, round by round.
It prints wall seconds per global round (median of N, by default 5, after 3 in which it is found out how many threads
pay), the ratio of the medians, and whether the weights have the same bits. With ``--csv`` it adds a line for each to a
table. All cores have to be idle.
"""

import tempfile
import time
from argparse import ArgumentParser
from pathlib import Path
from statistics import median
from typing import Any

import torch
from rich.progress import track

from benchmarks.hierarchical import hierarchical_rounds, random_pixels
from espalier.app.config.parse import parse_config
from espalier.app.engines.in_process import threads_for
from espalier.app.ground.logs import quiet_flower
from espalier.app.ground.memory import keep_memory
from espalier.app.reports.made_by import maker
from espalier.app.tasks.common import set_up_torch
from espalier.app.wiring.task_of_run import build_task
from espalier.clients.device.machine import cpu_count
from experiments.records import append_rows

ROUNDS, WARM_UPS = 5, 3
COLUMNS = ("algorithm", "model", "seed", "cores", "one", "all", "ratio", "same_bits", "commit", "machine")


def main() -> None:
    """Measure and print."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--csv", type=Path)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    given = parser.parse_args()
    quiet_flower()
    set_up_torch("cpu", 1)
    keep_memory()
    with tempfile.TemporaryDirectory() as folder:
        pixels = {"dataset": "image-folder", "data-dir": str(random_pixels(Path(folder))), "data.cache-dir": folder}
        for model, data in (("cnn", pixels), ("small-cnn", {})):
            for algorithm in ("h-fedavg", "hsfl"):
                row = measure({"algorithm": algorithm, "model": model, **data}, given.rounds)
                if given.csv:
                    append_rows(given.csv, COLUMNS, [row])


def measure(chosen: dict[str, Any], rounds: int) -> dict[str, Any]:
    """Run an algorithm with one worker and with all in turns; print what they took, and return it as a row."""
    values = {
        **chosen,
        "num-clients": 8,
        "num-edges": 2,
        "global-rounds": rounds + WARM_UPS + 1,  # the last one evaluates
        "partition": "iid",
        "batches-per-epoch": 5,
        "report.evaluate-every": 0,
        "engine": "in-process",
    }
    config = parse_config(values)
    start, cores = build_task(config).new_model().state_dict(), cpu_count()
    runs = {
        workers: hierarchical_rounds(config, start, runs=threads_for(workers, cores, 1, config.as_dict()))
        for workers in (1, 0)
    }
    seconds: dict[int, list[float]] = {workers: [] for workers in runs}
    same = True
    for _ in track(range(rounds + WARM_UPS), "rounds"):
        made = {}
        for workers, own in runs.items():
            began = time.perf_counter()
            made[workers] = next(own)
            seconds[workers].append(time.perf_counter() - began)
        same = same and all(torch.equal(made[1][name], made[0][name]) for name in start)
    one, every = (median(times[WARM_UPS:]) for times in seconds.values())
    name = f"{config.algorithm.name}, {config.data.model.text}"
    print(f"{name:<20}{one:8.3f} and {every:.3f} s/round{one / every:8.2f}   the same bits: {same}")
    measured = {"cores": cores, "one": round(one, 4), "all": round(every, 4), "ratio": round(one / every, 3)}
    setting = {"algorithm": config.algorithm.name, "model": config.data.model.text, "seed": config.seed}
    made_by = {key: maker()[key] for key in ("commit", "machine")}
    return {**setting, **measured, "same_bits": same, **made_by}


if __name__ == "__main__":
    main()
