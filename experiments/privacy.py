"""What somebody who reads the messages of a run learns about labels, in each mode.

``python -m experiments.privacy`` trains, reads every message between the clients and their edge, and prints for each
mode how often the nearest neighbour of a sample's activations, features or gradients has the sample's label; how often
an edge finds the label itself, by trying all labels on the last blocks that it sent; how much of the inputs a linear
map of the activations gives back; and how often the update of a whole model names the class that a client has most of.
``--csv PATH`` writes the rows of a run as soon as it is over, with its settings, the commit and the machine; runs
that have rows are not made again. ``--data-dir FOLDER`` takes CIFAR-10 as folders of images, ``train/<class>/*`` and
``test/<class>/*``, in place of the digits.
"""

from argparse import ArgumentParser
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, field, replace
from functools import partial
from io import StringIO
from itertools import product
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any, Final

import torch
from flwr.app import Context, Message, RecordDict
from rich.console import Console
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity, cross_entropy, normalize

from espalier.app.config.parse import parse_config
from espalier.app.engines.in_process import InProcess
from espalier.app.ground.logs import quiet_flower
from espalier.app.reports.made_by import maker
from espalier.app.reports.progress import BarProgress
from espalier.app.run.run import run
from espalier.app.wiring.clients import client_task
from espalier.clients.client_app import make_client_app
from espalier.clients.messages.frames import Format, as_received
from espalier.clients.messages.split import SplitBegin
from espalier.clients.messages.split_names import (
    ACTIVATIONS,
    CUT_GRADIENT,
    FEATURE_GRADIENT,
    FEATURES,
    SPLIT_BEGIN,
    SPLIT_END,
    SPLIT_STEP,
    SPLIT_TAIL,
    STEP,
)
from espalier.clients.messages.train import CONFIG, METRICS, SERVER_ROUND, TRAIN, only_arrays
from espalier.clients.shared.arrays import config_of, to_tensor, to_weights
from espalier.clients.shared.cut import as_blocks, copied
from espalier.clients.shared.nested import rows_on
from espalier.clients.split.session import Session
from espalier.clients.task import ClientTask, Examples
from espalier.sim.in_process_grid import InProcessGrid
from experiments.records import completed, run_script

COMMON = {
    "engine": "in-process",
    "num-clients": 8,
    "global-rounds": 10,
    "local-epochs": 1,  # no sample comes twice in a round
    "report.evaluate-every": 0,
}
SETTINGS: dict[str, dict[str, Any]] = {
    "digits": {"batch-size": 16},
    "cifar10": {
        "dataset": "image-folder",
        "data.image-size": 16,
        "model": "cnn",
        "batches-per-epoch": 10,
        "learning-rate": 0.05,
    },
}
SEEDS = (0, 1, 2)
NUM_CLASSES = 10
OWN, RANDOM = "own", "random"  # labels: those of the images, or drawn independently of them
FIRST, LAST = "first", "last"  # rounds
NEIGHBOUR, TRIED, REBUILT, COMMONEST = "neighbour", "tried", "rebuilt", "commonest class"  # measures
PIXELS, UPDATE = "pixels", "update"
TENSORS: Final = (ACTIVATIONS, CUT_GRADIENT, FEATURES, FEATURE_GRADIENT)
# The payloads of streams that are measured too, at one place: the cut behind the first block, with and without a tail.
PAYLOADS = ("float32", "int8", "top-10%")
RIDGE = 0.01
STEPS = (SPLIT_BEGIN, SPLIT_TAIL, SPLIT_STEP, SPLIT_END)
COLUMNS = {
    "setting": str,
    "algorithm": str,
    "cut": int,
    "tail": str,
    "labels": str,
    "seed": int,
    "round": str,
    "what": str,
    "measure": str,
    "payload": str,
    "share": float,
    "chance": float,
    "samples": int,
    "commit": str,
    "machine": str,
}

Row = dict[str, Any]
# What becomes of a client's examples before it trains on them.
Change = Callable[[ClientTask], ClientTask]


