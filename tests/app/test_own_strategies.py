"""A strategy of the user's own: one line of config, and one line where it does not do."""

import pytest
from flwr.app import Array, ArrayRecord
from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideFixedClipping,
    FedAvg,
)

from espalier.app.command_line import main
from espalier.app.comparison.runs import is_over
from tests.app.runs import lines, run_app, same_weights, weights

SMALL = {"num_clients": 4, "num_edges": 2, "batches_per_epoch": 2, "batch_size": 8, "edge_rounds": 1}


class Fails(FedAvg):
    def aggregate_train(self, server_round, replies):
        if server_round == self.when:
            raise KeyError("no_such_metric")
        return super().aggregate_train(server_round, replies)

    when = 2


class FailsInEvaluations(FedAvg):
    def aggregate_evaluate(self, server_round, replies):
        raise ValueError("cannot\nevaluate")


class TakesLess(FedAvg):
    def configure_train(self, server_round, arrays, config):
        return []


class Returns(FedAvg):
    """Returns something else than arrays and metrics."""

    def __init__(self, what="arrays", **options):
        super().__init__(**options)
        self.what = what

    def aggregate_train(self, server_round, replies):
        arrays, metrics = super().aggregate_train(server_round, replies)
        reshaped = ArrayRecord({name: Array(array.numpy().ravel()[:-1]) for name, array in arrays.items()})
        made = {"arrays": arrays, "dict": ({}, metrics), "reshaped": (reshaped, metrics), "none": (arrays, None)}
        return made[self.what]


class ClippedByClients(DifferentialPrivacyClientSideFixedClipping):
    def __init__(self, **options):
        super().__init__(FedAvg(**options), 0.1, 1.0, 4)


def clipped(noise=0.1, **options):
    return DifferentialPrivacyServerSideFixedClipping(FedAvg(**options), noise, 0.01, 4)


def makes_a_number():
    return 3


def own(name):
    return f"{__name__}:{name}"


def said_by(capsys, folder, **settings):
    """Return the last line of a run that fails."""
    values = {"global-rounds": "3", "report.plots": "false", "output-dir": str(folder)}
    values |= {key.replace("_", "-"): value for key, value in {**SMALL, **settings}.items()}
    assert main([f"{key}={value}" for key, value in values.items()]) == 2
    captured = capsys.readouterr()
    assert "Traceback" not in captured.err + captured.out
    return captured.err.strip().splitlines()[-1]


@pytest.mark.parametrize("algorithm", ["h-fedavg", "hsfl"])
def test_what_it_raises_is_told_with_its_line_and_the_run_goes_on_when_it_is_mended(
    tmp_path, capsys, monkeypatch, algorithm
):
    folder, settings = tmp_path / "run", {"algorithm": algorithm, "edge_strategy": own("Fails")}
    said = said_by(capsys, folder, **settings)
    begin = f"error: edge-strategy = '{own('Fails')}': allowed is a strategy that does not fail (KeyError: "
    assert said.startswith(begin)
    assert f"'no_such_metric', test_own_strategies.py:{Fails.aggregate_train.__code__.co_firstlineno + 2})" in said
    assert said.endswith(f"once it is mended, set resume = {str(folder)!r}")
    assert len(lines(folder, "global")) == 1
    monkeypatch.setattr(Fails, "when", 0)
    assert main([f"resume={folder}"]) == 0
    assert is_over(folder)
    assert same_weights(folder, run_app(tmp_path / "straight", global_rounds=3, **SMALL | settings))


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("FailsInEvaluations", "(ValueError: cannot evaluate, test_own_strategies.py:"),
        ("TakesLess", "(TypeError: TakesLess.configure_train() takes 4 positional arguments but 5 were given); "),
    ],
)
def test_a_cloud_strategy_is_named_too(tmp_path, capsys, name, reason):
    said = said_by(capsys, tmp_path / "run", cloud_strategy=own(name))
    assert said.startswith(f"error: cloud-strategy = '{own(name)}': allowed is a strategy that does not fail {reason}")


@pytest.mark.parametrize("algorithm", ["h-fedavg", "hsfl"])
@pytest.mark.parametrize(
    ("what", "reason"),
    [
        ("arrays", "Returns.aggregate_train returned ArrayRecord, expected (ArrayRecord, MetricRecord)"),
        ("dict", "Returns.aggregate_train returned dict in the place of ArrayRecord"),
        ("reshaped", "the model that Returns made has another shape: array "),
    ],
)
def test_what_is_no_model_leaves_its_edge_out_by_name(tmp_path, capsys, algorithm, what, reason):
    folder = tmp_path / "run"
    strategy = f"{own('Returns')}(what={what!r})"
    assert "no client trained in any round" in said_by(capsys, folder, algorithm=algorithm, edge_strategy=strategy)
    reasons = [failure["reason"] for line in lines(folder, "edge") for failure in line["failures"]]
    assert len(reasons) == 6
    assert all(reason in one for one in reasons)


def test_metrics_may_be_missing(tmp_path):
    folder = run_app(tmp_path / "run", **SMALL, edge_strategy=f"{own('Returns')}(what='none')")
    assert same_weights(folder, run_app(tmp_path / "plain", **SMALL))


def test_a_function_may_make_it(tmp_path, capsys):
    start = run_app(tmp_path / "start", **SMALL, learning_rate=1e-12)
    folder = run_app(tmp_path / "run", **SMALL, edge_strategy=f"{own('clipped')}(noise=0.0001)", global_rounds=1)
    before, after = weights(start), weights(folder)
    square = sum(float(((after[name] - before[name]).double() ** 2).sum()) for name in before)
    assert 0.001 < square**0.5 < 0.02  # each update was clipped to 0.01
    said = said_by(capsys, tmp_path / "no", edge_strategy=own("makes_a_number"))
    allowed = "a subclass of flwr.serverapp.strategy.Strategy, or a function that returns a strategy, not int"
    assert said == f"error: edge-strategy = '{own('makes_a_number')}': allowed is {allowed}"


@pytest.mark.parametrize("key", ["edge_strategy", "cloud_strategy"])
def test_clipping_that_the_clients_would_have_to_do_is_refused(tmp_path, capsys, key):
    said = said_by(capsys, tmp_path / "run", **{key: own("ClippedByClients")})
    assert "allowed is one that clips at the server: this app's clients do not clip" in said
    assert not (tmp_path / "run").exists()
