"""A gateway hands bytes on, waits for an edge's run that is not there, and sends nothing twice."""

import shutil
import socket
import tempfile
import threading
import time
from multiprocessing.connection import Listener
from pathlib import Path

import pytest

from espalier.clients.client_app import make_client_app
from espalier.clients.edge_socket import KEY, SOCKET, NoEdgeError, ask_edge
from espalier.clients.messages.edge import EdgeRequest, from_payload
from espalier.sim.in_process_grid import InProcessGrid

TYPES = ["query.edge", "train.edge", "evaluate.edge", "train.edge_heads"]


@pytest.fixture
def folder():
    path = Path(tempfile.mkdtemp(prefix="e"))
    (path / KEY).write_bytes(b"k" * 32)
    yield path
    shutil.rmtree(path)


class Edge:
    """An edge's run as Python's own listener has it; `serve` gets each connection."""

    def __init__(self, folder, serve, times=1):
        self.requests = []
        self._listener = Listener(str(folder / SOCKET), "AF_UNIX", authkey=b"k" * 32)
        self._serve, self._times = serve, times
        self._thread = threading.Thread(target=self._run)

    def _run(self):
        for _ in range(self._times):
            with self._listener.accept() as connection:
                self.requests.append((connection.recv_bytes(), connection.recv_bytes()))
                self._serve(connection, self.requests[-1])

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *exception):
        self._thread.join()
        self._listener.close()


def no_task(context):
    raise AssertionError("a gateway has no task")


def gateway_grid(folder):
    return InProcessGrid(make_client_app(no_task), 2, node_configs=[{"edge-folder": str(folder)}, {}])


def node(grid, partition_id):
    return next(node_id for node_id, node in grid._nodes.items() if node.partition_id == partition_id)


def ask(grid, partition_id, message_type, data=b"", wait_seconds=0.0, reply_seconds=0.0):
    message = EdgeRequest(data, wait_seconds, reply_seconds).to_message(node(grid, partition_id), message_type)
    (reply,) = grid.send_and_receive([message])
    return reply


@pytest.mark.parametrize("message_type", TYPES)
def test_every_request_goes_through_unchanged(folder, message_type):
    with Edge(folder, lambda connection, request: connection.send_bytes(request[1] + b"!")) as edge:
        reply = ask(gateway_grid(folder), 0, message_type, b"\x00\xff" * 1000)
    assert from_payload(reply.content) == b"\x00\xff" * 1000 + b"!"
    assert edge.requests == [(message_type.encode(), b"\x00\xff" * 1000)]


@pytest.mark.parametrize("message_type", TYPES)
def test_a_device_says_that_it_is_no_gateway(folder, message_type):
    reply = ask(gateway_grid(folder), 1, message_type)
    assert "this node is no gateway: its config has no edge-folder" in reply.error.reason


def test_it_waits_for_an_edge_that_is_not_there_as_long_as_it_was_told(folder):
    started = time.monotonic()
    reply = ask(gateway_grid(folder), 0, "train.edge", wait_seconds=0.3)
    assert f"NoEdgeError: the edge's run at {folder} is not there" in reply.error.reason
    assert time.monotonic() - started >= 0.3


def test_an_edge_that_comes_while_it_waits_is_served(folder):
    replies = []

    def wait_for_reply():
        replies.append(ask_edge(folder, "train.edge", b"1", wait_seconds=20))

    # The socket of a run that died, before the one that comes.
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(folder / SOCKET))
    waiting = threading.Thread(target=wait_for_reply)
    waiting.start()
    (folder / SOCKET).unlink()
    with Edge(folder, lambda connection, request: connection.send_bytes(b"2")):
        waiting.join()
    assert replies == [b"2"]


def test_an_edge_that_ends_in_the_middle_is_not_asked_again(folder):
    edge = Edge(folder, lambda connection, request: None)
    with edge, pytest.raises(NoEdgeError, match="ended before it answered"):
        ask_edge(folder, "train.edge", b"1", wait_seconds=20)
    assert edge.requests == [(b"train.edge", b"1")]


def test_an_edge_that_never_answers_is_given_up(folder):
    over = threading.Event()
    with Edge(folder, lambda connection, request: over.wait(20)):
        with pytest.raises(NoEdgeError, match=r"did not answer within 0\.2 s"):
            ask_edge(folder, "train.edge", b"1", reply_seconds=0.2)
        over.set()


def test_an_edge_that_is_busy_for_too_long_is_given_up(folder):
    with socket.socket(socket.AF_UNIX) as busy:
        busy.bind(str(folder / SOCKET))
        busy.listen()
        with pytest.raises(NoEdgeError, match=r"was busy for 0\.2 s"):
            ask_edge(folder, "train.edge", b"1", wait_seconds=20, reply_seconds=0.2)
