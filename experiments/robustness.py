"""How much of its accuracy a run keeps when some of its clients lie, with each defence.

``python -m experiments.robustness`` trains on digits with 0, 1 and 2 liars of 8 clients, for each kind of lie, with
each defence, by ``h-fedavg`` and ``hsfl``, and prints the final test accuracy, mean over the seeds. Who is ``dead``
fails in every round: no defence that leaves a liar out keeps more than is left without him. ``--csv PATH`` writes a row
for each run as soon as it is over, with its settings, the commit and the machine; runs that have a row are not made
again. ``--honest`` trains without liars, on very heterogeneous data, and prints how far beyond a bound of 1 the longest
updates and activations were.
"""

import logging
import re
import sys
from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
from espalier.app.ground.logs import quiet_flower
from espalier.app.reports.folder import ResultsFolder
from espalier.app.reports.made_by import maker
from espalier.app.reports.progress import BarProgress
from espalier.app.run.run import run
from espalier.app.wiring.clients import client_task
from espalier.clients.client_app import make_client_app
from espalier.clients.messages.split_names import ACTIVATIONS, CLIENT_BLOCK
from espalier.clients.messages.train import ARRAYS
from espalier.clients.task import ClientTask, Examples
from espalier.sim.in_process_grid import InProcessGrid
from espalier.strategies.guards.updates import INWARD_SHARE
from experiments.records import append_rows, read_rows, run_script

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
    "FedAvg": {},
    "tight guard": {"guard.update-norm": 10.0, "guard.activation-norm": 5.0},
    "FedMedian": {"edge-strategy": "FedMedian"},
    "FedTrimmedAvg": {"edge-strategy": "FedTrimmedAvg(beta=0.25)"},
    "Krum": {"edge-strategy": "Krum(num_malicious_nodes=2)"},
    "MultiKrum": {"edge-strategy": "MultiKrum(num_malicious_nodes=2, num_nodes_to_select=5)"},
}
ALGORITHMS = ("h-fedavg", "hsfl")
SEEDS = (0, 1, 2)
LIARS = {0: (), 1: (3,), 2: (3, 6)}
GUARDED = "tight guard"
SCALE, HUGE = 100.0, 1e4
# An update that is turned around, and so many times as long: the worst lie under a bound is just below it.
TURNED = (2, 4, 6, 8, 10, 15, 30, 100)
NUM_CLASSES = 10
COLUMNS = dict.fromkeys(("algorithm", "defence", "lie", "liars", "seed", "accuracy", "commit", "machine"), str)

# Honest runs: every update or activation beyond the median of its round is told of.
HONEST = {"global-rounds": 3, "guard.mode": "warn", "guard.update-norm": 1.0, "guard.activation-norm": 1.0}
HONEST_ALGORITHMS = ("fedavg", "h-fedavg", "rawhfl", "sl", "sfl-v1", "sfl-v2", "phsfl")
HONEST_DATA = (("alpha 0.05", {"alpha": 0.05}), ("shards", {"partition": "shards", "data.shards-per-client": 1}))
HONEST_OPTIMIZERS = (
    ("sgd", {}),
    ("momentum", {"train.momentum": 0.9}),
    ("adam", {"optimizer": "adam", "learning-rate": 0.01}),
)
LINE = re.compile(r"(update|activations) (?:is|are) (?=\S+ long( towards zero)?)(\S+) long.*, where (\S+) is allowed")

Weights = dict[str, np.ndarray]
# Accuracies by algorithm, defence, lie and number of liars, and by seed.
Found = Mapping[tuple[str, str, str, int], Mapping[int, float]]
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


def turned(times: float) -> Lie:
    """Return the lie of a step in the opposite direction that is so many times as long."""
    return lambda sent, trained, draw: {n: (w - times * (trained[n] - w)).astype(w.dtype) for n, w in sent.items()}


def honest(sent: Weights, trained: Weights, draw: np.random.Generator) -> Weights:
    """Return what was learned."""
    return trained


LIES: dict[str, Lie] = {"noise": noise, "sign flip": sign_flip, "label flip": honest, "scaled": scaled}
TURNS: dict[str, Lie] = {f"turned, {times} times": turned(times) for times in TURNED}
HUGE_ACTIVATIONS, DEAD, WORST_TURN = "huge activations", "dead", "turned, worst length"


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


