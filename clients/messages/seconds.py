"""What a node, or the grid that runs it, tells of how long a message took; whoever gets the reply takes it out."""

import math
from dataclasses import dataclass
from typing import Final, Self

from flwr.app import ConfigRecord, Message

SECONDS: Final = "espalier.seconds"
COMPUTING, WAITING, MOVING = "computing", "waiting", "moving"


@dataclass(frozen=True)
class ToldSeconds:
    """The record of a reply; what is not told is 0.

    Parameters
    ----------
    computing : float
        Seconds in which the node itself computed.
    waiting : float
        Seconds in which it waited for others: for the server's half of the model, or for a turn of its process.
    moving : float
        Seconds in which it sent and received through a stream.
    """

    computing: float = 0.0
    waiting: float = 0.0
    moving: float = 0.0

    def add_to(self, reply: Message) -> None:
        """Add these seconds to those that a reply tells; one that tells of an error tells of no time."""
        if not reply.has_content():
            return
        if (record := reply.content.get(SECONDS)) is None:
            record = reply.content[SECONDS] = ConfigRecord()
        if not isinstance(record, ConfigRecord):
            return
        for key, seconds in ((COMPUTING, self.computing), (WAITING, self.waiting), (MOVING, self.moving)):
            if seconds:
                record[key] = _seconds(record.get(key)) + seconds

    @classmethod
    def of(cls, reply: Message) -> Self:
        """Return what a reply tells; what is no time counts as not told, since a reply may be anybody's."""
        record = reply.content.get(SECONDS) if reply.has_content() else None
        if not isinstance(record, ConfigRecord):
            return cls()
        return cls(*(_seconds(record.get(key)) for key in (COMPUTING, WAITING, MOVING)))

    @classmethod
    def removed_from(cls, reply: Message) -> Self:
        """Return what a reply tells, and take it out of the reply: it is no part of what was asked for."""
        told = cls.of(reply)
        if reply.has_content():
            reply.content.pop(SECONDS, None)
        return told


def tell_waiting(reply: Message, seconds: float) -> None:
    """Tell in a reply that its node had to wait for others."""
    ToldSeconds(waiting=seconds).add_to(reply)


def _seconds(value: object) -> float:
    return value if isinstance(value, float) and math.isfinite(value) and value > 0 else 0.0
