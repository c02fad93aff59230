"""What the guards against clients that lie cost.

``python -m benchmarks.guard_costs [CIFAR10_FOLDER]`` trains with the settings of `benchmarks.hierarchical` and of
`benchmarks.split` in turns, a round of each at a time and every time another one first: with no guards at all, with
``guard.mode = "off"``, and with the defaults. For each it prints the process's CPU seconds per global round (median
after a warm-up), the ratio to the one without (median of the rounds' own), and the largest difference between the
weights that they end with.
"""

import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarks import hierarchical, split
from espalier.app.config.parse import parse_config
from espalier.app.ground.logs import quiet_flower
from espalier.app.ground.memory import keep_memory
from espalier.app.wiring.task_of_run import build_task
from espalier.strategies import Hierarchical

NO_GUARDS, OFF, DEFAULTS = "no guards", "off", "defaults"


def without_guards(strategy: Hierarchical) -> None:
    """Take the guards out, as where there never were any."""
    for edge in (strategy._top, *(edge.inner for edge in strategy.edges.values())):
        edge.guard = None


def measure(values: dict[str, Any]) -> None:
    """Train in turns over all global rounds but the last, which evaluates, and print the table."""
    torch.set_num_threads(1)
    config = parse_config(values)
    start = build_task(config).new_model().state_dict()
    off = parse_config(values | {"guard.mode": "off"})
    runs = {
        NO_GUARDS: hierarchical.hierarchical_rounds(off, start, without_guards),
        OFF: hierarchical.hierarchical_rounds(off, start),
        DEFAULTS: hierarchical.hierarchical_rounds(config, start),
    }
    keep_memory()
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    weights = {}
    names = list(runs)
    for turn in range(config.federation.global_rounds - 1):
        for i in range(len(names)):
            name = names[(turn + i) % len(names)]
            began = time.process_time()
            weights[name] = next(runs[name])
            seconds[name].append(time.process_time() - began)
    for name, times in seconds.items():
        ratio = median(one / other for one, other in zip(times[1:], seconds[NO_GUARDS][1:], strict=True))
        print(f"{name:<12}{median(times[1:]):8.3f} CPU s/round{ratio:8.3f}")
    bare = weights[NO_GUARDS]
    difference = max(float((own[k] - bare[k]).abs().max()) for own in weights.values() for k in bare)
    print(f"largest difference between the weights: {difference:.1e}")


def main() -> None:
    """Measure and print."""
    quiet_flower()
    with tempfile.TemporaryDirectory() as folder:
        data_dir = sys.argv[1] if len(sys.argv) > 1 else hierarchical.random_pixels(Path(folder))
        for what, values in (
            ("h-fedavg, cnn", hierarchical.settings(data_dir, folder) | {"global-rounds": 12}),
            ("hsfl, small-cnn, as in the demo", split.DEMO),
            ("sfl-v1, cnn", split.settings_of_cnn(data_dir, folder) | {"global-rounds": 12}),
        ):
            print(what)
            measure(values)


if __name__ == "__main__":
    main()
