"""Objects of the user's own that end the program, as a library under them may: it is not the run's own end."""

import sys
import threading
from collections import OrderedDict

import pytest
import torch
from flwr.serverapp.strategy import FedAvg
from torch import nn
from torch.nn.functional import cross_entropy

from espalier.app.command_line import main
from tests.app.own_tasks import Points
from tests.app.runs import lines, run_app, summary

TINY = {"num_clients": 4, "num_edges": 2, "edge_rounds": 1, "global_rounds": 3, "batches_per_epoch": 1}


OTHERS = {"close": GeneratorExit, "interrupt": KeyboardInterrupt}


class Exits(FedAvg):
    """Ends the program in round 2."""

    def __init__(self, at="aggregate_train", code=0, **options):
        super().__init__(**options)
        self.at, self.code = at, code

    def configure_train(self, server_round, arrays, config, grid):
        self._at("configure_train", server_round)
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(self, server_round, replies):
        self._at("aggregate_train", server_round)
        return super().aggregate_train(server_round, replies)

    def aggregate_evaluate(self, server_round, replies):
        self._at("aggregate_evaluate", server_round)
        return super().aggregate_evaluate(server_round, replies)

    def _at(self, method, server_round):
        if method == self.at and server_round == 2:
            if self.code in OTHERS:
                raise OTHERS[self.code]
            if self.code == "interrupt that a library makes another error of":
                try:
                    raise KeyboardInterrupt
                finally:
                    threading.Lock().release()
            if self.code == "an error that is its own cause":
                fault = ValueError("its own cause")
                raise fault from fault
            sys.exit(self.code)


class Task(Points):
    """Ends the program in one of its methods, at once or after so many calls."""

    def __init__(self, at, after=0):
        super().__init__()
        self.at, self.left = at, after

    def _at(self, method):
        if method == self.at:
            if not self.left:
                sys.exit(0)
            self.left -= 1

    def model(self):
        self._at("model")
        return super().model()

    def client_data(self, client, num_clients, seed):
        self._at("client_data")
        return super().client_data(client, num_clients, seed)

    def prepare(self, inputs):
        self._at("prepare")
        return inputs

    def loss(self, outputs, labels):
        self._at("loss")
        return cross_entropy(outputs, labels)

    def metrics(self, outputs, labels):
        self._at("metrics")
        return {}

    def fingerprint(self):
        self._at("fingerprint")
        return "points"


class OfOneClient(Points):
    """Client 1 ends the program as it trains."""

    def __init__(self, code=0):
        super().__init__()
        self.code = code

    def client_data(self, client, num_clients, seed):
        train, test = super().client_data(client, num_clients, seed)
        return (type(train)(tuple(part + 1000 for part in train.inputs), train.labels) if client == 1 else train), test

    def prepare(self, inputs):
        if inputs[0].min() > 500:
            raise OTHERS.get(self.code, SystemExit)(self.code)
        return torch.stack(inputs, dim=1).float()

    def model(self):
        return nn.Sequential(OrderedDict(body=nn.Linear(2, 8), head=nn.Linear(8, 3)))


class Tracker:
    """Ends the program whenever it is told something."""

    def round_over(self, number, line):
        sys.exit(0)

    run_begins = run_over = round_over


class Hidden:
    """Ends the program when it is asked what it has."""

    @property
    def round_over(self):
        sys.exit(0)


def own(what):
    return f"{__name__}:{what}"


def said_by(capsys, folder, **settings):
    """Return the last line of a run that fails."""
    values = {"report.plots": "false", "output-dir": str(folder), **TINY, **settings}
    assert main([f"{key.replace('_', '-')}={value}" for key, value in values.items()]) == 2
    assert not (folder / "summary.json").exists()
    captured = capsys.readouterr()
    assert "Traceback" not in captured.err + captured.out
    return captured.err.strip().splitlines()[-1]


@pytest.mark.parametrize("method", ["configure_train", "aggregate_train", "aggregate_evaluate"])
@pytest.mark.parametrize("tier", ["cloud_strategy", "edge_strategy"])
def test_a_strategy_that_ends_the_program_is_told_with_its_line(tmp_path, capsys, tier, method):
    strategy = own(f"Exits(at={method!r})")
    said = said_by(capsys, tmp_path / "run", **{tier: strategy})
    key = tier.replace("_", "-")
    assert said.startswith(
        f"error: {key} = {strategy!r}: allowed is a strategy that does not fail (SystemExit: 0, test_"
    )
    assert said.endswith(f"set resume = {str(tmp_path / 'run')!r}")


