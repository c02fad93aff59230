"""A strategy of the user's own: one line of config, and one line where it does not do."""

import threading
from errno import ENOSPC
from functools import partial

import pytest
import torch
from flwr.app import Array, ArrayRecord
from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideAdaptiveClipping,
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideFixedClipping,
    FedAvg,
    Strategy,
)

from espalier.app.command_line import main
from espalier.app.comparison.runs import is_over
from espalier.app.ground.strategy_spec import parse_strategy
from espalier.app.run import checked_run
from tests.app.own_tasks import Points
from tests.app.runs import lines, run_app, same_weights, summary, weights

SMALL = {"num_clients": 4, "num_edges": 2, "batches_per_epoch": 2, "batch_size": 8, "edge_rounds": 1, "local_epochs": 1}


class Fails(FedAvg):
    def aggregate_train(self, server_round, replies):
        if server_round == self.when:
            raise KeyError("no_such_metric")
        return super().aggregate_train(server_round, replies)

    when = 2


class FailsInEvaluations(FedAvg):
    def aggregate_evaluate(self, server_round, replies):
        raise ValueError("cannot\nevaluate")


class OddlyMade(threading.local, FedAvg):
    """Has a base without a file, and an attribute that partials have."""

    func = None


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


class ReturnsATuple(FedAvg):
    def aggregate_evaluate(self, server_round, replies):
        return 0.5, {"accuracy": 0.5}


class ReturnsNothing(FedAvg):
    """The return was forgotten."""

    def configure_train(self, *given):
        super().configure_train(*given)


class OldMessages(FedAvg):
    def configure_train(self, server_round, arrays, config, grid):
        return [(node_id, arrays) for node_id in grid.get_node_ids()]


class FailsLate(Points):
    """A task whose figures fail, beside a strategy in the same file that does not."""

    def metrics(self, outputs, labels):
        self.calls = getattr(self, "calls", 0) + 1
        if self.calls > 8:
            raise RuntimeError("my metric fails")
        return {"own": 1.0}


class Twice(FedAvg):
    """Sends its first node two messages."""

    def configure_train(self, server_round, arrays, config, grid):
        messages = list(super().configure_train(server_round, arrays, config, grid))
        return messages + messages[:1]


class Bare(FedAvg):
    """Does not let its base make what that needs."""

    def __init__(self, when=1):
        self.when = when


class Deep(FedAvg):
    """Keeps data in data, and so on."""

    def aggregate_train(self, server_round, replies):
        self.kept = {}
        for _ in range(3000):
            self.kept = {"kept": self.kept}
        return super().aggregate_train(server_round, replies)


class SavesASet(FedAvg):
    def state_dict(self):
        return {"seen": {1, 2}}

    def load_state_dict(self, state):
        pass


class WithClientsInside(Strategy):
    """A strategy around another."""

    def __init__(self, **options):
        self.strategy = ClippedByClients(**options)

    def configure_train(self, server_round, arrays, config, grid):
        return self.strategy.configure_train(server_round, arrays, config, grid)

    def aggregate_train(self, server_round, replies):
        return self.strategy.aggregate_train(server_round, replies)

    def configure_evaluate(self, server_round, arrays, config, grid):
        return self.strategy.configure_evaluate(server_round, arrays, config, grid)

    def aggregate_evaluate(self, server_round, replies):
        return self.strategy.aggregate_evaluate(server_round, replies)

    def summary(self):
        pass


class ClippedByClients(DifferentialPrivacyClientSideFixedClipping):
    def __init__(self, **options):
        super().__init__(FedAvg(**options), 0.1, 1.0, 4)


def client_clips(norm=0.1, adapts=False, **options):
    """Flower's differential privacy without its noise: clients clip."""
    if adapts:
        adaptive = DifferentialPrivacyClientSideAdaptiveClipping
        return adaptive(FedAvg(**options), 0.001, 4, initial_clipping_norm=norm)
    return DifferentialPrivacyClientSideFixedClipping(FedAvg(**options), 0.0, norm, 4)


