"""Runs with differential privacy: without noise the plain ones, their budget counted, spent and kept."""

import csv
import json
import math
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from espalier.app.command_line import main
from espalier.app.features.privacy.accounting import epsilon_of, noise_within
from espalier.app.features.privacy.releases import Release
from espalier.clients.messages.edge import TRAIN_EDGE
from espalier.clients.task import Examples, LocalTraining
from espalier.clients.whole.privacy import PrivateSteps, private_sgd
from tests.app.runs import lines, run_app, same_weights, summary, weights
from tests.app.tiers.served import run_served
from tests.clients.whole.test_training import examples, task

SMALL = {
    "global-rounds": 1,
    "num-clients": 6,
    "num-edges": 2,
    "edge-rounds": 2,
    "local-epochs": 1,
    "batches-per-epoch": 1,
}
EQUAL = {**SMALL, "train.weighting": "equal"}
DELTA = 1e-5


def private(level, **settings):
    return {"privacy.level": level, **{f"privacy.{key}": value for key, value in settings.items()}}


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    return run_app(tmp_path_factory.mktemp("plain") / "run", **EQUAL)


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """Half of the clients of each edge train; noise is found for four rounds, and four are made."""
    own = private("client-at-edge", epsilon=8.0)
    return run_app(tmp_path_factory.mktemp("straight") / "run", **EQUAL, **own, participation=0.7, global_rounds=4)


def told(folder):
    own = [line["privacy"] for line in lines(folder, "global")]
    return [{key: value for key, value in one.items() if key != "planned_rounds"} for one in own]


@pytest.mark.parametrize(
    ("level", "clip"), [("client-at-edge", 1e6), ("edge-at-cloud", 1e6), ("client-at-client", 0.0)]
)
def test_without_noise_and_bound_a_run_is_the_plain_one_to_the_bit(plain, level, clip, tmp_path):
    found = run_app(tmp_path / "run", **EQUAL, **private(level, clip=clip))
    assert same_weights(plain, found)
    assert [own["epsilon"] for own in told(found)] == [None]


def test_at_the_cloud_too(tmp_path):
    for name, own in {"two": {"edge-rounds": 1}, "flat": {"algorithm": "fedavg", "num-edges": 0}}.items():
        left = run_app(tmp_path / name, **{**EQUAL, **own})
        right = run_app(tmp_path / f"{name}-own", **{**EQUAL, **own}, **private("client-at-cloud", clip=1e6))
        assert same_weights(left, right)


def test_noise_is_found_for_the_planned_rounds_and_counted_by_what_was_sampled(straight):
    noise = noise_within(8.0, DELTA, Release(0.0, 2, 3), 8)
    assert {tuple(own.items()) for line in lines(straight, "edge") for own in line["privacy"]} == {
        (("asked", 2), ("of", 3), ("noise", noise))
    }
    epsilons = [own["epsilon"] for own in told(straight)]
    assert epsilons == pytest.approx([epsilon_of({Release(noise, 2, 3): 2 * t}, DELTA) for t in (1, 2, 3, 4)], abs=1e-6)
    assert 7.9 < epsilons[-1] <= 8.0
    assert summary(straight)["privacy"] == {"level": "client-at-edge", "epsilon": epsilons[-1], "delta": DELTA}


def test_a_resumed_run_is_the_straight_one_and_its_budget_too(straight, tmp_path):
    own = private("client-at-edge", noise=lines(straight, "edge")[0]["privacy"][0]["noise"], epsilon=8.0)
    found = run_app(tmp_path / "run", **EQUAL, **own, participation=0.7, global_rounds=2)
    assert told(found) == told(straight)[:2]
    assert main([f"resume={found}", "global-rounds=9"]) == 0
    assert same_weights(straight, found)
    assert told(found) == told(straight)
    assert summary(found)["rounds"] == 4
    assert "another round would make it" in summary(found)["stopped"]
    assert main([f"resume={found}", "global-rounds=12"]) == 0
    assert summary(found)["rounds"] == 4


@pytest.mark.parametrize("level", ["client-at-edge", "client-at-client", "example-at-client", "edge-at-cloud"])
def test_rounds_before_a_resume_for_longer_count_with_the_noise_that_they_had(level, tmp_path):
    two = {**EQUAL, "edge-rounds": 1, **private(level, epsilon=8.0), "stop.bytes": 1}
    found = run_app(tmp_path / "run", **two, global_rounds=2)
    assert main([f"resume={found}", "global-rounds=12", "stop.bytes=0"]) == 0
    assert [line["privacy"]["planned_rounds"] for line in lines(found, "global")][:2] == [2, 12]
    epsilons = [one["epsilon"] for one in told(found)]
    assert epsilons == sorted(epsilons)
    assert len(epsilons) < 12
    assert epsilons[-1] <= 8.0
    if level == "client-at-client":
        first, later = (noise_within(8.0, DELTA, Release(0.0), rounds) for rounds in (2, 12))
        spent = {Release(first): 1, Release(later): len(epsilons) - 1}
        assert epsilons[-1] == pytest.approx(epsilon_of(spent, DELTA), abs=1e-6)


