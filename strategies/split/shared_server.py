"""An edge with one server block for all of its clients: what SFL-V2 and SL share."""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from flwr.app import ConfigRecord
from torch import nn

from espalier.clients.shared.cut import Cut

from ..exchange import Exchanges
from ..guards.activations import ActivationGuard
from ..guards.updates import guard_state, load_guard_state
from ..views import MemberGrid
from .edge import SplitEdge
from .loop import SplitOutcome, State
from .losses import Losses
from .server_block import MakeOptimizer
from .serving import MiniBatch, Serve, Steps, in_turn


class SharedServerEdge(SplitEdge):
    """An edge with one server block for all of its clients; its optimizer keeps its state over rounds.

    Parameters
    ----------
    model : nn.Sequential
        The whole model.
    cut : Cut | int
        Where the model is cut for every client, as what `SplitEdge`'s `cut_of` returns.
    make_optimizer, **options
        As for `SplitEdge`.
    """

    def __init__(self, model: nn.Sequential, cut: Cut | int, make_optimizer: MakeOptimizer, **options: Any) -> None:
        super().__init__(model, lambda node_id: cut, make_optimizer, **options)
        self.server = self.server_block(cut)

    def split_round(
        self,
        server_round: int,
        weights: State,
        config: ConfigRecord,
        clients: Sequence[int],
        losses: Losses,
        grid: MemberGrid,
    ) -> Exchanges[tuple[SplitOutcome, State]]:
        """Train all clients against the shared server block.

        What a client sends is held against rounds before when it comes; of the first, see `_first_round`.
        """

        def train(those: Sequence[int]) -> Exchanges[tuple[SplitOutcome, State]]:
            return self.train_clients(server_round, weights, config, those, losses)

        guard = self.activation_guard
        if guard is not None and not guard.knows(self.server.cut.first):
            return (yield from self._first_round(train, clients, losses, guard))
        result = yield from train(clients)
        self.judge_activations()
        return result

    def _first_round(
        self,
        train: Callable[[Sequence[int]], Exchanges[tuple[SplitOutcome, State]]],
        clients: Sequence[int],
        losses: Losses,
        guard: ActivationGuard,
    ) -> Exchanges[tuple[SplitOutcome, State]]:
        """Learn how long activations are.

        If it turns out at the end that somebody's were too long, the server block has gone wrong by them, and the round
        is made again by what has been learned.
        """
        optimizer, known = self.server.optimizer_arrays(), guard_state(self.guard)

        def begin_again() -> None:
            self.server.load_optimizer_arrays(optimizer)
            losses.forget()
            guard.begin_round()

        honest = list(clients)
        outcome, new = yield from train(honest)
        while (suspect := self.spoiler(honest, outcome)) is not None:
            honest.remove(suspect)
            load_guard_state(self.guard, known)
            begin_again()
            outcome, new = yield from train(honest)
        beyond = guard.judge(by_first=True)
        if not beyond and len(honest) == len(clients):
            return outcome, new
        if len(honest) == len(clients):
            # Long activations have spoilt this round's updates too: forget how long those were, but not how long the
            # activations were. A round that was made without a suspect is not spoilt: its updates bound the suspect's.
            learned = guard.state_dict()
            load_guard_state(self.guard, known)
            guard.load_state_dict(learned)
        begin_again()
        outcome, new = yield from train(clients)
        guard.judge()
        return outcome, new

    def spoiler(self, clients: Sequence[int], outcome: SplitOutcome) -> int | None:
        """Return who may have spoilt what the others sent first in the round, so that it is no measure."""
        return None  # all start from one client block

    @abstractmethod
    def train_clients(
        self, server_round: int, weights: State, config: ConfigRecord, clients: Sequence[int], losses: Losses
    ) -> Exchanges[tuple[SplitOutcome, State]]:
        """Train from `weights` with `clients`; return who finished, and the edge's new weights."""

    def serve_in_order(
        self, server_round: int, losses: Losses, order: Callable[[list[MiniBatch]], list[MiniBatch]]
    ) -> Serve:
        """Return a `serve` that makes the shared block's steps one after the other.

        What clients send whose mini-batches are served together is compared.
        """
        guard = self.activation_guard

        def serve(batches: list[MiniBatch]) -> Steps:
            most = guard.most(self.server.cut.first, [b.length for b in batches]) if guard else None
            steps = {b.node_id: self.step(self.server, b, server_round, losses, most) for b in order(batches)}
            gradients = yield from in_turn(steps)
            return {batch.node_id: gradients[batch.node_id] for batch in batches if batch.node_id in gradients}

        return serve

    def state_dict(self) -> dict[str, Any]:
        """Return what must survive an interruption, the server optimizer's state among it."""
        return {**super().state_dict(), "optimizer": self.server.optimizer_arrays()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what `state_dict` returned."""
        super().load_state_dict(state)
        self.server.load_optimizer_arrays(state["optimizer"])
