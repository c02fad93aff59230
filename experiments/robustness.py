"""How much of its accuracy a run keeps when some of its clients lie, with each defence.

``python experiments/robustness.py`` trains on digits with 0, 1 and 2 liars of 8 clients, for each kind of lie, with
each defence, by ``h-fedavg`` and ``hsfl``, and prints the final test accuracy, mean over the seeds. ``--csv PATH``
writes a row for each run, with its settings, the commit and the machine.
"""

import csv
import platform
import subprocess
import sys
from argparse import ArgumentParser
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import replace
from io import StringIO
from itertools import product
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, Context, Message
from rich.console import Console
from rich.progress import track

from espalier.app.config.parse import parse_config
from espalier.app.engines.in_process import InProcess
from espalier.app.logs import quiet_flower
from espalier.app.reports.folder import ResultsFolder
from espalier.app.reports.progress import BarProgress
from espalier.app.run import run
from espalier.app.tasks.clients import client_task
from espalier.clients.client_app import make_client_app
from espalier.clients.messages.split import ACTIVATIONS, CLIENT_BLOCK
from espalier.clients.messages.train import ARRAYS
from espalier.clients.task import ClientTask, Examples
from espalier.sim.in_process_grid import InProcessGrid

SETTING = {
    "engine": "in-process",
    "num-clients": 8,
    "num-edges": 1,
    "global-rounds": 8,
    "edge-rounds": 2,
    "local-epochs": 1,
    "alpha": 0.5,
    "report.evaluate-every": 0,
}
DEFENCES = {
    "FedAvg": {"guard.mode": "off"},
    "guarded FedAvg": {},
    "FedMedian": {"guard.mode": "off", "edge-strategy": "FedMedian"},
    "Krum": {"guard.mode": "off", "edge-strategy": "Krum(num_malicious_nodes=2)"},
    "MultiKrum": {"guard.mode": "off", "edge-strategy": "MultiKrum(num_malicious_nodes=2, num_nodes_to_select=5)"},
}
ALGORITHMS = ("h-fedavg", "hsfl")
SEEDS = (0, 1, 2)
LIARS = {0: (), 1: (3,), 2: (3, 6)}
SCALE, HUGE = 100.0, 1e4
NUM_CLASSES = 10
COLUMNS = ("algorithm", "defence", "lie", "liars", "seed", "accuracy", "commit", "machine")

Weights = dict[str, np.ndarray]
# What a liar sends in place of the weights that it was sent, and those that it has trained.
Lie = Callable[[Weights, Weights, np.random.Generator], Weights]


def noise(sent: Weights, trained: Weights, draw: np.random.Generator) -> Weights:
    """Return the model with noise in place of what was learned."""
    return {name: (w + draw.normal(size=w.shape)).astype(w.dtype) for name, w in sent.items()}


def sign_flip(sent: Weights, trained: Weights, draw: np.random.Generator) -> Weights:
    """Return a step in the opposite direction."""
    return {name: (2 * w - trained[name]).astype(w.dtype) for name, w in sent.items()}


def scaled(sent: Weights, trained: Weights, draw: np.random.Generator) -> Weights:
    """Return a step that is many times as long."""
    return {name: (w + SCALE * (trained[name] - w)).astype(w.dtype) for name, w in sent.items()}


def honest(sent: Weights, trained: Weights, draw: np.random.Generator) -> Weights:
    """Return what was learned."""
    return trained


LIES: dict[str, Lie] = {"noise": noise, "sign flip": sign_flip, "label flip": honest, "scaled": scaled}
HUGE_ACTIVATIONS, DEAD = "huge activations", "dead"


def flipped(task: ClientTask) -> ClientTask:
    """Return a task that learns wrong labels."""
    return replace(task, train=Examples(task.train.inputs, NUM_CLASSES - 1 - task.train.labels))


def lying_app(kind: str, liars: Sequence[int], lies: Mapping[str, Lie]) -> Callable[[Message, Context], Message]:
    """Return the app's ClientApp, in which some clients lie whenever they train.

    Parameters
    ----------
    kind : str
        One of `lies`, "huge activations" or "dead", for clients that fail.
    liars : Sequence[int]
        Their numbers.
    lies : Mapping[str, Lie]
        What liars send in place of weights.
    """

    def load(context: Context) -> ClientTask:
        task = client_task(context)
        return flipped(task) if kind == "label flip" and task.partition_id in liars else task

    app, blocks = make_client_app(load, durable=False), {}

    def answer(message: Message, context: Context) -> Message:
        client, trains = int(context.node_config["partition-id"]), message.metadata.message_type.startswith("train")
        if client not in liars or not trains:
            return app(message, context)
        if kind == DEAD:
            raise RuntimeError("dead")
        for record in (ARRAYS, CLIENT_BLOCK):
            if record in message.content:
                blocks[client] = numbers(message.content.array_records[record])
        reply = app(message, context)
        draw = np.random.default_rng(client)
        for record in (ARRAYS, CLIENT_BLOCK):
            if record in reply.content and kind in lies:
                told = lies[kind](blocks[client], numbers(reply.content.array_records[record]), draw)
                reply.content[record] = ArrayRecord({name: Array(w) for name, w in told.items()})
        if ACTIVATIONS in reply.content:
            spoil_activations(reply, kind, draw)
        return reply

    return answer


