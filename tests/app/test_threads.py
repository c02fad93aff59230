"""The law of threads: for any number of workers a run has the same weights, bytes and figures, to the bit."""

import json
import logging
import threading
import time
from functools import partial

import pytest
import torch
from flwr.app import Context, RecordDict

from espalier.app.algorithms.registry import ALGORITHMS
from espalier.app.command_line import main
from espalier.app.config.unused import unused_keys
from espalier.app.engines.in_process import threads_for
from espalier.app.wiring.clients import looked_up_once
from espalier.sim.side_by_side import Threads, place_here
from tests.app.assembling import config_of
from tests.app.own_tasks import Placed
from tests.app.runs import lines, run_app, same_weights

SMALL = {"num-clients": 4, "edge-rounds": 1, "local-epochs": 1, "batches-per-epoch": 2, "batch-size": 8}
CLOCK = {"seconds", "wall_seconds"}


def told(folder):
    """Return all that a run reports of its rounds but their times."""
    text = (folder / "metrics.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if k not in CLOCK} for line in text]


def heads(folder):
    path = folder / "heads.pt"
    return {n: {k: v.tolist() for k, v in own.items()} for n, own in torch.load(path).items()} if path.exists() else {}


def same_for_any_number(folder, **settings):
    """Assert that one and three workers give the same."""
    settings = {**SMALL, **settings}

    def run_with(workers):
        torch.manual_seed(0)  # as in a process of its own, for models that draw in evaluations
        return run_app(folder / str(workers), **settings, workers=workers)

    one, three = run_with(1), run_with(3)
    assert told(one) == told(three)
    assert heads(one) == heads(three)
    assert not (one / "model.pt").exists() or same_weights(one, three)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_any_number_of_workers_gives_the_same_bits(name, tmp_path):
    dataset = "video-caching" if ALGORITHMS[name].ranks_requests else "digits"
    same_for_any_number(tmp_path, algorithm=name, dataset=dataset)


@pytest.mark.parametrize(
    "settings",
    [
        {"algorithm": "h-fedavg", "stack": 2},
        {"algorithm": "hsfl", "stack": 2},
        {"algorithm": "phsfl", "tail-layer": "head", "num-edges": 2},
        {"algorithm": "phsfl", "split.evaluate": "whole"},
        {"algorithm": "hsfl", "split.execution": "messages"},
        {"algorithm": "hsfl", "guard.activation-norm": 1.0, "guard.mode": "warn"},
        {"algorithm": "sfl-v2", "num-edges": 2, "split.server-order": "one-by-one"},
        {"algorithm": "h-fedavg", "async.mode": "fedbuff"},
        {"algorithm": "h-fedavg", "availability.mode": "markov"},
        {"algorithm": "h-fedavg", "data.augmentation": "crop", "data.validation-share": 0.2},
        {"algorithm": "rawhfl", "dataset": "video-caching"},
        {"algorithm": "h-fedavg", "model": "tests.app.own_models:with_dropout"},
        {"algorithm": "hsfl", "model": "tests.app.own_models:with_dropout"},
        # Where a message has a client step back, that is the first operation of its thread.
        {"algorithm": "sfl-v2", "model": "tests.app.own_models:with_dropout"},
        {"algorithm": "hsfl", "model": "tests.app.own_models:with_dropout", "split.execution": "messages"},
        {"algorithm": "h-fedavg", "model": "tests.app.own_models:with_noise"},
        {"algorithm": "h-fedavg", "task": "tests.app.own_tasks:Noisy"},
        {"algorithm": "hsfl", "task": "tests.app.own_tasks:Noisy"},
        {"algorithm": "h-fedavg", "task": "tests.app.own_tasks:SideBySide"},
        {"algorithm": "h-fedavg", "task": "tests.app.own_tasks:Attending"},
    ],
    ids=lambda settings: "-".join(str(value).rpartition(":")[2] for value in settings.values()),
)
def test_and_so_it_does_beside_all_else(settings, tmp_path):
    same_for_any_number(tmp_path, **settings)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({}, ""),
        ({"algorithm": "scaffold"}, ""),
        ({"model": "tests.app.own_models:with_dropout"}, ""),
        ({"task": "tests.app.own_tasks:SideBySide"}, ""),
        ({"model": "tests.app.own_models:with_noise"}, "the model may draw from PyTorch's generator in evaluations"),
        (
            {"task": "tests.app.own_tasks:Noisy"},
            "methods of task = 'tests.app.own_tasks:Noisy' may need it "
            "(side_by_side = True in the task says that they don't)",
        ),
        ({"task": "tests.app.own_tasks:InTurn"}, "task = 'tests.app.own_tasks:InTurn' says so"),
    ],
    ids=str,
)
def test_clients_run_at_the_same_time_where_it_is_known_that_they_can(settings, reason, caplog):
    config = config_of(num_clients=3, engine="in-process", **settings)
    values, places = config.as_dict(), []
    runs = threads_for(3, 8, 1, values)

    def call():
        places.append(place_here())
        everybody.wait()

    everybody = threading.Barrier(1 if reason else 3, timeout=10)
    with caplog.at_level(logging.INFO, "espalier"):
        for _ in range(2):
            runs("train", [call] * 3)
    assert caplog.messages == ([f"clients run one after the other: {reason}"] if reason else [])
    assert sorted(places) == ([0] * 6 if reason else [0, 0, 1, 1, 2, 2])


