"""FSL-SAGE: clients train by auxiliary heads that their edge fits to its own gradients (arXiv:2505.23182)."""

import math
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from flwr.app import ConfigRecord
from torch import Tensor, nn

from espalier.clients.shared.arrays import to_record, to_weights
from espalier.clients.shared.correction import Weights
from espalier.clients.shared.cut import Cut, copied
from espalier.clients.shared.generators import seeded_torch

from ..exchange import Exchanges
from ..randomness import derived_seed
from ..views import MemberGrid
from .joint import ClientOfJoint
from .local_loss import LocalLossTransport
from .loop import SplitOutcome, State
from .losses import Losses
from .server_block import Loss, MakeOptimizer, ServerBlock, ServerSide
from .serving import MiniBatch
from .sfl_v2 import SplitFedV2


@dataclass(frozen=True)
class Fit:
    """How auxiliary heads are fitted.

    Parameters
    ----------
    every : int (default: 10)
        After the first round, and after each one so many rounds later; 0: never.
    steps : int (default: 100)
        Steps of Adam, each on all examples that are kept.
    rate : float (default: 0.001)
        Adam's learning rate.
    examples : int (default: 1000)
        The last ones that are kept of each client.
    """

    every: int = 10
    steps: int = 100
    rate: float = 1e-3
    examples: int = 1000

    def is_due(self, server_round: int) -> bool:
        """Return whether heads are fitted after a round, counted from 1."""
        return self.every > 0 and (server_round - 1) % self.every == 0


def fit_head(
    head: nn.Module, activations: Tensor, labels: Tensor, gradients: Tensor, loss: Loss, steps: int, rate: float
) -> bool:
    """Fit a head so that the gradients that it gives of activations are the true ones (eq. 4 of arXiv:2505.23182).

    The sum of the squares of their differences falls by steps of Adam, each on all examples: both gradients are of a
    mean loss over as many.

    Parameters
    ----------
    head : nn.Module
        The auxiliary head, trained in place.
    activations, gradients : Tensor
        Shape (N, *cut_shape).
    labels : Tensor
        Shape (N,).
    loss : Callable[[Tensor, Tensor], Tensor]
        Of outputs and labels, the mean over a mini-batch.
    steps, rate : int, float
        How many steps, and how large.

    Returns
    -------
    bool
        Whether all of its weights are finite.
    """
    parameters = [parameter for parameter in head.parameters() if parameter.requires_grad]
    optimizer = torch.optim.Adam(parameters, lr=rate)
    inputs = activations.detach().clone().requires_grad_(True)
    for _ in range(steps):
        value = loss(head(inputs), labels)
        (estimate,) = torch.autograd.grad(value, inputs, create_graph=True)
        distance = (estimate - gradients).square().sum()
        # A layer's bias may not be in it.
        found = torch.autograd.grad(distance, parameters, allow_unused=True)
        for parameter, gradient in zip(parameters, found, strict=True):
            parameter.grad = gradient
        optimizer.step()
    return all(bool(torch.isfinite(p).all()) for p in parameters)


