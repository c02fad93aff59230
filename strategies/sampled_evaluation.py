"""A model is evaluated on some of an edge's clients, or on none of them."""

import random
from dataclasses import replace

from flwr.app import ArrayRecord, ConfigRecord
from flwr.serverapp.strategy import Strategy

from .edge_base import EdgeRounds
from .edges import EdgeDecorator, at_once
from .exchange import Exchanges
from .outcomes import Evaluation
from .randomness import derived_seed, sample_size
from .views import FixedGrid, MemberGrid


class SampledEvaluation(EdgeDecorator):
    """An edge, of whatever kind, that evaluates on a share of its clients, drawn anew for every evaluation.

    Parameters
    ----------
    edge : Strategy | EdgeRounds
        Trains with all of its clients, and evaluates on those that are drawn.
    share : float
        Of the connected clients, from 0 to 1: their number is rounded down, and at least 1. 0: no client is asked.
    seed : int | str
        With the round, the only source of chance.
    """

    def __init__(self, edge: Strategy | EdgeRounds, share: float, seed: int | str) -> None:
        super().__init__(edge)
        self.share = share
        self.seed = seed

    def evaluate_round(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: MemberGrid
    ) -> Exchanges[Evaluation]:
        """Let the edge evaluate on the clients that are drawn."""
        if not self.share:
            return at_once(Evaluation())
        present = grid.get_node_ids()
        count = min(len(present), sample_size(len(present), self.share))
        draw = random.Random(derived_seed(self.seed, server_round))
        drawn = [present[place] for place in sorted(draw.sample(range(len(present)), count))]
        terms = replace(grid.terms, num_clients=count)
        return self.edge.evaluate_round(server_round, arrays, config, FixedGrid(grid, drawn, terms=terms))
