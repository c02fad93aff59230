"""What a second cut costs: labels that stay on the clients, at two exchanges per mini-batch instead of one.

``python -m benchmarks.u_shape`` trains SFL-V1 on the in-process engine with one cut and with two, in turns, on the same
mini-batches: the model of ``make demo`` (`small-cnn` on the digits, 8 clients, mini-batches of 16), then `cnn` on 32x32
colour images of random pixels, 5 clients, mini-batches of 32. It prints the wall time per mini-batch and client of both
(medians over the rounds after a warm-up), their ratio (median of the rounds' own), and the largest difference between
the weights they end with: with one message per round and client (``split.execution = "fused"``), with one or two per
mini-batch, and with one message that opens a stream to the edge, over TLS on loopback. Of the streams it also prints
how many round trips a mini-batch takes. One thread, no evaluation.
"""

import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from statistics import median
from typing import Any

import torch
from flwr.app import ArrayRecord

from benchmarks.hierarchical import random_pixels
from espalier.app.config.parse import parse_config
from espalier.app.config.run_config import RunConfig
from espalier.app.engines.in_process import InProcess
from espalier.app.ground.logs import quiet_flower
from espalier.app.ground.memory import keep_memory
from espalier.app.wiring.one_server import assemble, checked_task, streams_of
from espalier.app.wiring.task_of_run import build_task
from espalier.clients.messages.split_names import INDICES, LABELS
from espalier.strategies import Hierarchical
from espalier.strategies.split.stream_transport import StreamTransport

ROUNDS, STEPS = 6, 20
WAYS = ({"split.execution": "fused"}, {"split.execution": "messages"}, {"split.transport": "stream"})
NO_TENSORS = (INDICES, LABELS)  # they go in the frames of activations
Weights = dict[str, torch.Tensor]


def main() -> None:
    """Measure and print."""
    quiet_flower()
    common = {
        "algorithm": "sfl-v1",
        "engine": "in-process",
        "partition": "iid",
        "global-rounds": ROUNDS + 1,  # the last one evaluates
        "batches-per-epoch": STEPS,
        "local-epochs": 1,
        "report.evaluate-every": 0,
    }
    with tempfile.TemporaryDirectory() as folder:
        images = {"dataset": "image-folder", "data-dir": str(random_pixels(Path(folder)))}
        cnn = {"data.cache-dir": f"{folder}/cache", "num-clients": 5, "learning-rate": 0.01} | images
        for model, own in (("small-cnn", {"batch-size": 16}), ("cnn", cnn)):
            for way in WAYS:
                print(f"{model}, " + ", ".join(f"{key} = {value}" for key, value in way.items()))
                compare(common | own | way)


def compare(values: dict[str, Any]) -> None:
    """Train with one cut and with two, in turns, and print the table."""
    torch.set_num_threads(1)
    configs = {"one cut": parse_config(values), "two cuts": parse_config(values | {"tail-layer": "head"})}
    frames: dict[str, Counter[str]] = {name: Counter() for name in configs}
    seconds: dict[str, list[float]] = {name: [] for name in configs}
    weights: dict[str, Weights] = {}
    with ExitStack() as stack:
        running = {name: stack.enter_context(closing(rounds(config, frames[name]))) for name, config in configs.items()}
        keep_memory()
        for _ in range(ROUNDS):
            for name, its in running.items():
                began = time.perf_counter()
                weights[name] = next(its)
                seconds[name].append(time.perf_counter() - began)
    steps = STEPS * int(configs["one cut"].federation.num_clients)
    for name, times in seconds.items():
        print(f"{name:<10}{1000 * median(times[1:]) / steps:8.3f} ms per mini-batch and client")
    one, two = (times[1:] for times in seconds.values())
    print(f"{'ratio':<10}{median(b / a for a, b in zip(one, two, strict=True)):8.3f}")
    for name, counts in frames.items():
        if counts:
            assert counts["uplink"] == counts["downlink"]  # each frame is answered by one
            print(f"{name:<10}{counts['uplink'] / (ROUNDS * steps):8.3f} round trips per mini-batch and client")
    first, second = weights.values()
    difference = max(float((first[name] - second[name]).abs().max()) for name in first)
    print(f"largest difference between the weights: {difference:.1e}")


def rounds(config: RunConfig, frames: Counter[str]) -> Iterator[Weights]:
    """Yield the global weights after each round; the frames of streams are counted by their direction."""
    engine = InProcess.open(config.federation.num_clients, config.as_dict(), config.seed)
    task, model = checked_task(config)
    with streams_of(config, model, task, engine.stream_patience_seconds) as streams:
        federation = assemble(config, engine.grid, task, model, streams, lanes=engine.lanes)
        count_frames(federation.hierarchical, frames)
        start = ArrayRecord(build_task(config).new_model().state_dict())
        for outcome in federation.hierarchical.rounds(engine.grid, start, config.federation.global_rounds):
            assert outcome.arrays is not None
            yield outcome.arrays.to_torch_state_dict()


def count_frames(hierarchical: Hierarchical, frames: Counter[str]) -> None:
    """Count the frames that hold a tensor, where mini-batches go through streams."""
    for edge in hierarchical.edges.values():
        transport = edge.inner.transport
        if isinstance(transport, StreamTransport):
            transport.on_bytes = lambda direction, kind, _: frames.update([direction] * (kind not in NO_TENSORS))


if __name__ == "__main__":
    main()
