"""SFL-V2: one server block for all clients, whose blocks are averaged (arXiv:2004.12088)."""

from collections.abc import Sequence
from itertools import count
from typing import Any, Literal

from flwr.app import ConfigRecord
from torch import nn

from espalier.clients.shared.cut import Cut

from ..exchange import Exchanges
from .averages import average, on_cpu
from .loop import SplitOutcome, State
from .losses import Losses
from .server_block import MakeOptimizer
from .serving import MiniBatch
from .shared_server import SharedServerEdge


class SplitFedV2(SharedServerEdge):
    """SFL-V2: one server block, updated by every client's mini-batches; client blocks are averaged.

    Parameters
    ----------
    model, cut, make_optimizer, **options
        As for `SharedServerEdge`.
    order : str (default: "interleaved")
        ``"interleaved"`` takes one mini-batch of each client per pass, in an order drawn anew for each pass (Algorithm
        2 of the SFL cut-layer paper). ``"one-by-one"`` serves all of a client's mini-batches before the next client's,
        the clients in an order drawn anew for each round, and ``"in-client-order"`` in their own order in each round.
    """

    def __init__(
        self,
        model: nn.Sequential,
        cut: Cut | int,
        make_optimizer: MakeOptimizer,
        *,
        order: Literal["interleaved", "one-by-one", "in-client-order"] = "interleaved",
        **options: Any,
    ) -> None:
        super().__init__(model, cut, make_optimizer, **options)
        self.order = order

    def train_clients(
        self, server_round: int, weights: State, config: ConfigRecord, clients: Sequence[int], losses: Losses
    ) -> Exchanges[tuple[SplitOutcome, State]]:
        """Train all clients against the shared server block, then average the client blocks."""
        self.begin(self.server, weights, server_round)
        passes = count()

        def shuffled(batches: list[MiniBatch]) -> list[MiniBatch]:
            order = self.random_order(range(len(batches)), "order", server_round, next(passes))
            return [batches[i] for i in order]

        serve = self.serve_in_order(server_round, losses, shuffled)
        outcome = SplitOutcome()
        for turn in self._turns(server_round, clients):
            outcome.add((yield from self.converse([turn], weights, server_round, config, serve)))
        outcome.sort(clients)
        losses.report(outcome.train_losses)
        sent = self.client_block(weights, self.server.cut)
        kept = self.keep_within(outcome, sent, outcome.blocks)
        blocks = average(kept, outcome.num_examples) if kept else {}
        return outcome, {**weights, **on_cpu(self.server.state_dict()), **blocks}

    def _turns(self, server_round: int, clients: Sequence[int]) -> list[list[int]]:
        """Return the clients that train at a time."""
        if self.order == "interleaved":
            return [list(clients)]
        if self.order == "in-client-order":
            return [[client] for client in clients]
        # Orders are drawn over positions: node ids differ from run to run.
        return [[clients[i]] for i in self.random_order(range(len(clients)), "turns", server_round)]