def accuracy_of(
    settings: Mapping[str, Any], kind: str, liars: Sequence[int], lies: Mapping[str, Lie] = LIES | TURNS
) -> float:
    """Train with liars, and return the final accuracy of the global model on the test pool."""
    config = parse_config({**SETTING, **settings})
    grid = InProcessGrid(
        lying_app(kind, liars, lies), config.federation.num_clients, run_config=config.as_dict(), seed=config.seed
    )
    with TemporaryDirectory() as folder, redirect_stdout(StringIO()):
        path = run(config, InProcess(grid), BarProgress(Console(file=StringIO())), Path(folder))
        lines = ResultsFolder(path).read_metrics()
    return next(float(line["test"]["accuracy"]) for line in reversed(lines) if "test" in line)


def runs(
    algorithms: Sequence[str], seeds: Sequence[int], defences: Sequence[str] = tuple(DEFENCES), most_liars: int = 2
) -> Iterator[tuple[str, str, str, int, int]]:
    """Return algorithm, defence, lie, number of liars and seed of every run, seed by seed."""
    for seed, algorithm, defence in product(seeds, algorithms, defences):
        yield algorithm, defence, "none", 0, seed
        for kind in (DEAD, *LIES, *([HUGE_ACTIVATIONS] if algorithm == "hsfl" else [])):
            for count in range(1, most_liars + 1):
                yield algorithm, defence, kind, count, seed
        if most_liars:
            yield from ((algorithm, defence, kind, 1, seed) for kind in TURNS)


def rows_of(path: Path) -> dict[tuple[str, str, str, int, int], dict[str, str]]:
    """Return the rows of a CSV file by what `runs` names; none where there is no file."""
    rows = read_rows(path, COLUMNS)
    return {(r["algorithm"], r["defence"], r["lie"], int(r["liars"]), int(r["seed"])): r for r in rows}


def by_seed(rows: Mapping[tuple[str, str, str, int, int], Mapping[str, str]]) -> Found:
    """Return the accuracies of rows."""
    found: dict[tuple[str, str, str, int], dict[int, float]] = {}
    for what, row in sorted(rows.items(), key=lambda item: item[0][4]):
        found.setdefault(what[:4], {})[what[4]] = float(row["accuracy"])
    return found | worst_turns(found)


def worst_turns(found: Found) -> dict[tuple[str, str, str, int], Mapping[int, float]]:
    """Return the accuracies under the length of a turned update that costs most, over the seeds, by defence."""
    turns: dict[tuple[str, str, str, int], list[Mapping[int, float]]] = {}
    for (algorithm, defence, kind, count), own in found.items():
        if kind in TURNS:
            turns.setdefault((algorithm, defence, WORST_TURN, count), []).append(own)
    return {what: min(each, key=lambda own: fmean(own.values())) for what, each in turns.items()}


class Farthest(logging.Handler):
    """The largest multiple of the median, by what was measured; reads a guard's lines, which has bounds of 1."""

    def __init__(self) -> None:
        super().__init__()
        self.ratios: dict[str, float] = {}

    def emit(self, record: logging.LogRecord) -> None:
        """Take a line in."""
        if measured := LINE.search(record.getMessage()):
            what, much, allowed = measured[1], float(measured[3]), float(measured[4])
            if measured[2]:
                what, much = "update towards zero", much * INWARD_SHARE
            if allowed > 0:
                self.ratios[what] = max(self.ratios.get(what, 0.0), much / allowed)


def honest_ratios(settings: Mapping[str, Any]) -> dict[str, float]:
    """Train without liars; return how many times as far as a bound of 1 allows the longest go, by what they are."""
    guard = logging.getLogger("espalier.guard")
    farthest = Farthest()
    guard.addHandler(farthest)
    guard.propagate = False
    try:
        accuracy_of({**HONEST, **settings}, "none", ())
    finally:
        guard.removeHandler(farthest)
        guard.propagate = True
    return farthest.ratios


def print_honest(seeds: Sequence[int]) -> None:
    """Print a line for each honest run, and the largest ratios of all."""
    largest: dict[str, float] = {}
    every = list(product(HONEST_ALGORITHMS, HONEST_DATA, HONEST_OPTIMIZERS, seeds))
    for algorithm, (data, partition), (optimizer, train), seed in track(every, console=Console(stderr=True)):
        ratios = honest_ratios({"algorithm": algorithm, "seed": seed, **partition, **train})
        print(f"{algorithm:9}{data:12}{optimizer:10}seed {seed}  {in_words(ratios)}", flush=True)
        largest = {what: max(largest.get(what, 0.0), ratios.get(what, 0.0)) for what in largest | ratios}
    print(f"{len(every)} honest runs: {in_words(largest)}")


def in_words(ratios: Mapping[str, float]) -> str:
    """Return multiples of the median as text."""
    return ", ".join(f"{what} {ratio:.2f}" for what, ratio in sorted(ratios.items())) or "none beyond the median"


