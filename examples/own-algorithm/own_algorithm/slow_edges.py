"""Hierarchical FL whose edges move slowly: Lookahead (arXiv:1907.08610) with an edge's clients as the fast weights."""

from dataclasses import replace

import numpy as np
from flwr.app import Array, ArrayRecord

from espalier.app.algorithms import Algorithm, Site
from espalier.app.algorithms.strategies import edge_strategy
from espalier.strategies import StrategyEdge

SHARE = 0.5


class SlowEdge(StrategyEdge):
    """Goes a share of the way from the model that it had to the one that its strategy makes of the clients'."""

    def train_round(self, server_round, arrays, config, grid):
        """Run the strategy's round, then step back with all but BatchNorm's counters."""
        update = yield from super().train_round(server_round, arrays, config, grid)
        moved = dict(update.arrays or {})
        for name, array in moved.items():
            old, new = arrays[name].numpy(), array.numpy()
            if new.dtype.kind == "f":
                moved[name] = Array(np.asarray(old + SHARE * (new - old)))
        return replace(update, arrays=ArrayRecord(moved)) if moved else update


def slow_edge(site: Site) -> SlowEdge:
    """Return an edge around ``edge-strategy``."""
    return SlowEdge(edge_strategy(site))


SLOW_EDGES = Algorithm("slow-edges", "Edges go half of the way.", slow_edge, strategy_key="edge-strategy")
