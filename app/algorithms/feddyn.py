"""FedDyn: dynamic regularisation of each client's loss (arXiv:2111.04263), in one tier or at every edge."""

from collections.abc import Mapping
from typing import Annotated

import torch
from pydantic import Field

from espalier.app.algorithms.algorithm import Algorithm, Site
from espalier.app.algorithms.strategies import edge_of_halves
from espalier.app.settings.section import Section
from espalier.clients.half import ClientHalf
from espalier.clients.shared.correction import Correction, Weights
from espalier.clients.shared.local_round import Begun, Done, LocalRound, Pass
from espalier.strategies import EdgeHalf, Gathered

ALPHA = "feddyn-alpha"


class FedDynSettings(Section):
    """Of FedDyn, whole and cut."""

    name = "feddyn"

    alpha: Annotated[float, Field(ge=1e-9, le=1e6)] = 0.1
    """With [FedDyn](algorithms.md#feddyn): how strongly a client is drawn to the model that it got."""


def feddyn_round(begun: Begun) -> LocalRound:
    """Step ``g - q_i + alpha * (x_i - x)``, then ``q_i -= alpha * (x_i - x)`` (Alg. 1)."""
    alpha, x = float(begun.sent[ALPHA]), begun.trained
    q = {name: begun.kept.get(name, torch.zeros_like(own)) for name, own in x.items()}
    drift = {name: -own for name, own in q.items()}
    learned = yield Pass(correction=Correction(drift, pull=alpha, anchor=x))
    return Done(learned.weights, kept={n: q[n] - alpha * (learned.weights[n].to(own) - own) for n, own in x.items()})


class ServerDynamics(EdgeHalf):
    """The edge's ``h``, the mean of all clients' ``q``; the model is the mean of clients' models, less ``h / alpha``.

    Parameters
    ----------
    alpha : float
        The strength of the regularisation.
    """

    def __init__(self, alpha: float) -> None:
        self.alpha = alpha
        self.h: Weights = {}

    def sent(self, node_id: int) -> Weights:
        """Return alpha."""
        return {ALPHA: torch.tensor(self.alpha, dtype=torch.float64)}

    def averaged(self, gathered: Gathered) -> Mapping[int, Weights]:
        """Return models moved by ``-h / alpha``, as are then their averages; ``h -= alpha / m * sum(x_i - x)`` before.

        Clients have moved their ``q`` whether an average can be made or not.
        """
        models, share = gathered.models, self.alpha / gathered.num_clients
        h = {n: self.h.get(n, torch.zeros_like(x)) for n, x in gathered.start.items()}
        self.h = {n: h[n] - share * sum(own[n] - x for own in models.values()) for n, x in gathered.start.items()}
        shift = {n: own / self.alpha for n, own in self.h.items()}
        return {node_id: {n: w - shift[n] for n, w in own.items()} for node_id, own in models.items()}

    def clients_begin_anew(self) -> None:
        """Begin at 0 as the clients do, whose mean it is."""
        self.h = {}


FEDDYN_CLIENT = ClientHalf(rule=feddyn_round, pulls=True)


def server_dynamics(site: Site) -> ServerDynamics:
    """Return the half of an edge, with the alpha of its settings."""
    assert isinstance(site.own, FedDynSettings)
    return ServerDynamics(site.own.alpha)


FEDDYN = Algorithm(
    name="feddyn",
    summary="Dynamic regularisation of clients with uneven data, at every edge; its strength is feddyn.alpha.",
    make_edge=edge_of_halves(FEDDYN_CLIENT, server_dynamics),
    tiers="one or two",
    strategy_key="edge-strategy",
    takes_means=False,
    client=FEDDYN_CLIENT,
    section=FedDynSettings,
)
