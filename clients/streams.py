"""The client's end of a stream to its edge: opened by a ticket, over TLS, and how fast the link is."""

import json
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from queue import Empty, SimpleQueue
from threading import Thread

import grpc

from .messages.frames import KEEPALIVE_SECONDS, METHOD, PROBE_BYTES, TOKEN_KEY, StreamTicket

SHORTEST_SECONDS = 1e-6
CONNECT_SECONDS = 30.0
MOST_SECONDS_BETWEEN_TRIES = 2
# An edge that has no room at the moment has read nothing, and the ticket is still good.
TRIES_AGAIN = {
    "name": [{"service": METHOD.split("/")[1]}],
    "retryPolicy": {
        "maxAttempts": 5,
        "initialBackoff": "0.5s",
        "maxBackoff": "5s",
        "backoffMultiplier": 2,
        "retryableStatusCodes": ["RESOURCE_EXHAUSTED"],
    },
}
PROBE_TIMEOUT_SECONDS = 30.0
PROBE_FRAMES = 4  # of 1 MiB
LONGEST_WAIT_SECONDS = 1.0


class Withdrawn(Exception):
    """The edge called the stream off: the round goes on without it."""


class StreamOver(ConnectionError):
    """The edge ended the stream in order."""


class OpenStream:
    """A stream to an edge; every frame sent is answered by one.

    Parameters
    ----------
    channel : grpc.Channel
        Leads to the edge.
    address : str
        Of the edge, for error messages.
    token : str
        The ticket.
    timeout_seconds : float, optional
        Longest wait for an answer; None waits for as long as the stream is there.
    """

    def __init__(self, channel: grpc.Channel, address: str, token: str, timeout_seconds: float | None) -> None:
        self._address = address
        self._timeout_seconds = timeout_seconds
        self._outgoing: SimpleQueue[bytes | None] = SimpleQueue()
        self._incoming: SimpleQueue[bytes | Exception] = SimpleQueue()
        self._call = channel.stream_stream(METHOD)(iter(self._outgoing.get, None), metadata=((TOKEN_KEY, token),))
        self._reader = Thread(target=self._read, name="stream-reader", daemon=True)
        self._reader.start()

    def exchange(self, frame: bytes) -> bytes:
        """Send a frame and return its answer; raises as `receive`."""
        self.send(frame)
        return self.receive()

    def send(self, frame: bytes) -> None:
        """Send a frame; does not wait."""
        self._outgoing.put(frame)

    def receive(self) -> bytes:
        """Return the answer to the frame sent last.

        Raises
        ------
        Withdrawn
            If the edge called the stream off.
        ConnectionError
            If the stream is over (`StreamOver`: in order), or the edge can't be reached or refuses.
        TimeoutError
            If there is no answer in time.
        """
        answer = self._next()
        if isinstance(answer, Exception):
            raise answer
        return answer

    def _next(self) -> bytes | Exception:
        """Wait for what comes in next, in short waits: a signal that another thread got is noticed between them."""
        left = math.inf if self._timeout_seconds is None else self._timeout_seconds
        deadline = time.monotonic() + left
        while left > 0:
            try:
                return self._incoming.get(timeout=min(left, LONGEST_WAIT_SECONDS))
            except Empty:
                left = deadline - time.monotonic()
        return TimeoutError(f"no answer from {self._address} for {self._timeout_seconds:g} s")

    def close(self) -> None:
        """End the stream."""
        self._outgoing.put(None)
        self._call.cancel()
        self._reader.join()

    def _read(self) -> None:
        try:
            for answer in self._call:
                self._incoming.put(answer)
            self._incoming.put(StreamOver(f"{self._address} ended the stream"))
        except grpc.RpcError as error:
            reason = f"{error.code().name}: {error.details()}"
            is_withdrawn = error.code() is grpc.StatusCode.ABORTED
            self._incoming.put(
                Withdrawn(reason) if is_withdrawn else ConnectionError(f"stream to {self._address}: {reason}")
            )


@contextmanager
def open_stream(ticket: StreamTicket, timeout_seconds: float | None) -> Iterator[OpenStream]:
    """Open the stream that a ticket is for, over TLS, and close it in the end.

    Parameters
    ----------
    ticket : StreamTicket
        The ticket.
    timeout_seconds : float, optional
        Longest wait for an answer; None waits for as long as the stream is there.
    """
    options = (
        ("grpc.use_local_subchannel_pool", 1),  # a connection of its own, also beside others in this process
        ("grpc.keepalive_time_ms", 1000 * KEEPALIVE_SECONDS),
        ("grpc.keepalive_timeout_ms", 1000 * KEEPALIVE_SECONDS),
        ("grpc.http2.ping_timeout_ms", 1000 * KEEPALIVE_SECONDS),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.max_receive_message_length", ticket.max_bytes),
        ("grpc.max_send_message_length", -1),
        ("grpc.max_reconnect_backoff_ms", 1000 * MOST_SECONDS_BETWEEN_TRIES),
        ("grpc.service_config", json.dumps({"methodConfig": [TRIES_AGAIN]})),
        ("grpc.per_rpc_retry_buffer_size", ticket.max_bytes),  # the first frame, until it is answered
    )
    credentials = grpc.ssl_channel_credentials(ticket.certificate)
    with grpc.secure_channel(ticket.address, credentials, options) as channel:
        ready = grpc.channel_ready_future(channel)
        try:
            ready.result(timeout=min(CONNECT_SECONDS, timeout_seconds or CONNECT_SECONDS))
        except grpc.FutureTimeoutError:  # the call says why
            ready.cancel()
        stream = OpenStream(channel, ticket.address, ticket.token, timeout_seconds)
        try:
            yield stream
        finally:
            stream.close()


def measure_link(ticket: StreamTicket) -> float:
    """Return the bits per second of an uplink, by frames whose arrival the edge answers with a byte.

    Parameters
    ----------
    ticket : StreamTicket
        Of a probe.

    Raises
    ------
    ConnectionError, TimeoutError
        If the edge can't be reached, refuses, or is silent for 30 s.
    """
    frame = bytes(PROBE_BYTES)
    with open_stream(ticket, PROBE_TIMEOUT_SECONDS) as stream:
        stream.exchange(b"\0")  # the connection takes longer to make than a frame
        started = time.perf_counter()
        for _ in range(PROBE_FRAMES):
            stream.send(frame)
        for _ in range(PROBE_FRAMES):
            stream.receive()
        seconds = time.perf_counter() - started
    return 8 * PROBE_FRAMES * len(frame) / max(seconds, SHORTEST_SECONDS)
