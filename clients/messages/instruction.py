"""Instructions: what a server asks of a node."""

from typing import ClassVar

from flwr.app import Message, RecordDict

_kinds: dict[str, type["Instruction"]] = {}


class Instruction:
    """A message from a server to a node; a subclass is a frozen dataclass of what one kind holds.

    Attributes
    ----------
    message_type : str
        A class parameter, as the others: ``class Mine(Instruction, message_type="train.mine", begins_round=True)``.
        Flower routes "<category>.<action>" to the handler of that name.
    begins_round : bool (default: False)
        A client's round begins with it: its config record takes the client's plan.
    ends_round : bool (default: False)
        The reply brings what the client has learned in the round.
    goes_on : bool (default: False)
        It goes on with a round that another began.
    """

    message_type: ClassVar[str]
    begins_round: ClassVar[bool]
    ends_round: ClassVar[bool]
    goes_on: ClassVar[bool]

    def __init_subclass__(
        cls, *, message_type: str, begins_round: bool = False, ends_round: bool = False, goes_on: bool = False
    ) -> None:
        cls.message_type, cls.begins_round, cls.ends_round = message_type, begins_round, ends_round
        cls.goes_on = goes_on
        _kinds[message_type] = cls

    def to_content(self) -> RecordDict:
        """Return the records."""
        raise NotImplementedError

    def to_message(self, node_id: int) -> Message:
        """Return the message to a node."""
        return Message(self.to_content(), node_id, self.message_type)


def begins_round(message_type: str) -> bool:
    """Return whether a client's round begins with instructions of this type."""
    return message_type in _kinds and _kinds[message_type].begins_round


def ends_round(message_type: str) -> bool:
    """Return whether the replies to instructions of this type bring what a client has learned in a round."""
    return message_type in _kinds and _kinds[message_type].ends_round


def goes_on(message_type: str) -> bool:
    """Return whether instructions of this type go on with a client's round that another began."""
    return message_type in _kinds and _kinds[message_type].goes_on
