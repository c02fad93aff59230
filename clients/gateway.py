"""A gateway: the node by which the cloud reaches an edge that has a host of its own.

It hands the cloud's requests to the edge's run on the same machine, byte by byte, and knows nothing of what is in them.
"""

from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from .edge_socket import ask_edge
from .messages import CONFIG, EDGE_FOLDER, PAYLOAD, REPLY_SECONDS, WAIT_SECONDS, to_tensor


def register_gateway_handlers(app: ClientApp) -> None:
    """Let a ClientApp answer what the cloud asks of gateways."""
    app.query("edge")(forward)
    app.train("edge")(forward)
    app.train("edge_heads")(forward)
    app.evaluate("edge")(forward)


def forward(message: Message, context: Context) -> Message:
    """Hand a request of the cloud to the edge's run and return its answer.

    Raises
    ------
    ValueError
        If this node's config has no ``edge-folder``.
    NoEdgeError, PermissionError
        As `ask_edge`.
    """
    folder = context.node_config.get(EDGE_FOLDER)
    if not folder:
        raise ValueError(f"this node is no gateway: its config has no {EDGE_FOLDER}")
    config = message.content.config_records[CONFIG]
    answer = ask_edge(
        Path(str(folder)).expanduser(),
        message.metadata.message_type,
        from_payload(message.content),
        wait_seconds=float(config[WAIT_SECONDS]),  # type: ignore[arg-type]
        reply_seconds=float(config[REPLY_SECONDS]),  # type: ignore[arg-type]
    )
    return Message(RecordDict({PAYLOAD: to_payload(answer)}), reply_to=message)


def request_to(
    node_id: int, message_type: str, request: bytes, *, wait_seconds: float, reply_seconds: float
) -> Message:
    """Return the message that has a gateway hand a request to its edge; parameters as of `ask_edge`."""
    config = ConfigRecord({WAIT_SECONDS: float(wait_seconds), REPLY_SECONDS: float(reply_seconds)})
    return Message(RecordDict({PAYLOAD: to_payload(request), CONFIG: config}), node_id, message_type)


def to_payload(data: bytes) -> ArrayRecord:
    """Return bytes as a record that travels in a message."""
    return ArrayRecord({PAYLOAD: Array(np.frombuffer(data, np.uint8))})


def from_payload(content: RecordDict) -> bytes:
    """Return the bytes that `to_payload` put into a message.

    Raises
    ------
    ValueError, KeyError
        If there are none.
    """
    array = content.array_records[PAYLOAD][PAYLOAD]
    if array.dtype != "uint8" or len(array.shape) != 1:
        raise ValueError(f"a payload is {array.dtype} of shape {tuple(array.shape)}, expected a vector of bytes")
    # Not `array.numpy()`, which allocates what the data say that they are.
    return to_tensor(array).numpy().tobytes()
