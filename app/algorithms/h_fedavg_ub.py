"""RawHFL's upper bound: no limits (RawHFL, Sec. V-C)."""

from espalier.app.algorithms.algorithm import Algorithm
from espalier.app.algorithms.rawhfl import accumulated_gradients
from espalier.app.planning.rule import PlanRule

H_FEDAVG_UB = Algorithm(
    name="h-fedavg-ub",
    summary="RawHFL's upper bound: everybody trains as many local rounds as there may be, without limits.",
    make_edge=accumulated_gradients,
    rule=PlanRule("h-fedavg-ub", has_limits=False),
    adds_gradients=True,
)
