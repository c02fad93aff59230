"""The edge's end of the streams that carry mini-batches, or all messages: who may open one, and what goes in and out.

It knows nothing of models. A thread of the caller's talks to each stream through a `Connection`.
"""

import secrets
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from logging import getLogger
from queue import Empty, SimpleQueue
from threading import BoundedSemaphore, Lock
from typing import NoReturn, Protocol

import grpc

from espalier.clients.messages.frames import KEEPALIVE_SECONDS, METHOD, PROBE_BYTES, TOKEN_KEY, StreamTicket

logger = getLogger("espalier")

SPARE_STREAMS = 8  # for those that are refused, and for probes
REFUSALS_AT_ONCE = 4  # those beyond get no reason, and no thread
CONNECTIONS_PER_STREAM = 4  # strangers may hold some, until they have to show who they are
LEAST_CONNECTIONS = 256
PROBE_FRAMES = 64
SECONDS_BETWEEN_LINES = 10.0
# How a stream ends that the edge called off; to the client it is no failure.
WITHDRAWN = (grpc.StatusCode.ABORTED, "the edge no longer waits for this stream")
# A dead peer is noticed after two of these; one without a stream is not kept.
OPTIONS = (
    ("grpc.so_reuseport", 0),  # a port that is taken is an error
    ("grpc.keepalive_time_ms", 1000 * KEEPALIVE_SECONDS),
    ("grpc.keepalive_timeout_ms", 1000 * KEEPALIVE_SECONDS),
    ("grpc.http2.ping_timeout_ms", 1000 * KEEPALIVE_SECONDS),  # of one that is stopped, and whose system answers
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 500 * KEEPALIVE_SECONDS),
    # No more than this comes in from a peer before its token is known; a smaller window costs distant ones round trips.
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", 2**19),
    ("grpc.max_connection_idle_ms", 1000 * KEEPALIVE_SECONDS),
    ("grpc.max_concurrent_streams", 1),  # in a connection: each client has one of its own
    # From then on it takes no new stream: nobody holds one by asking again and again. The stream in it goes on.
    ("grpc.max_connection_age_ms", 3000 * KEEPALIVE_SECONDS),
    ("grpc.server_handshake_timeout_ms", 1000 * KEEPALIVE_SECONDS),
)


ServeStream = Callable[[Iterator[bytes], grpc.ServicerContext], Iterator[bytes]]


class StreamEnded(Exception):
    """A stream that has no more frames, or none in time; its text says which, in one line."""


@dataclass(frozen=True)
class End:
    """The end of a stream, as the edge decides it."""

    code: grpc.StatusCode
    reason: str


class Served(Protocol):
    """What a client's open stream leads to."""

    def exchange(self, frame: bytes) -> bytes | End | None:
        """Take a frame in and return what answers it; None ends the stream in order.

        It is called in the stream's own thread, and may wait.
        """

    def closed(self) -> None:
        """Wake up who waits in `exchange`: the stream is over. It may be called more than once."""


class Connection:
    """A client's open stream: frames come in, answers go out, in strict alternation.

    Parameters
    ----------
    cancel : Callable[[], None]
        Breaks the stream off.
    """

    def __init__(self, cancel: Callable[[], None]) -> None:
        self.cancel = cancel
        self._frames: SimpleQueue[tuple[bytes, float] | None] = SimpleQueue()
        self._answers: SimpleQueue[bytes | End] = SimpleQueue()

    def receive(self, deadline: float) -> tuple[bytes, float]:
        """Return the client's next frame and when it arrived, on the monotonic clock, as `deadline` is.

        Raises
        ------
        StreamEnded
            If the stream is over or nothing has come by the deadline.
        """
        try:
            received = self._frames.get(timeout=max(deadline - time.monotonic(), 0))
        except Empty:
            raise StreamEnded("nothing came in time") from None
        if received is None:
            self._frames.put(None)
            raise StreamEnded("its stream broke, or it sent too large a frame")
        return received

    def send(self, frame: bytes) -> None:
        """Answer the frame received last; does not wait until the client has read it."""
        self._answers.put(frame)

    def end(self, code: grpc.StatusCode, reason: str) -> None:
        """End the stream with a status, instead of the next answer."""
        self._answers.put(End(code, reason))

    def exchange(self, frame: bytes) -> bytes | End:
        """Hand a frame in and return what answers it; for the thread that reads from the network."""
        self._frames.put((frame, time.monotonic()))
        return self._answers.get()

    def closed(self) -> None:
        """Wake up both sides: the stream is over."""
        self._frames.put(None)
        self._answers.put(End(grpc.StatusCode.CANCELLED, "the stream is over"))


