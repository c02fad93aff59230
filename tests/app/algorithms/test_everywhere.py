"""Algorithms with halves wherever clients run, and beside the other features."""

from functools import cache

import pytest
import torch
from flwr.app import ArrayRecord

from espalier.app.algorithms.registry import ALGORITHMS
from espalier.app.command_line import main
from espalier.app.run.travelling import travelling_weights
from espalier.app.wiring.clients import client_task
from espalier.clients.client_app import make_client_app
from espalier.clients.half import PLAIN
from tests.app.assembling import build_task, config_of, engine_of, federation_of
from tests.app.runs import flwr_run, kept_in, kept_of, lines, run_app, same_weights, summary, weights

HALVES = [name for name, algorithm in ALGORITHMS.items() if algorithm.client is not PLAIN]
FEATURES = (
    {"availability.mode": "markov"},
    {"selection": "resource-aware", "plan.deadline-seconds": 20.0},
    {"async.mode": "fedbuff", "guard.update-norm": 10.0},
)
SMALL = {"num-clients": 4, "num-edges": 2, "edge-rounds": 1, "local-epochs": 1, "batches-per-epoch": 2}
SMALL |= {"fsl-sage.fit-steps": 3, "fedrep.head-epochs": 2, "pfedme.steps": 2, "fine-tune.steps": 2}
KEEP_NO_WEIGHTS = {"cse-fsl", "decoupled", "fednova"}
# For what takes a while: of those that keep and tell the same kinds of things, one.
OF_EACH_KIND = ["scaffold", "feddyn", "mtgc", "ditto", "apfl", "fedrep", "fedbabu", "hsfl-scaffold", "fsl-sage"]
OTHERWISE = {"num-edges": 1, "apfl.adapts": True, "pfedme.beta": 0.5}


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """Return a function that gives an algorithm's run, made once."""
    return cache(lambda algorithm: run_app(tmp_path_factory.mktemp("plain") / "run", algorithm=algorithm, **SMALL))


def told_by_clients(folder):
    """Return the clients' figures of the last global round, and of fine-tuning where there is any."""
    return [line["clients"] for scope in ("global", "personalised") for line in lines(folder, scope)[-1:]]


def assert_kept_alike(found, expected, algorithm):
    """Compare, to the bit, what clients keep: all of them keep weights, where the algorithm has some to keep."""
    assert len([records for records in expected if records]) == (0 if algorithm in KEEP_NO_WEIGHTS else 4)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


@pytest.mark.usefixtures("ray_here")
@pytest.mark.parametrize("algorithm", ["apfl", "fedbabu", "hsfl-scaffold", "ditto", "mtgc", "fsl-sage", "local"])
def test_workers_of_ray_give_the_same_bits(algorithm, plain, tmp_path):
    there = run_app(tmp_path / "ray", algorithm=algorithm, **SMALL, engine="ray", ray_workers=2)
    assert same_weights(plain(algorithm), there)
    assert told_by_clients(plain(algorithm)) == told_by_clients(there)
    assert_kept_alike(kept_in(there), kept_in(plain(algorithm)), algorithm)


@pytest.mark.parametrize(
    ("algorithm", "settings"),
    [(name, {"edge-rounds": 2}) for name in HALVES]
    + [(name, OTHERWISE) for name in ("scaffold", "ditto", "apfl", "pfedme", "fedbabu")],
    ids=lambda one: one if isinstance(one, str) else "one tier" if one is OTHERWISE else "two tiers",
)
def test_a_resumed_run_goes_on_with_all_that_its_clients_keep(algorithm, settings, tmp_path):
    every = {**SMALL, "algorithm": algorithm, "global-rounds": 2, **settings}
    straight = run_app(tmp_path / "straight", **every)
    begun = run_app(tmp_path / "begun", **{**every, "global-rounds": 1})
    assert main([f"resume={begun}", "global-rounds=2"]) == 0
    assert same_weights(straight, begun)
    assert told_by_clients(straight) == told_by_clients(begun)
    assert_kept_alike(kept_in(begun), kept_in(straight), algorithm)


@pytest.mark.parametrize("algorithm", HALVES)
def test_a_process_for_every_message_gives_the_same_bits(algorithm, plain):
    """As on devices, where what a client knows is what its node's state holds."""
    config = config_of(algorithm=algorithm, **SMALL, fine_tune_steps=0, split_execution="messages")
    grid = engine_of(config, client_app=lambda message, context: make_client_app(client_task)(message, context)).grid
    task = build_task(config)
    model = task.new_model()
    start = ArrayRecord(
        {
            **ArrayRecord(model.state_dict()),
            **travelling_weights(config.algorithm, config.split, config.seed, task, model),
        }
    )
    hierarchical = federation_of(config, grid).hierarchical
    *_, last = hierarchical.rounds(grid, start, 2)
    expected = weights(plain(algorithm))
    found = last.arrays.to_torch_state_dict()
    assert {name: torch.equal(found[name], expected[name]) for name in expected} == dict.fromkeys(expected, True)
    assert_kept_alike(kept_of(grid.state_dict()), kept_in(plain(algorithm)), algorithm)


