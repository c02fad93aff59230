"""A Grid whose nodes stay: one message of Flower's opens a node's stream, through which all others go.

What is sent to a node waits in its line until it has a stream and has answered what was sent before: a node does one
thing at a time. Where its stream breaks, what it was at is over, with an error reply; what waits goes by its next
stream. What nobody waits for any more is not sent. Who speaks to Flower's Grid is the thread that pushes and pulls;
streams have threads of their own.
"""

import time
from collections import deque
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from itertools import count
from logging import getLogger
from threading import Condition, Lock

from flwr.app import Error, Message
from flwr.serverapp import Grid

from espalier.clients.messages.stay import Stay, pack_message, reply_to, unpack_reply

from .exchange import REJECTED, UNREACHABLE, pushed
from .replies import one_line, reason_of
from .split.stream import WITHDRAWN, End, StreamServer, Ticket
from .views import ThroughGrid

logger = getLogger("espalier")

LOOK_SECONDS = 0.5  # between two questions to Flower's Grid whether nodes have failed to open their streams
# A device may be killed when Flower has handed out what asked it, and be back before anybody sees that it was gone:
# then Flower never tells. A process on a slow device takes seconds to begin.
ASK_AGAIN_SECONDS = 60.0
BROKE = "its stream broke"


@dataclass(frozen=True)
class _Sent:
    """A message, and the id under which its reply is waited for."""

    message_id: str
    message: Message


@dataclass
class _Line:
    """A node, and what it is to answer.

    Attributes
    ----------
    woken : Condition
        Of the grid's lock; told when something waits, or the stream is over.
    waiting : deque
        What was not sent yet.
    at_work : _Sent, optional
        What the node is at.
    stream : _Stream, optional
        The node's, while it is open.
    tickets : list[Ticket]
        For the stream that the node was asked to open, until it opens it; one for each time that it was asked.
    asked_at : float
        When it was asked last, on the monotonic clock.
    """

    woken: Condition
    waiting: deque[_Sent] = field(default_factory=deque)
    at_work: _Sent | None = None
    stream: "_Stream | None" = None
    tickets: list[Ticket] = field(default_factory=list)
    asked_at: float = 0.0

    @property
    def lacks_stream(self) -> bool:
        """Whether the node is to be asked for a stream: perhaps again, later each time, as nobody may have heard it."""
        if not self.waiting or self.stream is not None:
            return False
        patience = ASK_AGAIN_SECONDS * 2 ** (len(self.tickets) - 1)
        return not self.tickets or time.monotonic() > self.asked_at + patience

    def forget_tickets(self, but: Ticket | None = None) -> None:
        """Take no stream by any of its tickets, and break off those that they opened, `but` for one."""
        tickets, self.tickets = self.tickets, []
        for ticket in tickets:
            if ticket is not but:
                ticket.forget()


