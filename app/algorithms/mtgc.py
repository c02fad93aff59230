"""MTGC: corrections of clients to their edge, and of edges to the cloud (arXiv:2409.18448), in two tiers."""

from collections.abc import Mapping

import torch

from espalier.app.algorithms.algorithm import Algorithm, Site
from espalier.app.algorithms.strategies import edge_of_halves
from espalier.clients.half import ClientHalf
from espalier.clients.shared.correction import Correction, Weights
from espalier.clients.shared.local_round import Begun, Done, LocalRound, Pass
from espalier.strategies import AlgorithmEdge, EdgeHalf

PATH = "mtgc-path"  # a number: the sum of a round's learning rates, H * eta
DRIFT, LAST = "drift/", "last/"  # what a client keeps: z_i + y_j, and its own model


def mtgc_round(begun: Begun) -> LocalRound:
    """Step ``g + z_i + y_j``; ``z_i += (x_i - x) / (H * eta)`` when the next model of the edge comes (Alg. 1).

    Whoever gets ``y_j`` begins with ``z_i = 0``.
    """
    x, y, kept = begun.trained, begun.sent, begun.kept
    if y:
        drift = {n: y[n] for n in x}
    else:
        drift = {n: kept[DRIFT + n] + (kept[LAST + n] - own) / float(kept[PATH]) for n, own in x.items()}
    learned = yield Pass(correction=Correction(drift))
    path = {PATH: torch.tensor(learned.path, dtype=torch.float64)}
    drifts, last = {DRIFT + n: own for n, own in drift.items()}, {LAST + n: learned.weights[n] for n in x}
    return Done(learned.weights, told=path, kept={**drifts, **last, **path})


class EdgeCorrection(EdgeHalf):
    """The correction ``y_j`` of an edge: ``y_j += (x_j - x) / (H * E * eta)`` when the next global model comes.

    Parameters
    ----------
    edge_rounds : int, optional
        Edge rounds in a global round, E. None: there is no tier above, so no round is the first of a global one.
    """

    def __init__(self, edge_rounds: int | None) -> None:
        self.edge_rounds = edge_rounds or 0
        self.y: Weights = {}
        self.last: Weights = {}  # its model of the global round so far; none before it made one
        self.path = 0.0  # the sum of the learning rates that led to it
        self.informed: list[int] = []  # clients that took part in the last round, and go on from there

    def begin(self, server_round: int, start: Weights) -> None:
        """Take note of the global model, in the first round of a global one."""
        self.y = self.y or {n: torch.zeros_like(x) for n, x in start.items()}
        if not self.edge_rounds or (server_round - 1) % self.edge_rounds:
            return
        if self.last and self.path > 0:
            self.y = {n: own + (self.last[n] - start[n]) / self.path for n, own in self.y.items()}
        self.last, self.path, self.informed = {}, 0.0, []

    def sent(self, node_id: int) -> Weights:
        """Return ``y_j`` for those who were not in the last round of this global round."""
        return {} if node_id in self.informed else self.y

    def learn(self, model: Weights, told: Mapping[int, Weights], num_clients: int) -> None:
        """Remember the edge's model, and the mean path of its clients."""
        paths = [float(own[PATH]) for own in told.values() if PATH in own]
        self.path += sum(paths) / max(len(paths), 1)
        self.last, self.informed = model, list(told)


MTGC_CLIENT = ClientHalf(rule=mtgc_round)


def mtgc_edge(site: Site) -> AlgorithmEdge:
    """Return ``edge-strategy`` with a correction of the edge's own."""
    federation = site.federation
    edge_rounds = None if federation.num_edges <= MTGC.by_edges.most_flat else federation.edge_rounds
    return edge_of_halves(site, MTGC_CLIENT, EdgeCorrection(edge_rounds))


MTGC = Algorithm(
    name="mtgc",
    summary="Corrections of clients to their edge, and of edges to the cloud, against drift in both tiers.",
    make_edge=mtgc_edge,
    tiers="one or two",
    strategy_key="edge-strategy",
    sends_alike=False,
    client=MTGC_CLIENT,
)
