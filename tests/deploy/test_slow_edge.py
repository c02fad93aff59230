"""A cloud that waits for nobody, on real processes: an edge host stands still for a while."""

import os
import signal
from contextlib import contextmanager, suppress

import pytest
from flwr_run import descendants
from local import run_config, two_tiers

from tests.app.runs import app_folder, lines, summary

from .faults import PATIENCE_SECONDS, command_of, finish, kill_server_app, rounds, start, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.deploy]

# Flower takes a run for failed that it has not heard of for a minute; it hears of it every 22 seconds.
MOST_STOPPED_SECONDS = 35

SETTINGS = {
    "num_clients": 2,
    "num_edges": 2,
    "edge_rounds": 1,
    "local_epochs": 1,
    "batches_per_epoch": 1,
    "report.evaluate-every": 0,
    "async.mode": "fedbuff",
    "async.buffer-size": 1,
}


def arrivals(folder):
    """Return the number of the aggregation, the edge and the staleness of all updates so far."""
    if not (folder / "metrics.jsonl").exists():
        return []
    return [
        (line["round"], one["who"], one["staleness"])
        for line in lines(folder, "global")
        for one in line["async"]["arrivals"]
        if "left_out" not in one
    ]


def rounds_with(folder, edge):
    return [number for number, who, _ in arrivals(folder) if who == edge]


def is_training(edge):
    """Return whether a device of an edge trains, so that the edge is at work on what the cloud asked for."""
    return any("flwr-clientapp" in command_of(pid) for node in edge.supernodes for pid in descendants(node.process.pid))


@contextmanager
def stopped(pid):
    """Stop a process and all that it has started, inside the block."""
    pids = [pid, *descendants(pid)]
    for each in pids:
        with suppress(ProcessLookupError):
            os.kill(each, signal.SIGSTOP)
    try:
        yield
    finally:
        for each in pids:
            with suppress(ProcessLookupError):
                os.kill(each, signal.SIGCONT)


def test_the_cloud_goes_on_without_an_edge_that_stands_still_and_takes_its_late_update(tmp_path):
    results = tmp_path / "results"
    cloud_role = {"deploy.role": "cloud"}
    with two_tiers(app_folder(), 2, 2, tmp_path / "t", run_config(SETTINGS)) as cloud:
        start(cloud.environment, results, SETTINGS | cloud_role | {"global_rounds": 100})
        wait_for(lambda: rounds_with(results, "edge-1"), PATIENCE_SECONDS, "update of edge-1")
        wait_for(lambda: not is_training(cloud.edges[1]), PATIENCE_SECONDS, "pause of edge-1")
        wait_for(lambda: is_training(cloud.edges[1]), PATIENCE_SECONDS, "next round of edge-1", pause=0.05)
        # The edge's SuperLink and its run; its gateway lives, by which it is in flight at the cloud.
        with stopped(cloud.edges[1].superlink.process.pid):
            before = rounds(results)
            wait_for(lambda: rounds(results) > before, MOST_STOPPED_SECONDS, "round without edge-1")
            meanwhile = [who for number, who, _ in arrivals(results) if number > before]
        assert meanwhile == ["edge-0"] * len(meanwhile) != []
        wait_for(lambda: rounds_with(results, "edge-1")[-1] > before, PATIENCE_SECONDS, "late update of edge-1")
        # With the line of the next round the state after this one is saved: the resumed run does not do it again.
        late_round = rounds_with(results, "edge-1")[-1]
        wait_for(lambda: rounds(results) > late_round, PATIENCE_SECONDS, "round after the late update")
        kill_server_app(cloud.superlink)
        interrupted = rounds(results)
        settings = SETTINGS | cloud_role | {"global_rounds": interrupted + 3, "resume": str(results)}
        finish(start(cloud.environment, results, settings), cloud.environment)
    came = arrivals(results)
    assert [number for number, _, _ in came] == list(range(1, interrupted + 4))
    late = check_staleness(came, interrupted, before)
    assert late >= len(meanwhile)
    # Flower may take devices for gone that could not reach their SuperLink: then the next round of edge-1 has nobody.
    left_out = [one for line in lines(results, "global") for one in line["async"]["arrivals"] if "left_out" in one]
    assert [one for one in left_out if one["who"] != "edge-1"] == []
    assert max(int(t) for t in summary(results)["async"]["staleness"]) >= late


def check_staleness(came, interrupted, before):
    """Check that updates are as stale as they can be; return how stale the first one of edge-1 is after a round.

    With a buffer for one update, who comes begins again after the aggregation, or later if updates are in already.
    """
    for edge in ("edge-0", "edge-1"):
        last = 0
        for number, staleness in [(n, t) for n, who, t in came if who == edge and n <= interrupted]:
            assert 0 <= staleness <= number - 1 - last
            last = number
    return next(staleness for number, who, staleness in came if who == "edge-1" and number > before)
