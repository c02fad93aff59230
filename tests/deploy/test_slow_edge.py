"""A cloud that waits for nobody, on real processes: an edge host stands still for a while."""

import time

import pytest
from flwr_run import descendants
from local import run_config, two_tiers

from tests.app.runs import app_folder, lines, summary

from .faults import PATIENCE_SECONDS, command_of, finish, kill_server_app, rounds, start, stopped, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.deploy]

# Flower takes a run for failed that it has not heard of for a minute; it hears of it every 22 seconds.
MOST_STOPPED_SECONDS = 30

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
    """Return the number of the aggregation, the edge, the staleness and why it was left out, of all updates so far."""
    if not (folder / "metrics.jsonl").exists():
        return []
    return [
        (line["round"], one["who"], one["staleness"], one.get("left_out", ""))
        for line in lines(folder, "global")
        for one in line["async"]["arrivals"]
    ]


def rounds_with(folder, edge):
    """Return the aggregations that had an update of an edge."""
    return [number for number, who, _, fault in arrivals(folder) if who == edge and not fault]


def is_training(edge):
    """Return whether a device of an edge trains, so that the edge is at work on what the cloud asked for."""
    return any("flwr-clientapp" in command_of(pid) for node in edge.supernodes for pid in descendants(node.process.pid))


def gone_on_without(edge, results):
    """Stop an edge while it works until the cloud has aggregated without it.

    Returns
    -------
    int, list[str]
        The last aggregation before, and whose updates came in meanwhile; nobody's, where the other edge was too slow.
    """
    wait_for(lambda: not is_training(edge), PATIENCE_SECONDS, "pause of edge-1")
    wait_for(lambda: is_training(edge), PATIENCE_SECONDS, "next round of edge-1", pause=0.05)
    # The edge's SuperLink and its run; its gateway lives, by which it is in flight at the cloud.
    with stopped(edge.superlink.process.pid):
        before, deadline = rounds(results), time.monotonic() + MOST_STOPPED_SECONDS
        while rounds(results) == before and time.monotonic() < deadline:
            time.sleep(0.2)
        meanwhile = [who for number, who, *_ in arrivals(results) if number > before]
    wait_for(lambda: rounds_with(results, "edge-1")[-1] > before, PATIENCE_SECONDS, "late update of edge-1")
    return before, meanwhile


def test_the_cloud_goes_on_without_an_edge_that_stands_still_and_takes_its_late_update(tmp_path):
    results = tmp_path / "results"
    cloud_role = {"deploy.role": "cloud"}
    with two_tiers(app_folder(), 2, 2, tmp_path / "t", run_config(SETTINGS)) as cloud:
        start(cloud.environment, results, SETTINGS | cloud_role | {"global_rounds": 100})
        wait_for(lambda: rounds_with(results, "edge-1"), PATIENCE_SECONDS, "update of edge-1")
        first, meanwhile = rounds(results), []
        for _ in range(4):
            if not meanwhile:
                before, meanwhile = gone_on_without(cloud.edges[1], results)
        # With the line of the next round the state after this one is saved: the resumed run does not do it again.
        late_round = next(number for number in rounds_with(results, "edge-1") if number > before)
        wait_for(lambda: rounds(results) > late_round, PATIENCE_SECONDS, "round after the late update")
        kill_server_app(cloud.superlink)
        interrupted = rounds(results)
        settings = SETTINGS | cloud_role | {"global_rounds": interrupted + 3, "resume": str(results)}
        finish(start(cloud.environment, results, settings), cloud.environment)
    assert meanwhile == ["edge-0"] * len(meanwhile) != []
    came = arrivals(results)
    assert [number for number, _, _, fault in came if not fault] == list(range(1, interrupted + 4))
    # Flower may take devices for gone that could not reach their SuperLink: then what was in flight, or the next round
    # of their edge, has nobody.
    for number, who, _, fault in came:
        assert not fault or (who == "edge-1" and first < number <= late_round)
    late = next(staleness for number, who, staleness, _ in came if who == "edge-1" and number > before)
    assert late >= len(meanwhile)
    check_staleness([one for one in came if not one[-1]], interrupted)
    assert max(int(t) for t in summary(results)["async"]["staleness"]) == max(t for _, _, t, fault in came if not fault)


def check_staleness(came, interrupted):
    """Check that updates are as stale as they can be.

    With a buffer for one update, who comes begins again after the aggregation, or later if updates are in already.
    """
    for edge in ("edge-0", "edge-1"):
        last = 0
        for number, staleness in [(n, t) for n, who, t, _ in came if who == edge and n <= interrupted]:
            assert 0 <= staleness <= number - 1 - last
            last = number
