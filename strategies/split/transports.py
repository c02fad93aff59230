"""How the mini-batches of split training travel: by Flower messages, or through streams."""

import math
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from logging import getLogger
from threading import Condition, Thread
from typing import Protocol

import grpc
import numpy as np
import torch
from flwr.app import Message
from torch import Tensor

from espalier.clients.messages import Instruction
from espalier.clients.messages.frames import Feedback, Format, as_received, pack, unpack_activations, unpack_gradient
from espalier.clients.messages.split import (
    ACTIVATIONS,
    CUT_GRADIENT,
    FEATURE_GRADIENT,
    FEATURES,
    INDICES,
    STREAM_WITHDRAWN,
    Activations,
    FeatureGradient,
    SplitEnd,
    SplitResult,
    SplitStep,
    SplitStream,
    SplitTail,
)

from ..exchange import LATE, Exchanges, Losable
from ..screening import Failure, content_of, one_line, reason_of
from .loop import Answer, Outcome, SplitLoop, Terms, longest_sample
from .serving import MiniBatch, Serve, Steps
from .stream import WITHDRAWN, Connection, StreamEnded, StreamServer, Ticket

logger = getLogger("espalier")

FIRST_ROUNDS_BY_MESSAGES = 5  # until streams are tried again; each time twice as many
LAST_WORDS_SECONDS = 5.0  # a client whose process died, or froze, would be waited for much longer

# Called with ("downlink" | "uplink", kind, bytes) for what a frame holds, from threads.
OnBytes = Callable[[str, str, int], None]


class Transport(Protocol):
    """Carries mini-batches between clients and their edge."""

    def train(self, groups: Sequence[Sequence[int]], terms: Terms, serve: Serve) -> Exchanges[Outcome]:
        """Train clients for one round; clients of one group advance one mini-batch of each at a time."""


class MessageTransport:
    """A message per mini-batch, all groups in one lock step."""

    def train(self, groups: Sequence[Sequence[int]], terms: Terms, serve: Serve) -> Exchanges[Outcome]:
        """Train all clients in one lock step."""
        return lock_step([node_id for group in groups for node_id in group], terms, serve)


def lock_step(clients: Sequence[int], terms: Terms, serve: Serve) -> Exchanges[Outcome]:
    """Carry the loop of some clients by messages: S mini-batches are S + 1 exchanges.

    With tails they are 2 S + 1, or S (n + 1) + 1 where n clients have their turns at a shared server block.
    """
    loop = SplitLoop(clients, terms, serve)
    messages = {n: terms.begin(n).to_message(n) for n in clients}
    while messages:
        replies = yield list(messages.values())
        for node_id, reply in zip(messages, replies, strict=True):
            try:
                if node_id in loop.trained:
                    loop.conclude(node_id, SplitResult.from_content(content_of(reply)))
                elif loop.awaits_gradients:
                    gradient = FeatureGradient.from_content(content_of(reply), step=loop.step)
                    loop.receive_gradient(node_id, gradient.values)
                else:
                    policy = terms.label_policy(node_id)
                    sent = Activations.from_content(content_of(reply), step=loop.step, label_policy=policy)
                    loop.receive(node_id, sent.values, sent.numbers, sent.num_steps)
            except (ValueError, KeyError, TypeError) as error:
                loop.leave(node_id, error)
        messages = {n: instruction_of(n, answer, terms).to_message(n) for n, answer in loop.answers().items()}
    return loop.outcome()


def instruction_of(node_id: int, answer: Answer, terms: Terms) -> Instruction:
    """Return what brings a client its answer."""
    if answer.are_features:
        return SplitTail(terms.server_round, answer.step, answer.values)
    kind = SplitEnd if answer.is_last else SplitStep
    return kind(terms.server_round, answer.step, terms.label_policy(node_id), answer.values)


