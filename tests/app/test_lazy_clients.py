"""Profiles that the task tells, and data that are made when needed, give the bits of clients that are asked."""

import json

import pytest
import torch
from torch import nn

from espalier.app.command_line import main
from espalier.app.engines.in_process import InProcess
from espalier.app.tasks import Examples, OwnTask
from espalier.app.wiring.federation import assign_edges, told_clients
from espalier.app.wiring.one_server import checked_task, clients_and_edges
from tests.app.assembling import config_of, engine_of
from tests.app.runs import lines, rows_of_clients, run_app, same_weights, summary

DIGITS = {"num_clients": 6, "num_edges": 2, "batches_per_epoch": 1, "local_epochs": 1, "workers": 1}
OWN = "tests.app.test_lazy_clients:Counted"


class Counted(OwnTask):
    """A task that tells how many examples clients have: client i has 5 + i, and 2 to test on."""

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(3, 2))

    def num_examples(self, client: int, num_clients: int, seed: int) -> tuple[int, int] | None:
        return 5 + client, 2

    def client_data(self, client: int, num_clients: int, seed: int) -> tuple[Examples, Examples]:
        draw = torch.Generator().manual_seed(seed * num_clients + client)
        size = 5 + client
        both = torch.randn(size + 2, 3, generator=draw), torch.randint(2, (size + 2,), generator=draw)
        train, test = (Examples(both[0][part], both[1][part]) for part in (slice(size), slice(size, None)))
        return train, test

    def test_data(self) -> Examples:
        return Examples(torch.zeros(2, 3), torch.tensor([0, 1]))


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"partition": "shards"},
        {"data_validation_share": 0.3},
        {"task": "tests.app.own_tasks:SharedOut"},
        {"task": "tests.app.own_tasks:SharedOut", "data_validation_share": 0.3},
    ],
    ids=str,
)
def test_the_task_tells_what_the_clients_would_answer(settings):
    config = config_of(**DIGITS, **settings)
    grid = engine_of(config).grid
    asked, topology = clients_and_edges(config, grid, None)
    told = told_clients(checked_task(config)[0], grid.numbers)
    assert list(told) == asked
    assert assign_edges(told, config.edges) == topology


@pytest.mark.parametrize(
    "settings",
    [
        {"participation": 0.5},
        {"algorithm": "hsfl"},
        {"algorithm": "scaffold"},
        {"availability_mode": "markov"},
        {"selection": "resource-aware"},
        {"guard_mode": "clip", "guard_update_norm": 1.0, "data_validation_share": 0.2},
    ],
    ids=str,
)
def test_a_run_has_the_bits_of_one_whose_clients_are_asked(tmp_path, monkeypatch, settings):
    told = run_app(tmp_path / "told", **DIGITS, **settings)
    monkeypatch.setattr(InProcess, "numbers", None)
    asked = run_app(tmp_path / "asked", **DIGITS, **settings)
    assert same_weights(told, asked)
    assert rows_of_clients(told) == rows_of_clients(asked)
    assert (told / "partition.csv").read_bytes() == (asked / "partition.csv").read_bytes()
    timed = {"seconds", "wall_seconds"}
    for scope in ("edge", "global"):
        both = (
            [{k: v for k, v in line.items() if k not in timed} for line in lines(run, scope)] for run in (told, asked)
        )
        assert next(both) == next(both)


def test_a_run_goes_on_where_another_way_left_off(tmp_path, monkeypatch):
    straight = run_app(tmp_path / "straight", algorithm="scaffold", **DIGITS)
    with monkeypatch.context() as patched:
        patched.setattr(InProcess, "numbers", None)
        first = run_app(tmp_path / "first", algorithm="scaffold", global_rounds=1, **DIGITS)
    resumed = run_app(first, algorithm="scaffold", resume=str(first), **DIGITS)
    assert same_weights(straight, resumed)


def test_only_who_takes_part_has_data_made(tmp_path, monkeypatch):
    made, whole = [], Counted.client_data

    def noted(self, client, num_clients, seed):
        made.append(client)
        return whole(self, client, num_clients, seed)

    monkeypatch.setattr(Counted, "client_data", noted)
    settings = {"task": OWN, "num_clients": 50, "num_edges": 5, "edge_rounds": 1, "participation": 0.1, "workers": 1}
    folder = run_app(tmp_path / "run", report_evaluate_clients=0.0, **settings)
    took_part = {client for line in lines(folder, "edge") for own in line["participants"] for client in own}
    assert len(took_part) <= 10
    assert set(made) == took_part
    assert summary(folder)["failures"] == 0
    assert [row["train_examples"] for row in rows_of_clients(folder)] == [str(5 + client) for client in range(50)]


def test_a_client_with_more_examples_than_the_task_told_is_left_out(tmp_path, monkeypatch):
    monkeypatch.setattr(Counted, "num_examples", lambda self, client, num_clients, seed: (5, 2))
    folder = run_app(tmp_path / "run", task=OWN, num_clients=3, num_edges=1, global_rounds=1, edge_rounds=1, workers=1)
    (edge,) = lines(folder, "edge")
    assert [(one["client"], one["reason"]) for one in edge["failures"]] == [
        (1, "it says 6 examples, its profile said 5"),
        (2, "it says 7 examples, its profile said 5"),
    ]


@pytest.mark.parametrize("wrong", [7, (0, 2), (5, 2.0)])
def test_numbers_that_are_none_are_refused_in_one_line(monkeypatch, wrong, capsys):
    monkeypatch.setattr(Counted, "num_examples", lambda self, client, num_clients, seed: wrong)
    assert main([f'task="{OWN}"', "num-clients=3", "num-edges=1"]) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert "num_examples(0, 3, " in error
    assert f"returns two numbers, 1 or more, not {wrong}" in error


def test_evaluations_of_a_share_are_of_so_many_clients_and_the_pool_is_tested_as_ever(tmp_path):
    every = run_app(tmp_path / "every", **DIGITS)
    for share, count in ((0.4, 2), (0.0, 0)):
        some = run_app(tmp_path / str(share), report_evaluate_clients=share, **DIGITS)
        assert same_weights(every, some)
        for one, other in zip(lines(every, "global"), lines(some, "global"), strict=True):
            assert one["test"] == other["test"]
            assert len(other.get("clients", {})) == count
            assert all(one["clients"][client] == own for client, own in other.get("clients", {}).items())
        first = json.loads((some / "round-0.json").read_text())
        assert ("accuracy" in first) == (count > 0)


def test_examples_held_back_need_clients_that_evaluate(capsys):
    assert main(["data.validation-share=0.2", "report.evaluate-clients=0.0"]) == 2
    assert (
        "report.evaluate-clients = 0.0: allowed is more than 0.0 for data.validation-share" in capsys.readouterr().err
    )
