"""The local socket between an edge's run and its gateway: gRPC over a Unix socket in a private folder.

Only the user that runs both can open the folder, which both of them check. What travels are plain bytes.
"""

import os
import socket
import stat
import time
from pathlib import Path
from typing import Final
from urllib.parse import quote

import grpc

SOCKET: Final = "socket"
SERVICE: Final = "espalier.Edge"
ANSWER: Final = "Answer"
TYPE: Final = "message-type"
MAX_PATH_BYTES: Final = 107  # of a Unix socket
PAUSE_SECONDS: Final = 0.1
# Messages hold whole models. A pool of its own: connections must not outlive the run that they lead to.
OPTIONS: Final = (
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.use_local_subchannel_pool", 1),
)


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


def address_of(path: Path) -> str:
    """Return a socket's address as gRPC has it."""
    return f"unix:{quote(os.fsencode(path))}"


def is_served(folder: Path) -> bool:
    """Return whether a run listens in a folder; the socket of one that died refuses."""
    with socket.socket(socket.AF_UNIX) as local:
        try:
            local.connect(str(folder / SOCKET))
        except (FileNotFoundError, ConnectionRefusedError):
            return False
    return True


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
    deadline = time.monotonic() + wait_seconds
    while not (folder.exists() and _is_served_privately(folder)):
        if time.monotonic() >= deadline:
            raise NoEdgeError(f"the edge's run at {folder} is not there")
        time.sleep(PAUSE_SECONDS)
    with grpc.insecure_channel(address_of(folder / SOCKET), OPTIONS) as channel:
        call = channel.unary_unary(f"/{SERVICE}/{ANSWER}")
        try:
            return call(request, timeout=reply_seconds or None, metadata=((TYPE, message_type),))
        except grpc.RpcError as error:
            what = "ended before it answered"
            if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                what = f"did not answer within {reply_seconds:g} s"
            raise NoEdgeError(f"the edge's run at {folder} {what}") from None


def _is_served_privately(folder: Path) -> bool:
    if fault := folder_fault(folder):
        raise PermissionError(f"edge-folder = {str(folder)!r}: allowed is {fault}")
    return is_served(folder)
