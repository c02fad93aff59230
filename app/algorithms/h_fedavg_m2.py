"""RawHFL's second baseline: who can't make a local round is left out (RawHFL, Sec. V-C)."""

from espalier.app.algorithms.algorithm import Algorithm
from espalier.app.algorithms.rawhfl import accumulated_gradients
from espalier.app.planning.rule import PlanRule

H_FEDAVG_M2 = Algorithm(
    name="h-fedavg-m2",
    summary="RawHFL's baseline: those who can make a local round train, as many as the weakest of them can.",
    make_edge=accumulated_gradients,
    rule=PlanRule("h-fedavg-m2", over_all_cells=True),
    adds_gradients=True,
)
