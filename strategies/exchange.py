"""Exchanges with nodes, many conversations at a time.

A conversation is a generator: it yields the messages it wants sent, is resumed with their replies, and returns
its result. An ordinary Flower round is a conversation of one exchange, a split round one of many. A conversation may
yield other conversations as well, and is resumed with their results: so a tier holds those of its edges. Or it lets
them go on beside itself, and waits for whatever it wants: so a tier waits for nobody.
"""

import math
import time
from collections import deque
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, Protocol, TypeVar, runtime_checkable

from flwr.app import Error, Message
from flwr.serverapp import Grid

from espalier.clients.messages import ends_round, goes_on
from espalier.clients.messages.seconds import ToldSeconds

Result = TypeVar("Result")
Exchanges = Generator["Step", Any, Result]
"""A conversation: it yields messages, or other conversations, gets their replies, or results, and returns its own."""

Direction = Literal["downlink", "uplink"]
OnMessage = Callable[[str, Direction, Message], None]


@dataclass(frozen=True)
class Trip:
    """How long a message took, from when it was sent until its reply was here.

    Parameters
    ----------
    seconds : float
        In all.
    computing : float (default: 0)
        The node computed, as it tells.
    waiting : float (default: 0)
        The node waited for others, as it and the grid tell.
    """

    seconds: float
    computing: float = 0.0
    waiting: float = 0.0

    @classmethod
    def of(cls, seconds: float, told: ToldSeconds) -> "Trip":
        """Return a trip of so many seconds: what a node tells is no more than these."""
        computing = min(told.computing, seconds)
        return cls(seconds, computing, min(told.waiting, seconds - computing))

    @property
    def transfer(self) -> float:
        """The rest: seconds on the way there and back, and until the node began."""
        return self.seconds - self.computing - self.waiting


OnTrip = Callable[[str, Message, Trip], None]

# Codes of the error replies made on the server's side; Flower's own are below 1,000.
UNREACHABLE = 1001
LATE = 1002
# How the reasons of late results begin, by which reports know them again: see `is_late`.
NO_REPLY, NO_RESULT, ARRIVED_LATE = "no reply before", "no result within", "its result arrived after"
DROPPED_OUT = "it dropped out before it answered"
REJECTED = 1003
EDGE_FAILED = 1004
UNUSABLE = 1005

MAX_POLL_SECONDS = 1.0


class Losable(list[Message]):
    """Messages to yield where it may turn out that a reply is not worth waiting for.

    Parameters
    ----------
    messages : Iterable[Message]
        The messages.
    is_lost : Callable[[int], bool]
        Called with a node id, again and again: whether to go on without that node's reply.
    """

    def __init__(self, messages: Iterable[Message], is_lost: Callable[[int], bool]) -> None:
        super().__init__(messages)
        self.is_lost = is_lost


@dataclass(frozen=True)
class Together:
    """Conversations to yield: they run side by side, and their results by name, in this order, are the answer.

    Parameters
    ----------
    conversations : Mapping[str, Exchanges]
        Generators by name.
    """

    conversations: Mapping[str, Exchanges[Any]]


@dataclass(frozen=True)
class Beside:
    """Conversations to yield that go on by themselves: whoever yields them is resumed at once, with None.

    They go on until they are over, also when the conversation that yielded them is over before, as long as their
    `Conversations` run anything. What they return is nobody's: they tell what there is to tell themselves.

    Parameters
    ----------
    conversations : Sequence[Exchanges]
        Generators. Their messages are reported with the path of the conversation that yields them.
    """

    conversations: Sequence[Exchanges[Any]]


@dataclass(frozen=True)
class Until:
    """A condition to yield: the conversation is resumed, with None, when it holds.

    Parameters
    ----------
    is_over : Callable[[], bool]
        Asked after every look at the grid, and when it is yielded.
    seconds_left : Callable[[], float] (default: infinity)
        How long it is until the condition holds at the latest. The grid is looked at then, before it is asked: what is
        in by then is in time.
    """

    is_over: Callable[[], bool]
    seconds_left: Callable[[], float] = lambda: math.inf


Step = list[Message] | Together | Beside | Until


class _Patience:
    """How long the nodes of one conversation may still take to answer.

    A node has `seconds` for its part of a round: for all of its answers where a round is many exchanges, as in split
    training by messages.
    """

    def __init__(self, seconds: float | None) -> None:
        self._seconds = math.inf if seconds is None else seconds
        self._taken: dict[int, float] = {}

    def seconds_for(self, message: Message) -> float:
        """Return how long the answer to a message is waited for."""
        if not goes_on(message.metadata.message_type):
            self._taken.pop(message.metadata.dst_node_id, None)
        return self._seconds - self._taken.get(message.metadata.dst_node_id, 0.0)

    def note(self, node_id: int, seconds: float) -> None:
        """Note how long a node took to answer."""
        self._taken[node_id] = self._taken.get(node_id, 0.0) + seconds


