"""What clients and edges do in a run with secure aggregation."""

from dataclasses import replace

from espalier.app.features.case import Case
from espalier.app.features.feature import MakeEdge, Scene
from espalier.app.features.secure_aggregation.checks import is_on
from espalier.app.features.secure_aggregation.settings import Secure
from espalier.clients.half import ClientHalf, Outgoing
from espalier.clients.messages.train import EDGE_HALF
from espalier.clients.secure.handlers import OF_WHOLE_MODELS, SecureClient
from espalier.clients.shared.secure.terms import SecureTerms
from espalier.strategies.randomness import derived_seed
from espalier.strategies.secure import SecureAggregation


def client_of(case: Case) -> SecureClient:
    """Return what a run's clients do."""
    return SecureClient(terms_of(case), case.train.weighting == "equal", case[Secure].update_norm)


def terms_of(case: Case) -> SecureTerms:
    """Return what clients and edges both go by."""
    own = case[Secure]
    apart = () if case.algorithm.sends_alike else (EDGE_HALF,)
    return SecureTerms(own.clip, own.threshold, own.fewest, own.neighbours, own.signed, apart)


def half(case: Case, given: ClientHalf) -> ClientHalf:
    """Return what clients do: they answer the messages of secure aggregation, and of split models where they must."""
    if not is_on(case):
        return given
    refused = {} if case.algorithm.splits else OF_WHOLE_MODELS
    return replace(given, handlers={**given.handlers, **client_of(case).handlers, **refused})


def outgoing(case: Case) -> list[Outgoing]:
    """Return what masks clients' updates."""
    return [client_of(case)] if is_on(case) else []


def in_front(scene: Scene, make_edge: MakeEdge) -> MakeEdge:
    """Return what makes edges that learn sums."""
    case = scene.case
    if not is_on(case):
        return make_edge
    most_weights = most_weights_of(scene)

    def make(name: str, size: int) -> SecureAggregation:
        return SecureAggregation(
            make_edge(name, size), terms_of(case), most_weights[name], derived_seed(case.seed, "secure", name)
        )

    return make


def most_weights_of(scene: Scene) -> dict[str, int]:
    """Return the largest weight of a client by edge: of its own clients, as an edge that has a host knows no others.

    Where clients move, each of all may come.
    """
    if scene.case.train.weighting == "equal":
        return dict.fromkeys(scene.topology, 1)
    examples = {profile.node_id: profile.num_train_examples for profile in scene.profiles}
    if scene.case.movers:
        return dict.fromkeys(scene.topology, max([1, *examples.values()]))
    return {name: max([1, *map(examples.__getitem__, members)]) for name, members in scene.topology.items()}
