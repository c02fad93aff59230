"""A deadline in real time: who answers within it, who is late, and how long each took."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from flwr.app import Error, Message

from espalier.clients.messages import ends_round

from .exchange import LATE, NO_RESULT, Beside, Exchanges, Losable, Until

OnTaken = Callable[[int, float], None]
"""Told of a node, by its id, how many seconds after the begin of its round its result was there."""


class Deadline:
    """Waits for the answers of an edge's round until its deadline, and for those that are late beside later rounds.

    Parameters
    ----------
    seconds : float
        From the begin of a round.
    clock : Callable[[], float] (default: `time.monotonic`)
        A clock that never goes back.

    Attributes
    ----------
    late : set[int]
        Node ids of those who were late in the last round.
    """

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.seconds = seconds
        self.late: set[int] = set()
        self._clock = clock
        self._began = 0.0
        self._on_taken: OnTaken = lambda node_id, seconds: None
        self._is_held = False
        self._held: list[Callable[[], None]] = []

    def begin(self, on_taken: OnTaken) -> None:
        """Begin a round; `on_taken` is told of each result, also of one that comes after the deadline."""
        self.late, self._began, self._on_taken = set(), self._clock(), on_taken

    @contextmanager
    def held(self) -> Iterator[None]:
        """Inside the block tell of no result; `release` does, unless `forget` comes first."""
        self._is_held = True
        try:
            yield
        finally:
            self._is_held = False

    def release(self) -> None:
        """Tell of the results that came while this was held."""
        held, self._held = self._held, []
        for tell in held:
            tell()

    def forget(self) -> None:
        """Tell nobody of the results that came while this was held."""
        self._held.clear()

    def answers(self, messages: list[Message]) -> Exchanges[list[Message]]:
        """Return the answers to messages of the round; error replies for those that are not here in time."""
        here: dict[int, Message] = {}
        began, on_taken, ends = self._began, self._on_taken, self._began + self.seconds

        def one(place: int, message: Message) -> Exchanges[None]:
            alone = Losable([message], messages.is_lost) if isinstance(messages, Losable) else [message]
            (reply,) = yield alone
            here[place] = reply
            if ends_round(message.metadata.message_type) and not reply.has_error():
                tell = partial(on_taken, message.metadata.dst_node_id, self._clock() - began)
                if self._is_held:
                    self._held.append(tell)
                else:
                    tell()

        yield Beside([one(place, message) for place, message in enumerate(messages)])
        yield Until(lambda: len(here) == len(messages) or self._clock() >= ends, lambda: ends - self._clock())
        self.late |= {m.metadata.dst_node_id for place, m in enumerate(messages) if place not in here}
        return [here.get(place) or _late(message, self.seconds) for place, message in enumerate(messages)]


def _late(message: Message, seconds: float) -> Message:
    return Message(Error(LATE, f"{NO_RESULT} the deadline of {seconds:g} s"), reply_to=message)