def test_a_round_that_was_interrupted_counts_at_the_noise_that_it_had(tmp_path):
    own = {**EQUAL, "edge-rounds": 1, **private("client-at-edge", epsilon=8.0, secret_noise=True), "stop.bytes": 1}
    found = run_app(tmp_path / "run", **own, global_rounds=4)
    assert main([f"resume={found}", "global-rounds=30", "stop.bytes=0"]) == 0
    first, later = (noise_within(8.0, DELTA, Release(0.0, 3, 3), rounds) for rounds in (4, 30))
    assert told(found)[1]["epsilon"] == pytest.approx(
        epsilon_of({Release(first, 3, 3): 2, Release(later, 3, 3): 1}, DELTA), abs=1e-6
    )


def scaled(num_classes, input_shape):
    """Return a model with a weight without dimensions."""

    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.scale = nn.Linear(64, num_classes), nn.Parameter(torch.tensor(1.0))

        def forward(self, x):
            return self.layer(x.flatten(1)) * self.scale

    return Scaled()


@pytest.mark.parametrize("level", ["client-at-edge", "client-at-client", "example-at-client", "edge-at-cloud"])
def test_a_weight_without_dimensions_gets_noise_too(level, tmp_path):
    settings = {**EQUAL, "edge-rounds": 1, "model": f"{__name__}:scaled"}
    found = run_app(tmp_path / "run", **settings, **private(level, noise=0.5))
    assert summary(found)["replies_left_out"] == 0
    assert float(weights(found)["scale"]) != 1.0


class Gated(nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.layer = nn.GRU(64, num_classes)

    def forward(self, x):
        return self.layer(x.flatten(1))[0]


def gated(num_classes, input_shape):
    return Gated(num_classes)


def test_a_layer_without_gradients_of_single_examples_is_refused(tmp_path, capsys):
    settings = {**SMALL, **private("example-at-client", noise=1.0), "model": f"{__name__}:gated"}
    given = [f"{key}={json.dumps(value)}" for key, value in settings.items()]
    assert main([*given, f"output-dir={tmp_path / 'run'}"]) == 2
    assert (
        "a model with GRU (layer), which has no gradients of single examples: take nn.LSTM" in capsys.readouterr().err
    )


@pytest.mark.deploy
@pytest.mark.usefixtures("ray_here")
def test_edges_in_workers_add_and_tell_the_same_noise(straight, tmp_path):
    own = private("client-at-edge", epsilon=8.0)
    settings = {**EQUAL, **own, "participation": 0.7, "global_rounds": 4, "engine": "ray", "ray_workers": 1}
    found = run_app(tmp_path / "run", **settings)
    assert same_weights(straight, found)
    assert told(found) == told(straight)


def test_at_the_cloud_one_average_a_round_is_counted(tmp_path):
    found = run_app(tmp_path / "edges", **EQUAL, **private("edge-at-cloud", noise=3.0))
    assert told(found)[-1]["mean"] == {"asked": 2, "of": 2, "noise": 3.0}
    assert told(found)[-1]["epsilon"] == pytest.approx(epsilon_of({Release(3.0): 1}, DELTA), abs=1e-6)
    own = private("client-at-cloud", noise=3.0)
    found = run_app(tmp_path / "clients", **{**EQUAL, "edge-rounds": 1}, **own, participation=0.4)
    assert told(found)[-1]["epsilon"] == pytest.approx(epsilon_of({Release(3.0, 1, 3): 1}, DELTA), abs=1e-6)


def test_by_clients_those_who_trained_most_count(tmp_path):
    own = private("client-at-client", noise=4.0)
    found = run_app(tmp_path / "run", **SMALL, **own, participation=0.4, global_rounds=3)
    times = [client for line in lines(found, "edge") for asked in line["participants"] for client in asked]
    most = max(times.count(client) for client in range(6))
    assert 2 <= most < 6
    assert not [line for line in (*lines(found, "edge"), *lines(found, "global")) if "train_loss" in line]
    assert told(found)[-1]["epsilon"] == pytest.approx(epsilon_of({Release(4.0): most}, DELTA), abs=1e-6)


def test_all_clients_of_a_served_edge_that_is_lost_count_in_all_of_its_edge_rounds(tmp_path):
    own = private("client-at-client", noise=4.0)
    settings = {**SMALL, **own, "participation": 0.4, "report.plots": False}
    found = run_served(
        tmp_path / "run", **settings, fails=lambda name, kind, _: name == "edge-1" and kind == TRAIN_EDGE
    )
    (first,), (second,) = lines(found, "edge")[0]["participants"]
    assert first != second
    assert told(found)[0]["epsilon"] == pytest.approx(epsilon_of({Release(4.0): 2}, DELTA), abs=1e-6)


def test_of_examples_the_steps_of_all_clients_count(tmp_path):
    settings = {**SMALL, "edge-rounds": 1, "batches-per-epoch": 2, "batch-size": 16, "participation": 0.4}
    found = run_app(
        tmp_path / "run", **settings, **private("example-at-client", epsilon=40.0, noise=1.0), global_rounds=3
    )
    clients = [client for line in lines(found, "edge") for asked in line["participants"] for client in asked]
    with (found / "clients.csv").open(newline="") as file:
        sizes = {int(row["client"]): int(row["train_examples"]) for row in csv.DictReader(file)}
    spent = [
        epsilon_of({Release(1.0, 16, sizes[client], poisson=True): 2 * clients.count(client)}, DELTA)
        for client in set(clients)
    ]
    assert told(found)[-1]["epsilon"] == pytest.approx(max(spent), abs=1e-6)
    assert len(set(clients)) < len(clients)


def test_noise_that_is_too_little_for_one_round_is_refused(tmp_path, capsys):
    settings = {**EQUAL, **private("client-at-edge", epsilon=2.0, noise=1.0), "output-dir": str(tmp_path / "run")}
    assert main([f"{key}={json.dumps(value)}" for key, value in settings.items()]) == 2
    said = "privacy.noise = 1.0: allowed is more: the first round would spend an epsilon of 15.46"
    assert said in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "run").exists()


