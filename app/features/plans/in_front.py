"""Plans in front of edges."""

from flwr.serverapp.strategy import Strategy

from espalier.app.features.feature import MakeEdge, Scene
from espalier.app.ground.errors import bad_value
from espalier.app.ground.strategy_spec import StrategySpec, strategy_of
from espalier.app.planning.rule import PlanRule
from espalier.app.planning.solving import solver_for
from espalier.app.planning.world import PlannedWorld
from espalier.app.settings.sections import Plans
from espalier.strategies import AccumulatedGradients, Arrivals, EdgeRounds, ResourceAware
from espalier.strategies.flower_strategies import nodes_needed, unwrapped


def in_front(scene: Scene, make_edge: MakeEdge) -> MakeEdge:
    """Return what makes edges whose clients are selected, where rounds are planned."""
    case, world = scene.case, scene.world
    if not (world and case.rule):
        return make_edge
    spec = case.answered or case.federation.edge_strategy
    return planned(make_edge, case.rule, case.plan, world, cells_per_edge=case.cells // case.edges, spec=spec)


def planned(
    make_edge: MakeEdge, rule: PlanRule, plan: Plans, world: PlannedWorld, *, cells_per_edge: int, spec: StrategySpec
) -> MakeEdge:
    """Put the selection in front of every edge.

    Parameters
    ----------
    make_edge : Callable[[str, int], Strategy | EdgeRounds]
        Makes the edges.
    rule : PlanRule
        How plans are made.
    plan : Plans
        Section of the run config.
    world : PlannedWorld
        What they are made for.
    cells_per_edge : int
        Radio cells of an edge: more than 1 where an algorithm has no edges.
    spec : StrategySpec
        Names the strategy of the edges, for errors.
    """

    def make(name: str, size: int) -> EdgeRounds:
        edge, solve = make_edge(name, size), solver_for(rule, plan.solver, world.edges[name])
        if isinstance(edge, AccumulatedGradients):
            edge.arrivals = Arrivals() if plan.divide_by_arrived else None
        elif isinstance(strategy := strategy_of(edge), Strategy):
            selected = plan.selected_per_edge * cells_per_edge
            if getattr(unwrapped(strategy), "fraction_train", 1.0) < 1:
                raise bad_value(spec.key, spec.text, "fraction_train = 1.0: plans select the clients")
            if (needed := nodes_needed(strategy, "train", selected)) > selected:
                least = -(-needed * plan.selected_per_edge // selected)
                allowed = f"at least {least}: its {type(strategy).__name__} needs {needed} clients"
                raise bad_value("plan.selected-per-edge", plan.selected_per_edge, allowed)
        return ResourceAware(edge, world.edges[name], solve)

    return make
