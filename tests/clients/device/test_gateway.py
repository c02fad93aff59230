"""A gateway hands bytes on, waits for an edge's run that is not there, and sends nothing twice."""

import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from espalier.app.tiers.listener import EdgeListener
from espalier.clients.client_app import make_client_app
from espalier.clients.device.edge_socket import SOCKET, NoEdgeError, ask_edge
from espalier.clients.messages.edge import EdgeRequest, from_payload
from espalier.sim.in_process_grid import InProcessGrid

ROOT = Path(__file__).parents[3]
TYPES = ["query.edge", "train.edge", "evaluate.edge", "train.edge_heads"]


@pytest.fixture
def folder():
    path = Path(tempfile.mkdtemp(prefix="e"))
    yield path
    shutil.rmtree(path)


class Edge:
    """An edge's run in a thread, which answers one request by `answer`."""

    def __init__(self, folder, answer):
        self.requests = []
        self._listener, self._answer = EdgeListener(folder), answer
        self._thread = threading.Thread(target=self._listener.serve_one, args=(self._serve, 20))

    def _serve(self, *request):
        self.requests.append(request)
        return self._answer(request[1])

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
    with Edge(folder, lambda request: request + b"!") as edge:
        reply = ask(gateway_grid(folder), 0, message_type, b"\x00\xff" * 1000)
    assert from_payload(reply.content) == b"\x00\xff" * 1000 + b"!"
    assert edge.requests == [(message_type, b"\x00\xff" * 1000)]


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
    with Edge(folder, lambda request: b"2"):
        waiting.join()
    assert replies == [b"2"]


DYING = """
import os, sys
from pathlib import Path
from espalier.app.tiers.listener import EdgeListener

def die(message_type, request):
    print(message_type, request, flush=True)
    os.kill(os.getpid(), 9)

EdgeListener(Path(sys.argv[1])).serve_one(die, 20)
"""


def test_an_edge_that_dies_in_the_middle_is_noticed_at_once_and_not_asked_again(folder):
    with subprocess.Popen([sys.executable, "-c", DYING, str(folder)], stdout=subprocess.PIPE, cwd=ROOT) as edge:
        started = time.monotonic()
        with pytest.raises(NoEdgeError, match="ended before it answered"):
            ask_edge(folder, "train.edge", b"1", wait_seconds=20)
        assert edge.wait() == -9
        assert time.monotonic() - started < 10
        assert edge.stdout.read() == b"train.edge b'1'\n"
    with pytest.raises(NoEdgeError, match="is not there"):
        ask_edge(folder, "train.edge", b"1")


def test_an_edge_that_ends_before_it_serves_says_so(folder):
    listener = EdgeListener(folder)
    with ThreadPoolExecutor() as pool:
        asked = pool.submit(ask_edge, folder, "train.edge", b"1", wait_seconds=20)
        time.sleep(1.0)  # until it is asked
        listener.close()
        with pytest.raises(NoEdgeError, match="ended before it answered"):
            asked.result()


def test_an_edge_that_never_answers_is_given_up(folder):
    over = threading.Event()
    with Edge(folder, lambda request: b"%d" % over.wait(20)):
        with pytest.raises(NoEdgeError, match=r"did not answer within 0\.2 s"):
            ask_edge(folder, "train.edge", b"1", reply_seconds=0.2)
        over.set()


def test_an_edge_that_is_busy_for_too_long_is_given_up(folder):
    with socket.socket(socket.AF_UNIX) as busy:
        busy.bind(str(folder / SOCKET))
        busy.listen()
        with pytest.raises(NoEdgeError, match=r"did not answer within 0\.2 s"):
            ask_edge(folder, "train.edge", b"1", wait_seconds=20, reply_seconds=0.2)
