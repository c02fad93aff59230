"""The edge's half of secure aggregation: it learns the sum of its clients' updates, and no single one."""

from .edge import CLIPPED, ERROR, SUMMED, SecureAggregation

__all__ = ["CLIPPED", "ERROR", "SUMMED", "SecureAggregation"]