@dataclass(frozen=True)
class Case:
    """A run: what is trained, where it is cut, and on which labels.

    Parameters
    ----------
    setting : str
        One of `SETTINGS`.
    algorithm : str
        The algorithm.
    cut : int
        Blocks at the client; 0: the model is whole.
    tail : str
        ``tail-layer``.
    labels : "own" or "random"
        Those of the images, or labels that are drawn independently of them, which gradients alone can tell.
    seed : int
        Of the run.
    """

    setting: str
    algorithm: str
    cut: int
    tail: str
    labels: str
    seed: int

    @property
    def run_config(self) -> dict[str, Any]:
        """The settings of the run by their keys."""
        own = {"algorithm": self.algorithm, "seed": self.seed, **COMMON, **SETTINGS[self.setting]}
        if not self.cut:  # an update tells of the classes that a client has more of than others
            return own | {"partition": "dirichlet", "alpha": 0.5}
        own |= {"partition": "iid", "cut-layer": self.cut, "tail-layer": self.tail}
        return own | ({"fine-tune.steps": 0} if self.algorithm in ("hsfl", "phsfl") else {})

    @property
    def payloads(self) -> tuple[str, ...]:
        """The payloads that what travels is also read in."""
        is_measured = self.algorithm == "hsfl" and self.cut == 1 and self.tail != "fc1"
        return PAYLOADS if is_measured else PAYLOADS[:1]


# All places where the four blocks of `small-cnn` and `cnn` (conv1, conv2, fc1, head) can be cut, once and twice.
CUTS = ((1, "none"), (2, "none"), (3, "none"), (1, "fc1"), (1, "head"), (2, "head"))
OTHERS = ("sl", "sfl-v1", "sfl-v2", "phsfl")


def cases(setting: str, seeds: Sequence[int]) -> Iterator[Case]:
    """Return the runs of a setting, seed by seed: HSFL at every cut, the others at one, with and without a tail.

    Digits show their own labels: there random ones tell what is in the gradients. CIFAR-10 takes longer, and shows
    little: HSFL alone, with its own labels.
    """
    for seed in seeds:
        for (cut, tail), labels in product(CUTS, (OWN, RANDOM) if setting == "digits" else (OWN,)):
            yield Case(setting, "hsfl", cut, tail, labels, seed)
        if setting != "digits":
            continue
        for algorithm, tail in product(OTHERS, ("none", "head")):
            yield Case(setting, algorithm, 1, tail, RANDOM, seed)
        for algorithm in ("fedavg", "h-fedavg"):
            yield Case(setting, algorithm, 0, "none", OWN, seed)


@dataclass
class Seen:
    """What travels between one client and its edge in a round.

    Parameters
    ----------
    task : ClientTask
        The client's, with the labels that nobody is told.
    begin : SplitBegin, optional
        What began the round, where the model is split.
    batches : list[Tensor]
        The round's mini-batches, as indices.
    tensors : dict[str, dict[int, Tensor]]
        By the record's name and the mini-batch.
    models : list[dict[str, Tensor]]
        The whole model as it came and as it went, where it travels.
    """

    task: ClientTask
    begin: SplitBegin | None = None
    batches: list[Tensor] = field(default_factory=list)
    tensors: dict[str, dict[int, Tensor]] = field(default_factory=dict)
    models: list[Mapping[str, Tensor]] = field(default_factory=list)

    @property
    def labels(self) -> Tensor:
        """The labels of the round's samples, in the order of `values`."""
        return self.task.train.labels[torch.cat(self.batches)]

    @property
    def pixels(self) -> Tensor:
        """The inputs of the round's samples."""
        task = self.task
        return torch.cat([task.prepare(rows_on(task.train.inputs, batch, task.device)) for batch in self.batches])

    def values(self, name: str, payload: str = "float32") -> Tensor:
        """Return the rows of a record, a sample each, as the other end of a stream reads them with a payload."""
        form = Format(payload)
        batches = [as_received(form, self.tensors[name][step]) for step in range(len(self.batches))]
        return torch.cat(batches)