class StreamTransport:
    """One message per client and round, which opens a stream for all of its mini-batches.

    A group of several clients needs all of their streams at the same time. Where fewer clients can run than it has, as
    in simulations, it trains by messages instead: first after `patience_seconds`, then at once for some rounds, until
    streams are tried again. What is computed is the same.

    Parameters
    ----------
    server : StreamServer
        Accepts the streams; it may serve other edges too.
    payload : str (default: "float32")
        How tensors are written, see `espalier.clients.messages.frames.Format`.
    timeout_seconds : float (default: 60.0)
        How long a client's next mini-batch is waited for.
    patience_seconds : float (default: 30.0)
        How long a group waits for all of its streams once it has one.
    on_bytes : callable, optional (default: None)
        Called with (direction, kind, bytes) for the tensors and the labels of every frame, from threads.
    """

    def __init__(
        self,
        server: StreamServer,
        *,
        payload: str = "float32",
        timeout_seconds: float = 60.0,
        patience_seconds: float = 30.0,
        on_bytes: OnBytes | None = None,
    ) -> None:
        self.server = server
        self.payload = payload
        self.timeout_seconds = timeout_seconds
        self.patience_seconds = patience_seconds
        self.on_bytes = on_bytes or (lambda *what: None)
        self._rounds_by_messages = 0
        self._next_rounds_by_messages = FIRST_ROUNDS_BY_MESSAGES

    def train(self, groups: Sequence[Sequence[int]], terms: Terms, serve: Serve) -> Exchanges[Outcome]:
        """Train all groups in one exchange, each served by a thread of its own."""
        outcome = Outcome()
        by_messages = [list(group) for group in groups if len(group) > 1 and self._rounds_by_messages > 0]
        self._rounds_by_messages = max(self._rounds_by_messages - 1, 0)
        by_stream = [list(group) for group in groups if list(group) not in by_messages]
        while by_stream:
            crowded, by_stream = yield from self._stream(by_stream, terms, serve, outcome)
            by_messages += crowded
        for group in by_messages:
            outcome.add((yield from lock_step(group, terms, _as_through_streams(serve, self.payload, terms.dtype))))
        outcome.sort([node_id for group in groups for node_id in group])
        return outcome

    def _stream(
        self, groups: Sequence[Sequence[int]], terms: Terms, serve: Serve, outcome: Outcome
    ) -> Exchanges[tuple[list[list[int]], list[list[int]]]]:
        """Train groups through streams; return two lists of those that could not be, of which nothing was served.

        The first list has groups with too few workers for all of their clients. The second has groups in which a client
        has failed by now, without that client.
        """
        form = Format(self.payload, terms.dtype)
        lanes = [_Lane(group, terms, serve, form, self) for group in groups]
        messages = [message for lane in lanes for message in lane.messages()]
        try:
            losable = Losable(messages, lambda node_id: any(lane.is_lost(node_id) for lane in lanes))
            replies = dict(zip((m.metadata.dst_node_id for m in messages), (yield losable), strict=True))
        finally:
            for lane in lanes:
                lane.close()
        crowded, again = [], []
        for lane in lanes:
            lane.raise_fault()
            if lane.gave_way:
                failed = {n: replies[n].error for n in lane.clients if _has_failed(replies[n])}
                outcome.failures += [Failure(n, reason_of(error)) for n, error in failed.items()]
                if failed:
                    again += [rest] if (rest := [n for n in lane.clients if n not in failed]) else []
                else:
                    crowded.append(lane.clients)
                    self._note_shortage(lane)
                continue
            for node_id in lane.clients:
                lane.conclude(node_id, replies[node_id])
            outcome.add(lane.loop.outcome())
        return crowded, again

    def _note_shortage(self, lane: "_Lane") -> None:
        """Train by messages for some rounds if the missing clients came when others had gone, and are not dead."""
        if not self._rounds_by_messages and lane.came_late():
            self._rounds_by_messages = self._next_rounds_by_messages
            self._next_rounds_by_messages *= 2
            logger.warning(
                "only %d of %d clients could open their streams at the same time (waited %g s): "
                "this edge goes on by messages and tries again after %d rounds",
                lane.num_opened,
                len(lane.clients),
                self.patience_seconds,
                self._rounds_by_messages,
            )


