"""What an edge is: its rounds, and what those above it may ask of it beside them, each with a default."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from flwr.app import ArrayRecord, ConfigRecord
from flwr.serverapp.strategy import Strategy

from espalier.clients.messages.train import NUM_EXAMPLES

from .exchange import Exchanges
from .guards.updates import UpdateGuard
from .outcomes import Evaluation, Update
from .views import MemberGrid

if TYPE_CHECKING:
    from .split.fine_tuning import FineTuning, Personalised
    from .split.labels import Labels


class EdgeRounds(Protocol):
    """An edge's side of hierarchical training; `StrategyEdge` makes one of any Flower strategy.

    One that has more to say than these methods is derived from `Edge`.
    """

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


class Edge(ABC):
    """The base of edges. A subclass has `train_round` and `evaluate_round`, and of the rest what differs.

    Attributes
    ----------
    weight_key : str (default: "num-examples")
        The metric of replies by which averages are weighted.
    weight_if_idle : float (default: 0)
        What its model, as it is, weighs at the cloud after a round in which no client could be asked. 0: it has none.
    is_tier : bool (default: False)
        Its nodes are edges, not devices.
    is_guarded : bool (default: False)
        It lets `guard` judge what comes back.
    guard : UpdateGuard, optional (default: None)
        Its own; None: `Hierarchical` gives an edge that is guarded one.
    strategy : Strategy, optional (default: None)
        The Flower strategy that averages its clients' models.
    labels : Labels, optional (default: None)
        What it knows of its clients' labels.
    ends_together : bool (default: False)
        Where its round is many exchanges, all clients bring their results in the last one.
    """

    weight_key: str = NUM_EXAMPLES
    weight_if_idle: float = 0.0
    is_tier: ClassVar[bool] = False
    is_guarded: ClassVar[bool] = False
    guard: UpdateGuard | None = None
    strategy: Strategy | None = None
    labels: "Labels | None" = None
    ends_together: bool = False

    @abstractmethod
    def train_round(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: MemberGrid
    ) -> Exchanges[Update]:
        """Train for one edge round, starting from `arrays`."""

    @abstractmethod
    def evaluate_round(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: MemberGrid
    ) -> Exchanges[Evaluation]:
        """Evaluate `arrays` on the edge's nodes."""

    def state_dict(self) -> dict[str, Any]:
        """Return what must survive an interruption: by default nothing."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:  # noqa: B027
        """Take back what `state_dict` returned."""

    def clients_begin_anew(self) -> None:  # noqa: B027
        """Forget what goes by what its clients keep, which they have lost; by default nothing does."""

    @property
    def fills_up(self) -> bool:
        """Whether clients lack parts of weights, which count as 0 in its averages."""
        return False

    @property
    def inner(self) -> "Edge":
        """The edge inside of all decorators that are around it; itself where there are none."""
        return self

    @property
    def own(self) -> object:
        """What holds its state, and can't be another edge's too."""
        return self.strategy or self

    def use_seed(self, seed: int | str, *, hides_noise: bool) -> None:  # noqa: B027
        """Let what it draws follow a seed from the tier above, unless it was given one; by default it draws nothing.

        Parameters
        ----------
        seed : int | str
            The seed.
        hides_noise : bool
            The noise of differential privacy follows none.
        """

    def check_nodes(self, name: str, members: Sequence[int]) -> None:  # noqa: B027
        """Raise ValueError if it can't work with these nodes, by the name that it has; by default it can with any."""

    def take_members(self, members: Sequence[int]) -> None:  # noqa: B027
        """Take note of its nodes in a round, where nodes move between edges; by default nothing goes by them."""

    def personalise(
        self, arrays: ArrayRecord, fine_tuning: "FineTuning", grid: MemberGrid
    ) -> "Exchanges[Personalised]":
        """Fine-tune a head for every client, from a trained model, and evaluate it; by default there are no heads."""
        raise NotImplementedError(f"{type(self).__name__} has no heads to fine-tune")