def test_secret_noise_differs_from_run_to_run_and_counts_a_repeated_round(tmp_path):
    own = {**EQUAL, **private("client-at-edge", noise=3.0, secret_noise=True)}
    left, right = (run_app(tmp_path / name, **own, global_rounds=1) for name in ("left", "right"))
    assert not same_weights(left, right)
    assert told(left) == told(right)
    assert main([f"resume={left}", "global-rounds=2"]) == 0
    assert told(left)[-1]["epsilon"] == pytest.approx(epsilon_of({Release(3.0): 6}, DELTA), abs=1e-6)
    assert told(left)[-1]["repeated"] == 1


def test_a_run_with_secret_noise_does_not_go_on_where_the_repeated_round_took_what_was_left(tmp_path):
    """The noise is enough for two global rounds of two edge rounds; one is made, and one may have been interrupted."""
    own = private("client-at-edge", noise=noise_within(8.0, DELTA, Release(0.0), 4), epsilon=8.0, secret_noise=True)
    found = run_app(tmp_path / "run", **EQUAL, **own)
    assert "ends" not in lines(found, "global")[-1]
    assert main([f"resume={found}", "global-rounds=2"]) == 0
    assert summary(found)["rounds"] == 1


def test_an_edge_round_with_a_larger_share_than_planned_is_left_out_where_there_is_a_budget(tmp_path):
    """Client 0 is away in the second round: one of two would train, and the noise is for one of three."""
    (tmp_path / "trace.csv").write_text("client,from,to\n0,1,2\n")
    settings = {**EQUAL, "edge-rounds": 1, "participation": 0.34, "availability.mode": "trace", "global_rounds": 2}
    settings["availability.trace"] = str(tmp_path / "trace.csv")
    found = run_app(tmp_path / "run", **settings, **private("client-at-edge", epsilon=8.0))
    last = lines(found, "edge")[-2:]
    assert [bool(line["participants"][0]) for line in last] == [False, True]
    assert "1 of 2 are a larger share than the 0.333 planned" in last[0]["failures"][0]["reason"]
    assert 7.9 < told(found)[-1]["epsilon"] <= 8.0


def test_personal_heads_and_compressed_updates_go_with_it(tmp_path):
    settings = {**EQUAL, "algorithm": "fedper", "compress.client": "top-k(share=0.1)", "global_rounds": 1}
    found = run_app(tmp_path / "run", **settings, **private("client-at-edge", noise=0.5, clip=0.1))
    assert all(bool(own.isfinite().all()) for own in weights(found).values())


def advantage(model, members, others):
    """Return by how much more members than others are found by the best bound on the loss (Yeom et al.)."""
    with torch.no_grad():
        losses = [cross_entropy(model(own.inputs), own.labels, reduction="none") for own in (members, others)]
    bounds = torch.cat(losses)[:, None]
    inside, outside = ((own[None] <= bounds).double().mean(1) for own in losses)
    return float((inside - outside).max())


def by_heart(noise):
    """Return members, others, and a wide model that has learned the members' random labels in 150 steps of DP-SGD."""
    draws = torch.Generator().manual_seed(4)
    members, others = (Examples(examples(60, s).inputs, torch.randint(0, 3, (60,), generator=draws)) for s in (1, 2))
    torch.manual_seed(0)
    client = task(nn.Sequential(nn.Linear(6, 128), nn.ReLU(), nn.Linear(128, 3)))
    training = LocalTraining(local_epochs=150, batch_size=60, learning_rate=0.03, optimizer="adam")
    steps = PrivateSteps(1.0 if noise else 0.0, lambda *_: noise, is_secret=False)
    private_sgd(replace(client, train=members), 1, training, steps=steps)
    return client.model, members, others


def test_members_are_not_found_beyond_what_epsilon_allows():
    bound = (math.e - 1 + 2 * DELTA) / (math.e + 1)  # of any test, at epsilon 1 (Kairouz et al., arXiv:1311.0776)
    noise = noise_within(1.0, DELTA, Release(0.0, poisson=True), 150)
    assert advantage(*by_heart(noise)) < bound < 0.7 < advantage(*by_heart(0.0))
