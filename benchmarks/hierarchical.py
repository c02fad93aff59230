"""What hierarchical training costs over the SGD steps it is made of.

``python benchmarks/hierarchical.py [CIFAR10_FOLDER]`` trains one model on the same mini-batches twice, in turns: with
`Hierarchical` on the in-process engine, and with a bare PyTorch loop that knows nothing of messages. It prints the
process's CPU seconds per global round of both (median of 5, after a warm-up round each), their ratio (median of the
rounds' own), and the largest difference between the weights they end with.

CIFAR-10 shapes, 20 clients on 4 edges, Dir(0.5), `cnn`, 2 edge rounds of 5 epochs of 5 mini-batches of 32, one thread,
no evaluation. CIFAR10_FOLDER holds ``train/<class>/*`` and ``test/<class>/*``; without it random pixels stand in.
"""

import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord
from PIL import Image
from rich.progress import track
from torch import nn
from torch.nn.functional import cross_entropy

from espalier.app.config.parse import parse_config
from espalier.app.config.run_config import RunConfig
from espalier.app.engines.in_process import InProcess
from espalier.app.ground.logs import quiet_flower
from espalier.app.ground.memory import keep_memory
from espalier.app.tasks.images import examples
from espalier.app.wiring.one_server import assemble, checked_task
from espalier.app.wiring.task_of_run import build_task
from espalier.clients.randomness import client_generator
from espalier.clients.task import LocalTraining
from espalier.clients.whole.training import mini_batches
from espalier.sim.side_by_side import Runs, one_by_one
from espalier.strategies import Hierarchical

ROUNDS = 5
Weights = dict[str, torch.Tensor]


def main() -> None:
    """Measure and print."""
    quiet_flower()
    with tempfile.TemporaryDirectory() as folder:
        data_dir = sys.argv[1] if len(sys.argv) > 1 else random_pixels(Path(folder))
        measure(parse_config(settings(data_dir, folder)))


def settings(data_dir: str | Path, folder: str) -> dict[str, Any]:
    """Return the settings for the data in `data_dir`, with a cache in `folder`."""
    return {
        "dataset": "image-folder",
        "data-dir": str(Path(data_dir).absolute()),
        "data.cache-dir": f"{folder}/cache",
        "num-clients": 20,
        "num-edges": 4,
        "global-rounds": ROUNDS + 2,
        "local-epochs": 5,
        "batches-per-epoch": 5,
        "learning-rate": 0.01,
        "report.evaluate-every": 0,
        "engine": "in-process",
    }


def measure(config: RunConfig) -> None:
    """Run both in turns, over all global rounds of the config but the last, and print the table."""
    torch.set_num_threads(1)
    start = build_task(config).new_model().state_dict()
    algorithm = config.algorithm.name
    ours, bare = hierarchical_rounds(config, start), bare_rounds(config, start)
    keep_memory()
    seconds: dict[str, list[float]] = {algorithm: [], "bare loop": []}
    for _ in track(range(config.federation.global_rounds - 1), "rounds"):  # the last one evaluates
        for name, rounds in ((algorithm, ours), ("bare loop", bare)):
            began = time.process_time()
            weights = next(rounds)
            seconds[name].append(time.process_time() - began)
            if name == algorithm:
                ours_now = weights
    difference = max(float((ours_now[k] - weights[k]).abs().max()) for k in weights)
    for name, times in seconds.items():
        print(f"{name:<14}{median(times[1:]):8.3f} CPU s/round")
    pairs = zip(seconds[algorithm][1:], seconds["bare loop"][1:], strict=True)
    print(f"{'ratio':<14}{median(one / other for one, other in pairs):8.3f}")
    print(f"largest difference between the weights: {difference:.1e}")


def hierarchical_rounds(
    config: RunConfig,
    start: Weights,
    change: Callable[[Hierarchical], None] = lambda hierarchical: None,
    runs: Runs = one_by_one,
) -> Iterator[Weights]:
    """Yield the global weights after each round of the config's algorithm, which `change` may change first."""
    engine = InProcess.open(config.federation.num_clients, config.as_dict(), config.seed, config.stack, runs)
    federation = assemble(config, engine.grid, *checked_task(config), lanes=engine.lanes)
    change(federation.hierarchical)
    for outcome in federation.hierarchical.rounds(engine.grid, ArrayRecord(start), config.federation.global_rounds):
        yield outcome.arrays.to_torch_state_dict()


def bare_rounds(config: RunConfig, start: Weights) -> Iterator[Weights]:
    """Yield the global weights after each round of plain loops over edges, edge rounds and clients."""
    training = LocalTraining(config.train.local_epochs, config.train.batches_per_epoch, config.train.batch_size)
    task = build_task(config)
    prepare, model = task.normaliser(), task.new_model()
    clients = [examples(task.data.train, indices.train) for indices in task.client_indices]
    inputs = [prepare(client.inputs) for client in clients]
    per_edge = config.federation.num_clients // config.edges
    edge_rounds = 1 if config.is_flat else config.federation.edge_rounds
    weights = start
    for t in range(config.federation.global_rounds):
        edges, sizes = [], []
        for edge in range(config.edges):
            members = range(edge * per_edge, (edge + 1) * per_edge)
            counts = [len(clients[i]) for i in members]
            own = weights
            for e in range(1, edge_rounds + 1):
                models = []
                for i in members:
                    generator = client_generator(config.seed, i, t * edge_rounds + e, "batches")
                    batches = mini_batches(len(clients[i]), training, generator)
                    models.append(sgd(model, own, inputs[i], clients[i].labels, batches, config.train.learning_rate))
                own = average(models, counts)
            edges.append(own)
            sizes.append(sum(counts))
        weights = average(edges, sizes)
        yield weights


def sgd(
    model: nn.Module, weights: Weights, inputs: torch.Tensor, labels: torch.Tensor, batches: Iterator, rate: float
) -> Weights:
    """Return the weights after plain SGD on the batches."""
    model.load_state_dict(weights)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    for batch in batches:
        optimizer.zero_grad()
        cross_entropy(model(inputs[batch]), labels[batch]).backward()
        optimizer.step()
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def average(models: list[Weights], counts: list[int]) -> Weights:
    """Return the weighted average."""
    return {name: sum(m[name] * (n / sum(counts)) for m, n in zip(models, counts, strict=True)) for name in models[0]}


def random_pixels(folder: Path) -> Path:
    """Write a data set of CIFAR-10's shapes, 6,000 images of random pixels, and return its folder."""
    generator = np.random.default_rng(0)
    for pool, each in (("train", 500), ("test", 100)):
        for label in range(10):
            (folder / pool / str(label)).mkdir(parents=True)
            for i in range(each):
                pixels = generator.integers(0, 256, (32, 32, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / pool / str(label) / f"{i}.png", compress_level=0)
    return folder


if __name__ == "__main__":
    main()