class Observer:
    """Answers as the app's ClientApp does, and keeps what travels in the first and in the last round.

    Parameters
    ----------
    change : Callable[[ClientTask], ClientTask] (default: nothing)
        What becomes of a client's task before.

    Attributes
    ----------
    rounds : dict[int, dict[int, Seen]]
        By round and client.
    """

    def __init__(self, change: Change = lambda task: task) -> None:
        self.rounds: dict[int, dict[int, Seen]] = {}
        self._change = change
        self._tasks: dict[int, ClientTask] = {}
        self._app = make_client_app(self._load, durable=False)

    def __call__(self, message: Message, context: Context) -> Message:
        """Answer a message."""
        reply, kind = self._app(message, context), message.metadata.message_type
        if kind == TRAIN or kind in STEPS:
            self._look(kind, message.content, reply.content, self._load(context))
        return reply

    def _load(self, context: Context) -> ClientTask:
        client = int(context.node_config["partition-id"])
        if client not in self._tasks:
            self._tasks[client] = self._change(client_task(context))
        return self._tasks[client]

    def _look(self, kind: str, sent: RecordDict, answered: RecordDict, task: ClientTask) -> None:
        number = int(config_of(sent, CONFIG)[SERVER_ROUND])
        if number not in self.rounds:
            self.rounds = {n: self.rounds[n] for n in list(self.rounds)[:1]} | {number: {}}
        seen = self.rounds[number].setdefault(task.partition_id, Seen(task))
        if kind == TRAIN:
            seen.models = [to_weights(only_arrays(content)) for content in (sent, answered)]
            return
        if kind == SPLIT_BEGIN:
            seen.begin = SplitBegin.from_content(sent)
            seen.batches = Session.begin(task, seen.begin).batches  # as the client's own
        for content, numbers in ((sent, config_of(sent, CONFIG)), (answered, answered.metric_records[METRICS])):
            for name in TENSORS:
                if name in content.array_records:
                    values = to_tensor(content.array_records[name][name])
                    seen.tensors.setdefault(name, {})[int(numbers[STEP])] = values


def with_random_labels(task: ClientTask) -> ClientTask:
    """Return a task whose labels have nothing to do with its inputs."""
    draw = torch.Generator().manual_seed(1000 * task.seed + task.partition_id)
    labels = torch.randint(0, NUM_CLASSES, task.train.labels.shape, generator=draw)
    return replace(task, train=Examples(task.train.inputs, labels))


def neighbours_agree(values: Tensor, labels: Tensor) -> float:
    """Return how often a sample's nearest neighbour, by the cosine, has the sample's label.

    Parameters
    ----------
    values : Tensor
        Shape (N, ...): a row for each sample.
    labels : Tensor
        Shape (N,).
    """
    rows = normalize(values.flatten(1).double(), dim=1)
    alike = rows @ rows.T
    alike.fill_diagonal_(-torch.inf)
    return float((labels[alike.argmax(1)] == labels).double().mean())


def chance(labels: Tensor) -> float:
    """Return how often another sample, drawn at random, has a sample's label; labels of shape (N,)."""
    counts = labels.bincount().double()
    return float((counts * (counts - 1)).sum() / (len(labels) * (len(labels) - 1)))


def tried_labels(tail: nn.Module, features: Tensor, gradients: Tensor, num_classes: int) -> Tensor:
    """Return the labels whose gradients are most like those that came: all that an edge needs for it has passed by it.

    Parameters
    ----------
    tail : nn.Module
        The client's last blocks, with the weights that the edge sent when the round began.
    features : Tensor
        Shape (N, ...): what the edge sent.
    gradients : Tensor
        Of the same shape: what came back.
    num_classes : int
        Labels are below it.

    Returns
    -------
    Tensor
        Shape (N,).
    """
    scores = []
    for label in range(num_classes):
        inputs = features.detach().clone().requires_grad_(True)
        labels = torch.full((len(inputs),), label)
        (own,) = torch.autograd.grad(cross_entropy(tail(inputs), labels, reduction="sum"), inputs)
        scores.append(cosine_similarity(own.flatten(1), gradients.flatten(1)))
    return torch.stack(scores).argmax(0)


