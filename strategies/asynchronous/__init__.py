"""Asynchronous tiers: a tier aggregates when enough updates are in, and waits for nobody."""

from .clients import AsynchronousEdge
from .clocks import Clock, SimulatedClock, WallClock
from .flights import Pace, Taken
from .hierarchy import AsynchronousHierarchical, EdgePace
from .modes import FedAsync, FedBuff, Mode, SemiSynchronous
from .staleness import Staleness, constant, hinge, polynomial
from .tier import AsynchronousTier

__all__ = [
    "AsynchronousEdge",
    "AsynchronousHierarchical",
    "AsynchronousTier",
    "Clock",
    "EdgePace",
    "FedAsync",
    "FedBuff",
    "Mode",
    "Pace",
    "SemiSynchronous",
    "SimulatedClock",
    "Staleness",
    "Taken",
    "WallClock",
    "constant",
    "hinge",
    "polynomial",
]
