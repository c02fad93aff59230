"""The commands and the program in the README run as they are printed there."""

import importlib
import re
import shlex
from pathlib import Path
from typing import ClassVar

import pytest
from flwr.app import ArrayRecord, Context, RecordDict
from flwr.serverapp.strategy import FedAvg

from espalier.app.algorithms.registry import ALGORITHMS
from espalier.app.command_line import main
from espalier.app.config.parse import read_arguments
from espalier.sim import InProcessGrid

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
(TABLE,) = re.findall(r"^\| `algorithm` \|.*\n\|---.*\n((?:\|.*\n)+)", README, re.MULTILINE)
COMMANDS = [f"algorithm={given}" for given in re.findall(r"^\| `(.+?)` \|", TABLE, re.MULTILINE)]
SMALL = ("global-rounds=1", "num-clients=4", "batches-per-epoch=2", "local-epochs=1", "report.plots=false")


def test_every_algorithm_has_a_command():
    assert {read_arguments(shlex.split(command))["algorithm"] for command in COMMANDS} == set(ALGORITHMS)


@pytest.mark.parametrize("command", COMMANDS)
def test_the_command_of_each_algorithm_runs(command, tmp_path):
    assert main([*shlex.split(command), *SMALL, f"output-dir={tmp_path}"]) == 0


def test_the_serverapp_of_the_readme_trains_in_two_tiers(monkeypatch):
    class MyStrategy(FedAvg):
        rounds: ClassVar[list[int]] = []

        def configure_train(self, server_round, *arguments):
            self.rounds.append(server_round)
            return super().configure_train(server_round, *arguments)

    monkeypatch.syspath_prepend(str(ROOT / "examples" / "own-strategy"))
    client_app, task = (importlib.import_module(f"own_strategy.{name}") for name in ("client_app", "task"))
    (program,) = re.findall(r"^```python\n(.*?)^```$", README, re.M | re.S)
    names = {"MyStrategy": MyStrategy, "arrays": ArrayRecord(task.new_model(0).state_dict())}
    exec(program, names)
    grid = InProcessGrid(client_app.app, 8, run_config={"seed": 0})
    names["app"](grid, Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config={}))
    # 10 global rounds of 3 edge rounds, at each of 2 edges.
    assert sorted(MyStrategy.rounds) == sorted([*range(1, 31)] * 2)
