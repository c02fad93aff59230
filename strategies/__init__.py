"""Flower strategies for two tiers, usable in any Flower project."""

from .edges import EdgeRounds, Evaluation, Failure, StrategyEdge, Update
from .hierarchical import EdgeOutcome, Hierarchical, Observer, Round
from .topology import Profile, ask_profiles, group_by_edge, wait_for_nodes

__all__ = [
    "EdgeOutcome",
    "EdgeRounds",
    "Evaluation",
    "Failure",
    "Hierarchical",
    "Observer",
    "Profile",
    "Round",
    "StrategyEdge",
    "Update",
    "ask_profiles",
    "group_by_edge",
    "wait_for_nodes",
]