def clipped(noise=0.1, **options):
    return DifferentialPrivacyServerSideFixedClipping(FedAvg(**options), noise, 0.01, 4)


def failing(noise=0.1, **options):
    return DifferentialPrivacyServerSideFixedClipping(Fails(**options), noise, 1.0, 4)


partly = partial(clipped, noise=0.1)


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
    assert main([f"resume={folder}"]) == 2  # not mended yet
    again = capsys.readouterr().err
    assert "(the first round with it failed, for what it holds or in code of your own: KeyError: " in again
    assert "'no_such_metric', test_own_strategies.py:" in again
    monkeypatch.setattr(Fails, "when", 0)
    assert main([f"resume={folder}"]) == 0
    assert is_over(folder)
    assert same_weights(folder, run_app(tmp_path / "straight", global_rounds=3, **SMALL | settings))


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("FailsInEvaluations", "(ValueError: cannot evaluate, test_own_strategies.py:"),
        ("failing", "(KeyError: 'no_such_metric', test_own_strategies.py:"),
        ("OldMessages", "(TypeError: configure_train of the cloud returned tuple in the place of Message); "),
        ("ReturnsNothing", "(TypeError: configure_train of the cloud returned NoneType, expected messages); "),
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
        ("arrays", "aggregate_train of Returns returned ArrayRecord, expected (ArrayRecord, MetricRecord)"),
        ("dict", "aggregate_train of Returns returned dict in the place of ArrayRecord"),
        ("reshaped", "the model that Returns made is none: array "),
    ],
)
def test_what_is_no_model_leaves_its_edge_out_by_name(tmp_path, capsys, algorithm, what, reason):
    folder = tmp_path / "run"
    strategy = f"{own('Returns')}(what={what!r})"
    assert "no client trained in any round" in said_by(capsys, folder, algorithm=algorithm, edge_strategy=strategy)
    reasons = [failure["reason"] for line in lines(folder, "edge") for failure in line["failures"]]
    assert len(reasons) == 6
    assert all(reason in one for one in reasons)


def test_an_evaluation_of_another_form_is_a_failure_by_name(tmp_path):
    folder = run_app(tmp_path / "run", **SMALL, cloud_strategy=own("ReturnsATuple"))
    fault = "aggregate_evaluate of the cloud returned tuple, expected MetricRecord"
    assert [line["cloud_failures"] for line in lines(folder, "global")] == [[fault]] * 2


@pytest.mark.parametrize("tier", ["cloud-strategy", "edge-strategy"])
def test_one_that_its_base_can_t_use_is_named_beside_another_of_ones_own(tmp_path, capsys, tier):
    strategies = {"cloud-strategy": own("partly"), "edge-strategy": own("partly"), tier: own("Bare")}
    said = said_by(capsys, tmp_path / "run", **strategies)
    reason = "(AttributeError: 'Bare' object has no attribute 'fraction_train'); "
    assert said.startswith(f"error: {tier} = '{own('Bare')}': allowed is a strategy that does not fail {reason}")


def test_a_cloud_that_sends_an_edge_two_messages_is_named(tmp_path, capsys):
    said = said_by(capsys, tmp_path / "run", cloud_strategy=own("Twice"), edge_strategy=own("partly"))
    reason = "(AskedTwiceError: Twice sends edge 'edge-0' two messages in a round: one is allowed); "
    assert said.startswith(
        f"error: cloud-strategy = '{own('Twice')}': allowed is a strategy that does not fail {reason}"
    )


@pytest.mark.parametrize("tier", ["cloud-strategy", "edge-strategy"])
@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("Deep", "Deep.kept is a dict nested more than 100 deep, which can't be saved"),
        ("SavesASet", "SavesASet.state_dict() holds a set, which can't be saved"),
    ],
)
def test_what_can_t_be_saved_is_told(tmp_path, capsys, tier, name, what):
    assert what in said_by(capsys, tmp_path / "run", **{tier: own(name)})


