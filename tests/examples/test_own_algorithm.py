"""The example of an algorithm of one's own, run by the app."""

import inspect
import json
from functools import partial
from pathlib import Path

import pytest
import torch

from espalier.app.algorithms import Algorithm
from espalier.app.algorithms.strategies import edge_strategy
from espalier.app.command_line import main
from espalier.app.reports.final import report_again
from espalier.strategies import StrategyEdge
from tests.app.runs import flwr_run, lines, run_app, same_weights, summary, weights

EXAMPLE = Path(__file__).parents[2] / "examples" / "own-algorithm"
NAME = "own_algorithm.slow_edges:SLOW_EDGES"
SMALL = {"num_clients": 4, "batches_per_epoch": 2, "local_epochs": 1, "edge_rounds": 1}


@pytest.fixture(autouse=True)
def _example_can_be_imported(monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLE)


def test_it_has_thirty_lines_or_fewer():
    from own_algorithm import slow_edges

    code = [line for line in inspect.getsource(slow_edges).splitlines() if line.strip()]
    assert len(code) <= 30


def test_a_round_goes_half_of_the_way_of_h_fedavg(tmp_path):
    whole = run_app(tmp_path / "whole", global_rounds=1, **SMALL)
    half = run_app(tmp_path / "half", algorithm=NAME, global_rounds=1, **SMALL)
    still = run_app(tmp_path / "still", learning_rate=1e-30, global_rounds=1, **SMALL)
    for name, start in weights(still).items():
        torch.testing.assert_close(weights(half)[name], (start + weights(whole)[name]) / 2, atol=1e-7, rtol=1e-6)


def test_counters_of_batch_normalisation_go_all_the_way(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLE.parent / "own-task")
    settings = {"task": "own_task.tabular:BreastCancer", "global_rounds": 1, **SMALL}
    whole = weights(run_app(tmp_path / "whole", **settings))
    half = weights(run_app(tmp_path / "half", algorithm=NAME, **settings))
    assert half["0.num_batches_tracked"] == whole["0.num_batches_tracked"] == 2
    torch.testing.assert_close(half["0.running_mean"], whole["0.running_mean"] / 2)  # it starts at 0


def test_it_is_reported_and_resumed_to_the_same_bits(tmp_path, capsys):
    straight = run_app(tmp_path / "straight", algorithm=NAME, global_rounds=3, **SMALL)
    stopped = run_app(tmp_path / "stopped", algorithm=NAME, global_rounds=1, **SMALL)
    assert main([f"resume={stopped}", "global-rounds=3"]) == 0
    assert "slow-edges on digits, 3 global rounds" in capsys.readouterr().out
    assert same_weights(straight, stopped)
    told = summary(straight)
    assert told["algorithm"] == "slow-edges"
    report_again(straight)
    assert summary(straight) == told
    assert json.loads((straight / "config.json").read_text())["algorithm"] == NAME
    assert len(lines(straight, "global")) == 3


def makes_none(site):
    return 3


def cannot_be_made(site):
    return {}["task"]


class Stops(StrategyEdge):
    def train_round(self, server_round, arrays, config, grid):
        update = yield from super().train_round(server_round, arrays, config, grid)
        return update if server_round == 1 else update.nothing


MAKES_NONE = Algorithm("makes-none", "", makes_none)
CANNOT_BE_MADE = Algorithm("cannot-be-made", "", cannot_be_made)
STOPS_AS_A_PART = Algorithm("stops", "", partial(lambda site, kind: kind(edge_strategy(site)), kind=Stops))
STOPS = Algorithm("stops", "", lambda site: Stops(edge_strategy(site)), strategy_key="edge-strategy")


@pytest.mark.parametrize(
    ("name", "allowed"),
    [
        ("MAKES_NONE", "one whose make_edge(site) returns a Flower strategy or EdgeRounds, not a int"),
        ("CANNOT_BE_MADE", "one whose make_edge(site) does not fail (KeyError: 'task', test_own_algorithm.py:"),
        *(
            (name, "one that does not fail (AttributeError: 'Update' object has no attribute 'nothing', test_own_alg")
            for name in ("STOPS", "STOPS_AS_A_PART")
        ),
    ],
)
def test_what_goes_wrong_in_an_own_one_is_one_line(tmp_path, capsys, name, allowed):
    text = f"{__name__}:{name}"
    values = {"global-rounds": 3, **{key.replace("_", "-"): value for key, value in SMALL.items()}}
    given = [f"{key}={value}" for key, value in values.items()]
    assert main([f"algorithm={text}", f"output-dir={tmp_path / 'run'}", *given]) == 2
    captured = capsys.readouterr()
    assert captured.err.splitlines()[-1].startswith(f"error: algorithm = '{text}': allowed is {allowed}")
    assert "Traceback" not in captured.err + captured.out


def test_plans_go_in_front_of_it(tmp_path):
    folder = run_app(tmp_path / "run", algorithm=NAME, global_rounds=1, selection="resource-aware", **SMALL)
    assert [len(plan["selected"]) for line in lines(folder, "edge") for plan in line["plans"]] == [1, 1]


@pytest.mark.parametrize(
    ("text", "allowed"),
    [
        ("own_algorithm.slow_edges:SHARE", "an espalier.app.algorithms.algorithm.Algorithm, not a float"),
        ("own_algorithm.slow_edges:FAST", "what can be imported (AttributeError: module 'own_algorithm.slow_edges'"),
        ("nowhere:FAST", "what can be imported (ModuleNotFoundError: No module named 'nowhere')"),
        ("fedvag", "did you mean 'fedavg'?"),
    ],
)
def test_what_is_no_algorithm_gets_one_line(capsys, text, allowed):
    assert main([f"algorithm={text}"]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: algorithm = {text!r}: allowed is ")
    assert allowed in error
    assert error.count("\n") == 1


def test_edges_that_run_their_rounds_by_themselves_wait_for_their_clients(tmp_path, capsys):
    given = [f"{key.replace('_', '-')}={value}" for key, value in SMALL.items()]
    asynchronous = ["async.mode=fedbuff", "async.tier=edges", f"output-dir={tmp_path / 'run'}"]
    assert main([f"algorithm={NAME}", *given, *asynchronous]) == 2
    said = "error: async.mode = 'fedbuff': allowed is 'off' for an algorithm whose edges are of SlowEdge"
    assert said in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_loyal_clients_are_pulled_by_no_strategy_beside(tmp_path, capsys):
    given = ["algorithm=own_algorithm.loyal:LOYAL", "edge-strategy=FedProx(proximal_mu=0.1)"]
    assert main([*given, f"output-dir={tmp_path / 'run'}"]) == 2
    allowed = "allowed is another strategy: loyal draws clients' steps by itself"
    assert capsys.readouterr().err == f"error: edge-strategy = 'FedProx(proximal_mu=0.1)': {allowed}\n"
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
@pytest.mark.deploy
def test_flwr_run_gives_the_same_bits(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(EXAMPLE))
    here = run_app(tmp_path / "here", algorithm=NAME, **SMALL)
    code, text = flwr_run(
        "num-supernodes=4", algorithm=NAME, global_rounds=2, output_dir=str(tmp_path / "there"), **SMALL
    )
    assert code == 0, text
    assert same_weights(here, tmp_path / "there")