class Ticket:
    """The right to open one stream, once.

    Attributes
    ----------
    told : StreamTicket
        What the client needs to know.
    came_late : bool
        Whether somebody presented it after it was withdrawn.
    """

    def __init__(self, told: StreamTicket, serve: ServeStream | None, forget: Callable[[], object]) -> None:
        self.told = told
        self.came_late = False
        self.serve = serve
        self._forget = forget
        self._cancel: Callable[[], None] | None = None
        self._is_forgotten = False
        self._lock = Lock()

    def begin(self, cancel: Callable[[], None]) -> bool:
        """Note how to break off the stream that it opened; False if it is forgotten already."""
        with self._lock:
            self._cancel = cancel
            return not self._is_forgotten

    def withdraw(self) -> None:
        """Refuse who presents it from now on."""
        self.serve = None

    def forget(self) -> None:
        """Know it no more, and break off its stream: a client may keep one open that has nothing to do any more."""
        self._forget()
        with self._lock:
            self._is_forgotten = True
            cancel = self._cancel
        if cancel is not None:
            cancel()


class _Door(grpc.GenericRpcHandler):  # type: ignore[misc]  # grpc has no types
    """Says what becomes of a stream that is asked for; gRPC calls it before it gives the stream a thread.

    Parameters
    ----------
    admit : Callable[[str], ServeStream | None]
        Returns what serves the holder of a token, None for nothing.
    """

    def __init__(self, admit: Callable[[str], ServeStream | None]) -> None:
        self._admit = admit

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        """Return what handles a call."""
        if handler_call_details.method != METHOD:
            return None
        token = dict(handler_call_details.invocation_metadata).get(TOKEN_KEY, "")
        serve = self._admit(token)
        return None if serve is None else grpc.stream_stream_rpc_method_handler(serve)


