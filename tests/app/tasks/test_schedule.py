from math import cos, pi

import pytest
import torch

from espalier.app.algorithms.split_edges import split_options
from espalier.app.tasks.schedule import CosineSchedule
from espalier.app.wiring.task_of_run import build_task
from tests.app.assembling import config_of, site_of
from tests.app.runs import run_app, same_weights, weights

COSINE = {"schedule": "cosine", "global_rounds": 4, "learning_rate": 0.2}


def test_the_rate_is_half_a_cosine_over_global_rounds():
    schedule = CosineSchedule(global_rounds=4, edge_rounds=1)
    rates = [schedule(0.2, server_round) for server_round in range(1, 5)]
    assert rates == pytest.approx([0.2, 0.1 * (1 + cos(pi / 4)), 0.1, 0.1 * (1 - cos(pi / 4))])
    assert rates[0] == 0.2
    assert schedule(0.2, 9) == rates[-1] > 0


@pytest.mark.parametrize(
    ("settings", "rounds"),
    [
        ({"algorithm": "fedavg"}, {1: 0.2, 2: 0.1 + 0.1 * cos(pi / 4), 3: 0.1}),
        ({"algorithm": "h-fedavg", "edge_rounds": 3}, {1: 0.2, 3: 0.2, 4: 0.1 + 0.1 * cos(pi / 4), 7: 0.1, 9: 0.1}),
        ({"algorithm": "fedavg", "dataset": "video-caching"}, {1: 0.2, 3: 0.1}),
        ({"algorithm": "centralised"}, {1: 0.2, 3: 0.1}),
    ],
)
def test_clients_train_at_the_rate_of_their_global_round(settings, rounds):
    training = build_task(config_of(**COSINE, **settings)).training
    assert {r: training.at(r).learning_rate for r in rounds} == pytest.approx(rounds)


def test_the_servers_rate_falls_from_its_own():
    config = config_of(algorithm="hsfl", edge_rounds=2, server_learning_rate=0.4, **COSINE)
    options = split_options(site_of(config))
    (group,) = options["make_optimizer"]([torch.nn.Parameter(torch.ones(1))]).param_groups
    assert [options["schedule"](group["lr"], r) for r in (1, 2, 5, 6)] == pytest.approx([0.4, 0.4, 0.2, 0.2])


def test_a_constant_rate_is_no_schedule():
    assert build_task(config_of(algorithm="fedavg")).training.schedule is None


def test_the_task_is_made_once():
    config = config_of(algorithm="fedavg", **COSINE)
    assert build_task(config) is build_task(config_of(algorithm="fedavg", **COSINE))


def test_split_is_unsplit_while_rates_fall(tmp_path):
    settings = {"schedule": "cosine", "num_clients": 2, "local_epochs": 1, "global_rounds": 3}
    pairs = [("sfl-v1", "fedavg", settings), ("hsfl", "h-fedavg", settings)]
    for split, whole, own in [*pairs, ("sfl-v2", "fedavg", settings | {"num_clients": 1})]:
        unsplit = run_app(tmp_path / f"{whole}-for-{split}", algorithm=whole, **own)
        halves = weights(run_app(tmp_path / split, algorithm=split, **own))
        for name, values in weights(unsplit).items():
            torch.testing.assert_close(halves[name], values, rtol=1e-4, atol=1e-5)
    constant = run_app(tmp_path / "constant", algorithm="fedavg", **settings | {"schedule": "constant"})
    assert not same_weights(constant, tmp_path / "fedavg-for-sfl-v1")
