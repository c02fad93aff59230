"""The streams of clients that advance together: opened by tickets, served by a thread."""

import math
import time
from collections.abc import Sequence
from functools import partial
from threading import Condition, Thread

import torch
from flwr.app import Message

from espalier.clients.messages.frames import Format
from espalier.clients.messages.split import SplitResult, SplitStream

from ..exchange import LATE
from ..replies import reason_of
from ..reply_faults import content_of
from .loop import SplitLoop, Terms
from .serving import Serve
from .stream import WITHDRAWN, Connection, StreamServer, Ticket
from .stream_frames import BrokenOffError, OnBytes, StreamFrames

LAST_WORDS_SECONDS = 5.0  # a client whose process died, or froze, would be waited for much longer


class StreamLane:
    """Carries the loop of clients that advance together by their streams, in a thread that the first stream starts.

    Parameters
    ----------
    clients : Sequence[int]
        Node ids, in client order.
    terms, serve
        As for `SplitLoop`.
    form : Format
        How tensors are written.
    server : StreamServer
        Accepts the streams.
    timeout_seconds, patience_seconds, on_bytes
        As for `espalier.strategies.split.stream_transport.StreamTransport`.

    Attributes
    ----------
    gave_way : bool
        Whether not all streams were opened in time, so that nothing was carried.
    """

    def __init__(
        self,
        clients: Sequence[int],
        terms: Terms,
        serve: Serve,
        form: Format,
        server: StreamServer,
        *,
        timeout_seconds: float,
        patience_seconds: float,
        on_bytes: OnBytes,
    ) -> None:
        self.clients = list(clients)
        self.loop = SplitLoop(clients, terms, serve)  # the thread's own until it is over
        self.gave_way = False
        self._terms = terms
        self._form = form
        self._server = server
        self._timeout_seconds = timeout_seconds
        self._patience_seconds = patience_seconds
        self._tickets: dict[int, Ticket] = {}
        self._connections: dict[int, Connection] = {}
        self._frames = StreamFrames(self.loop, terms, form, self._connections, timeout_seconds, on_bytes)
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
        patience = self._patience_seconds if len(self.clients) > 1 else 0.0
        # Beside its own mini-batch a client waits for those of others, and for what the edge computes.
        # With a tail it waits for those of others in turn, at a shared server block.
        turns = len(self.clients) if self._terms.with_tail else 1
        timeout_seconds = patience + (3 + turns) * self._timeout_seconds
        begin, parts = self._terms.begin, self._terms.parts
        self._tickets = {n: self._server.expect(partial(self._opened, n)) for n in self.clients}
        return [
            SplitStream(begin(n), ticket.told, self._form.payload, timeout_seconds, parts).to_message(n)
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
                raise BrokenOffError("it did not train through a stream")
            self.loop.conclude(node_id, SplitResult.from_content(content_of(reply)))
        except (ValueError, KeyError, TypeError) as error:
            if isinstance(error, BrokenOffError) and reply.has_error() and reply.error.code != LATE:
                error = ValueError(f"{error} ({reason_of(reply.error)})")
            self.loop.leave(node_id, error)

    def is_lost(self, node_id: int) -> bool:
        """Return whether a client left the stream and has had time to say why."""
        return time.monotonic() - self._frames.left_at.get(node_id, math.inf) > LAST_WORDS_SECONDS

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
        torch.get_num_threads()  # holds in a thread that has asked for it; before, oneDNN takes all cores
        try:
            if self._all_opened():
                self._frames.run()
        except BaseException as fault:  # raised again where the round is run
            self._fault = fault
            for connection in self._connections.values():
                connection.cancel()

    def _all_opened(self) -> bool:
        """Wait for all streams; without them, end those that there are."""
        with self._changed:
            self._changed.wait_for(
                lambda: len(self._connections) == len(self.clients) or self._is_closed,
                self._patience_seconds,
            )
            if len(self._connections) == len(self.clients) or self._is_closed:
                return not self._is_closed
            self.gave_way = True
            for ticket in self._tickets.values():
                ticket.withdraw()
            for connection in self._connections.values():
                connection.end(*WITHDRAWN)
            return False
