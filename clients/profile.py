"""What a node says of itself, so that a server can group nodes without knowing their random ids."""

from collections.abc import Mapping, Sequence

from flwr.app import ConfigRecord, Message, RecordDict

from .messages import CLASS_COUNTS, EDGE_NAME, NUM_TEST_EXAMPLES, NUM_TRAIN_EXAMPLES, PARTITION_ID, PROFILE


def profile_reply(
    message: Message,
    *,
    partition_id: int,
    num_train_examples: int = 0,
    num_test_examples: int = 0,
    class_counts: Sequence[int] = (),
    edge_name: str = "",
    device: Mapping[str, int | float] | None = None,
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
    device : Mapping[str, int | float], optional (default: None)
        What the device measured of itself, see `espalier.clients.measuring.measured_profile`.
    """
    record = ConfigRecord(
        {
            PARTITION_ID: partition_id,
            EDGE_NAME: edge_name,
            NUM_TRAIN_EXAMPLES: num_train_examples,
            NUM_TEST_EXAMPLES: num_test_examples,
            CLASS_COUNTS: list(class_counts),
            **(device or {}),
        }
    )
    return Message(RecordDict({PROFILE: record}), reply_to=message)
