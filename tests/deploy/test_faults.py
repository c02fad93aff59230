"""Faults on real processes: those that are left end the run with the right answer."""

import os
import signal
import ssl
import time
from contextlib import closing

import pytest
from flwr_run import descendants, free_ports, runs_going_on, stop_run
from local import Federation, count_online, device_configs, federation, log_of, run_config, start_edge_run, two_tiers

from espalier.clients.messages.frames import KEEPALIVE_SECONDS, StreamTicket
from espalier.clients.streams import open_stream
from tests.app.runs import app_folder, lines, same_weights, summary
from tests.strategies.split.proxy import StreamProxy

from .faults import (
    PATIENCE_SECONDS,
    ROOT,
    client_app,
    command_of,
    edge_lines,
    finish,
    kill,
    kill_server_app,
    replay,
    rounds,
    server_app,
    start,
    stopped,
    wait_for,
)

pytestmark = [pytest.mark.slow, pytest.mark.deploy]

LONGER_THAN_STREAMS_WAIT = 2 * KEEPALIVE_SECONDS + 4

SHORT_ROUNDS = {
    "num_clients": 3,
    "edge_rounds": 1,
    "local_epochs": 1,
    "batches_per_epoch": 2,
    "report.evaluate-every": 0,
}


def test_devices_stay_until_they_are_stopped_or_cut_off_or_an_edge_host_is_killed_or_the_cloud(tmp_path, monkeypatch):
    results, proxy = tmp_path / "results", StreamProxy()
    monkeypatch.setenv("grpc_proxy", proxy.address)
    monkeypatch.setenv("no_grpc_proxy", "127.0.0.1,localhost")
    settings = {
        "algorithm": "phsfl",
        "num_clients": 2,
        "num_edges": 2,
        "edge_rounds": 1,
        "local_epochs": 1,
        "batches_per_epoch": 1,
        "fine-tune.steps": 1,
        "report.evaluate-every": 0,
        "deploy.transport": "stream",
        "stream.address": "127.0.0.2",  # which gRPC does not reach without the proxy
    }
    options, cloud_role = run_config(settings), {"deploy.role": "cloud"}
    with closing(proxy), two_tiers(app_folder(), 2, 2, tmp_path / "t", options) as cloud:
        start(cloud.environment, results, settings | cloud_role | {"global_rounds": 100_000})
        wait_for(lambda: rounds(results) >= 1, PATIENCE_SECONDS, "first round")

        def all_train():
            return [line["participants"] for line in edge_lines(results)[-2:]] == [[[0]], [[1]]]

        with stopped(cloud.edges[0].supernodes[0].process.pid):
            wait_for(lambda: reasons_of(results, 0), PATIENCE_SECONDS, "round without client 0")
        wait_for(all_train, PATIENCE_SECONDS, "round with client 0 again")
        assert reasons_of(results, 0)[0] == "its stream broke"
        before = rounds(results)
        with stopped(server_app(cloud.edges[1].superlink)), stopped(server_app(cloud.superlink)):
            time.sleep(LONGER_THAN_STREAMS_WAIT)
        wait_for(lambda: rounds(results) > before + 1 and all_train(), PATIENCE_SECONDS, "round after both stood still")
        proxy.cut()
        time.sleep(30)
        proxy.mend()
        before = rounds(results)
        wait_for(lambda: rounds(results) > before + 1 and all_train(), PATIENCE_SECONDS, "round after the cut")
        kill_server_app(cloud.edges[1].superlink)
        wait_for(lambda: edges_left_out(results) == ["edge-1"], PATIENCE_SECONDS, "round without edge-1")
        wait_for(lambda: at_work(cloud.edges[1]) == 0, PATIENCE_SECONDS, "end of the process of client 1")
        assert at_work(cloud.edges[0]) == 1
        # How an edge reaches its devices is its own affair: edge-0 by streams, edge-1 from now on by messages.
        by_messages = run_config(settings | {"deploy.transport": "messages"})
        start_edge_run(cloud.edges[1], app_folder(), by_messages)
        wait_for(lambda: edges_left_out(results) == [], PATIENCE_SECONDS, "round with edge-1 again")
        kill_server_app(cloud.superlink)
        wait_for(lambda: at_work(cloud) == 0, PATIENCE_SECONDS, "end of the gateways' processes")
        settings["global_rounds"] = rounds(results) + 1
        finish(start(cloud.environment, results, settings | cloud_role | {"resume": str(results)}), cloud.environment)
        wait_for(lambda: at_work(cloud) == 0, PATIENCE_SECONDS, "end of the gateways' processes again")
        (serving,) = runs_going_on(edge_host := cloud.edges[0].environment)
        stop_run(serving, edge_host)
        wait_for(lambda: at_work(cloud.edges[0]) == 0, PATIENCE_SECONDS, "end of a device's process")
    replayed = replay(results, tmp_path / "replayed", settings)
    assert same_weights(results, replayed)
    assert summary(results)["personalised"] == summary(replayed)["personalised"]


def reasons_of(folder, client):
    """Return why a client was left out so far."""
    return [
        failure["reason"] for line in edge_lines(folder) for failure in line["failures"] if failure["client"] == client
    ]


def at_work(made):
    """Return how many SuperNodes have a client's process."""
    nodes = [descendants(node.process.pid) for node in made.supernodes]
    return sum(any("flwr-clientapp" in command_of(pid) for pid in pids) for pids in nodes)


def edges_left_out(folder):
    """Return the edges that the last global round left out."""
    return lines(folder, "global")[-1]["edges_left_out"]