def print_table(found: Found) -> None:
    """Print a row per algorithm, lie and number of liars, with a column per defence: mean and worst over seeds."""
    defences = [defence for defence in DEFENCES if any(own == defence for _, own, _, _ in found)]
    print("| algorithm | lie | liars | " + " | ".join(defences) + " |")
    print("|---|---|---|" + "---|" * len(defences))
    there = {(a, kind, count) for a, _, kind, count in found}
    for algorithm, kind, count in (row for row in rows_in_order() if row in there):
        cells = [in_short([*found.get((algorithm, defence, kind, count), {}).values()]) for defence in defences]
        print(f"| {algorithm} | {kind} | {count} | " + " | ".join(cells) + " |")


def rows_in_order() -> list[tuple[str, str, int]]:
    """Return algorithm, lie and number of liars of every row of the table."""
    shown = ((a, WORST_TURN if kind in TURNS else kind, count) for a, _, kind, count, _ in runs(ALGORITHMS, (0,)))
    return list(dict.fromkeys(shown))


def costs(found: Found, beside: tuple[str, int]) -> dict[tuple[str, str], list[float]]:
    """Return what one liar costs with the guard, for each seed of both runs, by algorithm and lie.

    Parameters
    ----------
    found : Found
        The accuracies.
    beside : tuple[str, int]
        The lie and the number of liars of the run that it is held against.
    """
    lost = {}
    for a, kind, count in rows_in_order():
        before, after = (found.get((a, GUARDED, *what), {}) for what in (beside, (kind, 1)))
        if count == 1 and (seeds := before.keys() & after.keys()):
            lost[a, kind] = [before[seed] - after[seed] for seed in sorted(seeds)]
    return lost


def print_costs(found: Found) -> None:
    """Print for each lie what one liar costs with the guard, and what more than if he were dead."""
    print("| algorithm | lie | costs, mean (worst) | more than if dead, mean (worst) | seeds |")
    print("|---|---|---|---|---|")
    more = costs(found, (DEAD, 1))
    for (algorithm, kind), own in costs(found, ("none", 0)).items():
        beyond = more.get((algorithm, kind), [])
        cells = [f"{fmean(values):.3f} ({max(values):.3f})" if values else "-" for values in (own, beyond)]
        print(f"| {algorithm} | {kind} | {' | '.join(cells)} | {len(own)} |")


def in_short(accuracies: Sequence[float]) -> str:
    """Return mean and worst; of one seed the figure, of none a dash."""
    if len(accuracies) < 2:
        return f"{accuracies[0]:.2f}" if accuracies else "-"
    return f"{fmean(accuracies):.2f} ({min(accuracies):.2f})"


def listed(text: str) -> list[str]:
    """Return what commas separate."""
    return [part.strip() for part in text.split(",")]


def some_of(names: Iterable[str]) -> Callable[[str], list[str]]:
    """Return the function that takes a list of these names apart, and refuses others."""
    allowed = list(names)

    def parse(text: str) -> list[str]:
        if unknown := [name for name in listed(text) if name not in allowed]:
            raise ArgumentTypeError(f"{unknown[0]!r}: allowed are {', '.join(allowed)}")
        return listed(text)

    return parse


def main(arguments: Sequence[str]) -> int:
    """Run the experiment and return the exit code."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--csv", type=Path)
    parser.add_argument("--seeds", type=lambda text: list(map(int, listed(text))), default=SEEDS)
    parser.add_argument("--algorithms", type=some_of(ALGORITHMS), default=ALGORITHMS)
    parser.add_argument("--defences", type=some_of(DEFENCES), default=tuple(DEFENCES))
    parser.add_argument("--most-liars", type=int, choices=range(len(LIARS)), default=len(LIARS) - 1)
    parser.add_argument("--honest", action="store_true")
    given = parser.parse_args(arguments)
    quiet_flower()
    torch.set_num_threads(1)
    if given.honest:
        print_honest(given.seeds)
        return 0
    rows = rows_of(given.csv) if given.csv else {}
    asked = list(runs(given.algorithms, given.seeds, given.defences, given.most_liars))
    for what in track([one for one in asked if one not in rows], console=Console(stderr=True)):
        algorithm, defence, kind, count, seed = what
        accuracy = accuracy_of({"algorithm": algorithm, "seed": seed, **DEFENCES[defence]}, kind, LIARS[count])
        where = maker()["commit"], maker()["machine"]
        rows[what] = dict(zip(COLUMNS, [*map(str, what), f"{accuracy:.4f}", *where], strict=True))
        if given.csv:
            append_rows(given.csv, COLUMNS, [rows[what]])
    found = by_seed(rows)  # those of earlier commands too
    print_table(found)
    print_costs(found)
    return 0


if __name__ == "__main__":
    run_script(lambda: main(sys.argv[1:]))
