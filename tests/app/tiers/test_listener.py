"""The local socket: whose folder it takes, and what happens when one side goes."""

import os
import socket
import stat
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from espalier.app.ground.errors import UserError
from espalier.app.tiers.listener import EdgeListener
from espalier.clients.device.edge_socket import NoEdgeError, ask_edge


@pytest.fixture
def serving(short_path):
    """Serve echoes at a folder until the end of the test."""
    folder = short_path / "edge"
    over = threading.Event()
    asked = []

    def answer(message_type, request):
        asked.append((message_type, request))
        return request[::-1]

    with EdgeListener(folder) as listener:

        def serve():
            while not over.is_set():
                listener.serve_one(answer, 0.02)

        thread = threading.Thread(target=serve)
        thread.start()
        yield folder, asked
        over.set()
        thread.join()


@pytest.mark.parametrize("size", [0, 1, 70_000, 5_000_000])
def test_bytes_go_there_and_back(serving, size):
    folder, asked = serving
    request = os.urandom(size)
    assert ask_edge(folder, "train.edge", request) == request[::-1]
    assert asked == [("train.edge", request)]


def test_a_request_whose_gateway_has_left_already_is_answered_at_once(short_path):
    class Over:
        """The context of a call that is over."""

        def add_callback(self, callback):
            return False

    with EdgeListener(short_path / "edge") as listener, ThreadPoolExecutor() as pool:
        assert pool.submit(listener._receive, b"1", Over()).result(timeout=10) == b""
        assert not listener.serve_one(lambda message_type, request: request, 0.01)


def test_a_path_may_have_any_characters(short_path):
    folder = short_path / "e %23#?ü"
    with EdgeListener(folder) as listener, ThreadPoolExecutor() as pool:
        asked = pool.submit(ask_edge, folder, "train.edge", b"1")
        assert listener.serve_one(lambda message_type, request: request, 10)
        assert asked.result() == b"1"


def test_requests_are_served_one_at_a_time(short_path):
    folder = short_path / "edge"
    running, most = 0, 0

    def answer(message_type, request):
        nonlocal running, most
        running += 1
        most = max(most, running)
        time.sleep(0.02)
        running -= 1
        return request

    with EdgeListener(folder) as listener, ThreadPoolExecutor(6) as pool:
        asked = [pool.submit(ask_edge, folder, "train.edge", b"%d" % i) for i in range(6)]
        for _ in asked:
            assert listener.serve_one(answer, 10)
        assert [one.result() for one in asked] == [b"%d" % i for i in range(6)]
    assert most == 1


def test_the_folder_is_private_and_nothing_is_left_in_it(short_path):
    folder = short_path / "edge"
    with EdgeListener(folder):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert sorted(file.name for file in folder.iterdir()) == ["lock", "socket"]
    assert list(folder.iterdir()) == []


def test_a_run_that_ends_leaves_the_socket_of_the_next_one_alone(short_path):
    folder = short_path / "edge"
    for i in range(5):
        with EdgeListener(folder) as listener, ThreadPoolExecutor() as pool:
            asked = pool.submit(ask_edge, folder, "train.edge", b"%d" % i)
            assert listener.serve_one(lambda message_type, request: request, 10)
            assert asked.result() == b"%d" % i


def test_a_gateway_that_leaves_is_not_answered_and_the_next_one_is(short_path, caplog):
    folder = short_path / "edge"
    with EdgeListener(folder) as listener, ThreadPoolExecutor() as pool:

        def answer_late(message_type, request):
            with pytest.raises(NoEdgeError, match=r"did not answer within 1 s"):
                asked.result()
            time.sleep(0.2)  # until the listener has heard of it
            return b""

        asked = pool.submit(ask_edge, folder, "train.edge", b"1", reply_seconds=1)
        assert listener.serve_one(answer_late, 10)
        assert [record.getMessage() for record in caplog.records] == [
            "gateway left before it had the answer to train.edge"
        ]
        asked = pool.submit(ask_edge, folder, "train.edge", b"2", reply_seconds=10)
        assert listener.serve_one(lambda message_type, request: request, 10)
        assert asked.result() == b"2"


