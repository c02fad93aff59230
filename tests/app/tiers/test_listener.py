"""The local socket: who is let in, and what happens when one side goes."""

import os
import socket
import stat
import threading
from multiprocessing.connection import Client

import pytest

from espalier.app.errors import UserError
from espalier.app.tiers.listener import EdgeListener
from espalier.clients.edge_socket import NoEdgeError, ask_edge


@pytest.fixture
def serving(short_path):
    """Serve echoes at a folder until the end of the test."""
    folder = short_path / "edge"
    over = threading.Event()
    asked = []

    def answer(message_type, request):
        asked.append((message_type, request))
        return request[::-1]

    with EdgeListener(folder, silence_seconds=0.2) as listener:

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


def test_folder_and_files_are_private_and_the_key_is_new_each_time(short_path):
    folder = short_path / "edge"
    keys = []
    for _ in range(2):
        with EdgeListener(folder):
            assert stat.S_IMODE(folder.stat().st_mode) == 0o700
            assert stat.S_IMODE((folder / "key").stat().st_mode) == 0o600
            assert sorted(file.name for file in folder.iterdir()) == ["key", "socket"]
            keys.append((folder / "key").read_bytes())
        assert not (folder / "socket").exists()
    assert len(keys[0]) == len(keys[1]) == 32
    assert keys[0] != keys[1]


def test_a_wrong_key_is_refused_before_anything_is_asked_and_others_are_served(serving, caplog):
    folder, asked = serving
    right = (folder / "key").read_bytes()
    (folder / "key").write_bytes(bytes(32))
    with pytest.raises(NoEdgeError, match="refused its key"):
        ask_edge(folder, "train.edge", b"1")
    assert asked == []
    (folder / "key").write_bytes(right)
    # Served one after the other: once this is answered, all has been said of the one before.
    assert ask_edge(folder, "train.edge", b"12") == b"21"
    assert [record.getMessage() for record in caplog.records] == [
        f"gateway refused: it does not know the key in {folder}"
    ]


def test_who_says_nothing_or_garbage_is_let_go(serving):
    folder, asked = serving
    with socket.socket(socket.AF_UNIX) as silent, socket.socket(socket.AF_UNIX) as garbage:
        silent.connect(str(folder / "socket"))
        garbage.connect(str(folder / "socket"))
        garbage.sendall(b"\x7f\xff\xff\xff" + bytes(100))  # as if 2 GiB were to come
        assert ask_edge(folder, "query.edge", b"12", wait_seconds=10) == b"21"
    assert asked == [("query.edge", b"12")]


def test_a_peer_without_the_key_gets_no_pickle_in(serving):
    folder, asked = serving
    with Client(str(folder / "socket"), "AF_UNIX") as peer:
        assert peer.recv_bytes().startswith(b"#CHALLENGE#")
        peer.send(["a pickle"])
        assert peer.recv_bytes() == b"#FAILURE#"
        with pytest.raises((OSError, EOFError)):
            peer.recv_bytes()
    assert asked == []


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
    with EdgeListener(folder):
        key = (folder / "key").read_bytes()
        with pytest.raises(UserError, match="another folder: a run serves an edge there"):
            EdgeListener(folder)
        assert (folder / "key").read_bytes() == key
