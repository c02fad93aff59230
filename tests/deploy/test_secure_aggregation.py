"""Secure aggregation on real processes: a client, the edge and the cloud are killed while an edge round goes on."""

import time

import pytest
from flwr_run import descendants
from local import run_config, start_edge_run, two_tiers

from tests.app.runs import app_folder, lines, summary, weights

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
}
UNTIL_THE_EDGE_WAITS = 1.0  # seconds in which an edge gets to a client that does not answer: a round takes less


def client_process(supernode):
    """Return the process of the ClientApp that a SuperNode runs."""

    def found():
        return [pid for pid in descendants(supernode.process.pid) if "flwr-clientapp" in command_of(pid)]

    return wait_for(found, PATIENCE_SECONDS, "ClientApp")[0]


def took_part(results):
    """Return who took part in the last edge round that is in the results."""
    return edge_lines(results)[-1]["participants"][-1]


def test_a_client_an_edge_and_the_cloud_are_killed_in_the_middle_of_a_round(tmp_path):
    results, cloud_role = tmp_path / "results", {"deploy.role": "cloud"}
    options, settings = run_config(SETTINGS), dict(SETTINGS)
    with two_tiers(app_folder(), 3, 1, tmp_path / "t", options) as cloud:
        (edge,) = cloud.edges
        start(cloud.environment, results, settings | cloud_role | {"global_rounds": 100_000})
        wait_for(lambda: rounds(results) >= 1, PATIENCE_SECONDS, "first round")
        with stopped(pid := client_process(edge.supernodes[0])):
            time.sleep(UNTIL_THE_EDGE_WAITS)
            kill(pid)
        wait_for(lambda: any(line["failures"] for line in edge_lines(results)), PATIENCE_SECONDS, "round without it")
        wait_for(lambda: took_part(results) == [0, 1, 2], PATIENCE_SECONDS, "round with it again")
        with stopped(client_process(edge.supernodes[1])):
            time.sleep(UNTIL_THE_EDGE_WAITS)
            kill_server_app(edge.superlink)
        wait_for(lambda: lines(results, "global")[-1]["edges_left_out"], PATIENCE_SECONDS, "round without the edge")
        start_edge_run(edge, app_folder(), options)
        wait_for(lambda: took_part(results) == [0, 1, 2], PATIENCE_SECONDS, "round with the edge again")
        with stopped(client_process(edge.supernodes[1])):
            time.sleep(UNTIL_THE_EDGE_WAITS)
            kill_server_app(cloud.superlink)
        settings["global_rounds"] = rounds(results) + 1
        finish(start(cloud.environment, results, settings | cloud_role | {"resume": str(results)}), cloud.environment)
    told = [own for line in edge_lines(results) for own in line["secure"]]
    assert {own["clients"] for own in told if own} == {2, 3}
    expected = replay(results, tmp_path / "replayed", settings | {"deploy.transport": "messages"})
    found, replayed = weights(results), weights(expected)
    off = max(float((found[name].double() - replayed[name].double()).abs().max()) for name in found)
    assert off < 1e-5  # how many were asked decides the steps of the sums
    assert summary(results)["secure"]["clipped"] == 0
