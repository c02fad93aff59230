"""SL: the clients train one after the other, against one server block."""

from collections.abc import Sequence

from flwr.app import ConfigRecord

from ..exchange import Exchanges
from .averages import on_cpu
from .loop import NOT_FINITE, SplitOutcome, State
from .losses import Losses
from .shared_server import SharedServerEdge


class Relay(SharedServerEdge):
    """SL: clients train one after the other, each from the client block that the one before left."""

    def train_clients(
        self, server_round: int, weights: State, config: ConfigRecord, clients: Sequence[int], losses: Losses
    ) -> Exchanges[tuple[SplitOutcome, State]]:
        """Pass the client block along the clients, in client order."""
        self.begin(self.server, weights, server_round)
        serve = self.serve_in_order(server_round, losses, lambda batches: batches)
        outcome = SplitOutcome()
        for node_id in clients:
            turn = yield from self.converse([[node_id]], weights, server_round, config, serve)
            kept = self.keep_within(turn, self.client_block(weights, self.server.cut), turn.blocks)
            weights = {**weights, **kept.get(node_id, {})}
            outcome.add(turn)
        losses.report(outcome.train_losses)
        return outcome, {**weights, **on_cpu(self.server.state_dict())}

    def spoiler(self, clients: Sequence[int], outcome: SplitOutcome) -> int | None:
        """Return the client from whose block on activations have another length."""
        unfit = {failure.node_id for failure in outcome.failures if failure.reason == NOT_FINITE}
        return self.activation_guard.before_jump(clients, unfit) if self.activation_guard else None
