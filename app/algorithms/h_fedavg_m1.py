"""RawHFL's first baseline: nobody is left out (RawHFL, Sec. V-C)."""

from espalier.app.algorithms.algorithm import Algorithm
from espalier.app.algorithms.rawhfl import accumulated_gradients
from espalier.app.planning.rule import PlanRule

H_FEDAVG_M1 = Algorithm(
    name="h-fedavg-m1",
    summary="RawHFL's baseline: everybody trains, as many local rounds as the weakest of all cells can.",
    make_edge=accumulated_gradients,
    rule=PlanRule("h-fedavg-m1", over_all_cells=True),
    adds_gradients=True,
)