class _Exchange:
    """The messages of one exchange and the replies that are in."""

    def __init__(self, grid: Grid, messages: list[Message], patience: _Patience) -> None:
        self._messages = messages
        self._is_lost = messages.is_lost if isinstance(messages, Losable) else lambda node_id: False
        self._patience = patience
        self._began = time.monotonic()
        self._deadlines = [self._began + patience.seconds_for(message) for message in messages]
        self._replies: dict[str, Message] = {}
        self._ids = pushed(grid, messages)
        self._asked = dict(zip(self._ids, messages, strict=True))
        self.waiting = {message_id for message_id in self._ids if message_id}

    def keep(self, reply: Message) -> tuple[Message, Trip]:
        """Keep a reply to one of these messages; return which, and how long it took."""
        message_id, seconds = reply.metadata.reply_to_message_id, time.monotonic() - self._began
        self.waiting.remove(message_id)
        trip = Trip.of(seconds, ToldSeconds.removed_from(reply))
        self._replies[message_id] = reply
        message = self._asked[message_id]
        self._patience.note(message.metadata.dst_node_id, seconds)
        return message, trip

    def late(self) -> list[tuple[Message, Trip]]:
        """Return the messages whose replies are not in, and how long they were waited for."""
        trip = Trip(time.monotonic() - self._began)
        return [
            (m, trip) for m, message_id in zip(self._messages, self._ids, strict=True) if message_id in self.waiting
        ]

    def is_over(self) -> bool:
        """Return whether every reply is here or lost, or its deadline has passed."""
        if not self.waiting:
            return True
        now = time.monotonic()
        return all(
            message_id not in self.waiting or now >= deadline or self._is_lost(message.metadata.dst_node_id)
            for message, message_id, deadline in zip(self._messages, self._ids, self._deadlines, strict=True)
        )

    def replies(self) -> list[Message]:
        """Return one reply per message, in the order of the messages; error replies for the missing."""
        return [
            self._replies.get(message_id) or self._missing(message, message_id)
            for message, message_id in zip(self._messages, self._ids, strict=True)
        ]

    def _missing(self, message: Message, message_id: str) -> Message:
        error = Error(LATE, f"{NO_REPLY} the deadline") if message_id else Error(UNREACHABLE, "unreachable")
        return Message(error, reply_to=message)


def is_late(reason: str) -> bool:
    """Return whether a failure's reason is that of a result that was not there at a deadline."""
    return reason.startswith((NO_REPLY, NO_RESULT, ARRIVED_LATE))


def pushed(grid: Grid, messages: Sequence[Message]) -> list[str]:
    """Push messages and return their ids, an empty one for each that could not be pushed."""
    ids = list(grid.push_messages(messages)) if messages else []
    if len(ids) != len(messages):
        # This grid drops what it could not push from its list; the message itself holds its id.
        there = set(ids)
        ids = [m.metadata.message_id if m.metadata.message_id in there else "" for m in messages]
    return [message_id or "" for message_id in ids]


@runtime_checkable
class Wakes(Protocol):
    """A Grid that knows when replies come in."""

    def wait(self, seconds: float) -> None:
        """Return when a reply is in, or after so long."""


@runtime_checkable
class Withdraws(Protocol):
    """A Grid that can spare nodes what nobody waits for any more."""

    def withdraw(self, message_ids: Iterable[str]) -> None:
        """Forget messages that were pushed, and their replies."""