@pytest.mark.parametrize(
    ("feature", "algorithm"),
    [
        pytest.param(feature, algorithm, id=f"{next(iter(feature))}-{algorithm}")
        for feature in FEATURES
        for algorithm in OF_EACH_KIND
        # No plan is made where no gradient comes back; a test of local losses has the line.
        if not ("selection" in feature and ALGORITHMS[algorithm].auxiliary)
    ],
)
def test_beside_a_feature_a_run_is_repeatable_and_leaves_nobody_out(algorithm, feature, tmp_path):
    settings = {"algorithm": algorithm, **SMALL, **feature}
    once, again = run_app(tmp_path / "once", **settings), run_app(tmp_path / "again", **settings)
    assert same_weights(once, again)
    assert summary(once)["replies_left_out"] == 0
    assert any(line["trained"] for line in lines(once, "edge"))


@pytest.mark.deploy
@pytest.mark.parametrize("algorithm", OF_EACH_KIND)
def test_flwr_run_gives_the_same_bits(algorithm, plain, tmp_path):
    code, said = flwr_run("num-supernodes=4", algorithm=algorithm, **SMALL, output_dir=str(tmp_path / "flwr"))
    assert code == 0, said
    assert same_weights(tmp_path / "flwr", plain(algorithm))
    assert told_by_clients(tmp_path / "flwr") == told_by_clients(plain(algorithm))


def test_lies_beside_the_model_are_left_out_by_name(tmp_path):
    """What a client tells the edge's half is held against the model, and against what others tell."""
    config = config_of(algorithm="scaffold", num_clients=4, local_epochs=1, batches_per_epoch=2)
    lies = {
        "holds NaN or Inf": lambda told: {name: w * torch.nan for name, w in told.items()},
        "has shape": lambda told: {name: w[:1] for name, w in told.items()},
        "which has no such array": lambda told: {f"{name}x": w for name, w in told.items()},
        "what it tells beside the model": lambda told: {name: w * 1e15 for name, w in told.items()},
    }
    for reason, how in lies.items():
        ((participants, failures),) = rounds_with_a_liar(config, 2, how, 1)
        assert [client for client, _ in failures] == [2]
        assert reason in failures[0][1]
        assert participants == 3


@pytest.mark.parametrize(
    ("algorithm", "lie"), [("scaffold", 1e12), ("fednova", 1e-12), ("hsfl-scaffold", 1e12)], ids=lambda one: str(one)
)
@pytest.mark.parametrize("norm", [0.0, 10.0], ids=["absurd", "bounded"])
def test_of_two_who_tell_something_the_liar_is_left_out_before_anything_is_known(algorithm, lie, norm):
    settings = {"num_clients": 2, "local_epochs": 1, "batches_per_epoch": 2, "guard_update_norm": norm}
    settings |= {"num_edges": 1, "split_execution": "messages"} if algorithm.startswith("hsfl") else {}
    config = config_of(algorithm=algorithm, **settings)

    def how(told):
        return {name: torch.full_like(w, lie) for name, w in told.items()}

    for participants, failures in rounds_with_a_liar(config, 0, how, 2):
        assert [client for client, _ in failures] == [0]
        assert "what it tells beside the model: its update is" in failures[0][1]
        assert participants == 1


def rounds_with_a_liar(config, liar, how, num_rounds):
    """Return how many trained in each round of an edge, and who was left out for what, where one client's told lies."""
    app = make_client_app(client_task)

    def answer(message, context):
        reply = app(message, context)
        if context.node_config["partition-id"] == liar and "client-half" in reply.content:
            told = reply.content["client-half"].to_torch_state_dict()
            reply.content["client-half"] = ArrayRecord(how(told))
        return reply

    grid = engine_of(config, client_app=answer).grid
    federation = federation_of(config, grid)
    start = ArrayRecord(build_task(config).new_model().state_dict())
    found = []
    for outcome in federation.hierarchical.rounds(grid, start, num_rounds):
        ((update,),) = (edge.updates for edge in outcome.edges.values())
        failures = [(federation.client_of[failure.node_id], failure.reason) for failure in update.failures]
        found.append((len(update.participants), failures))
    return found
