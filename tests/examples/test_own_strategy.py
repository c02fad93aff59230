import importlib
import math
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, Context, RecordDict
from flwr.serverapp.strategy import FedAvg

from espalier.sim.in_process_grid import InProcessGrid
from espalier.strategies import Hierarchical, Observer, ask_profiles, group_by_edge
from tests.app.runs import run_app, weights

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "own-strategy"


class Example:
    """The example's modules, its run config and a Grid of its clients."""

    def __init__(self):
        for name in ("client_app", "server_app", "strategy", "task"):
            setattr(self, name, importlib.import_module(f"own_strategy.{name}"))
        project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text(encoding="utf-8"))
        self.config = project["tool"]["flwr"]["app"]["config"]

    def grid(self, **config):
        return InProcessGrid(self.client_app.app, 4, run_config={**self.config, **config})

    def run(self, grid):
        context = Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config={**self.config})
        self.server_app.app(grid, context)

    def train(self, make_edge, *, num_edges=2, edge_rounds=2, num_rounds=2, observers=()):
        grid = self.grid()
        strategy = Hierarchical(
            FedAvg(min_train_nodes=1, min_evaluate_nodes=1, min_available_nodes=1),
            make_edge,
            group_by_edge(ask_profiles(grid), num_edges),
            edge_rounds=edge_rounds,
            observers=observers,
        )
        return numpy(strategy.start(grid, self.initial(), num_rounds=num_rounds).arrays)

    def initial(self):
        return ArrayRecord(self.task.new_model(self.config["seed"]).state_dict())


class Uploads(Observer):
    """Keeps what the nodes send to their edges."""

    def __init__(self):
        self.models, self.weights = [], []

    def on_message(self, tier, edge, direction, message):
        if (tier, direction) == ("edge", "uplink") and message.content.array_records:
            self.models.append(numpy(message.content["arrays"]))
            self.weights.append(message.content["metrics"]["num-examples"])


def numpy(arrays):
    return {name: array.numpy().copy() for name, array in arrays.items()}


def norm(step):
    return math.sqrt(sum(float((part.astype(np.float64) ** 2).sum()) for part in step.values()))


def printed_accuracy(text):
    (accuracy,) = re.findall(r"^accuracy after 5 rounds: (0\.\d{4})$", text, re.MULTILINE)
    return accuracy


@pytest.fixture
def example(monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLE)
    return Example()


def test_it_learns_and_prints_the_same_accuracy_every_time(example, capsys):
    seed = example.config["seed"]
    untrained = example.task.new_model(seed)
    for partition_id in range(4):
        *_, inputs, labels = example.task.node_data(seed, partition_id, 4)
        assert (untrained(inputs).argmax(1) == labels).float().mean() < 0.3

    accuracies = []
    for _ in range(2):
        example.run(example.grid())
        accuracies.append(printed_accuracy(capsys.readouterr().out))
    assert float(accuracies[0]) > 0.93
    assert accuracies[0] == accuracies[1]


def test_without_a_limit_it_is_fedavg_to_the_bit(example):
    own = example.train(lambda name, size: example.strategy.ClippedFedAvg(math.inf))
    plain = example.train(lambda name, size: FedAvg())
    clipped = example.train(lambda name, size: example.strategy.ClippedFedAvg(0.5))
    for name, expected in plain.items():
        np.testing.assert_array_equal(own[name], expected)
        assert not np.array_equal(clipped[name], expected)


def test_an_edge_averages_clipped_updates(example):
    # One edge, one round: new = w + sum_i n_i / n * (w_i - w) * min(1, c / |w_i - w|), c clipping half of the nodes.
    start, uploads = numpy(example.initial()), Uploads()
    example.train(lambda name, size: FedAvg(), num_edges=1, edge_rounds=1, num_rounds=1, observers=[uploads])
    steps = [{name: model[name] - start[name] for name in start} for model in uploads.models]
    limit = float(np.median([norm(step) for step in steps]))
    factors = [min(1.0, limit / norm(step)) for step in steps]
    assert sum(factor < 1 for factor in factors) == 2

    new = example.train(
        lambda name, size: example.strategy.ClippedFedAvg(limit), num_edges=1, edge_rounds=1, num_rounds=1
    )
    shares = [weight / sum(uploads.weights) for weight in uploads.weights]
    for name in start:
        update = sum(p * f * step[name] for p, f, step in zip(shares, factors, steps, strict=True))
        np.testing.assert_allclose(new[name], start[name] + update, rtol=0, atol=1e-6)
    assert norm({name: new[name] - start[name] for name in start}) <= limit


def test_statistics_and_counters_of_batch_normalisation_are_averaged_and_not_clipped(example, monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(EXAMPLE.parent / "own-task")
    settings = {"task": "own_task.tabular:BreastCancer", "num_clients": 4, "batches_per_epoch": 2, "global_rounds": 1}

    def learned(max_norm):
        strategy = f"own_strategy.strategy:ClippedFedAvg(max_norm={max_norm})"
        return weights(run_app(tmp_path / str(max_norm), edge_strategy=strategy, **settings))

    plain = weights(run_app(tmp_path / "plain", **settings))
    assert all(torch.equal(found, plain[name]) for name, found in learned(1e9).items())
    clipped = learned(1e-9)
    assert clipped["0.num_batches_tracked"] == plain["0.num_batches_tracked"] > 0
    for name in ("0.running_mean", "0.running_var"):
        torch.testing.assert_close(clipped[name], plain[name], rtol=1e-6, atol=0)


@pytest.mark.slow
@pytest.mark.deploy
def test_flwr_run_prints_the_same_accuracy(example, capsys, tmp_path):
    example.run(example.grid())
    expected = printed_accuracy(capsys.readouterr().out)
    federation = "num-supernodes=4 client-resources-num-cpus=1 init-args-log-to-driver=false"
    command = [sys.executable, ROOT / "deploy" / "flwr_run.py", EXAMPLE, "--federation-config", federation]
    finished = subprocess.run(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300, check=False
    )
    assert finished.returncode == 0, finished.stdout
    assert printed_accuracy(finished.stdout) == expected