class Conversations:
    """Runs conversations side by side; each goes on as soon as its own replies are in.

    Parameters
    ----------
    grid : Grid
        Carries the messages.
    timeout_seconds : float, optional (default: None)
        How long a node's replies are waited for: those to all messages of its part of a round together, see
        `espalier.clients.messages.goes_on`. None waits for ever.
    poll_seconds : float (default: 0.05)
        Pause between two looks at the grid when nothing has come in; it doubles up to a second while that lasts. A grid
        that `Wakes` is looked at as soon as something comes, and one that `Withdraws` told of what is over.
    on_message : callable, optional (default: None)
        Called with (path, "downlink" | "uplink", message) for every message sent and every reply used. The path of a
        conversation is its name, after those of the conversations that it runs in: ``"site-1/room-2"``.
    on_trip : callable, optional (default: None)
        Called with (path, message, `Trip`) for every message whose reply has come, when it has, or is waited for no
        longer; not where the reply is of a node that failed.

    Notes
    -----
    Conversations that were yielded in a `Beside` go on in the next `run`, too.
    """

    def __init__(
        self,
        grid: Grid,
        *,
        timeout_seconds: float | None = None,
        poll_seconds: float = 0.05,
        on_message: OnMessage | None = None,
        on_trip: OnTrip | None = None,
    ) -> None:
        self._grid = grid
        self._timeout_seconds = timeout_seconds
        self._poll_seconds = poll_seconds
        self._wait = grid.wait if isinstance(grid, Wakes) else time.sleep
        self._withdraw = grid.withdraw if isinstance(grid, Withdraws) else _keep
        self._on_message = on_message
        self._on_trip = on_trip or (lambda path, message, trip: None)
        self._running: dict[_Exchange, tuple[str, Exchanges[Any], Callable[[list[Message]], None]]] = {}
        self._waiting: list[tuple[Until, Callable[[None], None]]] = []
        self._ready: deque[Callable[[], None]] = deque()  # to go on with conversations that wait for no message
        self._open: dict[Exchanges[Any], None] = {}  # in the order in which they began
        self._worked = False  # somebody has gone on since the last look at the grid

    def run(self, conversations: Mapping[str, Exchanges[Any]]) -> dict[str, Any]:
        """Run conversations until they are over.

        Parameters
        ----------
        conversations : Mapping[str, Exchanges]
            Generators by name. Each is resumed with one reply per message, in the order of its messages. The reply
            of a node that could not be reached or is late is an error reply.

        Returns
        -------
        dict[str, Any]
            What each conversation returned, in the order of `conversations`.

        Notes
        -----
        If one raises, the others that have begun since are closed, so that they give back what they hold.
        """
        before = set(self._open)
        try:
            return self._run(conversations)
        except BaseException:
            self._close([one for one in self._open if one not in before])
            raise

    def close(self) -> None:
        """Close all conversations that go on, and wait for none of their replies."""
        self._close(list(self._open))

    def _close(self, conversations: Collection[Exchanges[Any]]) -> None:
        closed = set(conversations)
        for exchange in [one for one, (_, conversation, _) in self._running.items() if conversation in closed]:
            del self._running[exchange]
            self._withdraw(exchange.waiting)
        with ExitStack() as stack:  # closes all, whatever one of them raises, and each before what it is within
            for conversation in conversations:
                stack.callback(conversation.close)
                del self._open[conversation]

    def _run(self, conversations: Mapping[str, Exchanges[Any]]) -> dict[str, Any]:
        ended: list[dict[str, Any]] = []
        self._begin(conversations, "", ended.append)
        pause, num_replies = self._poll_seconds, 0
        self._worked = True  # the first look does not wait
        while True:
            self._settle()
            if ended:
                return ended[0]
            if not (num_replies or self._worked):
                # Right before a look: what came meanwhile is taken before anybody asks for the time.
                left = min((until.seconds_left() for until, _ in self._waiting), default=pause)
                self._wait(max(0.0, min(pause, left)))
                pause = min(2 * pause, MAX_POLL_SECONDS)
            num_replies, went_on = self._pull(), self._go_on()
            pause = self._poll_seconds if went_on else pause

    def advance(self) -> None:
        """Go on with the conversations that were yielded in a `Beside`, as far as replies are in; don't wait."""
        self._pull()
        self._go_on()
        self._settle()

    def _begin(
        self, conversations: Mapping[str, Exchanges[Any]], path: str, over: Callable[[dict[str, Any]], None]
    ) -> None:
        """Start conversations; `over` is called with the results of all."""
        results, going_on = dict.fromkeys(conversations), set(conversations)

        def end(name: str, result: Any) -> None:
            results[name] = result
            going_on.remove(name)
            if not going_on:
                over(results)

        for name, conversation in conversations.items():
            self._resume(conversation, path_of(path, name), partial(end, name), _Patience(self._timeout_seconds), None)
        if not conversations:
            over(results)

    def _resume(
        self, conversation: Exchanges[Any], path: str, end: Callable[[Any], None], patience: _Patience, answer: Any
    ) -> None:
        """Go on with a conversation; `end` is called with its result."""
        self._open[conversation] = None
        try:
            step = conversation.send(answer)
        except StopIteration as stop:
            del self._open[conversation]
            end(stop.value)
            return
        go_on = partial(self._resume, conversation, path, end, patience)
        if isinstance(step, Together):
            self._begin(step.conversations, path, lambda results: self._ready.append(partial(go_on, results)))
        elif isinstance(step, Beside):
            for one in step.conversations:
                self._resume(one, path, lambda result: None, _Patience(self._timeout_seconds), None)
            self._ready.append(partial(go_on, None))
        elif isinstance(step, Until):
            self._waiting.append((step, go_on))
        else:
            self._running[_Exchange(self._grid, step, patience)] = path, conversation, go_on
            self._report(path, "downlink", step)

    def _pull(self) -> int:
        """Take the replies that are in; return how many there are."""
        self._worked = False
        waiting = {message_id: exchange for exchange in self._running for message_id in exchange.waiting}
        replies = list(self._grid.pull_messages(sorted(waiting))) if waiting else []
        for reply in replies:
            # A reply that nobody waits for (any more) is nobody's.
            if exchange := waiting.pop(reply.metadata.reply_to_message_id, None):
                message, trip = exchange.keep(reply)
                if not reply.has_error():
                    self._on_trip(self._running[exchange][0], message, trip)
        return len(replies)

    def _settle(self) -> None:
        """Go on with the conversations that wait for no message, as far as they come."""
        while True:
            while self._ready:
                self._ready.popleft()()
                self._worked = True
            if self._worked and any(until.seconds_left() <= 0 for until, _ in self._waiting):
                # The time may have run out while others were at work: what came meanwhile is in time too.
                self._pull()
                self._go_on()
            waiting, self._waiting = self._waiting, []
            for until, go_on in waiting:
                if until.is_over():
                    self._ready.append(partial(go_on, None))
                else:
                    self._waiting.append((until, go_on))
            if not self._ready:
                return

    def _go_on(self) -> bool:
        """Go on with the conversations whose replies are in, or too late; return whether there was one."""
        over = [exchange for exchange in self._running if exchange.is_over()]
        for exchange in over:
            self._worked = True
            path, _, go_on = self._running.pop(exchange)
            for message, trip in exchange.late():
                self._on_trip(path, message, trip)
            self._withdraw(exchange.waiting)
            answers = exchange.replies()
            self._report(path, "uplink", answers)
            go_on(answers)
        return bool(over)

    def _report(self, path: str, direction: Direction, messages: list[Message]) -> None:
        if self._on_message is not None:
            for message in messages:
                self._on_message(path, direction, message)


