"""How the mini-batches of split training travel through streams."""

from collections.abc import Sequence
from dataclasses import replace
from logging import getLogger

from flwr.app import Message

from espalier.clients.messages.frames import Format
from espalier.clients.messages.split_names import STREAM_WITHDRAWN

from ..exchange import Exchanges, Losable
from ..outcomes import Failure
from ..replies import reason_of
from .loop import SplitOutcome, Terms
from .rounding import as_through_streams
from .serving import Serve
from .stream import StreamServer
from .stream_frames import OnBytes
from .stream_lane import StreamLane
from .transports import lock_step

logger = getLogger("espalier")

FIRST_ROUNDS_BY_MESSAGES = 5  # until streams are tried again; each time twice as many


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
    parts : int (default: 1)
        Parts of each mini-batch of a client that advances alone and has no tail: the edge computes on one while the
        next is under way. Gradients add up to those of the whole for models without BatchNorm.
    """

    def __init__(
        self,
        server: StreamServer,
        *,
        payload: str = "float32",
        timeout_seconds: float = 60.0,
        patience_seconds: float = 30.0,
        on_bytes: OnBytes | None = None,
        parts: int = 1,
    ) -> None:
        self.server = server
        self.payload = payload
        self.timeout_seconds = timeout_seconds
        self.patience_seconds = patience_seconds
        self.on_bytes = on_bytes or (lambda *what: None)
        self.parts = parts
        self._rounds_by_messages = 0
        self._next_rounds_by_messages = FIRST_ROUNDS_BY_MESSAGES

    def train(self, groups: Sequence[Sequence[int]], terms: Terms, serve: Serve) -> Exchanges[SplitOutcome]:
        """Train all groups in one exchange, each served by a thread of its own."""
        outcome = SplitOutcome()
        by_messages = [list(group) for group in groups if len(group) > 1 and self._rounds_by_messages > 0]
        self._rounds_by_messages = max(self._rounds_by_messages - 1, 0)
        by_stream = [list(group) for group in groups if list(group) not in by_messages]
        while by_stream:
            crowded, by_stream = yield from self._stream(by_stream, terms, serve, outcome)
            by_messages += crowded
        for group in by_messages:
            outcome.add((yield from lock_step(group, terms, as_through_streams(serve, self.payload, terms.dtype))))
        outcome.sort([node_id for group in groups for node_id in group])
        return outcome

    def _stream(
        self, groups: Sequence[Sequence[int]], terms: Terms, serve: Serve, outcome: SplitOutcome
    ) -> Exchanges[tuple[list[list[int]], list[list[int]]]]:
        """Train groups through streams; return two lists of groups that were not trained: nothing was served to them.

        The first list has groups whose clients could not all run at once, for want of workers. The second has groups in
        which a client failed, without that client: they can be tried again.
        """
        form = Format(self.payload, terms.dtype)
        lanes = [
            StreamLane(
                group,
                terms if len(group) > 1 or terms.with_tail else replace(terms, parts=self.parts),
                serve,
                form,
                self.server,
                timeout_seconds=self.timeout_seconds,
                patience_seconds=self.patience_seconds,
                on_bytes=self.on_bytes,
            )
            for group in groups
        ]
        lane_of = {node_id: lane for lane in lanes for node_id in lane.clients}
        try:
            messages = [message for lane in lanes for message in lane.messages()]
            losable = Losable(messages, lambda node_id: lane_of[node_id].is_lost(node_id))
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

    def _note_shortage(self, lane: StreamLane) -> None:
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


def _has_failed(reply: Message) -> bool:
    """Return whether a client failed, other than by a stream that the edge called off."""
    return reply.has_error() and reply.error.code != STREAM_WITHDRAWN