def rebuilt(known: Tensor, known_inputs: Tensor, values: Tensor, inputs: Tensor) -> float:
    """Return the share of the inputs' variance that a linear map of what travelled gives back, at least 0.

    The map is fitted by ridge regression to samples whose inputs are known. Whoever has the client's blocks, as its
    edge has, can make such samples of any images of the same kind.

    Parameters
    ----------
    known, values : Tensor
        Shape (M, ...) and (N, ...): a row for each sample.
    known_inputs, inputs : Tensor
        Shape (M, ...) and (N, ...): the samples.
    """
    x, y, new, true = (tensor.flatten(1).double() for tensor in (known, known_inputs, values, inputs))
    mean, target_mean = x.mean(0), y.mean(0)
    x, y = x - mean, y - target_mean
    gram = x.T @ x
    gram.diagonal().add_(RIDGE * gram.diagonal().mean())
    found = (new - mean) @ torch.linalg.solve(gram, x.T @ y) + target_mean
    return max(0.0, float(1 - (true - found).square().sum() / (true - target_mean).square().sum()))


def commonest_class(before: Mapping[str, Tensor], after: Mapping[str, Tensor]) -> int:
    """Return the class whose bias in the head has grown most: a guess at the one that a client has most of."""
    name = next(name for name in reversed(before) if name.endswith(".bias"))
    return int((after[name] - before[name]).argmax())


def _tail_as_sent(seen: Seen) -> nn.Module:
    """Return a client's last blocks with the weights that began its round."""
    begin, model = seen.begin, as_blocks(seen.task.model)
    assert begin is not None
    tail, weights = copied(as_blocks(model[begin.tail :])), to_weights(begin.block)
    tail.load_state_dict({name: weights[name] for name in tail.state_dict()})
    return tail


def measured(clients: Sequence[Seen], payloads: Sequence[str]) -> Iterator[tuple[str, str, str, float, float, int]]:
    """Return what, measure, payload, share, what chance would give, and samples, of a round of these clients.

    Samples are compared with those of the same client. Shares are means over samples, and over clients for updates.
    """
    if all(seen.models for seen in clients):
        hits = [commonest_class(*seen.models) == int(seen.task.train.labels.bincount().argmax()) for seen in clients]
        yield UPDATE, COMMONEST, PAYLOADS[0], fmean(hits), 1 / NUM_CLASSES, len(clients)
        return
    weights = [len(seen.labels) for seen in clients]
    by_chance = _mean([chance(seen.labels) for seen in clients], weights)

    def share(of: Callable[[Seen], float]) -> float:
        return _mean([of(seen) for seen in clients], weights)

    agree = share(lambda seen: neighbours_agree(seen.pixels, seen.labels))
    yield PIXELS, NEIGHBOUR, PAYLOADS[0], agree, by_chance, sum(weights)
    for name, payload in product(TENSORS, payloads):
        if name not in clients[0].tensors:
            continue
        agree = share(lambda seen, n=name, p=payload: neighbours_agree(seen.values(n, p), seen.labels))
        yield name, NEIGHBOUR, payload, agree, by_chance, sum(weights)
        if name == FEATURE_GRADIENT:
            found = share(lambda seen, p=payload: found_by_trying(seen, p))
            yield name, TRIED, payload, found, by_chance, sum(weights)
        if name == ACTIVATIONS:
            half = len(clients) // 2
            known, others = (_joined(own, name, payload) for own in (clients[:half], clients[half:]))
            yield name, REBUILT, payload, rebuilt(*known, *others), 0.0, len(others[0])


def _joined(clients: Sequence[Seen], name: str, payload: str) -> tuple[Tensor, Tensor]:
    """Return what travelled of all samples of some clients, and their inputs."""
    return torch.cat([seen.values(name, payload) for seen in clients]), torch.cat([seen.pixels for seen in clients])


