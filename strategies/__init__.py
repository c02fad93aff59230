"""Flower strategies for two tiers or more, usable in any Flower project.

What is exported here is imported when it is first asked for, so that
`espalier.strategies.allocation` needs neither Flower nor PyTorch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from espalier.clients.messages.profile import DeviceProfile, Profile

    from .accumulated import AccumulatedGradients, Arrivals
    from .algorithm_edge import AlgorithmEdge
    from .available import Available
    from .edge_base import Edge, EdgeRounds
    from .edge_half import EdgeHalf, Gathered, SentNumbers
    from .edge_laws import Trial, check_edge, plain_client
    from .edges import EdgeDecorator
    from .equal_weights import EqualWeights
    from .guards.bounds import Guard
    from .guards.updates import UpdateGuard
    from .hierarchical import Hierarchical
    from .known import KnownClients
    from .laws import Broken
    from .outcomes import EdgeOutcome, Evaluation, Failure, Round, Update
    from .place import Observer
    from .privacy import PrivateCloud, PrivateMean
    from .resource_aware import Outcome, ResourceAware, Resources
    from .secure import SecureAggregation
    from .stay_grid import StayGrid
    from .strategy_edge import StrategyEdge
    from .topology import ask_profiles, ask_to_measure, asking, group_by_edge, moving, wait_for_nodes
    from .views import MemberGrid, RoundTerms

__all__ = [
    "AccumulatedGradients",
    "AlgorithmEdge",
    "Arrivals",
    "Available",
    "Broken",
    "DeviceProfile",
    "Edge",
    "EdgeDecorator",
    "EdgeHalf",
    "EdgeOutcome",
    "EdgeRounds",
    "EqualWeights",
    "Evaluation",
    "Failure",
    "Gathered",
    "Guard",
    "Hierarchical",
    "KnownClients",
    "MemberGrid",
    "Observer",
    "Outcome",
    "PrivateCloud",
    "PrivateMean",
    "Profile",
    "ResourceAware",
    "Resources",
    "Round",
    "RoundTerms",
    "SecureAggregation",
    "SentNumbers",
    "StayGrid",
    "StrategyEdge",
    "Trial",
    "Update",
    "UpdateGuard",
    "ask_profiles",
    "ask_to_measure",
    "asking",
    "check_edge",
    "group_by_edge",
    "moving",
    "plain_client",
    "wait_for_nodes",
]

_MODULES = {
    ".clients.messages.profile": ("DeviceProfile", "Profile"),
    "accumulated": ("AccumulatedGradients", "Arrivals"),
    "algorithm_edge": ("AlgorithmEdge",),
    "available": ("Available",),
    "edge_base": ("Edge", "EdgeRounds"),
    "edge_half": ("EdgeHalf", "Gathered", "SentNumbers"),
    "edge_laws": ("Trial", "check_edge", "plain_client"),
    "edges": ("EdgeDecorator",),
    "equal_weights": ("EqualWeights",),
    "guards.bounds": ("Guard",),
    "guards.updates": ("UpdateGuard",),
    "hierarchical": ("Hierarchical",),
    "known": ("KnownClients",),
    "laws": ("Broken",),
    "outcomes": ("EdgeOutcome", "Evaluation", "Failure", "Round", "Update"),
    "place": ("Observer",),
    "privacy": ("PrivateCloud", "PrivateMean"),
    "resource_aware": ("Outcome", "ResourceAware", "Resources"),
    "secure": ("SecureAggregation",),
    "stay_grid": ("StayGrid",),
    "strategy_edge": ("StrategyEdge",),
    "topology": ("ask_profiles", "ask_to_measure", "asking", "group_by_edge", "moving", "wait_for_nodes"),
    "views": ("MemberGrid", "RoundTerms"),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f".{name}", __name__)
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_MODULE_OF[name]}", __name__), name)
