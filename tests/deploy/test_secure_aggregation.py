"""Private updates, added in secret by clients that know each other's keys, on real processes that are killed."""

import time
from contextlib import ExitStack, contextmanager

import pytest
from commands import device_configs
from flwr_run import descendants
from local import run_config, start_edge_run, two_tiers

from espalier.app.features.privacy.accounting import epsilon_of
from espalier.app.features.privacy.releases import Release
from tests.app.runs import app_folder, lines, summary, weights
from tests.strategies.secure.keys import nodes_with_keys

from .faults import (
    PATIENCE_SECONDS,
    command_of,
    edge_lines,
    finish,
    kill,
    kill_server_app,
    replay,
    rounds,
    start,
    stopped,
    wait_for,
)

pytestmark = [pytest.mark.slow, pytest.mark.deploy]

SETTINGS = {
    "algorithm": "h-fedavg",
    "num_clients": 3,
    "num_edges": 1,
    "edge_rounds": 1,
    "local_epochs": 1,
    "batches_per_epoch": 1,
    "report.evaluate-every": 0,
    "deploy.transport": "stream",
    "secure.aggregation": True,
    "secure.fewest": 2,
    "secure.signed": True,
    "train.weighting": "equal",
    "privacy.level": "client-at-client",
    "privacy.noise": 3.0,
    "privacy.clip": 1e-3,
}
MOST_KILLED = 8  # an update has arrived in at most half of the exchanges of a round
STANDS_STILL_SECONDS = 4.0  # without another round, by which the edge waits for the client that does not answer


def devices_with_keys(folder):
    """Return what makes the node configs of clients: each has a key of its own, and the public ones of all."""

    def configs(clients, num_clients):
        plain, own = device_configs(clients, num_clients), nodes_with_keys(folder, num_clients)
        return [
            " ".join([config, *(f'{key}="{value}"' for key, value in keys.items())])
            for config, keys in zip(plain, own, strict=True)
        ]

    return configs


def client_processes(supernode):
    """Return the processes of ClientApps that a SuperNode runs: one that stays, and perhaps one that is just ending."""

    def found():
        return [pid for pid in descendants(supernode.process.pid) if "flwr-clientapp" in command_of(pid)]

    return wait_for(found, PATIENCE_SECONDS, "ClientApp")


@contextmanager
def clients_stopped(supernode):
    """Stop the ClientApps of a SuperNode, inside the block."""
    with ExitStack() as stopping:
        pids = client_processes(supernode)
        for pid in pids:
            stopping.enter_context(stopped(pid))
        yield pids


def took_part(results):
    """Return who took part in the last edge round that is in the results."""
    return edge_lines(results)[-1]["participants"][-1]


def wait_until_no_round_ends(results):
    """Wait until an edge round is in its middle: it lacks the answer of a client that was stopped."""
    last, since = rounds(results), time.monotonic()
    while time.monotonic() < since + STANDS_STILL_SECONDS:
        time.sleep(0.2)
        if (now := rounds(results)) != last:
            last, since = now, time.monotonic()


def kill_in_a_round(supernode, results):
    """Kill a client in the middle of rounds until one goes without it.

    One whose masked update has arrived is in the sum all the same: others have the shares that take its masks off.
    """
    for _ in range(MOST_KILLED):
        with clients_stopped(supernode) as pids:
            wait_until_no_round_ends(results)
            before = rounds(results)
            for pid in pids:
                kill(pid)
        wait_for(lambda before=before: rounds(results) > before, PATIENCE_SECONDS, "round after it was killed")
        if any(line["failures"] for line in edge_lines(results)):
            return
    pytest.fail(f"no round went without a client that was killed {MOST_KILLED} times")


def test_a_client_an_edge_and_the_cloud_are_killed_in_the_middle_of_a_round(tmp_path):
    results, cloud_role = tmp_path / "results", {"deploy.role": "cloud"}
    options, settings = run_config(SETTINGS), dict(SETTINGS)
    with two_tiers(app_folder(), 3, 1, tmp_path / "t", options, devices=devices_with_keys(tmp_path)) as cloud:
        (edge,) = cloud.edges
        start(cloud.environment, results, settings | cloud_role | {"global_rounds": 100_000})
        wait_for(lambda: rounds(results) >= 1, PATIENCE_SECONDS, "first round")
        kill_in_a_round(edge.supernodes[0], results)
        wait_for(lambda: took_part(results) == [0, 1, 2], PATIENCE_SECONDS, "round with it again")
        with clients_stopped(edge.supernodes[1]):
            wait_until_no_round_ends(results)
            kill_server_app(edge.superlink)
        wait_for(lambda: lines(results, "global")[-1]["edges_left_out"], PATIENCE_SECONDS, "round without the edge")
        start_edge_run(edge, app_folder(), options)
        wait_for(lambda: took_part(results) == [0, 1, 2], PATIENCE_SECONDS, "round with the edge again")
        with clients_stopped(edge.supernodes[1]):
            wait_until_no_round_ends(results)
            kill_server_app(cloud.superlink)
        settings["global_rounds"] = rounds(results) + 1
        finish(start(cloud.environment, results, settings | cloud_role | {"resume": str(results)}), cloud.environment)
    told = [own for line in edge_lines(results) for own in line["secure"]]
    assert {own["clients"] for own in told if own} == {2, 3}
    plain = {key: value for key, value in settings.items() if "secure" not in key and key != "deploy.transport"}
    expected = replay(results, tmp_path / "replayed", plain)
    found, replayed = weights(results), weights(expected)
    off = max(float((found[name].double() - replayed[name].double()).abs().max()) for name in found)
    assert off < 1e-4  # after hundreds of rounds, each from a model that is off by a rounding
    assert summary(results)["secure"]["clipped"] == 0
    epsilons = [line["privacy"]["epsilon"] for line in lines(results, "global")]
    assert epsilons == sorted(set(epsilons))
    # Each round once: who was asked in one that was lost or done again drew the same noise.
    spent = epsilon_of({Release(3.0): settings["global_rounds"]}, 1e-5)
    assert summary(results)["privacy"]["epsilon"] == epsilons[-1] == pytest.approx(spent, abs=1e-6)
