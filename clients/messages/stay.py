"""A device that stays: one message opens a stream, through which all others come, and their replies go back.

In a stream that stays, the device sends a frame and gets one, as in all streams (`frames`): first an empty one, then a
reply at a time, each answered by the next message, whenever there is one.
"""

import time
from dataclasses import dataclass
from typing import Any, Final, Self

from flwr.app import ConfigRecord, Error, Message, Metadata, RecordDict

from ..shared.records import records_in
from .frames import StreamTicket
from .instruction import Instruction
from .packed import pack_records, unpack_records
from .train import CONFIG

QUERY_STAY: Final = "query.stay"
STAY_LOST: Final = 1102  # code of a device's error reply: its stream broke, or was never opened
RAISED: Final = 1103  # its ClientApp raised
HELLO: Final = b""
STAY_SECONDS: Final = 366 * 86_400.0  # a message is valid for so long

_KIND, _GROUP, _IS_LAST, _CODE, _REASON = "kind", "group", "is-last", "code", "reason"


@dataclass(frozen=True)
class Stay(Instruction, message_type=QUERY_STAY):
    """Have a node stay until the stream that it opens is over.

    Parameters
    ----------
    ticket : StreamTicket
        For the stream.
    """

    ticket: StreamTicket

    def to_content(self) -> RecordDict:
        """Return the records."""
        return RecordDict({CONFIG: ConfigRecord(self.ticket.to_config())})

    def to_message(self, node_id: int) -> Message:
        """Return the message to a node; it is answered when the run is over."""
        return Message(self.to_content(), node_id, self.message_type, ttl=STAY_SECONDS)

    @classmethod
    def from_content(cls, content: RecordDict) -> Self:
        """Read the records; ValueError or KeyError if there is no ticket."""
        ticket = StreamTicket.from_config(records_in(content, ConfigRecord)[CONFIG])
        if ticket is None:
            raise ValueError("no ticket for a stream")
        return cls(ticket)


def pack_message(message: Message, max_bytes: int) -> bytes:
    """Return a message to a device as a frame; ValueError if that has more than `max_bytes`."""
    metadata = message.metadata
    return _of_size(pack_records({_KIND: metadata.message_type, _GROUP: metadata.group_id}, message.content), max_bytes)


def unpack_message(frame: bytes, stay: Message) -> Message:
    """Return the message that a frame holds, from whom the message to stay came; ValueError if it holds none."""
    about, records = unpack_records(frame)
    own = stay.metadata
    metadata = Metadata(
        run_id=own.run_id,
        message_id=own.message_id,
        src_node_id=own.src_node_id,
        dst_node_id=own.dst_node_id,
        reply_to_message_id="",
        group_id=_text(about, _GROUP),
        created_at=time.time(),
        ttl=STAY_SECONDS,
        message_type=_text(about, _KIND),
    )
    return Message(content=records, metadata=metadata)  # type: ignore[call-overload]


def pack_reply(reply: Message, max_bytes: int, *, is_last: bool) -> bytes:
    """Return a reply as a frame; ValueError if that has more than `max_bytes`.

    `is_last`: the device opens another stream for the next message.
    """
    if reply.has_error():
        about = {_IS_LAST: is_last, _CODE: reply.error.code, _REASON: reply.error.reason or ""}
        return _of_size(pack_records(about, RecordDict()), max_bytes)
    return _of_size(pack_records({_IS_LAST: is_last}, reply.content), max_bytes)


def unpack_reply(frame: bytes, message: Message, message_id: str) -> tuple[Message, bool]:
    """Return the reply to a message that was sent under an id, and whether it is the stream's last.

    Raises
    ------
    ValueError
        If the frame holds none.
    """
    about, records = unpack_records(frame)
    is_last = about.get(_IS_LAST) is True
    if _CODE not in about:
        return reply_to(message, message_id, records), is_last
    if not isinstance(code := about[_CODE], int):
        raise ValueError("an error without a code")
    return reply_to(message, message_id, Error(code, _text(about, _REASON))), is_last


def reply_to(message: Message, message_id: str, what: RecordDict | Error) -> Message:
    """Return the reply of the node that a message, sent under an id, is for."""
    asked = message.metadata
    metadata = Metadata(
        run_id=asked.run_id,
        message_id="",
        src_node_id=asked.dst_node_id,
        dst_node_id=asked.src_node_id,
        reply_to_message_id=message_id,
        group_id=asked.group_id,
        created_at=time.time(),
        ttl=asked.ttl,
        message_type=asked.message_type,
    )
    part = {"error": what} if isinstance(what, Error) else {"content": what}
    return Message(**part, metadata=metadata)  # type: ignore[call-overload]


def _text(about: dict[str, Any], key: str) -> str:
    if not isinstance(value := about.get(key), str):
        raise ValueError(f"its {key} is no text")
    return value


def _of_size(frame: bytes, max_bytes: int) -> bytes:
    if len(frame) > max_bytes:
        raise ValueError(f"{len(frame)} bytes are too many for a stream of this run: expected {max_bytes} at most")
    return frame