def test_a_full_disk_is_no_fault_of_the_strategy(tmp_path, capsys, monkeypatch):
    def full(*arguments):
        raise OSError(ENOSPC, "No space left on device")

    monkeypatch.setattr(checked_run, "write_clients", full)
    said = said_by(capsys, tmp_path / "run", edge_strategy=own("partly"))
    assert said == f"error: {tmp_path / 'run'}: can't be written ([Errno 28] No space left on device); " + (
        "the rounds that are over are saved"
    )


def test_what_another_part_of_its_file_raises_is_not_its_own(tmp_path, capsys):
    said = said_by(capsys, tmp_path / "run", task=own("FailsLate"), edge_strategy=own("Returns") + "(what='none')")
    place = f"test_own_strategies.py:{FailsLate.metrics.__code__.co_firstlineno + 3}"
    allowed = f"one whose metrics(outputs, labels) does not fail (RuntimeError: my metric fails, {place})"
    assert said == f"error: task = '{own('FailsLate')}': allowed is {allowed}"


def test_files_are_found_whatever_a_strategy_is_made_of():
    for name in ("OddlyMade", "partly", "clipped", "Returns"):
        assert __file__ in parse_strategy("edge-strategy", own(name)).files
    assert parse_strategy("edge-strategy", "FedAvg").files == set()


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


@pytest.mark.parametrize(
    ("key", "algorithm"),
    [
        ("cloud_strategy", "h-fedavg"),
        ("edge_strategy", "hsfl"),
        ("edge_strategy", "scaffold"),
        ("edge_strategy", "fedper"),
    ],
)
@pytest.mark.parametrize("name", ["ClippedByClients", "WithClientsInside"])
def test_clipping_that_the_clients_can_not_do_is_refused(tmp_path, capsys, key, algorithm, name):
    edges = {"num_edges": 2} if algorithm in ("scaffold", "fedper") else {}
    said = said_by(capsys, tmp_path / "run", **{key: own(name)}, algorithm=algorithm, **edges)
    assert "allowed is one that clips at the server: clients clip for their own tier" in said
    assert not (tmp_path / "run").exists()


def test_clients_clip_where_flowers_strategy_tells_them_to(tmp_path):
    one = {"algorithm": "fedavg", "num_clients": 4, "local_epochs": 1, "batches_per_epoch": 2, "global_rounds": 1}
    plain = weights(run_app(tmp_path / "plain", **one))
    start = weights(run_app(tmp_path / "start", **one, learning_rate=1e-30))

    def length(model):
        return sum(float((model[n] - start[n]).square().sum()) for n in start) ** 0.5

    norm = length(plain) / 10
    clips = weights(run_app(tmp_path / "clips", **one, cloud_strategy=f"{own('client_clips')}(norm={norm})"))
    assert 0.25 * norm < length(clips) <= norm * (1 + 1e-5)
    far = weights(run_app(tmp_path / "far", **one, cloud_strategy=f"{own('client_clips')}(norm=1000.0)"))
    torch.testing.assert_close(far, plain, rtol=0, atol=1e-6)
    stacked = run_app(tmp_path / "stacked", **one, stack=4, cloud_strategy=f"{own('client_clips')}(norm={norm})")
    torch.testing.assert_close(weights(stacked), clips, rtol=0, atol=1e-7)


def test_a_bound_that_adapts_gets_its_bits(tmp_path):
    two = {"num_clients": 8, "local_epochs": 1, "batches_per_epoch": 2, "global_rounds": 3, "edge_rounds": 1}
    folder = run_app(tmp_path / "run", **two, edge_strategy=f"{own('client_clips')}(norm=0.1, adapts=True)")
    assert summary(folder)["replies_left_out"] == 0
    assert [line["trained"] for line in lines(folder, "edge")] == [True] * 6
