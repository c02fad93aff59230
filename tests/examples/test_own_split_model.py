import importlib
import re
import tomllib
from pathlib import Path

import pytest
import torch
from flwr.app import ArrayRecord, Context, RecordDict
from flwr.serverapp.strategy import FedAvg

from espalier.sim.in_process_grid import InProcessGrid
from espalier.strategies import Hierarchical, ask_profiles, group_by_edge

EXAMPLE = Path(__file__).parents[2] / "examples" / "own-split-model"


@pytest.fixture
def example(monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLE)
    return {name: importlib.import_module(f"own_split_model.{name}") for name in ("client_app", "server_app", "task")}


def run(example, capsys, monkeypatch, **config):
    """Run the example; return the accuracy that it prints and the model it ends with."""
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text(encoding="utf-8"))
    config = {**project["tool"]["flwr"]["app"]["config"], **config}
    results = []

    class Watched(Hierarchical):
        def start(self, *arguments, **options):
            results.append(super().start(*arguments, **options))
            return results[-1]

    monkeypatch.setattr(example["server_app"], "Hierarchical", Watched)
    grid = InProcessGrid(example["client_app"].app, 4, run_config=config)
    context = Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config=config)
    example["server_app"].app(grid, context)
    (printed,) = re.findall(r"^accuracy after \d rounds: (0\.\d{4})$", capsys.readouterr().out, re.MULTILINE)
    return printed, results[0].arrays.to_torch_state_dict()


def test_it_learns_and_the_same_each_time(example, capsys, monkeypatch):
    printed, weights = run(example, capsys, monkeypatch)
    assert float(printed) > 0.93
    again, same = run(example, capsys, monkeypatch)
    assert again == printed
    assert all(torch.equal(weights[name], same[name]) for name in weights)


def test_one_round_is_the_same_at_every_cut_and_whole(example, capsys, monkeypatch):
    # One round: training magnifies differences of rounding.
    weights, *others = (run(example, capsys, monkeypatch, cut=cut, **{"num-rounds": 1})[1] for cut in (1, 2, 3))

    task = example["task"]
    grid = InProcessGrid(example["client_app"].app, 4, run_config={"seed": 0})
    one = {"min_train_nodes": 1, "min_evaluate_nodes": 1, "min_available_nodes": 1}
    whole = Hierarchical(
        FedAvg(), lambda name, size: FedAvg(**one), group_by_edge(ask_profiles(grid), 2), edge_rounds=2
    ).start(grid, ArrayRecord(task.new_model(0).state_dict()), num_rounds=1)
    others.append(whole.arrays.to_torch_state_dict())
    start = task.new_model(0).state_dict()
    for name, values in weights.items():
        assert (values - start[name]).abs().max() > 0.01
        for other in others:
            torch.testing.assert_close(values, other[name], rtol=0, atol=1e-5)
