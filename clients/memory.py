"""What a client keeps from round to round, in the state of its node."""

from collections.abc import Mapping

from flwr.app import ArrayRecord, Context
from torch import Tensor

from .shared.arrays import to_record, to_weights
from .shared.records import records_in

# Records of a node's state.
KEPT = "kept"  # of a rule, see `espalier.clients.shared.local_round.Done`
OWN_WEIGHTS = "own-weights"  # that never leave the client


def kept(context: Context, record: str = KEPT) -> dict[str, Tensor]:
    """Return what the client keeps, nothing before its first round."""
    arrays = records_in(context.state, ArrayRecord).get(record)
    return {} if arrays is None else to_weights(arrays)


def keep(context: Context, weights: Mapping[str, Tensor] | None, record: str = KEPT) -> None:
    """Keep weights until the next round; None leaves what is there."""
    if weights is not None:
        context.state[record] = to_record({name: tensor.detach().clone() for name, tensor in weights.items()})
