"""A node's answer to who it is, so that a server can group nodes without knowing their random ids."""

from collections.abc import Sequence

from flwr.app import Message

from ..messages.profile import DeviceProfile, Profile


def profile_reply(
    message: Message,
    *,
    partition_id: int,
    num_train_examples: int = 0,
    num_test_examples: int = 0,
    class_counts: Sequence[int] = (),
    edge_name: str = "",
    device: DeviceProfile | None = None,
) -> Message:
    """Return the answer to a ``query.profile`` message.

    Parameters
    ----------
    message : Message
        The query.
    partition_id : int
        The node's place among the clients; every node needs one of its own.
    num_train_examples, num_test_examples : int (default: 0)
        Sizes of its data sets.
    class_counts : Sequence[int] (default: ())
        Training examples per class.
    edge_name : str (default: "")
        The edge it asks to belong to; empty leaves that to the server.
    device : DeviceProfile, optional (default: None)
        What the device measured of itself, see `espalier.clients.device.measuring.measured_profile`.
    """
    own = message.metadata.dst_node_id
    counts = tuple(class_counts)
    profile = Profile(own, partition_id, edge_name, num_train_examples, num_test_examples, counts, device)
    return Message(profile.to_content(), reply_to=message)
