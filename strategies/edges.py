"""Edges of whatever is given as one; edges around other edges."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from flwr.app import ArrayRecord, ConfigRecord, Message
from flwr.serverapp.strategy import Strategy

from .edge_base import Edge, EdgeRounds
from .exchange import Exchanges, Result, Together, answered
from .outcomes import EVERYBODY, Evaluation, Failure, Update
from .strategy_edge import StrategyEdge
from .views import MemberGrid

if TYPE_CHECKING:
    from .split.fine_tuning import FineTuning, Personalised


class EdgeOfRounds(Edge):
    """An edge of an object that has the methods of `EdgeRounds` and is no `Edge`.

    Parameters
    ----------
    rounds : EdgeRounds
        The object.
    """

    def __init__(self, rounds: EdgeRounds) -> None:
        self.rounds = rounds

    def train_round(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: MemberGrid
    ) -> Exchanges[Update]:
        """Let it train."""
        return self.rounds.train_round(server_round, arrays, config, grid)

    def evaluate_round(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: MemberGrid
    ) -> Exchanges[Evaluation]:
        """Let it evaluate."""
        return self.rounds.evaluate_round(server_round, arrays, config, grid)

    def state_dict(self) -> dict[str, Any]:
        """Return its state."""
        return self.rounds.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what `state_dict` returned."""
        self.rounds.load_state_dict(state)

    @property
    def own(self) -> object:
        """The object."""
        return self.rounds


class EdgeDecorator(Edge):
    """An edge around another edge: it passes every call on, and subclasses change some of them.

    What is no call is the edge's inside: see `Edge.inner`.

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

    @property
    def inner(self) -> Edge:
        """The edge inside of all decorators."""
        return self.edge.inner

    @property
    def fills_up(self) -> bool:
        """As the edge."""
        return self.edge.fills_up

    def personalise(
        self, arrays: ArrayRecord, fine_tuning: "FineTuning", grid: MemberGrid
    ) -> "Exchanges[Personalised]":
        """Let the edge fine-tune heads."""
        return self.edge.personalise(arrays, fine_tuning, grid)


def answered_messages(
    conversation: Exchanges[Result], answer: Callable[[list[Message]], Exchanges[list[Message]]]
) -> Exchanges[Result]:
    """Run a conversation whose messages are answered as by `answered`; `Together` is left alone."""

    def answer_step(step: list[Message] | Together) -> Exchanges[Any]:
        return (yield step) if isinstance(step, Together) else (yield from answer(step))

    return answered(conversation, answer_step)


def check_makes_edges(make_edge: object) -> None:
    """Raise ValueError for what can't be called with an edge's name and size to make one."""
    wanted = "it must be a function that returns a new one: lambda name, size: FedAvg(min_available_nodes=size)"
    if not callable(make_edge):
        raise ValueError(f"make_edge is a {type(make_edge).__name__}: {wanted}")
    if isinstance(make_edge, type):
        maker = next(kind for kind in make_edge.__mro__ if "__init__" in vars(kind))
        if maker.__module__.startswith("flwr."):  # Flower's take neither name nor size
            raise ValueError(f"make_edge is the class {make_edge.__name__}: {wanted}")


def edge_of(made: Strategy | EdgeRounds) -> Edge:
    """Return an edge, made of a Flower strategy if it is not one by itself; ValueError for what is neither."""
    if isinstance(made, type):
        raise ValueError(f"an edge is the class {made.__name__}: it must be an object, {made.__name__}(...)")
    if isinstance(made, Edge):
        return made
    if isinstance(made, Strategy):
        return StrategyEdge(made)
    methods = "train_round", "evaluate_round", "state_dict", "load_state_dict"
    if missing := [name for name in methods if not callable(getattr(made, name, None))]:
        wanted = f"it must be a Flower strategy, or an object with {', '.join(methods)}"
        raise ValueError(f"an edge is a {type(made).__name__} without {missing[0]}: {wanted}")
    return EdgeOfRounds(made)


def at_once(result: Result) -> Exchanges[Result]:
    """Return a conversation without any exchange."""
    yield from ()
    return result


def idle(edge: Edge, arrays: ArrayRecord, reason: str) -> Update:
    """Return the outcome of an edge round in which no client could be asked, see `Edge.weight_if_idle`."""
    weight = edge.inner.weight_if_idle
    return Update(arrays if weight else None, weight=weight, failures=[Failure(EVERYBODY, reason)])
