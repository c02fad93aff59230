"""Between the cloud and the gateway of an edge that has a host of its own: bytes there and back."""

from dataclasses import dataclass
from typing import Final, Self

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

from ..shared.arrays import values_of
from ..shared.records import records_in
from ..shared.tensor_array import header
from .train import CONFIG

QUERY_EDGE: Final = "query.edge"
TRAIN_EDGE: Final = "train.edge"
TRAIN_EDGE_HEADS: Final = "train.edge_heads"
EVALUATE_EDGE: Final = "evaluate.edge"
PAYLOAD: Final = "payload"
WAIT_SECONDS: Final = "wait-seconds"
REPLY_SECONDS: Final = "reply-seconds"


@dataclass(frozen=True)
class EdgeRequest:
    """A request of the cloud to an edge's run; what it asks for is the message's type.

    Parameters
    ----------
    payload : bytes
        The request.
    wait_seconds : float
        How long the gateway waits where the edge's run is not there.
    reply_seconds : float
        How long it waits for the answer; 0 waits for ever.
    """

    payload: bytes
    wait_seconds: float
    reply_seconds: float

    def to_message(self, gateway: int, message_type: str) -> Message:
        """Return the message that has a gateway hand the request to its edge."""
        config = ConfigRecord({WAIT_SECONDS: float(self.wait_seconds), REPLY_SECONDS: float(self.reply_seconds)})
        return Message(RecordDict({PAYLOAD: to_payload(self.payload), CONFIG: config}), gateway, message_type)

    @classmethod
    def from_content(cls, content: RecordDict) -> Self:
        """Read the records; raises as `from_payload`."""
        config = records_in(content, ConfigRecord)[CONFIG]
        return cls(from_payload(content), float(config[WAIT_SECONDS]), float(config[REPLY_SECONDS]))  # type: ignore[arg-type]


def to_payload(data: bytes) -> ArrayRecord:
    """Return bytes as a record that travels in a message; an edge's answer has this one alone."""
    # Not `Array(values)`, which copies the values three times.
    return ArrayRecord({PAYLOAD: Array("uint8", (len(data),), "numpy.ndarray", header("|u1", (len(data),)) + data)})


def from_payload(content: RecordDict) -> bytes:
    """Return the bytes that `to_payload` put into a message.

    Raises
    ------
    ValueError, KeyError
        If there are none.
    """
    array = records_in(content, ArrayRecord)[PAYLOAD][PAYLOAD]
    if array.dtype != "uint8" or len(array.shape) != 1:
        raise ValueError(f"a payload is {array.dtype} of shape {tuple(array.shape)}, expected a vector of bytes")
    # Not `array.numpy()`, which allocates what the data say that they are.
    values = values_of(array)
    if values.dtype != np.uint8 or values.shape != tuple(array.shape):
        raise ValueError(f"the data are not those of a vector of {array.shape[0]} bytes")
    return values.tobytes()