def _as_through_streams(serve: Serve, payload: str, dtype: torch.dtype) -> Serve:
    """Return what serves mini-batches that come by messages as if they, and the answers, came through streams."""
    if payload == "float32":
        return serve
    form, up, down = Format(payload, dtype), defaultdict[int, Feedback](Feedback), defaultdict[int, Feedback](Feedback)

    def rounded(tensor: Tensor) -> Tensor:
        return as_received(form, tensor.cpu())

    def fed_back(feedback: dict[int, Feedback], node_id: int, values: Tensor, samples: np.ndarray | None) -> Tensor:
        return as_received(form, feedback[node_id].added(form, values.cpu(), samples))

    def through_stream(batch: MiniBatch) -> MiniBatch:
        values = fed_back(up, batch.node_id, batch.activations, batch.samples)
        return replace(batch, activations=values, length=longest_sample(values) if batch.length else 0.0)

    def serve_rounded(batches: list[MiniBatch]) -> Steps:
        samples = {batch.node_id: batch.samples for batch in batches}
        steps = serve([through_stream(batch) for batch in batches])
        try:
            features = next(steps)
            while True:
                gradients = yield {n: rounded(values) for n, values in features.items()}
                features = steps.send({n: rounded(values) for n, values in gradients.items()})
        except StopIteration as over:
            return {
                n: g if isinstance(g, ValueError) else fed_back(down, n, g, samples[n]) for n, g in over.value.items()
            }

    return serve_rounded


def _has_failed(reply: Message) -> bool:
    """Return whether a client failed, other than by a stream that the edge called off."""
    return reply.has_error() and reply.error.code != STREAM_WITHDRAWN


class _BrokenOff(ValueError):
    """A stream that ended early; the client's own words may say more."""


