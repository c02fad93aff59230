"""The algorithms: a file and a frozen value each, and the registry that knows them by name."""

from espalier.app.algorithms.algorithm import Algorithm, Site
from espalier.app.planning.rule import PlanRule

__all__ = ["Algorithm", "PlanRule", "Site"]
