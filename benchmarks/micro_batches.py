"""What mini-batches in parts gain over a slow link: client, link and edge are busy at once.

``python -m benchmarks.micro_batches`` trains SFL-V1 with one client over a stream, `cnn` on 32x32 colour images of
random pixels, mini-batches of 32, cut behind the first block. The stream goes over loopback, and over links with a
stated delay and rate (`benchmarks.shaped_link`). It prints, for mini-batches in 1, 2 and 4 parts, milliseconds for a
mini-batch (median over the rounds after a warm-up), how many times as fast as whole ones, and the largest difference
from the weights that these give. One PyTorch thread for the client, one for the edge: two cores have to be idle.
"""

import tempfile
import time
from collections import Counter
from contextlib import closing, nullcontext
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarks.hierarchical import random_pixels
from benchmarks.shaped_link import Link, shaped
from benchmarks.u_shape import Weights, rounds
from espalier.app.config.parse import parse_config
from espalier.app.ground.logs import quiet_flower
from espalier.app.ground.memory import keep_memory

ROUNDS, STEPS, PARTS = 5, 10, (1, 2, 4)
LINKS = {
    "loopback": None,
    "100 Mbit/s, 5 ms": Link(0.005, 100e6),
    "100 Mbit/s, 40 ms": Link(0.04, 100e6),
    "20 Mbit/s, 20 ms": Link(0.02, 20e6),
}


def main() -> None:
    """Measure and print."""
    quiet_flower()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        images = {"dataset": "image-folder", "data-dir": str(random_pixels(Path(folder))), "model": "cnn"}
        settings = images | {
            "algorithm": "sfl-v1",
            "engine": "in-process",
            "split.transport": "stream",
            "data.cache-dir": f"{folder}/cache",
            "num-clients": 1,
            "learning-rate": 0.01,
            "global-rounds": ROUNDS + 2,  # the last one evaluates
            "batches-per-epoch": STEPS,
            "local-epochs": 1,
            "report.evaluate-every": 0,
        }
        for name, link in LINKS.items():
            print(f"{name:<20}{'ms/mini-batch':>15}{'ratio':>8}{'difference':>12}")
            first: tuple[float, Weights] | None = None
            for parts in PARTS:
                with nullcontext() if link is None else shaped(link):
                    seconds, weights = measured(settings | {"stream.micro-batches": parts})
                first = first or (seconds, weights)
                difference = max(float((weights[name] - first[1][name]).abs().max()) for name in weights)
                ratio = first[0] / seconds
                print(f"{parts:>3} in each mini-batch{1e3 * seconds:>12.1f}{ratio:>8.2f}{difference:>12.1e}")


def measured(values: dict[str, Any]) -> tuple[float, Weights]:
    """Train; return the seconds of a mini-batch, and the weights."""
    times = []
    with closing(rounds(parse_config(values), Counter())) as its:
        keep_memory()
        for _ in range(ROUNDS + 1):
            began = time.perf_counter()
            weights = next(its)
            times.append(time.perf_counter() - began)
    return median(times[1:]) / STEPS, weights


if __name__ == "__main__":
    main()
