"""RawHFL's upper bound without edges (RawHFL, Sec. V-C)."""

from espalier.app.algorithms.algorithm import Algorithm
from espalier.app.algorithms.rawhfl import accumulated_gradients
from espalier.app.planning.rule import PlanRule

FEDAVG_UB = Algorithm(
    name="fedavg-ub",
    summary="RawHFL's upper bound without edges.",
    make_edge=accumulated_gradients,
    tiers="one",
    rule=PlanRule("h-fedavg-ub", has_limits=False),
    adds_gradients=True,
)