def found_by_trying(seen: Seen, payload: str) -> float:
    """Return how often an edge that tries all labels finds that of a sample; it knows the features as it sent them."""
    found = tried_labels(
        _tail_as_sent(seen), seen.values(FEATURES), seen.values(FEATURE_GRADIENT, payload), NUM_CLASSES
    )
    return float((found == seen.labels).double().mean())


def _mean(shares: Sequence[float], weights: Sequence[int]) -> float:
    return sum(w * share for w, share in zip(weights, shares, strict=True)) / sum(weights)


def observed(run_config: Mapping[str, Any], change: Change = lambda task: task) -> Observer:
    """Train, and return what was seen."""
    config, observer = parse_config(dict(run_config)), Observer(change)
    grid = InProcessGrid(observer, config.federation.num_clients, run_config=config.as_dict(), seed=config.seed)
    with TemporaryDirectory() as folder, redirect_stdout(StringIO()):
        run(config, InProcess(grid), BarProgress(Console(file=StringIO())), Path(folder))
    return observer


def rows_of_run(case: Case, **changes: Any) -> list[Row]:
    """Train, and return a row for each thing that was measured; `changes` are settings by their keys."""
    config = case.run_config | changes
    observer = observed(config, with_random_labels) if case.labels == RANDOM else observed(config)
    where = {key: maker()[key] for key in ("commit", "machine")}
    return [
        {**vars(case), "round": when, "what": what, "measure": measure, "payload": payload}
        | {"share": round(share, 4), "chance": round(by_chance, 4), "samples": samples, **where}
        for when, clients in zip((FIRST, LAST), observer.rounds.values(), strict=True)
        for what, measure, payload, share, by_chance, samples in measured(list(clients.values()), case.payloads)
    ]


def case_of(row: Row) -> Case:
    """Return the run that a row is of."""
    return Case(**{name: row[name] for name in Case.__dataclass_fields__})


# The columns of a table: what is measured, how, and what the column is called.
MEASURES = (
    (ACTIVATIONS, REBUILT, "inputs rebuilt"),
    (ACTIVATIONS, NEIGHBOUR, "activations"),
    (CUT_GRADIENT, NEIGHBOUR, "cut gradients"),
    (FEATURES, NEIGHBOUR, "features"),
    (FEATURE_GRADIENT, NEIGHBOUR, "feature gradients"),
    (FEATURE_GRADIENT, TRIED, "labels found"),
)
OF_ONE_CUT = 3  # measures of what travels with one cut
SHOWN = "hsfl"  # the algorithm that the tables show; the others send the same things


def percents(rows: Sequence[Row], what: str, measure: str) -> tuple[float, ...]:
    """Return the shares of the first and of the last round in per cent, means over the seeds; nothing for none."""
    own = [row for row in rows if (row["what"], row["measure"]) == (what, measure)]
    return tuple(fmean(100 * row["share"] for row in own if row["round"] == when) for when in (FIRST, LAST) if own)


def cell(rows: Sequence[Row], what: str, measure: str) -> str:
    """Return both shares; a dash for none."""
    return ", ".join(f"{share:.0f}" for share in percents(rows, what, measure)) or "-"


def places_of(rows: Sequence[Row], algorithm: str) -> dict[tuple[int, str], list[Row]]:
    """Return the rows of an algorithm whose payloads are as they are, by cut and tail."""
    places: dict[tuple[int, str], list[Row]] = {}
    for row in rows:
        if (row["algorithm"], row["payload"]) == (algorithm, PAYLOADS[0]):
            places.setdefault((row["cut"], row["tail"]), []).append(row)
    return places


