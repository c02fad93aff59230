"""From an algorithm to what runs: its edges, with plans and weights in front, under the cloud strategy."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager

from flwr.serverapp.strategy import QFedAvg, Strategy
from torch import nn

from espalier.app.features.feature import MakeEdge
from espalier.app.ground.errors import UserError, bad_value
from espalier.app.ground.strategy_spec import StrategySpec, strategy_of
from espalier.app.planning.world import PlannedWorld
from espalier.clients.messages.train import NUM_VALIDATION, PERSONAL, TOP, VALIDATION
from espalier.clients.shared.cut import Cut
from espalier.clients.task import Objective
from espalier.strategies import (
    EdgeHalf,
    EqualWeights,
    Hierarchical,
    KnownClients,
    Profile,
)
from espalier.strategies.edges import edge_of
from espalier.strategies.profiles import profiles_by_node
from espalier.strategies.randomness import derived_seed
from espalier.strategies.sampled_evaluation import SampledEvaluation
from espalier.strategies.state import UnsavableError, strategy_state


def check_states(hierarchical: Hierarchical) -> None:
    """Refuse strategies and edges' halves whose attributes can't be saved; what saves itself may need a round first."""
    for strategy in (hierarchical.cloud, *map(strategy_of, hierarchical.edges.values())):
        if isinstance(strategy, Strategy) and not hasattr(strategy, "state_dict"):
            with unsavable_as_user_error():
                strategy_state(strategy)
    for edge in hierarchical.edges.values():
        half = getattr(edge_of(edge).inner, "half", None)
        if isinstance(half, EdgeHalf) and type(half).state_dict is EdgeHalf.state_dict:
            with unsavable_as_user_error():
                half.state_dict()


@contextmanager
def unsavable_as_user_error() -> Iterator[None]:
    """Make a UserError of a strategy's state that can't be saved."""
    try:
        yield
    except UnsavableError as error:
        raise UserError(str(error)) from None


def check_averages(strategies: Sequence[StrategySpec], model: nn.Module) -> None:
    """Refuse a strategy that can't average the model: QFedAvg multiplies all of it by numbers, integers too."""
    integers = [name for name, tensor in model.state_dict().items() if not tensor.is_floating_point()]
    for spec in strategies:
        if integers and spec.has_any(QFedAvg):
            allowed = f"another strategy: {spec.name} can't average integers, such as the model's {integers[0]}"
            raise bad_value(spec.key, spec.text, allowed)


def equally_weighted(make_edge: MakeEdge) -> MakeEdge:
    """Let all clients of an edge weigh the same, and all edges."""
    return lambda name, size: EqualWeights(make_edge(name, size))


def evaluating_on_some(make_edge: MakeEdge, share: float, seed: int) -> MakeEdge:
    """Let every edge evaluate on a share of its clients, drawn by the seed."""
    return lambda name, size: SampledEvaluation(make_edge(name, size), share, derived_seed(seed, "evaluate", name))


def checked_by_profiles(
    make_edge: MakeEdge,
    profiles: Sequence[Profile],
    objective: Objective,
    top_m: Sequence[int],
    *,
    validates: bool,
    is_personal: bool,
    train_metrics: Collection[str],
) -> MakeEdge:
    """Check what the clients of every edge report against their profiles.

    An evaluation may report the figures of the objective and top-M accuracies, and with `validates` the same figures of
    the examples that clients hold back, and where clients have models of their own the figures of these. A
    reply to an instruction to train has `train_metrics`.
    """
    figures = (*objective.figures, *(f"{TOP}{m}" for m in top_m))
    if validates:
        figures = (*figures, *(VALIDATION + name for name in objective.figures), NUM_VALIDATION)
    if is_personal:
        figures = (*figures, *(PERSONAL + name for name in objective.figures))
    by_node = profiles_by_node(profiles)
    return lambda name, size: KnownClients(
        make_edge(name, size),
        by_node,
        train_metrics=train_metrics,
        evaluate_metrics=figures,
        evaluates_more=objective.metrics is not None,
    )


def cut_rule(
    cuts: Sequence[Cut], client_of: Mapping[int, int], world: PlannedWorld | None, *, is_best: bool
) -> Callable[[int], Cut]:
    """Return where the model is cut for a client, by its node id: by ``cut-layer``, or as its plan says.

    Parameters
    ----------
    cuts : Sequence[Cut]
        Those of the clients in turn, or those that a plan chooses from.
    client_of : Mapping[int, int]
        Client number by node id.
    world : PlannedWorld, optional
        Knows the plans.
    is_best : bool
        Plans choose.
    """
    if not is_best:
        return lambda node_id: cuts[client_of[node_id] % len(cuts)]
    assert world is not None
    return lambda node_id: cuts[world.option_of(client_of[node_id])]
