"""What a client keeps from round to round, in the state of its node."""

from collections.abc import Mapping

from flwr.app import ArrayRecord, ConfigRecord, Context, Message
from torch import Tensor

from .messages.instruction import begins_round, ends_round
from .messages.learned import begins_with_model, start_in
from .shared.arrays import to_record, to_weights
from .shared.records import records_in

# Records of a node's state.
KEPT = "kept"  # of a rule, see `espalier.clients.shared.local_round.Done`
OWN_WEIGHTS = "own-weights"  # that never leave the client
START = "round-start"  # what a round that is under way began from
RUN = "edge-run"  # the name of the run that all of it is of, also in instructions
# Of no run. Messages that come before the first instruction leave them.
LABELS_SALT, SECURE_SESSION = "labels-salt", "secure-session"


def kept(context: Context, record: str = KEPT) -> dict[str, Tensor]:
    """Return what the client keeps, nothing before its first round."""
    arrays = records_in(context.state, ArrayRecord).get(record)
    return {} if arrays is None else to_weights(arrays)


def forget_other_run(message: Message, context: Context) -> None:
    """Forget all that is kept of another run, where an instruction names its own."""
    run = next((own[RUN] for own in records_in(message.content, ConfigRecord).values() if RUN in own), None)
    if run is not None and context.state.get(RUN) != ConfigRecord({RUN: run}):
        for record in set(context.state) - {LABELS_SALT, SECURE_SESSION}:
            del context.state[record]
        context.state[RUN] = ConfigRecord({RUN: run})


def start_of_round(message: Message, context: Context) -> ArrayRecord | None:
    """Return the model, or the blocks, that a client's round began from; None where none began with such.

    It is kept from the message that begins a round to the one that ends it.
    """
    if begins_round(message.metadata.message_type):
        context.state.pop(START, None)
    if begins_with_model(message):
        context.state[START] = start_in(message.content)
    start = records_in(context.state, ArrayRecord).get(START)
    if start is not None and ends_round(message.metadata.message_type):
        del context.state[START]
    return start


def keep(context: Context, weights: Mapping[str, Tensor] | None, record: str = KEPT) -> None:
    """Keep weights until the next round; None leaves what is there."""
    if weights is not None:
        context.state[record] = to_record({name: tensor.detach().clone() for name, tensor in weights.items()})
