"""What a node's own config says of its task."""

from collections.abc import Mapping
from dataclasses import dataclass

from espalier.app.ground.errors import UserError
from espalier.clients.messages.profile import EDGE_NAME


@dataclass(frozen=True)
class ClientNode:
    """The part of a node's config that decides its task.

    Attributes
    ----------
    partition_id : int
        Its place among the clients.
    edge_name : str
        The edge it asks to belong to; empty leaves that to the server.
    data_dir : str
        The folder of its own data, as the config has it; empty where it names none.
    """

    partition_id: int
    edge_name: str = ""
    data_dir: str = ""


def parse_node(node_config: Mapping[str, object]) -> ClientNode:
    """Return what a node's config says; UserError if it has no `partition-id`."""
    partition_id = node_config.get("partition-id")
    if not isinstance(partition_id, int):
        raise UserError(f"partition-id = {partition_id!r} in the node's config: allowed is an integer")
    return ClientNode(partition_id, str(node_config.get(EDGE_NAME, "")), str(node_config.get("data-dir", "")))