def test_a_request_that_nobody_waits_for_any_more_is_not_served(short_path):
    folder = short_path / "edge"
    served = []
    with EdgeListener(folder) as listener:
        with pytest.raises(NoEdgeError, match=r"did not answer within 0\.2 s"):
            ask_edge(folder, "train.edge", b"1", reply_seconds=0.2)
        time.sleep(0.2)
        assert listener.serve_one(lambda *request: served.append(request), 10)
        assert not listener.serve_one(lambda *request: served.append(request), 0.01)
    assert served == []


def test_who_says_nothing_or_garbage_is_in_nobodys_way(serving):
    folder, asked = serving
    with socket.socket(socket.AF_UNIX) as silent, socket.socket(socket.AF_UNIX) as garbage:
        silent.connect(str(folder / "socket"))
        garbage.connect(str(folder / "socket"))
        garbage.sendall(b"\x7f\xff\xff\xff" + bytes(100))
        assert ask_edge(folder, "query.edge", b"12", wait_seconds=10) == b"21"
    assert asked == [("query.edge", b"12")]


def test_a_folder_open_to_others_is_refused_on_both_sides(short_path):
    folder = short_path / "edge"
    folder.mkdir(mode=0o755)
    folder.chmod(0o755)
    with pytest.raises(UserError, match=rf"deploy\.edge-folder = '{folder}': allowed is .* type chmod 700"):
        EdgeListener(folder)
    with pytest.raises(PermissionError, match="closed to others"):
        ask_edge(folder, "query.edge", b"")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to somebody else")
def test_a_folder_of_somebody_else_is_refused_on_both_sides(short_path):
    folder = short_path / "edge"
    folder.mkdir(mode=0o700)
    os.chown(folder, 12345, -1)
    with pytest.raises(UserError, match="a folder of the user who runs this"):
        EdgeListener(folder)
    with pytest.raises(PermissionError, match="a folder of the user who runs this"):
        ask_edge(folder, "query.edge", b"")


def test_a_link_a_file_and_a_long_path_are_refused(short_path):
    (short_path / "there").mkdir(mode=0o700)
    (short_path / "link").symlink_to(short_path / "there")
    with pytest.raises(UserError, match="allowed is a folder"):
        EdgeListener(short_path / "link")
    (short_path / "file").write_text("")
    with pytest.raises(UserError, match="allowed is a folder that can be written"):
        EdgeListener(short_path / "file")
    with pytest.raises(UserError, match="must not have more than 107 bytes"):
        EdgeListener(short_path / ("x" * 100))


def test_the_socket_of_a_run_that_died_is_replaced_and_one_that_is_served_is_not(short_path):
    folder = short_path / "edge"
    folder.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(folder / "socket"))
    with EdgeListener(folder) as listener, ThreadPoolExecutor() as pool:
        with pytest.raises(UserError, match=r"a folder that nobody else writes to: process \d+ on "):
            EdgeListener(folder)
        asked = pool.submit(ask_edge, folder, "query.edge", b"1")
        assert listener.serve_one(lambda message_type, request: request, 10)
        assert asked.result() == b"1"


def test_of_runs_that_begin_at_once_one_gets_the_folder(short_path):
    folder, ready = short_path / "edge", threading.Barrier(6)

    def begin():
        ready.wait()
        try:
            return EdgeListener(folder)
        except UserError as error:
            return str(error)

    with ThreadPoolExecutor(6) as pool:
        begun = [future.result() for future in [pool.submit(begin) for _ in range(6)]]
    (listener,) = [one for one in begun if isinstance(one, EdgeListener)]
    assert all("a folder that nobody else writes to: " in one for one in begun if one is not listener)
    listener.close()
    EdgeListener(folder).close()
    assert list(folder.iterdir()) == []