def test_streams_that_break_or_freeze_or_lie_or_have_no_ticket(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "tests/deploy/liars"))
    results, port = tmp_path / "results", free_ports(1)[0]
    settings = {
        "algorithm": "sfl-v1",
        "num_clients": 3,
        "global_rounds": 3,
        "local_epochs": 1,
        "batches_per_epoch": 600,
        "batch_size": 8,
        "report.evaluate-every": 0,
        "fine-tune.steps": 0,
        "split.transport": "stream",
        "stream.timeout": 10.0,
        # A SuperNode whose ClientApp was killed starts the next one only when Flower has missed it for a minute.
        "deploy.reply-timeout": PATIENCE_SECONDS,
    }
    with federation(tmp_path / "deployment", device_configs(range(3), 3)) as made:
        run_id = start(made.environment, results, settings | {"stream.port": port})
        # Killed once its stream is counted: the connection is there before. The third stream must be that of round 3.
        wait_for(lambda: streams_opened(made, 0) == "1", PATIENCE_SECONDS, "stream of client 0")
        # Asked again where a file of its was closed while it was looked at.
        kill(wait_for(lambda: client_app(made.supernodes[0], port), PATIENCE_SECONDS, "process of client 0"))
        wait_for(lambda: rounds(results) >= 1, PATIENCE_SECONDS, "first round")
        frozen = wait_for(lambda: client_app(made.supernodes[1], port), PATIENCE_SECONDS, "stream of client 1")
        os.kill(frozen, signal.SIGSTOP)
        with pytest.raises(ConnectionError, match="UNAUTHENTICATED"):
            knock(port)
        # Counted before client 1 goes on: it may have been frozen before it showed its ticket, which is void then.
        wait_for(lambda: refusals(run_id, made) == 1, PATIENCE_SECONDS, "line on the stream refused", pause=3.0)
        wait_for(lambda: rounds(results) >= 2, PATIENCE_SECONDS, "second round")
        os.kill(frozen, signal.SIGCONT)
        finish(run_id, made.environment)
    assert [line["participants"] for line in edge_lines(results)] == [[[1, 2]], [[0, 2]], [[2]]]
    lies = {failure["client"]: failure["reason"] for failure in edge_lines(results)[2]["failures"]}
    assert "activations have shape" in lies[0]
    assert "RESOURCE_EXHAUSTED" in lies[1]
    assert same_weights(results, replay(results, tmp_path / "replayed", settings | {"split.transport": "messages"}))


def streams_opened(made: Federation, device: int) -> str:
    """Return how many streams a lying device has opened, in digits; nothing before the first."""
    counter = made.folder / f"flower-{device}" / "streams-opened"
    return counter.read_text() if counter.exists() else ""


def refusals(run_id: str, made: Federation) -> int:
    """Return how many streams the log says were refused."""
    return log_of(run_id, made.environment).count("refused: unknown token")


def knock(port: int) -> None:
    """Ask for a stream with a ticket that nobody gave out."""
    certificate = ssl.get_server_certificate(("127.0.0.1", port)).encode()  # as anybody can see it
    with open_stream(StreamTicket(f"127.0.0.1:{port}", certificate, "guessed", 2**20), 30.0) as stream:
        stream.exchange(b"x")


def rounds_of(folder, client):
    """Return the rounds in which a client took part."""
    return [line["round"] for line in edge_lines(folder) if any(client in each for each in line["participants"])]


def come_back(made: Federation, i: int) -> None:
    """Start a SuperNode again, as a supervisor does, until the SuperLink takes it back."""

    def is_back():
        if made.supernodes[i].process.poll() is not None:
            made.supernodes[i] = made.start_supernode(i)
        return count_online(made.environment) == len(made.supernodes)

    wait_for(is_back, PATIENCE_SECONDS, f"SuperNode {i}", pause=3.0)


def test_a_device_dies_and_comes_back_at_another_edge_then_the_run_is_killed_and_resumed(tmp_path):
    results, moving = tmp_path / "results", SHORT_ROUNDS | {"deploy.nodes-move": True, "deploy.transport": "stream"}
    with federation(tmp_path / "deployment", device_configs(range(3), 3)) as made:
        start(made.environment, results, moving | {"global_rounds": 100_000})
        wait_for(lambda: rounds(results) >= 1, PATIENCE_SECONDS, "first round")
        kill(made.supernodes[0].process.pid)
        made.supernodes[0].process.wait()
        last = rounds_of(results, 0)[-1]
        wait_for(lambda: rounds(results) > last + 1, PATIENCE_SECONDS, "round without client 0")
        made.node_configs[0] += ' edge-name="edge-1"'
        come_back(made, 0)
        wait_for(lambda: rounds_of(results, 0)[-1] > last + 1, PATIENCE_SECONDS, "round with client 0 again")
        kill_server_app(made.superlink)
        settings = moving | {"global_rounds": rounds(results) + 2}
        resumed = start(made.environment, results, settings | {"resume": str(results)})
        finish(resumed, made.environment)
    assert [line["round"] for line in edge_lines(results)] == [
        r for r in range(1, settings["global_rounds"] + 1) for _ in range(2)
    ]
    of_edge_1 = [line for line in edge_lines(results) if line["edge"] == "edge-1"]
    moved = min(line["round"] for line in of_edge_1 if 0 in line["participants"][0])
    assert of_edge_1[-1]["participants"] == [[0, 2]]
    moves = tmp_path / "moves.csv"
    moves.write_text(f"client,from,edge\n0,{moved},edge-1\n")
    settings |= {"availability.moves": str(moves)}
    assert same_weights(results, replay(results, tmp_path / "replayed", settings))