@pytest.mark.parametrize(("code", "name"), [(3, "SystemExit: 3"), ("close", "GeneratorExit")])
def test_so_is_one_that_ends_it_otherwise(tmp_path, capsys, code, name):
    said = said_by(capsys, tmp_path / "run", edge_strategy=own(f"Exits(code={code!r})"))
    assert f"allowed is a strategy that does not fail ({name}" in said


@pytest.mark.parametrize("code", ["interrupt", "interrupt that a library makes another error of"])
def test_one_that_interrupts_the_run_is_an_interrupt(tmp_path, capsys, code):
    values = {**TINY, "report.plots": "false", "output-dir": str(tmp_path / "run")}
    values["edge-strategy"] = own(f"Exits(code={code!r})")
    assert main([f"{key.replace('_', '-')}={value}" for key, value in values.items()]) == 130
    said = capsys.readouterr().err
    assert said.endswith(f"to go on after the last whole round: python -m espalier resume={tmp_path / 'run'}\n")


def test_an_error_that_is_its_own_cause_ends_the_run_in_a_line(tmp_path, capsys):
    name = own("Exits(code='an error that is its own cause')")
    said = said_by(capsys, tmp_path / "run", **{"cloud-strategy": name})
    assert f"cloud-strategy = {name!r}: allowed is a strategy that does not fail (ValueError: its own cause" in said


@pytest.mark.parametrize("method", ["model", "client_data", "prepare", "loss", "metrics", "fingerprint"])
def test_a_task_that_ends_the_program_is_told_before_the_run(tmp_path, capsys, method):
    task = own(f"Task(at={method!r})")
    said = said_by(capsys, tmp_path / "run", task=task)
    assert said.startswith(f"error: task = {task!r}: allowed is ")
    assert "SystemExit: 0, test_exits.py:" in said


@pytest.mark.parametrize("algorithm", ["h-fedavg", "hsfl"])
@pytest.mark.parametrize("method", ["metrics", "prepare", "loss"])
def test_a_task_that_does_so_in_mid_run_is_no_end_of_the_run(tmp_path, capsys, algorithm, method):
    for after in (4, 9, 20):
        folder = tmp_path / f"{after}"
        values = {"report.plots": "false", "output-dir": str(folder), **TINY, "algorithm": algorithm}
        values["task"] = own(f"Task(at={method!r}, after={after})")
        code = main([f"{key.replace('_', '-')}={value}" for key, value in values.items()])
        assert (code == 0) == (folder / "summary.json").exists()
        assert code in (0, 2)
        assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize("more", [{}, {"algorithm": "hsfl"}, {"stack": 4}, {"algorithm": "hsfl", "stack": 4}])
@pytest.mark.parametrize(("code", "reason"), [(0, "SystemExit: 0"), ("close", "GeneratorExit: close")])
def test_a_client_that_ends_the_program_has_failed_and_no_other_one(tmp_path, more, code, reason):
    folder = run_app(tmp_path / "run", **TINY, task=own(f"OfOneClient(code={code!r})"), **more)
    assert summary(folder)["rounds"] == 3
    failures = [failure for line in lines(folder, "edge") for failure in line["failures"]]
    assert [(failure["client"], failure["reason"]) for failure in failures] == [(1, reason)] * 3


def test_a_tracker_that_ends_the_program_costs_nothing(tmp_path, caplog):
    folder = run_app(tmp_path / "run", **TINY, report_tracker=own("Tracker"))
    assert summary(folder)["rounds"] == 3
    (said,) = [record.getMessage() for record in caplog.records if "report.tracker" in record.getMessage()]
    assert said.endswith("failed at the start, the run goes on: SystemExit: 0")


def test_a_tracker_that_does_so_when_it_is_made_is_told_before_the_run(tmp_path, capsys):
    said = said_by(capsys, tmp_path / "run", **{"report.tracker": own("Hidden()")})
    assert said.startswith(f"error: report.tracker = '{__name__}:Hidden()': allowed is ")
