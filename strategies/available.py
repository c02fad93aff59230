"""Clients that come and go, in front of an edge: who is away is not asked, and who drops out is left out."""

from collections.abc import Callable
from functools import partial

from flwr.app import ArrayRecord, ConfigRecord, Error, Message
from flwr.serverapp.strategy import Strategy

from .edge_base import EdgeRounds
from .edges import EdgeDecorator, idle
from .exchange import DROPPED_OUT, UNREACHABLE, Exchanges, answered, without_results
from .outcomes import Update
from .views import MemberGrid

# Says of a node, by its id, and an edge round, from 1, whether something holds.
Says = Callable[[int, int], bool]


class Available(EdgeDecorator):
    """Any edge, plans in front of it too, trains with those of its clients that are there.

    Parameters
    ----------
    edge : Strategy | EdgeRounds
        Trains with those that are there, and evaluates on all.
    is_there : Callable[[int, int], bool]
        Says of a node id and an edge round whether the client is there when the round begins.
    drops_out : Callable[[int, int], bool]
        Says whether it is gone before it answers: its result is an error, so that it counts as a failure.

    Raises
    ------
    ValueError
        If the edge is a `Hierarchical`: devices come and go.
    """

    def __init__(self, edge: Strategy | EdgeRounds, is_there: Says, drops_out: Says) -> None:
        super().__init__(edge)
        if self.edge.inner.is_tier:
            raise ValueError("devices come and go: put Available in front of the edges inside")
        self.is_there = is_there
        self.drops_out = drops_out

    def train_round(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: MemberGrid
    ) -> Exchanges[Update]:
        """Run the round with those that are there."""
        there = [node_id for node_id in grid.get_node_ids() if self.is_there(node_id, server_round)]
        if not there:
            return idle(self.edge, arrays, "no client is available")
        gone = {node_id for node_id in there if self.drops_out(node_id, server_round)}
        rounds = self.edge.train_round(server_round, arrays, config, grid.narrowed(there))
        return (yield from answered(rounds, partial(_without, gone=gone)))


def _without(messages: list[Message], gone: set[int]) -> Exchanges[list[Message]]:
    """Pass an exchange on; the results of those who are gone don't arrive."""
    replies = yield messages
    return without_results(messages, replies, gone, Error(UNREACHABLE, DROPPED_OUT))
