"""The client's half of an algorithm: what its clients do that FedAvg's do not."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from flwr.app import Context, Message
from torch import nn

from .shared.correction import Weights
from .shared.local_round import Rule, plain_round

if TYPE_CHECKING:
    from .task import ClientTask

Handler = Callable[[Message, Context, "ClientTask"], Message]
Mod = Callable[[Message, Context, Callable[[Message, Context], Message]], Message]  # as Flower means it
# Called with a reply, what it answers, context and task, it returns the reply as it travels.
Outgoing = Callable[[Message, Message, Context, "ClientTask"], Message]


def nothing(model: nn.Module) -> Collection[str]:
    """Return no names: the whole model travels."""
    return ()


@dataclass(frozen=True)
class ClientHalf:
    """What an algorithm's clients do, in three depths; the default is FedAvg's client.

    Parameters
    ----------
    rule : Rule (default: `plain_round`)
        What a client does in a round: how its steps are corrected, what it tells beside the model, and what it keeps
        until the next round.
    stays : Callable[[nn.Module], Collection[str]] (default: none)
        The names of weights that never leave the client, such as FedPer's head: it starts from those of the model's
        seed, and goes on with its own.
    personal : Callable[[Mapping, Mapping], Mapping], optional (default: None)
        The state of a client's own model, of the state that the edge sent and what the rule keeps: an evaluation tells
        its figures too, under ``personal-`` and their names. None: there is no such model.
    pulls : bool (default: False)
        The rule draws steps to an anchor of its own, so no strategy can ask for a proximal term beside it.
    handlers : Mapping[str, Handler] (default: none)
        By message type, what answers in the place of the client's own handlers, see `espalier.clients.client_app`.
    mods : Mapping[str, Sequence[Mod]] (default: none)
        By message type, Flower's mods around the handler.
    tells_weights : bool (default: False)
        In every round the edge sends, and the rule tells, a value for each weight that trains, beside these, as
        SCAFFOLD does: plans count them.
    """

    rule: Rule = plain_round
    stays: Callable[[nn.Module], Collection[str]] = nothing
    personal: Callable[[Weights, Weights], Weights] | None = None
    pulls: bool = False
    handlers: Mapping[str, Handler] = field(default_factory=dict)
    mods: Mapping[str, Sequence[Mod]] = field(default_factory=dict)
    tells_weights: bool = False

    def __post_init__(self) -> None:
        """Refuse mods that are not in lists by message type."""
        if not isinstance(self.mods, Mapping) or not all(
            isinstance(own, Sequence) and not isinstance(own, str) for own in self.mods.values()
        ):
            raise TypeError('ClientHalf.mods: allowed are lists of mods by message type, such as {"train": [mod]}')

    @property
    def is_plain(self) -> bool:
        """Whether a client's training is that of FedAvg."""
        return self.rule is plain_round

    @property
    def stays_any(self) -> bool:
        """Whether there are weights that never leave the client."""
        return self.stays is not nothing

    def answers_itself(self, message_type: str) -> bool:
        """Return whether messages of a type have a handler, or mods, of the algorithm's own."""
        return message_type in self.handlers or message_type in self.mods


PLAIN = ClientHalf()