def spoil_activations(reply: Message, kind: str, draw: np.random.Generator) -> None:
    """Let the activations lie in the manner of the weights."""
    values = reply.content.array_records[ACTIVATIONS][ACTIVATIONS].numpy()
    lies = {
        HUGE_ACTIVATIONS: lambda: np.full_like(values, HUGE),
        "noise": lambda: draw.normal(size=values.shape).astype(values.dtype),
        "sign flip": lambda: -values,
        "scaled": lambda: (SCALE * values).astype(values.dtype),
    }
    if kind in lies:
        reply.content[ACTIVATIONS] = ArrayRecord({ACTIVATIONS: Array(lies[kind]())})


def numbers(record: ArrayRecord) -> Weights:
    """Return the arrays of a record."""
    return {name: array.numpy() for name, array in record.items()}


def accuracy_of(settings: Mapping[str, Any], kind: str, liars: Sequence[int], lies: Mapping[str, Lie] = LIES) -> float:
    """Train with liars, and return the final accuracy of the global model on the test pool."""
    config = parse_config({**SETTING, **settings})
    grid = InProcessGrid(
        lying_app(kind, liars, lies), config.federation.num_clients, run_config=config.as_dict(), seed=config.seed
    )
    with TemporaryDirectory() as folder, redirect_stdout(StringIO()):
        path = run(config, InProcess(grid), BarProgress(Console(file=StringIO())), Path(folder))
        lines = ResultsFolder(path).read_metrics()
    return next(float(line["test"]["accuracy"]) for line in reversed(lines) if "test" in line)


def runs(algorithms: Sequence[str], seeds: Sequence[int]) -> Iterator[tuple[str, str, str, int, int]]:
    """Return algorithm, defence, lie, number of liars and seed of every run."""
    for algorithm, defence, seed in product(algorithms, DEFENCES, seeds):
        yield algorithm, defence, "none", 0, seed
        for kind in (*LIES, *([HUGE_ACTIVATIONS] if algorithm == "hsfl" else [])):
            for count in (1, 2):
                yield algorithm, defence, kind, count, seed


def commit() -> str:
    """Return the commit of the working tree."""
    command = ["git", "rev-parse", "--short", "HEAD"]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=Path(__file__).parent
    ).stdout.strip()


def print_table(found: Mapping[tuple[str, str, str, int], Sequence[float]]) -> None:
    """Print a row per algorithm, lie and number of liars, with a column per defence."""
    print("| algorithm | lie | liars | " + " | ".join(DEFENCES) + " |")
    print("|---|---|---|" + "---|" * len(DEFENCES))
    for algorithm, kind, count in dict.fromkeys((a, kind, count) for a, _, kind, count in found):
        means = [fmean(found[algorithm, defence, kind, count]) for defence in DEFENCES]
        print(f"| {algorithm} | {kind} | {count} | " + " | ".join(f"{mean:.2f}" for mean in means) + " |")


def main(arguments: Sequence[str]) -> int:
    """Run the experiment and return the exit code."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--csv", type=Path)
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS)
    parser.add_argument("--algorithms", nargs="+", default=ALGORITHMS)
    given = parser.parse_args(arguments)
    quiet_flower()
    torch.set_num_threads(1)
    rows, found = [], dict[tuple[str, str, str, int], list[float]]()
    for algorithm, defence, kind, count, seed in track(
        list(runs(given.algorithms, given.seeds)), console=Console(stderr=True)
    ):
        settings = {"algorithm": algorithm, "seed": seed, **DEFENCES[defence]}
        accuracy = accuracy_of(settings, kind, LIARS[count])
        found.setdefault((algorithm, defence, kind, count), []).append(accuracy)
        where = commit(), platform.processor() or platform.machine()
        what = [algorithm, defence, kind, count, seed, f"{accuracy:.4f}", *where]
        rows.append(dict(zip(COLUMNS, what, strict=True)))
    print_table(found)
    if given.csv:
        with given.csv.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
