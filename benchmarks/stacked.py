"""What training clients side by side saves.

``python -m benchmarks.stacked`` trains the demo's model, `small-cnn` on the digits, on the in-process engine: whole
with `h-fedavg`, then cut with `hsfl`; 32 clients on 2 edges, 2 edge rounds of 25 mini-batches of 16, one thread, no
evaluation. In turns with it runs a plain PyTorch loop that trains one client after the other on the same mini-batches.
It prints CPU milliseconds per mini-batch of a client (median of 5 rounds, after one to warm up), with clients one after
the other and with 8 and 32 side by side, how many times as fast as the plain loop that is, and the largest difference
between the weights after the first round.
"""

import time
from collections.abc import Iterator
from statistics import median

from rich.progress import track

from benchmarks.hierarchical import Weights, bare_rounds, hierarchical_rounds
from espalier.app.config.parse import parse_config
from espalier.app.ground.logs import quiet_flower
from espalier.app.ground.memory import keep_memory
from espalier.app.tasks.common import set_up_torch
from espalier.app.wiring.task_of_run import build_task

ROUNDS = 5
CLIENTS, EDGE_ROUNDS, BATCHES = 32, 2, 25
STACKS = (0, 8, 32)


def main() -> None:
    """Measure and print."""
    quiet_flower()
    set_up_torch("cpu", 1)
    keep_memory()
    for algorithm in ("h-fedavg", "hsfl"):
        print(algorithm)
        measure(algorithm)


def measure(algorithm: str) -> None:
    """Run an algorithm and the plain loop in turns, and print the table."""
    values = {
        "algorithm": algorithm,
        "num-clients": CLIENTS,
        "num-edges": 2,
        "edge-rounds": EDGE_ROUNDS,
        "global-rounds": ROUNDS + 2,
        "partition": "iid",
        "local-epochs": 1,
        "batches-per-epoch": BATCHES,
        "batch-size": 16,
        "report.evaluate-every": 0,
        "engine": "in-process",
    }
    config = parse_config(values)
    start = build_task(config).new_model().state_dict()
    runs: dict[str, Iterator[Weights]] = {"plain loop": bare_rounds(config, start)}
    for stack in STACKS:
        name = f"{stack} clients side by side" if stack else "one after the other"
        runs[name] = hierarchical_rounds(parse_config(values | {"stack": stack}), start)
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    first: dict[str, Weights] = {}
    for _ in track(range(ROUNDS + 1), "rounds"):
        for name, rounds in runs.items():
            began = time.process_time()
            weights = next(rounds)
            seconds[name].append(time.process_time() - began)
            first.setdefault(name, weights)
    medians = {name: median(times[1:]) for name, times in seconds.items()}
    steps = CLIENTS * EDGE_ROUNDS * BATCHES
    bare = first["plain loop"]
    for name, value in medians.items():
        difference = max(float((first[name][k] - bare[k]).abs().max()) for k in bare)
        ratio = medians["plain loop"] / value
        print(
            f"{name:<24}{1e3 * value / steps:7.3f} ms/mini-batch{ratio:8.2f}   first weights differ by {difference:.1e}"
        )


if __name__ == "__main__":
    main()
