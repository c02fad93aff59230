"""Names that Flower does not call public, for the simulated grids: this module is the one that leans on them."""

import sys
import time
from copy import copy

from flwr.app import Array, Error, Message, Metadata, RecordDict
from flwr.common.constant import NUM_PARTITIONS_KEY as NUM_PARTITIONS_KEY
from flwr.common.constant import PARTITION_ID_KEY as PARTITION_ID_KEY
from flwr.common.constant import SUPERLINK_NODE_ID, ErrorCode
from flwr.common.serde import recorddict_from_proto, recorddict_to_proto
from flwr.proto.recorddict_pb2 import RecordDict as ProtoRecordDict
from flwr.supercore.constant import SYSTEM_MESSAGE_TYPE
from flwr.supercore.run import Run as Run
from flwr.supercore.task_identity import TaskIdentity


def handed_over(message: Message) -> Message:
    """Return a message with metadata of its own, and the same content."""
    return _message(_copy_metadata(message.metadata), message.content)


def raised(message: Message, error: BaseException) -> Message:
    """Return the error reply of a node whose ClientApp raised."""
    return Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, kind_and_text(error)), reply_to=message)


def kind_and_text(error: BaseException) -> str:
    """Return what an error says of itself; its kind alone where it is of a class that fails to."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:
        return type(error).__name__


def unavailable(message: Message, reason: str) -> Message:
    """Return the error reply that the server makes for a node that can't."""
    metadata = message.metadata
    return _server_error(
        metadata.run_id,
        metadata.message_id,
        ErrorCode.NODE_UNAVAILABLE,
        reason,
        group_id=metadata.group_id,
        message_type=metadata.message_type,
    )


def is_in_simulation() -> bool:
    """Return whether this is a process of Flower's simulation, which starts Ray in another thread."""
    return "flwr.server.superlink.fleet.vce.vce_api" in sys.modules


def ensure_run_id() -> int:
    """Return the run id of this process; where Flower's runtime has not given it an identity, do so first."""
    try:
        return TaskIdentity.run_id
    except RuntimeError:
        TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = 1, 1, SUPERLINK_NODE_ID
        return TaskIdentity.run_id


def copy_message(message: Message) -> Message:
    """Copy a message down to the values in its records, see `copy_records`."""
    if message.has_error():
        return _message(_copy_metadata(message.metadata), error=message.error)
    return _message(_copy_metadata(message.metadata), copy_records(message.content))


def _message(metadata: Metadata, content: RecordDict | None = None, error: Error | None = None) -> Message:
    """Return a message of parts of messages, which need not be checked again."""
    message = Message.__new__(Message)
    message.__dict__.update(_metadata=metadata, _content=content, _error=error)
    return message


def _copy_metadata(metadata: Metadata) -> Metadata:
    """Copy metadata as `copy.copy` does, which takes ten times as long."""
    copied = Metadata.__new__(Metadata)
    copied.__dict__.update(metadata.__dict__)
    return copied


def copy_records(records: RecordDict) -> RecordDict:
    """Copy the records down to their values, sharing what can't be changed (numbers, text, bytes).

    `copy.deepcopy` fails once an `Array` was asked for its object id, which makes it cache memoryviews. What is in a
    record was checked when it got there, so it is not assigned, which would check it again.
    """
    copied = records.copy()
    contents = copied.__dict__["_data"]
    for name, original in contents.items():
        record = contents[name] = original.copy()
        values = record.__dict__["_data"]
        for key, value in values.items():
            if isinstance(value, Array):
                values[key] = copy(value) if hasattr(value, "__copy__") else _copy_array(value)
            elif isinstance(value, list):
                values[key] = value.copy()
    return copied


def _copy_array(array: Array) -> Array:
    """Copy an array as `copy.copy` does, which takes four times as long."""
    copied = type(array).__new__(type(array))
    copied.__dict__.update(array.__dict__)
    return copied


def _server_error(
    run_id: int,
    message_id: str,
    code: int,
    reason: str,
    *,
    group_id: str = "",
    message_type: str = SYSTEM_MESSAGE_TYPE,
) -> Message:
    """Return the error reply that the server itself makes where no node can."""
    metadata = Metadata(
        run_id=run_id,
        message_id="",
        src_node_id=SUPERLINK_NODE_ID,
        dst_node_id=SUPERLINK_NODE_ID,
        reply_to_message_id=message_id,
        group_id=group_id,
        created_at=time.time(),
        ttl=0,
        message_type=message_type,
    )
    return _message(metadata, error=Error(code, reason))


def write_id(message: Message, message_id: str) -> None:
    """Write an id into a message, as the network does where it takes one."""
    message.metadata.__dict__["_message_id"] = message_id


def no_such_message(run_id: int, message_id: str) -> Message:
    """Return the error reply to a message that a grid does not have."""
    return _server_error(run_id, message_id, ErrorCode.MESSAGE_UNAVAILABLE, "no such message")


def records_to_bytes(records: RecordDict) -> bytes:
    """Return records, serialised."""
    return recorddict_to_proto(records).SerializeToString()


def records_from_bytes(serialised: bytes) -> RecordDict:
    """Return what `records_to_bytes` serialised; google.protobuf.message.DecodeError for what is none."""
    return recorddict_from_proto(ProtoRecordDict.FromString(serialised))
