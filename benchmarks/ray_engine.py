"""What workers give, and what they cost.

``python -m benchmarks.ray_engine`` trains one model on the same mini-batches in one process and on Ray workers, in
turns, and compares CPU seconds per global round, which other programs on the machine do not change:

- the critical path, that is the driver's and those of the worker that took longest, of two edges on two workers, over
  one process;
- what one worker and its driver take more than one process, which is what a global round costs beyond its work;
- the memory that a worker has for itself, and what it shares;
- 200 small messages in flight, per second;
- on 16 cores or more: 16 edges on 16 workers over one process, by the clock.

CIFAR-10 shapes of random pixels, `cnn`, 4 clients on an edge, 2 edge rounds of 5 mini-batches of 32, one thread, no
evaluation. Of 5 rounds, after one to warm up: the least CPU seconds, since others who use the caches only add to them;
by the clock the median.
"""

import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict

from benchmarks.hierarchical import hierarchical_rounds, random_pixels
from espalier.app.config.parse import parse_config
from espalier.app.config.run_config import RunConfig
from espalier.app.engines.ray import Ray
from espalier.app.engines.ray_cluster import started_ray
from espalier.app.ground.logs import quiet_flower
from espalier.app.ground.memory import keep_memory
from espalier.app.run.run import engine_of
from espalier.app.tiers.served import assemble_served
from espalier.app.wiring.one_server import checked_task
from espalier.clients.device.machine import cpu_count
from espalier.sim.ray_grid import RayGrid, WorkerPlace, Workers

ROUNDS = 5
IN_FLIGHT = 200
MANY = 16
Weights = dict[str, torch.Tensor]


def main() -> None:
    """Measure and print."""
    quiet_flower()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder, started_ray("", num_cores=max(2, cpu_count())):
        data_dir = random_pixels(Path(folder))
        compare(config_of(data_dir, folder, num_edges=2), num_workers=2)
        compare(config_of(data_dir, folder, num_edges=2), num_workers=1)
        if cpu_count() >= MANY:
            compare(config_of(data_dir, folder, num_edges=MANY), num_workers=MANY)
        messages()


def config_of(data_dir: Path, folder: str, num_edges: int) -> RunConfig:
    """Return the run that is measured."""
    return parse_config(
        {
            "engine": "ray",
            "dataset": "image-folder",
            "data-dir": str(data_dir),
            "data.cache-dir": f"{folder}/cache",
            "num-clients": 4 * num_edges,
            "num-edges": num_edges,
            "global-rounds": ROUNDS + 1,
            "local-epochs": 1,
            "batches-per-epoch": 5,
            "learning-rate": 0.01,
            "report.evaluate-every": 0,
        }
    )


def compare(config: RunConfig, num_workers: int) -> None:
    """Print what one process and some workers take for a global round, and whether the weights are the same."""
    ray_section = config.ray.model_copy(update={"workers": num_workers})
    with engine_of(config.model_copy(update={"ray": ray_section})) as engine:
        start = checked_task(config)[1].state_dict()
        here, there = hierarchical_rounds(config, start), worker_rounds(config, engine, start)
        workers = [about["pid"] for about in engine.grid.workers]
        keep_memory()
        alone: list[float] = []
        path: list[float] = []
        walls: list[tuple[float, float]] = []
        for _ in range(ROUNDS + 1):
            (one,), wall, first = spent([], here)
            (driver, *own), wall_there, second = spent(workers, there)
            alone.append(one)
            path.append(driver + max(own))
            walls.append((wall, wall_there))
        own_bytes, shared_bytes = memory_of(workers[0])
    edges = config.edges
    same = all(torch.equal(first[name], second[name]) for name in first)
    took, critical = min(alone[1:]), min(path[1:])
    clock = [median(column) for column in zip(*walls[1:], strict=True)]
    print(f"{edges} edges on {num_workers} worker(s), the same bits: {same}")
    print(f"  one process      {took:8.3f} CPU s/round")
    print(f"  critical path    {critical:8.3f} CPU s/round, {took / critical:.2f} times as fast")
    if num_workers == 1:
        print(f"  beyond the work  {1e3 * (critical - took):8.1f} ms/round")
    print(f"  a worker has     {own_bytes / 1e9:8.2f} GB for itself, and shares {shared_bytes / 1e9:.2f} GB")
    print(f"  by the clock     {clock[0]:8.3f} and {clock[1]:.3f} s/round, {clock[0] / clock[1]:.2f} times as fast")


def worker_rounds(config: RunConfig, engine: Ray, start: Weights) -> Iterator[Weights]:
    """Yield the global weights after each round on an engine's workers."""
    federation, served = assemble_served(config, engine, *checked_task(config), None, ())
    for outcome in federation.hierarchical.rounds(served.grid, ArrayRecord(start), config.federation.global_rounds):
        yield outcome.arrays.to_torch_state_dict()


def spent(pids: Sequence[int], rounds: Iterator[Weights]) -> tuple[list[float], float, Weights]:
    """Return the CPU seconds of this process and others in a round, those by the clock, and the weights."""
    clocks: list[Callable[[], float]] = [time.process_time, *(lambda pid=pid: cpu_seconds(pid) for pid in pids)]
    before, began = [clock() for clock in clocks], time.perf_counter()
    weights = next(rounds)
    wall = time.perf_counter() - began
    return [clock() - was for clock, was in zip(clocks, before, strict=True)], wall, weights


def cpu_seconds(pid: int) -> float:
    """Return the CPU time that a process has had, to the nanosecond (Linux)."""
    tasks = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(task.read_text().split()[0]) for task in tasks) / 1e9


def memory_of(pid: int) -> tuple[int, int]:
    """Return how many bytes of memory a process has for itself, and how many it shares with others (Linux)."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    sizes = {name: 1024 * int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines)}
    own = sizes["Private_Clean"] + sizes["Private_Dirty"]
    return own, sizes["Rss"] - own


def messages() -> None:
    """Print how many small messages a second come back."""
    with two_workers() as workers:
        grid = RayGrid(workers, make_echo, IN_FLIGHT)
        rates = []
        for _ in range(21):
            sent = [small_message(node_id) for node_id in grid.get_node_ids()]
            began = time.perf_counter()
            grid.send_and_receive(sent)
            rates.append(IN_FLIGHT / (time.perf_counter() - began))
    print(f"{IN_FLIGHT} messages in flight: {median(rates[1:]):.0f}/s, at best {max(rates):.0f}/s")


@contextmanager
def two_workers() -> Iterator[Workers]:
    """Start two workers for as long as they are used."""
    workers = Workers([WorkerPlace()] * 2)
    try:
        yield workers
    finally:
        workers.close()


def small_message(node_id: int) -> Message:
    """Return a message with an array of 100 numbers."""
    arrays = ArrayRecord({"values": Array(np.zeros(100, np.float32))})
    return Message(RecordDict({"arrays": arrays, "config": ConfigRecord({"round": 1})}), node_id, "train")


def make_echo() -> Callable[[Message, Context], Message]:
    """Return an app that sends back what it gets."""
    return lambda message, context: Message(message.content, reply_to=message)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
