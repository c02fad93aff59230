"""Flower strategies for two tiers, usable in any Flower project."""

from .accumulated import AccumulatedGradients
from .edges import EdgeRounds, Evaluation, Failure, StrategyEdge, Update
from .hierarchical import EdgeOutcome, Hierarchical, Observer, Round
from .resource_aware import ResourceAware, Resources
from .topology import DeviceProfile, Profile, ask_profiles, ask_to_measure, group_by_edge, wait_for_nodes

__all__ = [
    "AccumulatedGradients",
    "DeviceProfile",
    "EdgeOutcome",
    "EdgeRounds",
    "Evaluation",
    "Failure",
    "Hierarchical",
    "Observer",
    "Profile",
    "ResourceAware",
    "Resources",
    "Round",
    "StrategyEdge",
    "Update",
    "ask_profiles",
    "ask_to_measure",
    "group_by_edge",
    "wait_for_nodes",
]
