"""The edge's end of the local socket."""

import os
import socket
from collections.abc import Callable
from contextlib import suppress
from logging import getLogger
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from pathlib import Path

from espalier.app.errors import bad_value
from espalier.clients.edge_socket import KEY, MAX_BYTES, SOCKET, connection_over, folder_fault

logger = getLogger("espalier")

KEY_BYTES = 32
SILENCE_SECONDS = 30.0  # a gateway that says nothing for so long is let go


class EdgeListener:
    """Listens for gateways in a private folder, which it makes, with a key that is new each time.

    Parameters
    ----------
    folder : Path
        The folder; it holds ``socket`` and ``key``.
    silence_seconds : float (default: 30)
        How long to wait for a gateway that says nothing.

    Raises
    ------
    UserError
        If the folder is open to others, belongs to somebody else, has too long a path, can't be written, or if another
        run listens there.
    """

    def __init__(self, folder: Path, silence_seconds: float = SILENCE_SECONDS) -> None:
        self._path = folder / SOCKET
        self._silence_seconds = silence_seconds
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if fault := folder_fault(folder):
                raise bad_value("deploy.edge-folder", str(folder), fault)
            if _is_served(self._path):
                raise bad_value("deploy.edge-folder", str(folder), "another folder: a run serves an edge there")
            self._key = _new_key(folder / KEY)
            self._socket = _listening_socket(self._path)
        except OSError as error:
            raise bad_value(
                "deploy.edge-folder", str(folder), f"a folder that can be written ({error.strerror})"
            ) from None

    def serve_one(self, answer: Callable[[str, bytes], bytes], timeout_seconds: float) -> bool:
        """Wait for a request and answer it.

        Parameters
        ----------
        answer : Callable[[str, bytes], bytes]
            Called with the message type and the request, returns the reply.
        timeout_seconds : float
            How long to wait for a gateway.

        Returns
        -------
        bool
            Whether one came, with or without a request that could be answered.
        """
        self._socket.settimeout(timeout_seconds)
        try:
            local, _ = self._socket.accept()
        except TimeoutError:
            return False
        with local:
            connection = connection_over(local, self._silence_seconds)
        with connection:
            if self._knows_the_key(connection):
                self._serve(connection, answer)
        return True

    def close(self) -> None:
        """Stop listening."""
        self._path.unlink(missing_ok=True)  # while it is known to be its own
        self._socket.close()

    def __enter__(self) -> "EdgeListener":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _knows_the_key(self, connection: Connection) -> bool:
        try:
            deliver_challenge(connection, self._key)
            answer_challenge(connection, self._key)
        except (AuthenticationError, AssertionError):
            logger.warning("gateway refused: it does not know the key in %s", self._path.parent)
            return False
        except BlockingIOError:
            logger.warning("gateway refused: it said nothing for %g s", self._silence_seconds)
            return False
        except (OSError, EOFError):  # it has gone, or looked whether anybody listens
            return False
        return True

    def _serve(self, connection: Connection, answer: Callable[[str, bytes], bytes]) -> None:
        try:
            message_type = connection.recv_bytes(256).decode(errors="replace")
            request = connection.recv_bytes(MAX_BYTES)
        except (OSError, EOFError) as error:
            logger.warning("gateway left before its request was here (%s)", type(error).__name__)
            return
        reply = answer(message_type, request)
        try:
            connection.send_bytes(reply)
        except OSError:
            logger.warning("gateway left before it had the answer to %s", message_type)


def _is_served(path: Path) -> bool:
    """Return whether somebody listens at a socket; the one of a run that died refuses."""
    with socket.socket(socket.AF_UNIX) as local, suppress(FileNotFoundError, ConnectionRefusedError):
        local.connect(str(path))
        return True
    return False


def _listening_socket(path: Path) -> socket.socket:
    """Return a socket that listens at a path, in place of what was there."""
    new = path.with_name("new")  # whoever finds it under its final name can connect
    new.unlink(missing_ok=True)
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(new))
    listening.listen()
    new.replace(path)
    return listening


def _new_key(path: Path) -> bytes:
    """Write a new key, which nobody else may read, in place of the one that was there."""
    key = os.urandom(KEY_BYTES)
    temporary = path.with_suffix(".part")
    temporary.unlink(missing_ok=True)
    file = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(file, "wb") as stream:
        stream.write(key)
    temporary.replace(path)
    return key
