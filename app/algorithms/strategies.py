"""Edges made from Flower strategies of the run config."""

from collections.abc import Callable

from flwr.serverapp.strategy import FedAvg, Strategy
from torch import nn

from espalier.app.algorithms.algorithm import ONE_NODE, Algorithm, Site
from espalier.app.ground.errors import UserError, bad_value
from espalier.clients.half import ClientHalf
from espalier.clients.shared.tied import other_names
from espalier.strategies import AlgorithmEdge, EdgeHalf, EdgeRounds, SentNumbers, StrategyEdge


def cloud_strategy(site: Site) -> Strategy:
    """Return ``cloud-strategy``, for the clients of a federation without edges."""
    return site.federation.cloud_strategy.build({**ONE_NODE, "fraction_train": site.federation.participation})


def edge_strategy(site: Site) -> Strategy:
    """Return ``edge-strategy``."""
    return site.federation.edge_strategy.build({**ONE_NODE, "fraction_train": site.federation.participation})


def edge_of_halves(
    client: ClientHalf, half_of: Callable[[Site], EdgeHalf | None] = lambda site: None
) -> Callable[[Site], AlgorithmEdge]:
    """Return what makes the edges of an algorithm with halves, which are ``edge-strategy`` with these halves.

    Parameters
    ----------
    client : ClientHalf
        The clients' half, whose weights that stay are no part of a message.
    half_of : Callable[[Site], EdgeHalf | None] (default: none)
        Makes the half of an edge.
    """

    def make_edge(site: Site) -> AlgorithmEdge:
        stays, name = client.stays(site.task.new_model()), site.federation.edge_strategy.name
        return AlgorithmEdge(edge_strategy(site), half_of(site), stays, name=name)

    return make_edge


def check_names_that_stay(algorithm: Algorithm, model: nn.Module) -> None:
    """Raise UserError where the clients' half keeps weights that the model has not, or that travel by another name."""
    try:
        stays, state = algorithm.client.stays(model), model.state_dict()
    except ValueError as error:
        raise bad_value("algorithm", algorithm.text, f"another one, or {error}") from None
    if unknown := [name for name in stays if name not in state]:
        allowed = f"one whose ClientHalf.stays names weights of the model, not {unknown[0]!r}"
        raise bad_value("algorithm", algorithm.text, allowed)
    for name, known in other_names(model).items():
        if (name in stays) != (known in stays):
            why = "of which the algorithm keeps one on clients and averages the other"
            raise UserError(f"{known} and {name} are one weight of the model, {why}; allowed are two weights")


def check_edge_fits(algorithm: Algorithm, model: nn.Module, made: Strategy | EdgeRounds) -> None:
    """Raise UserError where an edge's strategy would leave out all clients for what their half keeps, or tells beside.

    Edges with rounds of another kind, as those that split, have to see to that themselves.
    """
    client = algorithm.client
    if algorithm.splits or not isinstance(made, (Strategy, StrategyEdge)):
        return
    stays = client.stays(model) if client.stays_any else ()
    if set(stays) != set(getattr(made, "stays", ())):
        what = "keep out of messages what its ClientHalf.stays names, and nothing else"
    elif client.tells_weights and not isinstance(made, AlgorithmEdge):
        what = "take what its clients tell beside the model, as ClientHalf.tells_weights says"
    else:
        return
    allowed = f"one whose edges {what}: make_edge=edge_of_halves(CLIENT), of espalier.app.algorithms.strategies"
    raise bad_value("algorithm", algorithm.text, f"{allowed}, with its ClientHalf as CLIENT")


def settings_sent(site: Site) -> SentNumbers:
    """Return the half of an edge that sends clients the algorithm's own settings, by their keys."""
    assert site.own is not None
    return SentNumbers(site.own.as_dict())


def fedavg_of_all() -> StrategyEdge:
    """Return FedAvg of all clients, for edges that leave averages or evaluation to it."""
    return StrategyEdge(FedAvg(**ONE_NODE))
