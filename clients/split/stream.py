"""The client's end of a stream: a whole split round inside of one message, and the speed of the link."""

import json
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from queue import Empty, SimpleQueue
from threading import Thread

import grpc
import torch
from flwr.app import Context, Error, Message, MetricRecord
from torch import Tensor

from ..memory import kept
from ..messages.frames import (
    KEEPALIVE_SECONDS,
    METHOD,
    PROBE_BYTES,
    TOKEN_KEY,
    Feedback,
    Format,
    Frame,
    StreamTicket,
    pack,
    unpack_features,
    unpack_gradient,
)
from ..messages.profile import key_of
from ..messages.seconds import ToldSeconds
from ..messages.split import SplitStream
from ..messages.split_names import INDICES, STREAM_WITHDRAWN
from ..task import ClientTask
from .registered_labels import check_registered
from .session import Session, result_reply
from .sessions import Sessions

# Record of a node's state, and its key: what the node knows of its link.
LINK = "link"
LINK_BITS_PER_SECOND = key_of("link_bits_per_second")

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


class Withdrawn(Exception):
    """The edge called the stream off: the round goes on without it."""


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
    timeout_seconds : float
        Longest wait for an answer.
    """

    def __init__(self, channel: grpc.Channel, address: str, token: str, timeout_seconds: float) -> None:
        self._address = address
        self._timeout_seconds = timeout_seconds
        self._outgoing: SimpleQueue[bytes | None] = SimpleQueue()
        self._incoming: SimpleQueue[bytes | Exception] = SimpleQueue()
        self._call = channel.stream_stream(METHOD)(iter(self._outgoing.get, None), metadata=((TOKEN_KEY, token),))
        self._reader = Thread(target=self._read, name="stream-reader", daemon=True)
        self._reader.start()

    def exchange(self, frame: bytes) -> bytes:
        """Send a frame and return its answer.

        Raises
        ------
        Withdrawn
            If the edge called the stream off.
        ConnectionError
            If the stream is over, or the edge can't be reached or refuses.
        TimeoutError
            If there is no answer in time.
        """
        self._outgoing.put(frame)
        try:
            answer = self._incoming.get(timeout=self._timeout_seconds)
        except Empty:
            raise TimeoutError(f"no answer from {self._address} for {self._timeout_seconds:g} s") from None
        if isinstance(answer, Exception):
            raise answer
        return answer

    def close(self) -> None:
        """End the stream."""
        self._outgoing.put(None)
        self._call.cancel()
        self._reader.join()

    def _read(self) -> None:
        try:
            for answer in self._call:
                self._incoming.put(answer)
            self._incoming.put(ConnectionError(f"{self._address} ended the stream"))
        except grpc.RpcError as error:
            reason = f"{error.code().name}: {error.details()}"
            is_withdrawn = error.code() is grpc.StatusCode.ABORTED
            self._incoming.put(
                Withdrawn(reason) if is_withdrawn else ConnectionError(f"stream to {self._address}: {reason}")
            )


@contextmanager
def open_stream(ticket: StreamTicket, timeout_seconds: float) -> Iterator[OpenStream]:
    """Open the stream that a ticket is for, over TLS, and close it in the end.

    Parameters
    ----------
    ticket : StreamTicket
        The ticket.
    timeout_seconds : float
        Longest wait for an answer.
    """
    options = (
        ("grpc.use_local_subchannel_pool", 1),  # a connection of its own, also beside others in this process
        ("grpc.keepalive_time_ms", 1000 * KEEPALIVE_SECONDS),
        ("grpc.keepalive_timeout_ms", 1000 * KEEPALIVE_SECONDS),
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
            ready.result(timeout=min(CONNECT_SECONDS, timeout_seconds))
        except grpc.FutureTimeoutError:  # the call says why
            ready.cancel()
        stream = OpenStream(channel, ticket.address, ticket.token, timeout_seconds)
        try:
            yield stream
        finally:
            stream.close()


def split_stream(message: Message, context: Context, task: ClientTask, sessions: Sessions) -> Message:
    """Answer ``train.split_stream``: train the client block over a stream to the edge, and send it back.

    How fast the link was, both ways together, stays in the node's state: the median over the round's mini-batches.

    Raises
    ------
    ConnectionError, TimeoutError
        If the stream breaks.
    ValueError
        If the edge sends what does not fit.
    """
    instruction = SplitStream.from_content(message.content)
    sessions.drop(context)  # of a round by messages that was broken off
    check_registered(context, task, instruction.begin.labels)
    session, feedback = Session.begin(task, instruction.begin, kept(context)), Feedback()
    links, asked = list[_Link](), time.perf_counter()
    try:
        with open_stream(instruction.ticket, instruction.timeout_seconds) as stream:
            seconds_to_open = time.perf_counter() - asked
            while not session.is_over:
                links.append(_step(session, stream, instruction.payload, feedback))
    except Withdrawn as withdrawn:
        return Message(Error(STREAM_WITHDRAWN, str(withdrawn)), reply_to=message)
    rate = statistics.median(link.bits / max(link.seconds, SHORTEST_SECONDS) for link in links)
    context.state[LINK] = MetricRecord({LINK_BITS_PER_SECOND: rate})
    reply = result_reply(message, context, session)
    held, moving = sum(link.seconds_held for link in links), sum(link.seconds for link in links)
    ToldSeconds(waiting=held, moving=max(moving, 0.0) + seconds_to_open).add_to(reply)
    return reply


def measure_link(ticket: StreamTicket, num_frames: int = 4) -> float:
    """Return the bits per second of a link, those of both directions together, by frames that the edge gives back.

    Parameters
    ----------
    ticket : StreamTicket
        Of a probe.
    num_frames : int (default: 4)
        Frames of 1 MiB to send.

    Raises
    ------
    ConnectionError, TimeoutError
        If the edge can't be reached, refuses, or is silent for 30 s.
    """
    frame = bytes(PROBE_BYTES)
    with open_stream(ticket, PROBE_TIMEOUT_SECONDS) as stream:
        stream.exchange(b"\0")  # the connection takes longer to make than a frame
        started = time.perf_counter()
        for _ in range(num_frames):
            stream.exchange(frame)
        seconds = time.perf_counter() - started
    return 2 * 8 * num_frames * len(frame) / max(seconds, SHORTEST_SECONDS)


def _step(session: Session, stream: OpenStream, payload: str, feedback: Feedback) -> "_Link":
    """Make a split step and return what carried its frames."""
    batch = session.forward()
    form, link = Format(payload, batch.values.dtype), _Link(stream)
    labels = None if batch.numbers is None else torch.from_numpy(batch.numbers)
    # Where the labels travel, or are kept, the edge does not know the samples, and neither end feeds back.
    values = feedback.added(form, batch.values, batch.numbers if batch.label_policy == INDICES else None)
    sent = pack(form, values, step=batch.step, num_steps=batch.num_steps, labels=labels)
    if session.awaits_features:
        as_features = partial(unpack_features, form, step=batch.step, num_samples=len(batch.values))
        sent = pack(form, session.at_tail(link.exchange(sent, as_features)), step=batch.step)
    as_gradient = partial(unpack_gradient, form, step=batch.step, shape=tuple(batch.values.shape))
    session.backward(link.exchange(sent, as_gradient))
    return link


class _Link:
    """Exchanges frames, and adds up their bits, how long they were on the way, and how long the edge held them."""

    def __init__(self, stream: OpenStream) -> None:
        self.bits, self.seconds, self.seconds_held = 0, 0.0, 0.0
        self._stream = stream

    def exchange(self, sent: bytes, read: Callable[[bytes], Frame]) -> Tensor:
        """Send a frame and return the tensor of its answer."""
        started = time.perf_counter()
        received = self._stream.exchange(sent)
        seconds = time.perf_counter() - started
        frame = read(received)
        self.bits += 8 * (len(sent) + len(received))
        self.seconds += seconds - frame.seconds_held
        self.seconds_held += frame.seconds_held
        return frame.values
