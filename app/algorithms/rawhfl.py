"""RawHFL: two tiers under deadline, energy and radio limits (arXiv:2402.04216 and its spec)."""

from espalier.app.algorithms.algorithm import Algorithm, Site
from espalier.app.algorithms.strategies import fedavg_of_all
from espalier.app.planning.rule import PlanRule
from espalier.strategies import AccumulatedGradients


def accumulated_gradients(site: Site) -> AccumulatedGradients:
    """Return an edge that steps along the accumulated gradients of those whom its plan selects."""
    return AccumulatedGradients(site.train.learning_rate, fedavg_of_all())


RAWHFL = Algorithm(
    name="rawhfl",
    summary="Two tiers under deadline, energy and radio limits: the optimum of who trains, and how hard.",
    make_edge=accumulated_gradients,
    rule=PlanRule(),
    adds_gradients=True,
)