class StayGrid(ThroughGrid):
    """Reaches nodes by streams that stay open, wherever a `grid` reaches them by messages.

    A context manager: in the end all streams end, and with them the processes on the nodes.

    Parameters
    ----------
    grid : Grid
        Of Flower's runtime. By it nodes are asked to open a stream, at first and where theirs broke.
    server : StreamServer
        Accepts the streams: with `max_message_bytes`, those of a few models, and `max_streams` for every node that is
        connected.

    Examples
    --------
    In a ServerApp whose nodes run what `espalier.clients.client_app.make_client_app` makes::

        with StreamServer(key, certificate, address="cloud.example.org", listen_on="[::]", port=9093, max_frame_bytes=0,
                          max_streams=100, max_message_bytes=2**28) as server, StayGrid(grid, server) as stays:
            strategy.start(stays, arrays)
    """

    def __init__(self, grid: Grid, server: StreamServer) -> None:
        super().__init__(grid)
        self._server = server
        self._lock = Lock()
        self._news = Condition(self._lock)  # a reply is in, or a stream broke
        self._has_news = False
        self._lines: dict[int, _Line] = {}
        self._awaited: dict[str, int] = {}  # node ids by the ids of messages whose replies are wanted, and not in
        self._replies: dict[str, Message] = {}
        self._calls: dict[str, tuple[int, Ticket]] = {}  # by the id of Flower's message: who was asked, and for what
        self._next_look = 0.0
        self._numbers = count()
        self._is_over = False
        self._has_told_of_crowd = False

    def __enter__(self) -> "StayGrid":
        return self

    def __exit__(self, *exception: object) -> None:
        with self._lock:
            self._is_over = True
            lines = list(self._lines.values())
            for line in lines:
                line.woken.notify_all()
        for line in lines:
            line.forget_tickets()

    def let_go(self, members: Collection[int]) -> None:
        """End the streams of all nodes but these: nobody will ask them any more."""
        with self._lock:
            gone = {node_id: line for node_id, line in self._lines.items() if node_id not in members}
            for node_id, line in gone.items():
                del self._lines[node_id]
                line.stream = None
                line.woken.notify_all()
        for line in gone.values():
            line.forget_tickets()

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Put messages into the lines of their nodes and return an id for each."""
        ids = []
        with self._lock:
            for message in messages:
                ids.append(f"stay-{next(self._numbers)}")
                self._awaited[ids[-1]] = message.metadata.dst_node_id
                line = self._line(message.metadata.dst_node_id)
                line.waiting.append(_Sent(ids[-1], message))
                line.woken.notify_all()
        self._call()
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Return the replies that are in, of those asked for; each can be had once."""
        self._look()
        self._call()
        with self._lock:
            self._has_news = False
            return [reply for i in message_ids if (reply := self._replies.pop(i, None)) is not None]

    def withdraw(self, message_ids: Iterable[str]) -> None:
        """Send no more what was not sent yet, and keep no replies: nobody waits for them any more."""
        with self._lock:
            for message_id in message_ids:
                self._replies.pop(message_id, None)
                line = self._lines.get(self._awaited.pop(message_id, 0))
                if line is not None:
                    line.waiting = deque(sent for sent in line.waiting if sent.message_id != message_id)

    def wait(self, seconds: float) -> None:
        """Return when a reply is in, or after so long."""
        with self._lock:
            self._news.wait_for(lambda: self._has_news, seconds)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        """Push messages and wait for their replies."""
        waiting, replies = set(self.push_messages(messages)), list[Message]()
        deadline = float("inf") if timeout is None else time.monotonic() + timeout
        while waiting and time.monotonic() < deadline:
            replies += (came := self.pull_messages(waiting))
            waiting -= {reply.metadata.reply_to_message_id for reply in came}
            if not came:
                self.wait(LOOK_SECONDS)
        self.withdraw(waiting)
        return replies

    def _line(self, node_id: int) -> _Line:
        if node_id not in self._lines:
            self._lines[node_id] = _Line(Condition(self._lock))
        return self._lines[node_id]

    def _call(self) -> None:
        """Ask the nodes for which something waits to open a stream, where they have none."""
        with self._lock:
            called = {n: line for n, line in self._lines.items() if line.lacks_stream and not self._is_over}
            tickets = {node_id: self._ticket(node_id) for node_id in called}
            for node_id, line in called.items():
                line.tickets.append(tickets[node_id])
                line.asked_at = time.monotonic()
            self._tell_of_crowd()
        if not called:
            return
        ids = pushed(self._grid, [Stay(ticket.told).to_message(node_id) for node_id, ticket in tickets.items()])
        with self._lock:
            for (node_id, line), message_id in zip(called.items(), ids, strict=True):
                if message_id:
                    self._calls[message_id] = node_id, tickets[node_id]
                else:
                    self._give_up(line, Error(UNREACHABLE, "unreachable"))

    def _tell_of_crowd(self) -> None:
        """Log, once, that there are more nodes than streams, of which some may wait for long."""
        num_nodes = sum(bool(line.tickets) or line.stream is not None for line in self._lines.values())
        if num_nodes > (most := self._server.max_streams) and not self._has_told_of_crowd:
            self._has_told_of_crowd = True
            logger.warning(
                "%d nodes are to open a stream, and %d may: the others wait until some are let go. Disconnect those "
                "that are none of the run's",
                num_nodes,
                most,
            )

    def _ticket(self, node_id: int) -> Ticket:
        def make(cancel: Callable[[], None]) -> _Stream:
            return _Stream(self, node_id, ticket)

        ticket: Ticket = self._server.expect_served(make, self._server.max_message_bytes)
        return ticket

    def _look(self) -> None:
        """Ask Flower's Grid who has answered without opening a stream: it fails, with its own words."""
        if time.monotonic() < self._next_look:
            return
        with self._lock:
            open_now = {node_id for node_id, line in self._lines.items() if line.stream is not None}
            asked = sorted(i for i, (node_id, _) in self._calls.items() if node_id not in open_now)
            if not asked:
                return
            self._next_look = time.monotonic() + LOOK_SECONDS
        replies = list(self._grid.pull_messages(asked))
        with self._lock:
            for reply in replies:
                node_id, ticket = self._calls.pop(reply.metadata.reply_to_message_id, (0, None))
                line = self._lines.get(node_id)
                if line is None or ticket not in line.tickets:
                    continue
                if line.tickets != [ticket]:  # it was asked again
                    ticket.forget()
                    line.tickets.remove(ticket)
                    continue
                reason = reason_of(reply.error) if reply.has_error() else "it opened no stream"
                self._give_up(line, Error(UNREACHABLE, reason))

    def _give_up(self, line: _Line, why: Error) -> None:
        """Let all that waits for a node fail: it did not open its stream."""
        line.forget_tickets()
        while line.waiting:
            self._answer(line.waiting.popleft(), why)

    def _answer(self, sent: _Sent, what: Message | Error) -> None:
        """Note a reply, or that there will be none, where anybody waits for it; called with the lock."""
        if self._awaited.pop(sent.message_id, None) is None:
            return
        if isinstance(what, Error):
            what = reply_to(sent.message, sent.message_id, what)
        self._replies[sent.message_id] = what
        self._tell_news()

    def _tell_news(self) -> None:
        self._has_news = True
        self._news.notify_all()

    # What streams tell, in threads of their own.

    def opened(self, stream: "_Stream") -> bool:
        """Note that a node has a stream; False if nobody waits for it any more."""
        with self._lock:
            line = self._lines.get(stream.node_id)
            if line is None or self._is_over or stream.ticket not in line.tickets:
                return False
            line.forget_tickets(but=stream.ticket)
            if stream.is_over:  # it broke right after its first frame, and the node is asked again
                self._tell_news()
                return False
            line.stream = stream
            return True

    def replied(self, stream: "_Stream", frame: bytes) -> bool:
        """Take a reply in; return whether the stream goes on."""
        with self._lock:
            line = self._lines.get(stream.node_id)
            sent = line.at_work if line is not None and line.stream is stream else None
        if line is None or sent is None:
            return False
        reply: Message | Error
        try:
            reply, is_last = unpack_reply(frame, sent.message, sent.message_id)
        except ValueError as error:
            reply, is_last = Error(REJECTED, f"its reply can't be read: {one_line(error)}"), True
        with self._lock:
            if line.stream is not stream or line.at_work is not sent:
                return False
            line.at_work = None
            line.stream = None if is_last else stream
            self._answer(sent, reply)
        return not is_last

    def next_frame(self, stream: "_Stream") -> bytes | End | None:
        """Wait for the next message to a node and return it as a frame; None, or an end, when there will be none."""
        with self._lock:
            line = self._lines.get(stream.node_id)
        while line is not None:
            with self._lock:
                line.woken.wait_for(lambda: line.waiting or line.stream is not stream or self._is_over)
                if self._is_over or line.stream is not stream:
                    break
                line.at_work = sent = line.waiting.popleft()
            try:
                return pack_message(sent.message, self._server.max_message_bytes)
            except ValueError as error:  # it is too large
                with self._lock:
                    if line.at_work is sent:  # and no other message, of a stream that was opened meanwhile
                        line.at_work = None
                        self._answer(sent, Error(REJECTED, one_line(error)))
        return None

    def closed(self, stream: "_Stream") -> None:
        """Let what a node was at fail: its stream is over."""
        with self._lock:
            stream.is_over = True
            line = self._lines.get(stream.node_id)
            if line is not None and stream.ticket in line.tickets:  # before its first frame was taken in
                line.tickets.remove(stream.ticket)
                self._tell_news()
            if line is None or line.stream is not stream:
                return
            line.stream = None
            if line.at_work is not None:
                sent, line.at_work = line.at_work, None
                self._answer(sent, Error(UNREACHABLE, BROKE))
            self._tell_news()
            line.woken.notify_all()


class _Stream:
    """A node's open stream: after its first frame, each brings a reply.

    gRPC tells in a thread of its own that it is over (`is_over`), perhaps before the first frame was taken in.
    """

    def __init__(self, grid: StayGrid, node_id: int, ticket: Ticket) -> None:
        self.node_id, self.ticket = node_id, ticket
        self.is_over = False
        self._grid = grid
        self._is_opened = False

    def exchange(self, frame: bytes) -> bytes | End | None:
        """Take what a node sent, and return what it is to answer next."""
        if not self._is_opened:
            self._is_opened = True
            if not self._grid.opened(self):
                return End(*WITHDRAWN)
        elif not self._grid.replied(self, frame):
            return None
        del frame
        return self._grid.next_frame(self)

    def closed(self) -> None:
        """Tell the grid."""
        self._grid.closed(self)


def let_go_of_others(grid: Grid, members: Collection[int]) -> None:
    """End what nodes hold that are not these, where a grid holds any: nobody will ask them any more."""
    if isinstance(grid, StayGrid):
        grid.let_go(members)
