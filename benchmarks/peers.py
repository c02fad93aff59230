"""How fast the settings are by which other simulators of federated learning show their speed: see ``peers.md``.

``python -m benchmarks.peers [ROUNDS] [DEVICE]`` trains each setting with the in-process engine, in turns with a bare
PyTorch loop that makes the same mini-batches of the same clients and knows nothing of messages. DEVICE is "cpu", the
default, or "cuda". Clients train one after the other; on a CPU in as many threads as pay, where clients with dropout
take turns; on a GPU with recorded gradients; and side by side, but for dropout on a GPU. Of each way it prints SGD
steps a second; seconds a round, of the process and by the clock on the wall, each with its ratio to the bare loop's
(medians over ROUNDS rounds, by default 2, after one to warm up); and the largest difference between the weights after
the first round. Steps a second are by the process's seconds on a CPU, and by the clock on a GPU. Images are random
bytes of CIFAR-10's shape; one PyTorch thread, no evaluation.
"""

import sys
import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
from flwr.app import ArrayRecord
from rich.progress import track
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from benchmarks.hierarchical import Weights, average
from espalier.app.config.parse import parse_config
from espalier.app.config.run_config import RunConfig
from espalier.app.engines.in_process import InProcess, threads_for
from espalier.app.ground.logs import quiet_flower
from espalier.app.ground.memory import keep_memory
from espalier.app.tasks import Examples, OwnTask
from espalier.app.tasks.common import compute_device, set_up_torch
from espalier.app.tasks.node import ClientNode
from espalier.app.wiring.one_server import assemble, checked_task
from espalier.app.wiring.task_of_run import build_task
from espalier.clients.device.machine import cpu_count
from espalier.clients.randomness import client_generator, client_seed
from espalier.clients.shared.generators import seeded_torch
from espalier.clients.task import LocalTraining
from espalier.clients.whole.training import mini_batches
from espalier.sim.side_by_side import one_by_one

ROUNDS = 2


class RandomImages(OwnTask):
    """Random bytes of CIFAR-10's shape, the same number for each client.

    Parameters
    ----------
    images : int
        Of each client, to train on.
    """

    side_by_side = True

    def __init__(self, images: int) -> None:
        self.images = images

    def client_data(self, client: int, num_clients: int, seed: int) -> tuple[Examples, Examples]:
        """Return a client's images, and one to test on."""
        draws = client_generator(seed, client, 0, "images")
        pixels = torch.randint(256, (self.images + 1, 3, 32, 32), generator=draws, dtype=torch.uint8)
        labels = torch.randint(10, (self.images + 1,), generator=draws)
        return Examples(pixels[1:], labels[1:]), Examples(pixels[:1], labels[:1])

    def test_data(self) -> Examples:
        """Return one image, for nothing is evaluated."""
        return self.client_data(0, 1, 0)[1]

    def prepare(self, inputs: Tensor) -> Tensor:
        """Return values from -1 to 1."""
        return inputs.to(torch.float32).div_(127.5).sub_(1)


class PflImages(RandomImages):
    """With the model of pfl-research's CIFAR-10 benchmark: two convolutions, one hidden layer, dropout."""

    def model(self) -> nn.Module:
        """Return the model."""
        blocks = OrderedDict(
            conv1=nn.Sequential(nn.Conv2d(3, 32, 3), nn.ReLU()),
            conv2=nn.Sequential(nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.25), nn.Flatten()),
            fc1=nn.Sequential(nn.Linear(64 * 14 * 14, 128), nn.ReLU(), nn.Dropout(0.5)),
            head=nn.Linear(128, 10),
        )
        for part in (module for block in blocks.values() for module in block.modules()):
            if isinstance(part, nn.Conv2d | nn.Linear):
                nn.init.xavier_uniform_(part.weight)
        return nn.Sequential(blocks)