class _Lane:
    """Carries the loop of clients that advance together by their streams, in a thread that the first stream starts."""

    def __init__(
        self, clients: Sequence[int], terms: Terms, serve: Serve, form: Format, transport: StreamTransport
    ) -> None:
        self.clients = list(clients)
        self.loop = SplitLoop(clients, terms, serve)  # the thread's own until it is over
        self.gave_way = False
        self._terms = terms
        self._form = form
        self._transport = transport
        self._tickets: dict[int, Ticket] = {}
        self._connections: dict[int, Connection] = {}
        self._left_at: dict[int, float] = {}
        self._samples: dict[int, np.ndarray | None] = {}  # of the last mini-batch
        self._feedback = {node_id: Feedback() for node_id in clients}
        self._changed = Condition()
        self._is_closed = False
        self._thread: Thread | None = None
        self._fault: BaseException | None = None

    @property
    def num_opened(self) -> int:
        """Number of clients that opened their streams."""
        return len(self._connections)

    def messages(self) -> list[Message]:
        """Return the clients' instructions, with a ticket each."""
        patience = self._transport.patience_seconds if len(self.clients) > 1 else 0.0
        # Beside its own mini-batch a client waits for those of others, and for what the edge computes.
        # With a tail it waits for those of others in turn, at a shared server block.
        turns = len(self.clients) if self._terms.with_tail else 1
        timeout_seconds = patience + (3 + turns) * self._transport.timeout_seconds
        self._tickets = {n: self._transport.server.expect(partial(self._opened, n)) for n in self.clients}
        return [
            SplitStream(self._terms.begin(n), ticket.told, self._form.payload, timeout_seconds).to_message(n)
            for n, ticket in self._tickets.items()
        ]

    def close(self) -> None:
        """End what is not over and wait for the thread, which waits for nobody any more."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        for ticket in self._tickets.values():
            ticket.forget()
        if self._thread is not None:
            self._thread.join()

    def raise_fault(self) -> None:
        """Raise what stopped the thread, if it was not a client."""
        if self._fault is not None:
            raise self._fault

    def conclude(self, node_id: int, reply: Message) -> None:
        """Take in a client's reply: its result, or its own words where its stream broke or was never opened."""
        try:
            if node_id in self.loop.left:
                raise self.loop.left[node_id]
            if node_id not in self.loop.trained:
                raise _BrokenOff("it did not train through a stream")
            self.loop.conclude(node_id, SplitResult.from_content(content_of(reply)))
        except (ValueError, KeyError, TypeError) as error:
            if isinstance(error, _BrokenOff) and reply.has_error() and reply.error.code != LATE:
                error = ValueError(f"{error} ({reason_of(reply.error)})")
            self.loop.leave(node_id, error)

    def is_lost(self, node_id: int) -> bool:
        """Return whether a client left the stream and has had time to say why."""
        return time.monotonic() - self._left_at.get(node_id, math.inf) > LAST_WORDS_SECONDS

    def came_late(self) -> bool:
        """Return whether a client presented its ticket when the others had given up waiting."""
        return any(ticket.came_late for ticket in self._tickets.values())

    def _opened(self, node_id: int, connection: Connection) -> None:
        with self._changed:
            if self._is_closed or self.gave_way:
                self._tickets[node_id].came_late = self.gave_way
                connection.end(*WITHDRAWN)
                return
            self._connections[node_id] = connection
            if self._thread is None:
                self._thread = Thread(target=self._run, name="split-lane", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def _run(self) -> None:
        try:
            if self._all_opened():
                self._train()
        except BaseException as fault:  # raised again where the round is run
            self._fault = fault
            for connection in self._connections.values():
                connection.cancel()

    def _all_opened(self) -> bool:
        """Wait for all streams; without them, end those that there are."""
        with self._changed:
            self._changed.wait_for(
                lambda: len(self._connections) == len(self.clients) or self._is_closed,
                self._transport.patience_seconds,
            )
            if len(self._connections) == len(self.clients) or self._is_closed:
                return not self._is_closed
            self.gave_way = True
            for ticket in self._tickets.values():
                ticket.withdraw()
            for connection in self._connections.values():
                connection.end(*WITHDRAWN)
            return False

    def _train(self) -> None:
        """Carry frames until all clients have trained or left."""
        loop = self.loop
        arrived: dict[int, float] = {}
        while due := loop.due:
            deadline = time.monotonic() + self._transport.timeout_seconds
            for node_id in due:
                try:
                    data, arrived[node_id] = self._connections[node_id].receive(deadline)
                    self._take_in(node_id, data)
                except StreamEnded as ended:
                    loop.leave(node_id, _BrokenOff(f"{ended} (mini-batch {loop.step})"))
                except ValueError as error:
                    loop.leave(node_id, error)
            for node_id, answer in loop.answers().items():
                try:
                    self._send(node_id, answer, arrived[node_id])
                except ValueError as error:
                    loop.leave(node_id, error)
            for node_id in [n for n in loop.left if n not in self._left_at]:
                self._end(node_id, loop.left[node_id])

    def _take_in(self, node_id: int, data: bytes) -> None:
        step = self.loop.step
        if self.loop.awaits_gradients:
            frame = unpack_gradient(self._form, data, step=step, shape=self.loop.feature_shape(node_id))
            self.loop.receive_gradient(node_id, frame.values)
            self._transport.on_bytes("uplink", FEATURE_GRADIENT, frame.tensor_bytes)
            return
        has_labels = node_id not in self._terms.with_tail
        sample_shape = self._terms.cut_shapes[node_id]
        frame = unpack_activations(self._form, data, step=step, sample_shape=sample_shape, has_labels=has_labels)
        self.loop.receive(node_id, frame.values, frame.labels if has_labels else None, frame.num_steps)
        self._samples[node_id] = frame.labels if self._terms.label_policy(node_id) == INDICES else None
        self._transport.on_bytes("uplink", ACTIVATIONS, frame.tensor_bytes)
        if has_labels:
            self._transport.on_bytes("uplink", self._terms.labels.policy, 4 * len(frame.labels))

    def _send(self, node_id: int, answer: Answer, arrived: float) -> None:
        values = answer.values
        if not answer.are_features:
            values = self._feedback[node_id].added(self._form, values, self._samples[node_id])
        frame = pack(self._form, values, step=answer.step, seconds_held=time.monotonic() - arrived)
        self._connections[node_id].send(frame)
        tensor_bytes = self._form.tensor_bytes(len(values), values[0].numel())
        self._transport.on_bytes("downlink", FEATURES if answer.are_features else CUT_GRADIENT, tensor_bytes)

    def _end(self, node_id: int, reason: Exception) -> None:
        """End the stream of a client that has left."""
        self._left_at[node_id] = time.monotonic()
        connection = self._connections[node_id]
        if isinstance(reason, _BrokenOff):
            connection.cancel()
        else:
            connection.end(grpc.StatusCode.INVALID_ARGUMENT, one_line(reason))
