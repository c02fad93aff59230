"""MTGC: corrections of clients to their edge, and of edges to the cloud (arXiv:2409.18448), in two tiers."""

from collections.abc import Mapping

import torch

from espalier.app.algorithms.algorithm import Algorithm, Site
from espalier.app.algorithms.strategies import edge_of_halves
from espalier.clients.half import ClientHalf
from espalier.clients.shared.correction import Correction, Weights
from espalier.clients.shared.local_round import Begun, Done, LocalRound, Pass
from espalier.strategies import EdgeHalf

PATH = "mtgc-path"  # a number: the sum of a round's learning rates, H * eta
DRIFT, LAST = "drift/", "last/"  # what a client keeps: z_i + y_j, and its own model


def mtgc_round(begun: Begun) -> LocalRound:
    """Step ``g + z_i + y_j``; ``z_i += (x_i - x) / (H * eta)`` when the next model of the edge comes (Alg. 1).

    Whoever gets ``y_j`` begins with ``z_i = 0``. A client whose node began anew knows neither, and gets ``y_j`` in the
    next round: it tells no path.
    """
    x, y, kept = begun.trained, begun.sent, begun.kept
    if y:
        drift = {n: y[n] for n in x}
    elif kept:
        drift = {n: kept[DRIFT + n] + (kept[LAST + n] - own) / float(kept[PATH]) for n, own in x.items()}
    else:
        drift = {n: torch.zeros_like(own) for n, own in x.items()}
    learned = yield Pass(correction=Correction(drift))
    path = {PATH: torch.tensor(learned.path, dtype=torch.float64)}
    drifts, last = {DRIFT + n: own for n, own in drift.items()}, {LAST + n: learned.weights[n] for n in x}
    return Done(learned.weights, told=path if y or kept else {}, kept={**drifts, **last, **path})


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
        self.global_round = -1  # in which it trained last, from 0
        self.informed: list[int] = []  # clients that took part in the last round
        self.going_on: list[int] = []  # likewise, while the next one is under way: they go on from there

    def begin(self, server_round: int, start: Weights) -> None:
        """Take note of the global model, where the round is the first of a global one that the edge trains in."""
        self.y = self.y or {n: torch.zeros_like(x) for n, x in start.items()}
        self.going_on, self.informed = self.informed, []
        number = (server_round - 1) // self.edge_rounds if self.edge_rounds else self.global_round
        if number == self.global_round:
            return
        missed_one = 0 <= self.global_round < number - 1  # it does not know what that one began from
        if self.last and self.path > 0 and not missed_one:
            self.y = {n: own + (self.last[n] - start[n]) / self.path for n, own in self.y.items()}
        self.last, self.path, self.global_round, self.going_on = {}, 0.0, number, []

    def sent(self, node_id: int) -> Weights:
        """Return ``y_j`` for those who were not in the last round of this global round."""
        return {} if node_id in self.going_on else self.y

    def learn(self, model: Weights, told: Mapping[int, Weights], num_clients: int) -> None:
        """Remember the edge's model, and the mean path of its clients."""
        paths = {node_id: float(own[PATH]) for node_id, own in told.items() if PATH in own and own[PATH] > 0}
        self.path += sum(paths.values()) / max(len(paths), 1)
        self.last, self.informed = model, list(paths)

    def clients_begin_anew(self) -> None:
        """Send ``y_j`` to everybody."""
        self.informed = []


MTGC_CLIENT = ClientHalf(rule=mtgc_round)


def edge_correction(site: Site) -> EdgeCorrection:
    """Return the half of an edge, which has global rounds where there are two tiers."""
    federation = site.federation
    edge_rounds = None if federation.num_edges <= MTGC.by_edges.most_flat else federation.edge_rounds
    return EdgeCorrection(edge_rounds)


MTGC = Algorithm(
    name="mtgc",
    summary="Corrections of clients to their edge, and of edges to the cloud, against drift in both tiers.",
    make_edge=edge_of_halves(MTGC_CLIENT, edge_correction),
    tiers="one or two",
    strategy_key="edge-strategy",
    sends_alike=False,
    client=MTGC_CLIENT,
)
