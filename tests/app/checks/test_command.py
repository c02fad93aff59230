"""What one brings oneself is checked by a command; what is broken is a line each."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from flwr.app import Array, ArrayRecord
from torch import nn

from espalier.app.algorithms import Algorithm
from espalier.app.algorithms.registry import ALGORITHMS
from espalier.app.algorithms.strategies import edge_strategy
from espalier.app.checks.algorithm_laws import check_algorithm
from espalier.app.checks.task_laws import BASIC, LAWS, check_task
from espalier.app.command_line import main
from espalier.app.tasks import Examples, OwnTask, Pool
from espalier.clients.half import ClientHalf
from espalier.strategies import StrategyEdge

EXAMPLES = Path(__file__).parents[3] / "examples"


class Doubling(StrategyEdge):
    """Gives the model in double precision."""

    def train_round(self, server_round, arrays, config, grid):
        update = yield from super().train_round(server_round, arrays, config, grid)
        wide = {name: Array(array.numpy().astype(float)) for name, array in (update.arrays or {}).items()}
        return replace(update, arrays=ArrayRecord(wide)) if wide else update


class Numbers(OwnTask):
    """Ten numbers a client, below 0 or above."""

    def model(self):
        return nn.Linear(1, 2)

    def client_data(self, client, num_clients, seed):
        rng = torch.Generator().manual_seed(seed + client)
        inputs = torch.randn(20, 1, generator=rng)
        examples = Examples(inputs, (inputs[:, 0] > 0).long())
        return examples, examples


class SharedNumbers(Numbers):
    """A pool whose labels are no classes."""

    def pool(self):
        inputs = torch.randn(200, 1, generator=torch.Generator().manual_seed(0))
        examples = Examples(inputs, inputs[:, 0] * 2)
        return Pool(examples, examples)

    def model(self):
        return nn.Linear(1, 1)

    def loss(self, outputs, labels):
        return ((outputs[:, 0] - labels) ** 2).mean()


class Drawn(Numbers):
    def client_data(self, client, num_clients, seed):
        inputs = torch.randn(20, 1)
        return (Examples(inputs, (inputs[:, 0] > 0).long()),) * 2


class OneTest(Numbers):
    def client_data(self, client, num_clients, seed):
        return super().client_data(client, num_clients, seed)[0]


class Uneven(Numbers):
    def client_data(self, client, num_clients, seed):
        return (Examples(torch.ones(4, 1 + client), torch.ones(4).long()),) * 2


class NoModel(Numbers):
    def model(self):
        return 3


class OfNumpy(Numbers):
    def model(self):
        import random

        model = nn.Linear(1, 2)
        nn.init.constant_(model.bias, random.random())
        return model


class NoGradient(Numbers):
    def loss(self, outputs, labels):
        return torch.tensor(1.0)


class Scaled(Numbers):
    """Keeps its data, and scales them in place."""

    def __init__(self):
        self.held = {}

    def client_data(self, client, num_clients, seed):
        return self.held.setdefault(client, super().client_data(client, num_clients, seed))

    def test_data(self):
        return self.client_data(0, 4, 0)[1]

    def prepare(self, inputs):
        return inputs.div_(2)

    def metrics(self, outputs, labels):
        self.held[0][0].inputs.mul_(2)
        return {}


class Miscounted(Numbers):
    def num_examples(self, client, num_clients, seed):
        train, test = super().client_data(client, num_clients, seed)
        return len(train) + 1, len(test)


class Uncuttable(Numbers):
    def model(self):
        return nn.Sequential()


DOUBLING = Algorithm("doubling", "", lambda site: Doubling(edge_strategy(site)), strategy_key="edge-strategy")


STAYS_NOT_AT_EDGES = replace(
    DOUBLING, make_edge=edge_strategy, client=ClientHalf(stays=lambda model: [min(model.state_dict())])
)


@pytest.fixture
def examples(monkeypatch):
    for name in ("own-algorithm", "own-strategy", "own-task"):
        monkeypatch.syspath_prepend(EXAMPLES / name)


def test_the_examples_keep_all_laws(examples, capsys):
    names = [
        "own_algorithm.slow_edges:SLOW_EDGES",
        "own_algorithm.loyal:LOYAL",
        "own_strategy.strategy:ClippedFedAvg(max_norm=0.5)",
        "own_task.tabular:BreastCancer",
        "own_task.tabular:Diabetes(hidden=8)",
        "own_task.text:Topics",
    ]
    assert main(["check", *names]) == 0
    assert capsys.readouterr().out.splitlines() == [f"{name}: all laws hold" for name in names]


@pytest.mark.parametrize(
    ("name", "line"),
    [
        (
            "DOUBLING",
            "a model keeps its names, shapes and data types: 'conv1.0.weight' came as float32 (16, 1, 3, 3) and "
            "left as float64 (16, 1, 3, 3); return arrays like those that came: np.asarray(values, sent.dtype)",
        ),
        (
            "Drawn",
            "the same arguments give the same data: client_data(0, 4, 0) of two objects gave different data; "
            "draw by seed and client alone, and keep no generator",
        ),
        (
            "STAYS_NOT_AT_EDGES",
            "an edge has rounds: UserError: algorithm = 'doubling': allowed is one whose edges keep out of messages "
            "what its ClientHalf.stays names, and nothing else: make_edge=edge_of_halves(CLIENT), of "
            "espalier.app.algorithms.strategies, with its ClientHalf as CLIENT; let a round give a model where every "
            "client answers",
        ),
        (
            "forgetful",
            "an edge goes on from its state to the bit: round 2 after load_state_dict differs in the model's 'w'; "
            "let state_dict() return all that a round leaves behind, and load_state_dict() take it back",
        ),
    ],
)
def test_what_is_broken_is_one_line(capsys, name, line):
    assert main(["check", f"{__name__}:{name}"]) == 1
    captured = capsys.readouterr()
    assert captured.out.splitlines() == [f"{__name__}:{name}: {line}"]
    assert "Traceback" not in captured.out + captured.err


def forgetful(name, size):
    from tests.strategies.test_edge_laws import Forgetful

    return Forgetful()


@pytest.mark.parametrize(
    ("name", "allowed"),
    [
        ("Numbers", "package.module:NAME, with the module that it is in"),
        ("nowhere:Task", "what can be imported (ModuleNotFoundError: No module named 'nowhere')"),
        ("math:pi", "an Algorithm, a subclass of OwnTask, or a class or function that makes a Flower strategy or an"),
        ("flwr.serverapp.strategy:FedAvg(size=3)", "what FedAvg takes (TypeError: "),
        ("a:b:c", "package.module:NAME or package.module:NAME(argument=value)"),
    ],
)
def test_what_can_not_be_checked_is_one_line(capsys, name, allowed):
    assert main(["check", name]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: check = {name!r}: allowed is {allowed}")
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("task", "law"),
    [
        (OneTest, "every client has examples, of one form"),
        (Uneven, "there is a test pool"),
        (NoModel, "there is a model"),
        (Drawn, "the same arguments give the same data"),
        (Miscounted, "num_examples() is what clients have"),
        (OfNumpy, "the model's weights follow the seed"),
        (NoGradient, "a model learns from the data"),
        (Scaled, "data stay as they are"),
    ],
)
def test_a_law_that_a_task_breaks_is_named_and_no_other(task, law):
    assert [one.law for one in check_task(task)] == [law]
    assert law in {one.says for one in (*BASIC, *LAWS)}


def test_a_task_that_is_right_breaks_none():
    assert check_task(Numbers) == []
    assert check_task(SharedNumbers) == []


@pytest.mark.parametrize("name", ["sfl-v2", "cse-fsl", "fsl-sage", "decoupled", "scaffold", "rawhfl", "top-popular"])
def test_built_in_algorithms_keep_all_laws(name):
    assert check_algorithm(ALGORITHMS[name], {"fsl-sage.fit-steps": 1}) == []
