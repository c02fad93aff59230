"""A link with a stated delay and rate, on loopback: an HTTP proxy that gRPC finds in ``grpc_proxy``."""

import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from queue import SimpleQueue
from threading import Thread

CHUNK_BYTES = 2**14
PROXY = "grpc_proxy"


@dataclass(frozen=True)
class Link:
    """What a link does to bytes; both directions at once.

    Parameters
    ----------
    delay_seconds : float
        From one end to the other.
    bits_per_second : float
        In each direction.
    """

    delay_seconds: float
    bits_per_second: float


@contextmanager
def shaped(link: Link) -> Iterator[None]:
    """Let the streams that this process opens inside go over a link."""
    listener = socket.create_server(("127.0.0.1", 0))
    Thread(target=_accept, args=(listener, link), daemon=True).start()
    before = os.environ.get(PROXY)
    os.environ[PROXY] = f"http://127.0.0.1:{listener.getsockname()[1]}"
    try:
        yield
    finally:
        del os.environ[PROXY]
        if before is not None:
            os.environ[PROXY] = before
        listener.close()


def _accept(listener: socket.socket, link: Link) -> None:
    with suppress(OSError):  # it was closed
        while True:
            client, _ = listener.accept()
            Thread(target=_serve, args=(client, link), daemon=True).start()


def _serve(client: socket.socket, link: Link) -> None:
    head = b""
    while b"\r\n\r\n" not in head:
        head += client.recv(CHUNK_BYTES)
    host, port = head.split()[1].decode().rsplit(":", 1)
    server = socket.create_connection((host, int(port)))
    client.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
    for one, other in ((client, server), (server, client)):
        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        due: SimpleQueue[tuple[float, bytes]] = SimpleQueue()
        Thread(target=_read, args=(one, due, link), daemon=True).start()
        Thread(target=_write, args=(other, due), daemon=True).start()


def _read(source: socket.socket, due: SimpleQueue[tuple[float, bytes]], link: Link) -> None:
    """Say of all that comes when it arrives at the other end; nothing, at the end."""
    sent, chunk = time.monotonic(), b"-"
    while chunk:
        try:
            chunk = source.recv(CHUNK_BYTES)
        except OSError:
            chunk = b""
        sent = max(sent, time.monotonic()) + 8 * len(chunk) / link.bits_per_second
        due.put((sent + link.delay_seconds, chunk))


def _write(target: socket.socket, due: SimpleQueue[tuple[float, bytes]]) -> None:
    with suppress(OSError), target:
        while (arriving := due.get())[1]:
            time.sleep(max(arriving[0] - time.monotonic(), 0))
            target.sendall(arriving[1])