@pytest.mark.parametrize(
    ("workers", "cores", "torch_threads", "most"),
    [(0, 8, 1, 8), (0, 8, 3, 2), (0, 2, 4, 1), (1, 8, 1, 1), (5, 2, 1, 5)],
)
def test_workers_are_as_many_as_there_are_cores_for(workers, cores, torch_threads, most):
    runs = threads_for(workers, cores, torch_threads, config_of(engine="in-process").as_dict())
    seen = set(runs("train", [lambda: time.sleep(0.002) or place_here()] * 40))
    assert seen == set(range(most))


def test_clients_of_a_run_work_on_models_of_their_own_in_threads():
    config = config_of(num_clients=2, engine="in-process")
    load, context = looked_up_once(), partial(context_of_client, config)
    both = threading.Barrier(2, timeout=10)

    def call(client):
        both.wait()
        return load(context(client)), load(context(client))

    tasks = Threads(2)("train", [partial(call, 0), partial(call, 1)])
    assert [one is other for one, other in tasks] == [True, True]
    assert tasks[0][0].model is not tasks[1][0].model
    assert [task.partition_id for task, _ in tasks] == [0, 1]


def context_of_client(config, client):
    return Context(0, client, {"partition-id": client, "num-partitions": 2}, RecordDict(), config.as_dict())


@pytest.mark.parametrize("name", ["FalselySideBySide", "FalselyBesideDropout"])
def test_a_task_that_draws_can_not_say_that_it_does_not(name, capsys):
    assert main([f"task=tests.app.own_tasks:{name}"]) == 2
    allowed = "one that draws nothing from PyTorch's generator, for its side_by_side = True"
    assert capsys.readouterr().err == f"error: task = 'tests.app.own_tasks:{name}': allowed is {allowed}\n"


@pytest.mark.parametrize("settings", [{}, {"algorithm": "phsfl"}, {"algorithm": "sfl-v2"}], ids=str)
def test_the_clients_of_a_run_train_and_evaluate_in_threads(settings, tmp_path):
    Placed.seen.clear()
    run_app(tmp_path / "run", **SMALL, **settings, task="tests.app.own_tasks:Placed", workers=2)
    assert {(True, 0), (True, 1), (False, 0), (False, 1)} == Placed.seen


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"stack": 2}, "stack = 2: clients train as one"),
        (
            {"algorithm": "hsfl", "split.transport": "stream"},
            "split.transport = 'stream': clients take turns in one process",
        ),
        ({"engine": "ray"}, "engine = 'ray'"),
        ({"algorithm": "centralised"}, "algorithm = 'centralised' trains no clients"),
    ],
    ids=str,
)
def test_workers_without_use_are_warned_of(settings, reason):
    config = config_of(**{**SMALL, "engine": "in-process", **settings, "workers": 3})
    assert unused_keys(config)["workers"] == reason
    assert config.decided.workers == 1


def test_an_interrupt_ends_all_threads_of_a_run(tmp_path, capsys):
    task = f"tests.app.own_tasks:Interrupting(sent='{tmp_path / 'sent'}')"
    settings = {**SMALL, "edge-rounds": 2, "task": task, "workers": 3, "global-rounds": 3}
    assert (
        main([f"{key}={json.dumps(value)}" for key, value in settings.items()] + [f"output-dir={tmp_path / 'run'}"])
        == 130
    )
    assert not [one for one in threading.enumerate() if one.name.startswith("espalier-") and one.is_alive()]
    assert "interrupted; to go on after the last whole round" in capsys.readouterr().err
    assert [line["round"] for line in lines(tmp_path / "run", "global")] == [1]
