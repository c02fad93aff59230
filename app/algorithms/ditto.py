"""Ditto: FedAvg, and a model of each client's own that is drawn to the one it got (arXiv:2012.04221)."""

from espalier.app.algorithms.algorithm import Algorithm
from espalier.app.algorithms.strategies import edge_strategy
from espalier.clients.half import ClientHalf
from espalier.clients.shared.correction import Correction, Weights
from espalier.clients.shared.local_round import Begun, Done, LocalRound, Pass

PULL = 0.1  # the paper's lambda


def ditto_round(begun: Begun) -> LocalRound:
    """Train the model that is averaged; then the client's own by ``g + lambda * (v - x)`` (Alg. 1)."""
    learned = yield Pass()
    own = yield Pass(begun.kept or begun.start, Correction(pull=PULL, anchor=begun.trained))
    return Done(learned.weights, kept=own.weights)


def own_model(sent: Weights, kept: Weights) -> Weights:
    """Return a client's own model; before it has one, that which the edge sent."""
    return kept or sent


DITTO = Algorithm(
    name="ditto",
    summary="FedAvg, and beside it a model of each client's own that is drawn to the one it got.",
    make_edge=edge_strategy,
    tiers="one or two",
    strategy_key="edge-strategy",
    client=ClientHalf(rule=ditto_round, personal=own_model, pulls=True),
    passes=lambda own: 2,
)
