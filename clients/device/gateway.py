"""A gateway: the node by which the cloud reaches an edge that has a host of its own.

It hands the cloud's requests to the edge's run on the same machine, byte by byte, and knows nothing of what is in them.
"""

from pathlib import Path

from flwr.app import Context, Message, RecordDict

from ..messages.edge import (
    EVALUATE_EDGE,
    PAYLOAD,
    QUERY_EDGE,
    TRAIN_EDGE,
    TRAIN_EDGE_HEADS,
    EdgeRequest,
    to_payload,
)
from .edge_socket import ask_edge

# Message types of what the cloud asks of gateways.
GATEWAY = frozenset((QUERY_EDGE, TRAIN_EDGE, TRAIN_EDGE_HEADS, EVALUATE_EDGE))
EDGE_FOLDER = "edge-folder"  # the key of a node's config that makes it a gateway


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
    request = EdgeRequest.from_content(message.content)
    answer = ask_edge(
        Path(str(folder)).expanduser(),
        message.metadata.message_type,
        request.payload,
        wait_seconds=request.wait_seconds,
        reply_seconds=request.reply_seconds,
    )
    return Message(RecordDict({PAYLOAD: to_payload(answer)}), reply_to=message)
