"""Hierarchical FL whose clients are loyal: each step is drawn to where the client's own last round ended."""

from espalier.app.algorithms import Algorithm
from espalier.app.algorithms.strategies import edge_strategy
from espalier.clients.half import ClientHalf
from espalier.clients.shared.correction import Correction
from espalier.clients.shared.local_round import Begun, Done, LocalRound, Pass

PULL = 0.5


def loyal_round(begun: Begun) -> LocalRound:
    """Step ``g + PULL * (w - w_last)``; in a client's first round there is nothing to be loyal to."""
    drawn = Correction(pull=PULL, anchor=begun.kept) if begun.kept else Correction()
    learned = yield Pass(correction=drawn)
    return Done(learned.weights, kept={name: learned.weights[name] for name in begun.trained})


LOYAL = Algorithm(
    "loyal",
    "Clients are drawn to their own last models.",
    edge_strategy,
    strategy_key="edge-strategy",
    client=ClientHalf(rule=loyal_round, pulls=True),
)
