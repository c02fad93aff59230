"""The video-caching task: which content a client will ask for next (RawHFL)."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cached_property
from hashlib import sha256

import numpy as np
import torch
from torch import Tensor, nn

from espalier.app.settings.sections import Caching, Federation
from espalier.app.tasks.caching_data import CachingData, caching_clients, caching_mlp, num_slots
from espalier.app.tasks.node import ClientNode
from espalier.app.tasks.task import Task
from espalier.clients.task import ClientTask, Examples, LocalTraining
from espalier.clients.whole.unique_rows import unique_row_sgd

NUM_CONTENTS = 256
TOP_M = tuple(range(1, 11))
MANY_BATCHES = 500  # collapsed together: the memory for it grows with them


class CachingTask(Task):
    """Requests of clients, of which more are there in each edge round.

    Parameters
    ----------
    caching : Caching
        How requests come about.
    training : LocalTraining
        How clients train.
    federation : Federation
        Number of clients, and of rounds.
    edge_rounds_per_round : int
        Edge rounds' worth of slots that pass in a round of the clients.
    seed : int
        Decides requests, initial weights and the clients' randomness.
    device : torch.device
        Where models compute.
    """

    grows = True
    top_m = TOP_M
    counts_requests = True
    own_way = "for dataset = 'video-caching', whose clients have a faster way of their own"
    has_own_model = True

    def __init__(
        self,
        caching: Caching,
        training: LocalTraining,
        federation: Federation,
        edge_rounds_per_round: int,
        *,
        seed: int,
        device: torch.device,
    ) -> None:
        self.caching = caching
        self.federation = federation
        self.training = training
        self.edge_rounds_per_round = edge_rounds_per_round
        self.seed = seed
        self.device = device

    @cached_property
    def clients(self) -> list[CachingData]:
        """Every client's data: enough slots to train on for all rounds, and those to test on behind them."""
        return caching_clients(
            self.seed,
            self.federation.num_clients,
            self.slots_after(self.federation.global_rounds * self.federation.edge_rounds),
            exploitation=self.caching.exploitation.ends,
            similar=self.caching.similar,
        )

    @property
    def table(self) -> Tensor:
        """The clients' tables of features, one under the other."""
        return torch.cat([data.table for data in self.clients])

    def slots_after(self, edge_rounds: int) -> int:
        """Return how many slots have passed after a number of edge rounds."""
        return num_slots(
            edge_rounds,
            initial_slots=self.caching.initial_slots,
            slots_per_edge_round=self.caching.slots_per_edge_round,
        )

    def check_data(self) -> None:
        """Draw the clients' requests."""
        self.clients  # noqa: B018

    def data_fingerprint(self) -> str:
        """Return a hash of what decides the data; a longer run has more of the same."""
        caching = self.caching
        what = (self.seed, self.federation.num_clients, caching.exploitation.ends, caching.similar)
        return sha256(repr((what, caching.initial_slots, caching.slots_per_edge_round)).encode()).hexdigest()

    def new_model(self) -> nn.Sequential:
        """Return the paper's network with the initial weights that the seed gives."""
        return self.training.arithmetic.of(caching_mlp(self.seed, num_contents=NUM_CONTENTS))

    def example_input(self) -> Tensor:
        """Return blank features of a request."""
        return torch.zeros(1, next(self.new_model().parameters()).shape[1])

    def test_examples(self) -> Examples:
        """Return the test examples of all clients; their inputs are rows of `table`."""
        pool = [data.test for data in self.clients]
        return Examples(self._pooled_rows(pool), torch.cat([examples.labels for examples in pool]))

    def normaliser(self) -> Callable[[Tensor], Tensor]:
        """Return the function from rows of `table` to features."""
        return self.table.to(self.device).__getitem__

    def available(self, slots: Tensor, edge_rounds_per_round: int) -> Callable[[int], int]:
        """Return the function from a round, counted from 1, to the number of examples there are when it begins.

        Parameters
        ----------
        slots : Tensor
            Increasing: the slot in which each example is complete.
        edge_rounds_per_round : int
            Edge rounds' worth of slots that pass in a round as the client counts them.
        """

        def available(server_round: int) -> int:
            now = self.slots_after(max(server_round - 1, 0) * edge_rounds_per_round)
            return int(torch.searchsorted(slots, now))

        return available

    def new_client_task(self, model: nn.Module, node: ClientNode) -> ClientTask:
        """Return the task of one client, which works on `model`."""
        data = self.clients[node.partition_id]
        available = self.available(data.train_slots, self.edge_rounds_per_round)
        return self._task_of(model, node, data.table, data.train, data.test, available)

    def centralised_task(self) -> ClientTask:
        """Return the task of one client that has all the data.

        In a global round it makes as many mini-batches as all clients together would by `local-epochs`, over all edge
        rounds; where an epoch is a pass over the examples, as many passes.
        """
        slots = torch.cat([data.train_slots for data in self.clients])
        in_time = slots.argsort(stable=True)
        pool = [data.train for data in self.clients]
        labels = torch.cat([examples.labels for examples in pool])[in_time]
        train = Examples(self._pooled_rows(pool)[in_time], labels)
        edge_rounds = self.federation.edge_rounds
        available = self.available(slots[in_time], edge_rounds)
        task = self._task_of(
            self.new_model().to(self.device), ClientNode(0), self.table, train, self.test_examples(), available
        )
        if not (batches := self.training.batches_per_epoch):
            epochs = self.training.local_epochs * edge_rounds
            return replace(task, training=replace(self.training, local_epochs=epochs))
        per_epoch = batches * self.federation.num_clients * edge_rounds
        return replace(task, training=replace(self.training, batches_per_epoch=per_epoch))

    def loaded(self) -> list[CachingData]:
        """Return every client's data."""
        return self.clients

    def take_loaded(self, loaded: list[CachingData]) -> None:
        """Take every client's data."""
        self.clients = loaded

    def _pooled_rows(self, pool: list[Examples]) -> Tensor:
        """Return each example's row in `table`."""
        sizes = [0, *(len(data.table) for data in self.clients)]
        return torch.cat([e.inputs + start for e, start in zip(pool, np.cumsum(sizes).tolist(), strict=False)])

    def _task_of(
        self,
        model: nn.Module,
        node: ClientNode,
        table: Tensor,
        train: Examples,
        test: Examples,
        available: Callable[[int], int],
    ) -> ClientTask:
        table = table.to(self.device)
        return ClientTask(
            model=model,
            train=train,
            test=test,
            prepare=table.__getitem__,
            training=self.training,
            seed=self.seed,
            partition_id=node.partition_id,
            class_counts=tuple(torch.bincount(train.labels, minlength=NUM_CONTENTS).tolist()),
            device=self.device,
            edge_name=node.edge_name,
            available=available,
            top_m=self.top_m,
            sgd=_sgd_on(table),
            prepare_draws=False,
        )


def _sgd_on(table: Tensor) -> Callable[[nn.Module, Examples, Iterable[Tensor], float], float]:
    """Return SGD that works on the distinct rows of features of each mini-batch."""

    def sgd(model: nn.Module, examples: Examples, batches: Iterable[Tensor], learning_rate: float) -> float:
        rows, labels = examples.inputs.to(table.device), examples.labels.to(table.device)
        loss, seen, taken = 0.0, 0, list(batches)
        for start in range(0, len(taken), MANY_BATCHES):
            some = taken[start : start + MANY_BATCHES]
            count = sum(map(len, some))
            loss += count * unique_row_sgd(model, table, rows, labels, some, learning_rate)
            seen += count
        return loss / max(seen, 1)

    return sgd