class StreamServer:
    """Accepts the streams of clients that hold a ticket; the others are refused before a byte of theirs is read.

    A ticket's holder always gets a thread, at once or when one is free: those without one never wait for any. One
    serves all edges of a process. A context manager: streams are accepted inside.

    Parameters
    ----------
    private_key, certificate : bytes
        PEM; the certificate, or the chain, that clients are told to trust, good for `address`.
    address : str
        Name or address under which clients reach this server.
    listen_on : str (default: "127.0.0.1")
        Address of the network interface, ``"[::]"`` for all.
    port : int (default: 0)
        Port; 0 takes a free one.
    max_frame_bytes : int
        The largest frame of any client; larger ones, if they are larger than the probe's 1 MiB too, end the stream.
    max_streams : int
        Clients that may have a stream at the same time.
    max_message_bytes : int (default: 0)
        The largest frame in a stream of those that stay, where there are any.

    Raises
    ------
    RuntimeError
        If it can't listen there, or key and certificate are no pair.
    """

    def __init__(
        self,
        private_key: bytes,
        certificate: bytes,
        *,
        address: str,
        listen_on: str = "127.0.0.1",
        port: int = 0,
        max_frame_bytes: int,
        max_streams: int,
        max_message_bytes: int = 0,
    ) -> None:
        self._certificate = certificate
        self._max_bytes = max(max_frame_bytes, PROBE_BYTES)
        self.max_message_bytes = max_message_bytes
        self.max_streams = max_streams
        self._tickets: dict[bytes, Ticket] = {}
        self._lock = Lock()
        self._refused, self._quiet_until = 0, 0.0
        self._refusals = BoundedSemaphore(REFUSALS_AT_ONCE)
        most = max_streams + SPARE_STREAMS
        self._pool = ThreadPoolExecutor(most, thread_name_prefix="stream")
        self._server = grpc.server(
            self._pool,
            handlers=[_Door(self._admit)],
            options=[
                *OPTIONS,
                ("grpc.max_receive_message_length", max(self._max_bytes, max_message_bytes)),
                ("grpc.max_send_message_length", -1),
                ("grpc.max_allowed_incoming_connections", max(CONNECTIONS_PER_STREAM * most, LEAST_CONNECTIONS)),
            ],
        )
        credentials = grpc.ssl_server_credentials([(private_key, certificate)])
        self.port = self._server.add_secure_port(f"{listen_on}:{port}", credentials)
        self.address = f"[{address}]:{self.port}" if ":" in address else f"{address}:{self.port}"

    def __enter__(self) -> "StreamServer":
        self._server.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._server.stop(grace=None).wait()
        self._pool.shutdown()

    def expect(self, opened: Callable[[Connection], None]) -> Ticket:
        """Return a ticket for one stream of mini-batches; `opened` is told, in a thread of the stream's own."""

        def make(cancel: Callable[[], None]) -> Connection:
            connection = Connection(cancel)
            opened(connection)
            return connection

        return self.expect_served(make, self._max_bytes)

    def expect_served(self, make: Callable[[Callable[[], None]], Served], max_bytes: int) -> Ticket:
        """Return a ticket for one stream.

        Parameters
        ----------
        make : Callable[[Callable[[], None]], Served]
            Called when it is open, in a thread of the stream's own, with what breaks it off; returns what it leads to.
        max_bytes : int
            A larger frame of the client's breaks the stream off. What the edge sends is no larger.
        """

        def serve(requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
            served = make(context.cancel)
            if not context.add_callback(served.closed):  # it is over already
                served.closed()
                return
            for frame in requests:
                if len(frame) > max_bytes:
                    context.cancel()
                    return
                taken = [frame]
                del frame  # a model perhaps, which nothing here is to keep while the next message is waited for
                answer = served.exchange(taken.pop())
                if isinstance(answer, End):
                    _abort(context, answer.code, answer.reason)
                if answer is None:
                    return
                yield answer
                del answer

        return self._ticket(serve, max_bytes)

    def expect_probe(self) -> Ticket:
        """Return a ticket for one stream that answers a frame with a byte, by which a client measures its uplink."""

        def acknowledge(requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
            for frame, _ in zip(requests, range(PROBE_FRAMES), strict=False):
                if len(frame) > self._max_bytes:
                    context.cancel()
                    return
                yield frame[:1]  # no more goes down, whose rate is another

        return self._ticket(acknowledge, self._max_bytes)

    def _ticket(self, serve: ServeStream, max_bytes: int) -> Ticket:
        token = secrets.token_urlsafe(32)
        digest = _digest(token)
        told = StreamTicket(self.address, self._certificate, token, max_bytes)
        ticket = Ticket(told, serve, lambda: self._redeem(digest))
        with self._lock:
            self._tickets[digest] = ticket
        return ticket

    def _redeem(self, digest: bytes) -> Ticket | None:
        with self._lock:
            return self._tickets.pop(digest, None)

    def _admit(self, token: str | bytes) -> ServeStream | None:
        """Return what serves the holder of a token: its ticket's stream, or a refusal; None for one too many of these.

        It is called by the one thread that takes in all streams, and must not wait.
        """
        # Looked up by its digest, whose time says nothing about tokens that are known; used up by that.
        ticket = self._redeem(_digest(token))
        if ticket is not None:
            return partial(_begin, ticket)
        return self._refuse if self._refusals.acquire(blocking=False) else None

    def _refuse(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> NoReturn:
        try:
            self._log_refusal(context.peer(), "unknown token")
            _abort(context, grpc.StatusCode.UNAUTHENTICATED, "unknown token")
        finally:
            self._refusals.release()

    def _log_refusal(self, peer: str, reason: str) -> None:
        with self._lock:
            self._refused += 1
            count, is_quiet = self._refused, time.monotonic() < self._quiet_until
            if not is_quiet:
                self._refused, self._quiet_until = 0, time.monotonic() + SECONDS_BETWEEN_LINES
        if not is_quiet:  # a stranger must not fill the log
            others = f" ({count - 1} others since the last such line)" if count > 1 else ""
            logger.warning("stream from %s refused: %s%s", peer, reason, others)


def _begin(ticket: Ticket, requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
    """Serve the holder of a ticket, in a thread of the stream's own."""
    if (serve := ticket.serve) is None:
        ticket.came_late = True
    if serve is None or not ticket.begin(context.cancel):
        _abort(context, *WITHDRAWN)
    return serve(requests, context)


def _abort(context: grpc.ServicerContext, code: grpc.StatusCode, reason: str) -> NoReturn:
    context.abort(code, reason)
    raise AssertionError  # abort raises


def _digest(token: str | bytes) -> bytes:
    return sha256(token if isinstance(token, bytes) else token.encode()).digest()
