"""What an edge does in one edge round, as a conversation with its nodes; edges around other edges."""

from collections.abc import Mapping
from typing import Any, Protocol

from flwr.app import ArrayRecord, ConfigRecord
from flwr.serverapp.strategy import (
    Strategy,
)

from .exchange import Exchanges
from .outcomes import EVERYBODY, Evaluation, Failure, Update
from .strategy_edge import StrategyEdge
from .views import MemberGrid


class EdgeRounds(Protocol):
    """An edge's side of hierarchical training; `StrategyEdge` makes one of any Flower strategy."""

    def train_round(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: MemberGrid
    ) -> Exchanges[Update]:
        """Train for one edge round, starting from `arrays`."""

    def evaluate_round(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: MemberGrid
    ) -> Exchanges[Evaluation]:
        """Evaluate `arrays` on the edge's nodes."""

    def state_dict(self) -> dict[str, Any]:
        """Return what must survive an interruption."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what `state_dict` returned."""


class InFront:
    """An edge around another edge: it passes every call on, and subclasses change some of them.

    Parameters
    ----------
    edge : Strategy | EdgeRounds
        The edge.
    """

    def __init__(self, edge: Strategy | EdgeRounds) -> None:
        self.edge = edge_of(edge)

    def train_round(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: MemberGrid
    ) -> Exchanges[Update]:
        """Let the edge train."""
        return self.edge.train_round(server_round, arrays, config, grid)

    def evaluate_round(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: MemberGrid
    ) -> Exchanges[Evaluation]:
        """Let the edge evaluate on all of its nodes."""
        return self.edge.evaluate_round(server_round, arrays, config, grid)

    def state_dict(self) -> dict[str, Any]:
        """Return the edge's state."""
        return self.edge.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what `state_dict` returned."""
        self.edge.load_state_dict(state)


def edge_of(made: Strategy | EdgeRounds) -> EdgeRounds:
    """Return an edge, made of a Flower strategy if it is not one by itself; ValueError for what is neither."""
    if isinstance(made, type):
        raise ValueError(f"an edge is the class {made.__name__}: it must be an object, {made.__name__}(...)")
    if isinstance(made, Strategy):
        return StrategyEdge(made)
    methods = "train_round", "evaluate_round", "state_dict", "load_state_dict"
    if missing := [name for name in methods if not callable(getattr(made, name, None))]:
        wanted = f"it must be a Flower strategy, or an object with {', '.join(methods)}"
        raise ValueError(f"an edge is a {type(made).__name__} without {missing[0]}: {wanted}")
    return made


def innermost(edge: Any) -> Any:
    """Return the edge inside of all those that are around it, see `InFront`; itself where there are none."""
    while hasattr(inside := getattr(edge, "edge", None), "train_round"):
        edge = inside
    return edge


def idle(edge: EdgeRounds, arrays: ArrayRecord, reason: str) -> Update:
    """Return the outcome of an edge round in which no client could be asked.

    It has no model, unless the edge has a fixed weight at the cloud (`WEIGHT`, as in `AccumulatedGradients`): then the
    model that it had counts with that weight.
    """
    weight = getattr(innermost(edge), "WEIGHT", 0.0)
    return Update(arrays if weight else None, weight=weight, failures=[Failure(EVERYBODY, reason)])