class BlazeImages(RandomImages):
    """With the small CNN of BlazeFL's benchmark, that of PyTorch's tutorial on CIFAR-10."""

    def model(self) -> nn.Module:
        """Return the model."""
        blocks = OrderedDict(
            conv1=nn.Sequential(nn.Conv2d(3, 6, 5), nn.ReLU(), nn.MaxPool2d(2)),
            conv2=nn.Sequential(nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
            fc1=nn.Sequential(nn.Linear(16 * 5 * 5, 120), nn.ReLU()),
            fc2=nn.Sequential(nn.Linear(120, 84), nn.ReLU()),
            head=nn.Linear(84, 10),
        )
        return nn.Sequential(blocks)


SAME = {"algorithm": "fedavg", "report.evaluate-every": 0, "engine": "in-process"}
# By name: settings of the run, and how many clients train side by side on a CPU and on a GPU, where no stack has
# dropout. Sources are in peers.md.
SETTINGS: dict[str, tuple[dict[str, Any], dict[str, int]]] = {
    "pfl-research, CIFAR-10": (
        {
            "task": "benchmarks.peers:PflImages(images=50)",
            "num-clients": 1000,
            "participation": 0.05,
            "local-epochs": 1,
            "batch-size": 10,
            "learning-rate": 0.1,
            **SAME,
        },
        {"cpu": 10},
    ),
    "BlazeFL, CNN": (
        {
            "task": "benchmarks.peers:BlazeImages(images=500)",
            "num-clients": 100,
            "local-epochs": 5,
            "batch-size": 50,
            "learning-rate": 0.1,
            **SAME,
        },
        {"cpu": 20, "cuda": 100},
    ),
}


@dataclass(frozen=True)
class Measured:
    """What was measured of one way to train, over rounds.

    Parameters
    ----------
    steps_per_second : float
        SGD steps in a second, of the process's CPU time or, on a GPU, by the clock on the wall.
    cpu_seconds, seconds : float
        Of a round: of the process, and by the clock on the wall; medians.
    cpu_ratio, ratio : float
        Both over the bare loop's of the same round, the median.
    difference : float
        The largest between the weights and the bare loop's after the first round.
    """

    steps_per_second: float
    cpu_seconds: float
    seconds: float
    cpu_ratio: float
    ratio: float
    difference: float


def main() -> None:
    """Measure and print."""
    quiet_flower()
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS
    device = sys.argv[2] if len(sys.argv) > 2 else "cpu"
    if device != "cpu" and (device != "cuda" or not torch.cuda.is_available()):
        sys.exit(f"DEVICE = {device!r}: allowed is 'cpu', or 'cuda' where torch finds a GPU")
    set_up_torch(device, 1)
    keep_memory()
    steps = "steps/CPU s" if device == "cpu" else "steps/s"
    for name, (values, stacks) in SETTINGS.items():
        print(name)
        print(f"{'':<19}{steps:>13}{'CPU s/round':>13}{'ratio':>8}{'s/round':>10}{'ratio':>8}{'weights differ by':>20}")
        for way, found in measure({**values, "device": device}, ways_on(device, stacks.get(device)), rounds).items():
            print(
                f"{way:<19}{found.steps_per_second:13.1f}{found.cpu_seconds:13.2f}"
                f"{found.cpu_ratio:8.3f}{found.seconds:10.2f}{found.ratio:8.3f}{found.difference:20.1e}"
            )


def ways_on(device: str, stack: int | None) -> dict[str, dict[str, Any]]:
    """Return the ways to train on a device, as settings, with so many clients side by side, by name."""
    ways: dict[str, dict[str, Any]] = {"one after the other": {"workers": 1}}
    if device == "cpu":
        ways["in threads"] = {}
    if device == "cuda":
        ways["recorded"] = {"train.cuda-graph": True}
    if stack:
        ways[f"{stack} side by side"] = {"stack": stack}
    return ways


def measure(values: Mapping[str, Any], ways: Mapping[str, Mapping[str, Any]], rounds: int) -> dict[str, Measured]:
    """Train by a setting in turns with the bare loop, which comes last; return what was measured, by way to train.

    Parameters
    ----------
    values : Mapping[str, Any]
        The settings of the run.
    ways : Mapping[str, Mapping[str, Any]]
        Further settings by the name of the way. All train the same clients in a round.
    rounds : int
        To measure, after one to warm up.
    """
    values = {**values, "global-rounds": rounds + 2}  # the last one evaluates, and is not run
    config = parse_config(values)
    start = {name: tensor.clone() for name, tensor in build_task(config).new_model().state_dict().items()}
    runs = {name: rounds_of(parse_config({**values, **own})) for name, own in ways.items()}
    bare = BareLoop(config)
    wall: dict[str, list[float]] = {name: [] for name in (*runs, "bare loop")}
    cpu: dict[str, list[float]] = {name: [] for name in wall}
    first: dict[str, Weights] = {}
    steps, weights = 0, start
    for number in track(range(1, rounds + 2), "rounds"):
        for name, own in runs.items():
            began = time.perf_counter(), time.process_time()
            clients, after = next(own)
            wall[name].append(time.perf_counter() - began[0])
            cpu[name].append(time.process_time() - began[1])
            first.setdefault(name, after)
        began = time.perf_counter(), time.process_time()
        steps, weights = bare.train(number, clients, weights)
        wall["bare loop"].append(time.perf_counter() - began[0])
        cpu["bare loop"].append(time.process_time() - began[1])
        first.setdefault("bare loop", weights)
    clock = cpu if config.device == "cpu" else wall

    def ratio(seconds: Mapping[str, list[float]], name: str) -> float:
        return median(one / other for one, other in zip(seconds[name][1:], seconds["bare loop"][1:], strict=True))

    return {
        name: Measured(
            steps_per_second=steps / median(clock[name][1:]),
            cpu_seconds=median(cpu[name][1:]),
            seconds=median(wall[name][1:]),
            cpu_ratio=ratio(cpu, name),
            ratio=ratio(wall, name),
            difference=max(float((first[name][k] - first["bare loop"][k]).abs().max()) for k in start),
        )
        for name in wall
    }


def rounds_of(config: RunConfig) -> Iterator[tuple[list[int], Weights]]:
    """Yield after each round the clients that trained, by number, and the global weights."""
    settings = config.as_dict()
    in_threads = config.device == "cpu" and not config.stack
    runs = threads_for(config.workers, cpu_count(), 1, settings) if in_threads else one_by_one
    engine = InProcess.open(config.federation.num_clients, settings, config.seed, config.stack, runs)
    task, model = checked_task(config)
    federation = assemble(config, engine.grid, task, model, lanes=engine.lanes)
    start = ArrayRecord(task.new_model().state_dict())
    for outcome in federation.hierarchical.rounds(engine.grid, start, config.federation.global_rounds):
        (edge,) = outcome.edges.values()
        clients = [federation.client_of[node_id] for update in edge.updates for node_id in update.participants]
        yield clients, outcome.arrays.to_torch_state_dict()


class BareLoop:
    """Plain SGD over the clients, one after the other, and the average of their models.

    Parameters
    ----------
    config : RunConfig
        Of the run that it is like.
    """

    def __init__(self, config: RunConfig) -> None:
        task, clients = build_task(config), config.federation.num_clients
        self.seed, self.rate = config.seed, config.train.learning_rate
        self.training = LocalTraining(config.train.local_epochs, 0, config.train.batch_size)
        self.model = task.new_model().to(compute_device(config.device))
        one_of_each = [task.new_client_task(self.model, ClientNode(i)).on_device() for i in range(clients)]
        self.prepare, self.data = one_of_each[0].prepare, [client.train for client in one_of_each]

    def train(self, number: int, clients: Sequence[int], weights: Weights) -> tuple[int, Weights]:
        """Return the number of SGD steps in a round of some clients, and the weights after it."""
        steps, models = 0, []
        self.model.train()
        for client in clients:
            data = self.data[client]
            self.model.load_state_dict(weights)
            optimizer = torch.optim.SGD(self.model.parameters(), lr=self.rate)
            order = client_generator(self.seed, client, number, "batches")
            with seeded_torch(client_seed(self.seed, client, number, "dropout"), data.labels.device):
                for batch in mini_batches(len(data), self.training, order):
                    optimizer.zero_grad()
                    loss = cross_entropy(self.model(self.prepare(data.inputs[batch])), data.labels[batch])
                    loss.backward()
                    optimizer.step()
                    steps += 1
            models.append({name: tensor.to("cpu", copy=True) for name, tensor in self.model.state_dict().items()})
        return steps, average(models, [len(self.data[client]) for client in clients])


if __name__ == "__main__":
    main()
