"""An algorithm: what clients do in a round, and who makes an edge of them."""

from espalier.app.algorithms import Algorithm
from espalier.app.algorithms.strategies import edge_strategy
from espalier.clients.half import ClientHalf
from espalier.clients.shared.correction import Correction
from espalier.clients.shared.local_round import Begun, Done, LocalRound, Pass

PULL = 0.1  # 0 is FedAvg's client


def near_round(begun: Begun) -> LocalRound:
    """Train once; each step follows ``g + PULL * (w - w_edge)``, so it stays near the model that the edge sent."""
    learned = yield Pass(correction=Correction(pull=PULL, anchor=begun.trained))
    return Done(learned.weights)


NEAR = Algorithm(
    name="near",
    summary="Clients stay near the model that their edge sent.",
    make_edge=edge_strategy,  # of what `edge-strategy` names
    strategy_key="edge-strategy",
    client=ClientHalf(rule=near_round),
)
