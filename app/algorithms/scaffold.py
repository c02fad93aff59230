"""SCAFFOLD: control variates against client drift (arXiv:1910.06378), option II, in one tier or at every edge."""

from collections.abc import Mapping

import torch

from espalier.app.algorithms.algorithm import Algorithm
from espalier.app.algorithms.strategies import edge_of_halves
from espalier.clients.half import ClientHalf
from espalier.clients.shared.correction import Correction, Weights
from espalier.clients.shared.local_round import Begun, Done, LocalRound, Pass
from espalier.strategies import EdgeHalf


def scaffold_round(begun: Begun) -> LocalRound:
    """Step ``g + c - c_i``, then ``c_i += (x - x_i) / (K * eta) - c``; the change is told (Alg. 1, option II)."""
    c = {name: begun.sent.get(name, torch.zeros_like(x)) for name, x in begun.trained.items()}
    c_i = {name: begun.kept.get(name, torch.zeros_like(x)) for name, x in begun.trained.items()}
    learned = yield Pass(correction=Correction(drift={name: c[name] - c_i[name] for name in c}))
    change = {n: (x - learned.weights[n].to(x)) / learned.path - c[n] for n, x in begun.trained.items()}
    return Done(learned.weights, told=change, kept={name: c_i[name] + change[name] for name in c})


class ServerControl(EdgeHalf):
    """The control variate of an edge: the sum of what its clients' have changed by, over all of its clients."""

    def __init__(self) -> None:
        self.control: Weights = {}

    def sent(self, node_id: int) -> Weights:
        """Return the control variate."""
        return self.control

    def learn(self, model: Weights, told: Mapping[int, Weights], num_clients: int) -> None:
        """Add ``|S| / m`` times the mean change."""
        for change in told.values():
            shares = {name: values / num_clients for name, values in change.items()}
            self.control = {**self.control, **{n: self.control.get(n, 0.0) + share for n, share in shares.items()}}

    def clients_begin_anew(self) -> None:
        """Begin at 0 as the clients do, whose mean it is."""
        self.control = {}


SCAFFOLD_CLIENT = ClientHalf(rule=scaffold_round, tells_weights=True)

SCAFFOLD = Algorithm(
    name="scaffold",
    summary="Control variates against the drift of clients with uneven data, at every edge.",
    make_edge=edge_of_halves(SCAFFOLD_CLIENT, lambda site: ServerControl()),
    tiers="one or two",
    strategy_key="edge-strategy",
    client=SCAFFOLD_CLIENT,
)