def print_places(rows: Sequence[Row]) -> None:
    """Print a line for each place of the cuts, with a column for each thing that travels, and how far others are."""
    print("| cut | tail | " + " | ".join(title for *_, title in MEASURES) + " |")
    print("|" + "---|" * (2 + len(MEASURES)))
    shown, others = places_of(rows, SHOWN), sorted({row["algorithm"] for row in rows} - {SHOWN})
    for place, own in shown.items():
        print("| " + " | ".join(map(str, [*place, *(cell(own, *what) for *what, _ in MEASURES)])) + " |")
    differences = [
        abs(theirs - its)
        for algorithm in others
        for place, own in places_of(rows, algorithm).items()
        if place in shown
        for *what, _ in MEASURES
        for theirs, its in zip(percents(own, *what), percents(shown[place], *what), strict=True)
    ]
    if differences:
        names = ", ".join(f"`{name}`" for name in others)
        print(f"\nThe figures of {names} differ by {max(differences):.0f} at most.")


def print_cuts(rows: Sequence[Row]) -> None:
    """Print a line for each cut of a model without a tail."""
    crossing = MEASURES[:OF_ONE_CUT]
    print("| cut | " + " | ".join(title for *_, title in crossing) + " |")
    print("|" + "---|" * (1 + len(crossing)))
    for (cut, tail), own in places_of(rows, SHOWN).items():
        if tail == "none":
            print(f"| {cut} | " + " | ".join(cell(own, *what) for *what, _ in crossing) + " |")


def print_payloads(rows: Sequence[Row]) -> None:
    """Print a line for each payload that was measured, with two cuts: what passes the first is the same with one."""
    print("| payload | " + " | ".join(title for *_, title in MEASURES) + " |")
    print("|" + "---|" * (1 + len(MEASURES)))
    for payload in PAYLOADS:
        own = [r for r in rows if (r["algorithm"], r["cut"], r["tail"], r["payload"]) == ("hsfl", 1, "head", payload)]
        print(f"| {payload} | " + " | ".join(cell(own, *what) for *what, _ in MEASURES) + " |")


def print_updates(rows: Sequence[Row]) -> None:
    """Print a line for each algorithm whose clients send whole models."""
    print("| algorithm | a client's commonest class is named | chance |")
    print("|---|---|---|")
    for algorithm in dict.fromkeys(row["algorithm"] for row in rows):
        own = [row for row in rows if row["algorithm"] == algorithm]
        print(f"| {algorithm} | {cell(own, UPDATE, COMMONEST)} | {100 * own[0]['chance']:.0f} |")


def print_tables(setting: str, rows: Sequence[Row]) -> None:
    """Print the tables of a setting as they are in the docs."""
    rows = sorted((row for row in rows if row["setting"] == setting), key=lambda row: row["seed"])
    for labels in (RANDOM, OWN):
        own = [row for row in rows if row["labels"] == labels and row["cut"]]
        if own:
            by_chance = fmean(100 * row["chance"] for row in own if row["measure"] == NEIGHBOUR)
            print(f"\n{setting}, labels: {labels}")
            print(f"pixels {cell(own, PIXELS, NEIGHBOUR)}, chance {by_chance:.0f}\n")
            # What a tail adds is seen with labels that say nothing of images.
            (print_places if labels == RANDOM else print_cuts)(own)
    for printed, own in (
        (print_payloads, [row for row in rows if row["labels"] == RANDOM]),
        (print_updates, [row for row in rows if not row["cut"]]),
    ):
        if own:
            print()
            printed(own)


def main(arguments: Sequence[str] | None = None) -> int:
    """Make the runs that have no rows, print the tables, and return the exit code."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--csv", type=Path)
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS)
    parser.add_argument("--data-dir", type=Path)
    given = parser.parse_args(arguments)
    quiet_flower()
    torch.set_num_threads(1)
    setting = "cifar10" if given.data_dir else "digits"
    data = {"data-dir": str(given.data_dir)} if given.data_dir else {}
    made = partial(rows_of_run, **data)
    rows = completed(given.csv, COLUMNS, cases(setting, given.seeds), case_of, made)
    print_tables(setting, rows)
    return 0


if __name__ == "__main__":
    run_script(main)