class FslSage(SplitFedV2):
    """FSL-SAGE: one server block, trained on what comes with replies; an auxiliary head of each client's own.

    A client's head is fitted here, goes down with the next instruction, and never comes up. Until then the client has
    `head`. The server's blocks stay as they are while heads are fitted, their statistics too.

    Parameters
    ----------
    model, cut, make_optimizer, **options
        As for `SplitFedV2`.
    head : nn.Module
        What all auxiliary heads are before any training; its weights have names that the model's have not.
    upload_every : int
        As for `LocalLossTransport`.
    fit : Fit (default: as the authors')
        How heads are fitted.
    """

    def __init__(
        self,
        model: nn.Sequential,
        cut: Cut | int,
        make_optimizer: MakeOptimizer,
        *,
        head: nn.Module,
        upload_every: int,
        fit: Fit = Fit(),
        **options: Any,
    ) -> None:
        transport = LocalLossTransport(upload_every, frozen_heads=True)
        super().__init__(model, cut, make_optimizer, **{**options, "transport": transport})
        self.head = copied(head).to(self.server.device).train()
        self.fit = fit
        self._start = {name: tensor.detach().clone() for name, tensor in self.head.state_dict().items()}
        self._heads: dict[int, Weights] = {}  # of clients, by node id
        self._due: set[int] = set()  # node ids of those who have not got theirs
        self._kept: dict[int, tuple[Tensor, Tensor]] = {}  # their last activations and labels
        self._came: dict[int, list[MiniBatch]] = {}  # in this round
        self._nodes: list[int] = []  # the edge's as the run begins, in client order
        self._nodes_before: list[int] = []  # likewise, of a run that is resumed: they may have had other ids
        self._members: list[int] = []  # the edge's in the last round

    def check_nodes(self, name: str, members: Sequence[int]) -> None:
        """Take note of the edge's nodes."""
        super().check_nodes(name, members)
        self._nodes = self._members = list(members)

    def take_members(self, members: Sequence[int]) -> None:
        """Let heads go down to those who come back: another edge may have given them others meanwhile."""
        self._due |= self._heads.keys() & (set(members) - set(self._members))
        self._members = list(members)

    def split_round(
        self,
        server_round: int,
        weights: State,
        config: ConfigRecord,
        clients: Sequence[int],
        losses: Losses,
        grid: MemberGrid,
    ) -> Exchanges[tuple[SplitOutcome, State]]:
        """Train as `SplitFedV2` does, then fit the heads of those who finished, where that is due."""
        outcome, new = yield from super().split_round(server_round, weights, config, clients, losses, grid)
        for node_id in outcome.blocks:
            self._due.discard(node_id)
            self._keep(node_id)
        self._came = {}
        if self.fit.is_due(server_round):
            for place, node_id in enumerate(clients):
                if node_id in outcome.blocks and node_id in self._kept:
                    self._fit(node_id, derived_seed(self.seed, "fit", server_round, place))
        return outcome, new

    def train_clients(
        self, server_round: int, weights: State, config: ConfigRecord, clients: Sequence[int], losses: Losses
    ) -> Exchanges[tuple[SplitOutcome, State]]:
        """Train as `SplitFedV2` does; a round that is made again forgets what came before."""
        self._came = {}
        return super().train_clients(server_round, weights, config, clients, losses)

    def step(
        self,
        server: ServerSide | ClientOfJoint,
        batch: MiniBatch,
        server_round: int,
        losses: Losses,
        most: float | None = None,
    ) -> Generator[Tensor, Tensor | None, Tensor | ValueError]:
        """Serve a mini-batch, and note one with which the step was made."""
        answer = yield from super().step(server, batch, server_round, losses, most)
        if not isinstance(answer, ValueError):
            self._came.setdefault(batch.node_id, []).append(batch)
        return answer

    def beside(self, node_id: int) -> Mapping[str, Tensor]:
        """Return a client's head, where it has not got it."""
        return self._heads[node_id] if node_id in self._due else {}

    def clients_begin_anew(self) -> None:
        """Let all heads go down again, to nodes that may have other ids than they had."""
        if len(self._nodes_before) == len(self._nodes):
            now = dict(zip(self._nodes_before, self._nodes, strict=True))
            self._heads = {now[node_id]: head for node_id, head in self._heads.items() if node_id in now}
            self._kept = {now[node_id]: examples for node_id, examples in self._kept.items() if node_id in now}
            self._nodes_before = self._nodes  # it may be told so once more
        self._due = set(self._heads)

    def _keep(self, node_id: int) -> None:
        """Keep a client's last activations and labels."""
        came = [(batch.activations.detach().cpu(), cast(Tensor, batch.labels)) for batch in self._came.get(node_id, [])]
        if came:
            pairs = [*([self._kept[node_id]] if node_id in self._kept else []), *came]
            values, labels = (torch.cat(parts)[-self.fit.examples :] for parts in zip(*pairs, strict=True))
            # Laid out as they are when they come from a file.
            self._kept[node_id] = values.clone(memory_format=torch.contiguous_format), labels.clone()

    def _fit(self, node_id: int, seed: int) -> None:
        """Fit a client's head to the gradients of the server's blocks as they are; one that goes wrong stays."""
        assert isinstance(self.server, ServerBlock)
        device = self.server.device
        activations, labels = (tensor.to(device) for tensor in self._kept[node_id])
        labels = labels.to(torch.int64)
        self.head.load_state_dict(self._heads.get(node_id, self._start))
        with seeded_torch(seed, device):
            gradients = self.server.gradient(activations, labels)
            finite = math.isfinite(gradients.sum().item())
            if finite and fit_head(self.head, activations, labels, gradients, self.loss, self.fit.steps, self.fit.rate):
                self._heads[node_id] = {n: t.detach().cpu().clone() for n, t in self.head.state_dict().items()}
                self._due.add(node_id)

    def state_dict(self) -> dict[str, Any]:
        """Return what must survive an interruption: clients' heads, and the examples that are kept, among it."""
        heads = {str(node_id): to_record(head) for node_id, head in self._heads.items()}
        kept = {str(n): to_record({"activations": a, "labels": y}) for n, (a, y) in self._kept.items()}
        own = {"heads": heads, "kept": kept, "due": sorted(map(str, self._due))}
        members = {"members": list(map(str, self._nodes)), "present": list(map(str, self._members))}
        return {**super().state_dict(), **own, **members}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what `state_dict` returned."""
        super().load_state_dict(state)
        self._heads = {int(node_id): to_weights(head) for node_id, head in state["heads"].items()}
        kept = {int(node_id): to_weights(examples) for node_id, examples in state["kept"].items()}
        self._kept = {node_id: (examples["activations"], examples["labels"]) for node_id, examples in kept.items()}
        self._due = set(map(int, state["due"]))
        self._nodes_before = list(map(int, state.get("members", [])))  # an earlier edition saved none
        self._members = list(map(int, state.get("present", [])))