def _keep(message_ids: Iterable[str]) -> None:
    """Do nothing, where a grid can't be told that messages are not waited for."""


def converse(grid: Grid, conversations: Mapping[str, Exchanges[Any]], **options: Any) -> dict[str, Any]:
    """Run conversations side by side and return their results; `options` as of `Conversations`."""
    with closing(Conversations(grid, **options)) as together:
        return together.run(conversations)


def path_of(*names: str) -> str:
    """Return names joined to a path; empty ones are left out."""
    return "/".join(filter(None, names))


def without_results(
    messages: Sequence[Message], replies: Sequence[Message], nodes: Collection[int], why: Error
) -> list[Message]:
    """Return the replies to messages; the result of a round is an error if it is of one of these nodes."""

    def kept_or_not(message: Message, reply: Message) -> Message:
        is_result = ends_round(message.metadata.message_type) and not reply.has_error()
        return Message(why, reply_to=message) if is_result and message.metadata.dst_node_id in nodes else reply

    return [kept_or_not(*pair) for pair in zip(messages, replies, strict=True)]


def answered(conversation: Exchanges[Result], answer: Callable[[Any], Exchanges[Any]]) -> Exchanges[Result]:
    """Run a conversation whose steps are answered by another: `answer` gets what it yields and returns the answer.

    It answers the messages of those that go on `Beside` it as well.
    """
    answers = None
    with closing(conversation):
        while True:
            try:
                step = conversation.send(answers)
            except StopIteration as stop:
                return stop.value
            if isinstance(step, Beside):
                answers = yield Beside([answered(one, answer) for one in step.conversations])
            elif isinstance(step, Until):
                answers = yield step
            else:
                answers = yield from answer(step)


def ask(grid: Grid, messages: list[Message], *, timeout_seconds: float | None = None) -> list[Message]:
    """Make one exchange by itself and return the replies, one per message; parameters as of `converse`."""

    def conversation() -> Exchanges[list[Message]]:
        return (yield messages)

    return converse(grid, {"": conversation()}, timeout_seconds=timeout_seconds)[""]
