"""RawHFL's upper bound: no limits (RawHFL, Sec. V-C)."""

from espalier.app.algorithms.algorithm import Algorithm, PlanRule
from espalier.app.algorithms.rawhfl import accumulated_gradients

H_FEDAVG_UB = Algorithm(
    name="h-fedavg-ub",
    summary="RawHFL's upper bound: everybody trains as many local rounds as there may be, without limits.",
    make_edge=accumulated_gradients,
    rule=PlanRule("h-fedavg-ub", has_limits=False),
    adds_gradients=True,
)
