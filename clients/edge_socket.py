"""The local socket between an edge's run and its gateway: a Unix socket in a private folder, with a key beside it.

Both sides prove that they know the key. What travels are plain bytes: nothing is unpickled.
"""

import os
import socket
import stat
import struct
import time
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from pathlib import Path
from typing import Final

SOCKET: Final = "socket"
KEY: Final = "key"
MAX_BYTES: Final = 4 * 2**30  # of a message
MAX_PATH_BYTES: Final = 107  # of a Unix socket
PAUSE_SECONDS: Final = 0.1

# What a connection comes to where the other side is not there, is starting, or has another key by now.
NOT_THERE = (FileNotFoundError, ConnectionError, EOFError, AuthenticationError, AssertionError)


class NoEdgeError(RuntimeError):
    """The edge's run can't be reached, or ended before it answered."""


def folder_fault(folder: Path) -> str:
    """Return why a folder that exists is not private, or why its path does not do; an empty string if all is well."""
    if len(os.fsencode(folder / SOCKET)) > MAX_PATH_BYTES:
        return f"a shorter path: that of its socket must not have more than {MAX_PATH_BYTES} bytes"
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode):
        return "a folder"
    if status.st_uid != os.geteuid():
        return "a folder of the user who runs this"
    if status.st_mode & 0o077:
        return f"a folder that is closed to others: type chmod 700 {folder}"
    return ""


def connection_over(local: socket.socket, silence_seconds: float) -> Connection:
    """Return a connection over a connected socket, which it takes over.

    Parameters
    ----------
    local : socket.socket
        The socket.
    silence_seconds : float
        Reading and writing fail with BlockingIOError where nothing moves for so long; 0 waits for ever.
    """
    limit = struct.pack("ll", int(silence_seconds), int(silence_seconds % 1 * 1e6))
    for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
        local.setsockopt(socket.SOL_SOCKET, option, limit)
    return Connection(local.detach())


def ask_edge(
    folder: Path, message_type: str, request: bytes, *, wait_seconds: float = 0.0, reply_seconds: float = 0.0
) -> bytes:
    """Hand a request to the run of an edge and return its answer.

    Parameters
    ----------
    folder : Path
        Where the edge's run listens.
    message_type : str
        What is asked for.
    request : bytes
        The request.
    wait_seconds : float (default: 0)
        How long to try again while the run is not there. A request that was sent is never sent again.
    reply_seconds : float (default: 0)
        How long to wait for the answer; 0 waits for ever.

    Raises
    ------
    NoEdgeError
        If the run is not there in time, does not answer in time, or ends before it has answered.
    PermissionError
        If the folder is open to others, or not this user's.
    """
    connection = _connect(folder, time.monotonic() + wait_seconds, reply_seconds)
    try:
        with connection:
            connection.send_bytes(message_type.encode())
            connection.send_bytes(request)
            return connection.recv_bytes(MAX_BYTES)
    except BlockingIOError:
        raise NoEdgeError(f"the edge's run at {folder} did not answer within {reply_seconds:g} s") from None
    except (OSError, EOFError):
        raise NoEdgeError(f"the edge's run at {folder} ended before it answered") from None


def _connect(folder: Path, deadline: float, reply_seconds: float) -> Connection:
    """Return a connection on which both sides have proved that they know the key."""
    while True:
        try:
            if fault := folder_fault(folder):
                raise PermissionError(f"edge-folder = {str(folder)!r}: allowed is {fault}")
            return _open(folder, reply_seconds)
        except BlockingIOError:
            raise NoEdgeError(f"the edge's run at {folder} was busy for {reply_seconds:g} s") from None
        except NOT_THERE as error:
            if time.monotonic() >= deadline:
                what = "refused its key" if isinstance(error, AuthenticationError) else "is not there"
                raise NoEdgeError(f"the edge's run at {folder} {what}") from None
        time.sleep(PAUSE_SECONDS)


def _open(folder: Path, reply_seconds: float) -> Connection:
    key = (folder / KEY).read_bytes()
    with socket.socket(socket.AF_UNIX) as local:
        local.connect(str(folder / SOCKET))
        connection = connection_over(local, reply_seconds)
    try:
        answer_challenge(connection, key)
        deliver_challenge(connection, key)
    except BaseException:
        connection.close()
        raise
    return connection
