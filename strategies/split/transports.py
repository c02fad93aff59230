"""How the mini-batches of split training travel: by Flower messages, or through streams."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from logging import getLogger
from threading import Condition, Thread
from typing import Protocol

import grpc
import torch
from flwr.app import Message
from torch import Tensor

from espalier.clients.messages.frames import Format, as_received, pack, unpack_activations
from espalier.clients.messages.split import ACTIVATIONS, CUT_GRADIENT, STREAM_WITHDRAWN, SplitStream

from ..exchange import LATE, Exchanges, Losable
from ..screening import Failure, one_line
from .conversation import MiniBatch, Outcome, Serve, Terms, lock_step
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
        """Train groups through streams; return those that could not be, of which nothing was served.

        The first have too few workers for all of their clients, the others lack somebody who has failed by now, and are
        returned without.
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
                outcome.failures += [Failure(n, one_line(ValueError(error.reason))) for n, error in failed.items()]
                if failed:
                    again += [rest] if (rest := [n for n in lane.clients if n not in failed]) else []
                else:
                    crowded.append(lane.clients)
                    self._note_shortage(lane)
                continue
            for node_id in lane.clients:
                try:
                    lane.check(node_id)
                    outcome.conclude(node_id, replies[node_id], terms)
                except (ValueError, KeyError, TypeError) as error:
                    reason = one_line(error)
                    answer = replies[node_id]
                    if isinstance(error, _BrokenOff) and answer.has_error() and answer.error.code != LATE:
                        reason += f" ({one_line(ValueError(answer.error.reason))})"
                    outcome.failures.append(Failure(node_id, reason))
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
    form = Format(payload, dtype)

    def serve_rounded(batches: list[MiniBatch]) -> dict[int, Tensor | ValueError]:
        gradients = serve([replace(batch, activations=as_received(form, batch.activations)) for batch in batches])
        return {n: g if isinstance(g, ValueError) else as_received(form, g.cpu()) for n, g in gradients.items()}

    return serve_rounded


def _has_failed(reply: Message) -> bool:
    """Return whether a client failed, other than by a stream that the edge called off."""
    return reply.has_error() and reply.error.code != STREAM_WITHDRAWN


class _BrokenOff(ValueError):
    """A stream that ended early; the client's own words may say more."""


class _Lane:
    """Clients that advance together, their streams, and the thread that serves them.

    The thread starts with the first stream. It alone touches `steps_left` and calls `serve`.
    """

    def __init__(
        self, clients: Sequence[int], terms: Terms, serve: Serve, form: Format, transport: StreamTransport
    ) -> None:
        self.clients = list(clients)
        self.gave_way = False
        self._terms = terms
        self._serve = serve
        self._form = form
        self._transport = transport
        self._tickets: dict[int, Ticket] = {}
        self._connections: dict[int, Connection] = {}
        self._reasons: dict[int, ValueError] = {}
        self._left_at: dict[int, float] = {}
        self._finished: set[int] = set()
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
        timeout_seconds = patience + 4 * self._transport.timeout_seconds
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

    def check(self, node_id: int) -> None:
        """Raise ValueError for a client that left the stream, or never opened it and does not say why."""
        if node_id in self._reasons:
            raise self._reasons[node_id]
        if node_id not in self._finished:
            raise _BrokenOff("it did not train through a stream")

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
        """Serve the clients' mini-batches, one of each at a time, until all have finished or left."""
        num_steps: dict[int, int] = {}
        active, step = self.clients, 0
        while active:
            deadline = time.monotonic() + self._transport.timeout_seconds
            batches: list[MiniBatch] = []
            arrived: dict[int, float] = {}
            for node_id in active:
                try:
                    data, arrived[node_id] = self._connections[node_id].receive(deadline)
                    batch, claimed = self._read(node_id, data, step)
                except StreamEnded as ended:
                    self._leave(node_id, _BrokenOff(f"{ended} (mini-batch {step})"))
                except ValueError as error:
                    self._leave(node_id, error)
                else:
                    num_steps.setdefault(node_id, claimed)
                    batches.append(batch)
            gradients = self._serve(batches) if batches else {}

            for node_id, gradient in gradients.items():
                try:
                    if isinstance(gradient, ValueError):
                        raise gradient
                    self._answer(node_id, gradient, step, arrived[node_id], is_last=step + 1 == num_steps[node_id])
                except ValueError as error:
                    self._leave(node_id, error)
            active = [n for n in gradients if n not in self._finished and n not in self._reasons]
            step += 1

    def _read(self, node_id: int, data: bytes, step: int) -> tuple[MiniBatch, int]:
        frame = unpack_activations(self._form, data, step=step, sample_shape=self._terms.cut_shapes[node_id])
        batch = self._terms.mini_batch(node_id, frame.values, frame.labels)
        self._transport.on_bytes("uplink", ACTIVATIONS, frame.tensor_bytes)
        self._transport.on_bytes("uplink", self._terms.labels.policy, 4 * len(frame.labels))
        if frame.num_steps < 1:
            raise ValueError(f"num-steps is {frame.num_steps}, expected a whole number from 1 on")
        return batch, frame.num_steps

    def _answer(self, node_id: int, gradient: Tensor, step: int, arrived: float, *, is_last: bool) -> None:
        frame = pack(self._form, gradient, step=step, seconds_held=time.monotonic() - arrived)
        if is_last:
            self._finished.add(node_id)  # before the client can know
        self._connections[node_id].send(frame)
        values = gradient[0].numel()
        self._transport.on_bytes("downlink", CUT_GRADIENT, self._form.tensor_bytes(len(gradient), values))

    def _leave(self, node_id: int, reason: ValueError) -> None:
        self._left_at[node_id] = time.monotonic()
        self._reasons[node_id] = reason
        connection = self._connections[node_id]
        if isinstance(reason, _BrokenOff):
            connection.cancel()
        else:
            connection.end(grpc.StatusCode.INVALID_ARGUMENT, one_line(reason))
