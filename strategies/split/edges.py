"""The split algorithms as edges: SFL-V1, SFL-V2 and SL (arXiv:2004.12088; HSFL and PHSFL nest SFL-V1)."""

import copy
import random
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import replace
from functools import partial
from itertools import count
from threading import Lock
from typing import Any, Literal, cast

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from espalier.clients.messages.arrays import to_record, to_weights
from espalier.clients.messages.cut import Cut
from espalier.clients.messages.tensor_array import record_by_reference
from espalier.clients.messages.train import TRAIN_LOSS, Trained

from ..edges import StrategyEdge
from ..exchange import Exchanges, answered
from ..guard import ActivationGuard, UpdateGuard, guard_state, load_guard_state
from ..outcomes import Evaluation, Update
from ..randomness import derived_seed
from ..views import EdgeGrid, MemberGrid
from .evaluation import evaluate_through_cut
from .fine_tuning import FineTuning, Personalised, fine_tune_heads
from .labels import Labels
from .loop import NOT_FINITE, Outcome, Terms, Weights
from .server_block import (
    Loss,
    MakeOptimizer,
    MiddleBlock,
    Served,
    ServerBlock,
    ServersBlocks,
    checked_cut,
    client_names,
    legal_cuts,
    num_outputs,
)
from .serving import MiniBatch, Serve, Step, Steps, in_turn, side_by_side
from .together import MakeTogether, OneOfMany, Together, make_together
from .transports import MessageTransport, Transport

DRAWING = Lock()  # held while a server block draws random numbers: PyTorch's generators are the process's


class SplitEdge(ABC):
    """An edge that holds the server half of its clients' models; the algorithms are its subclasses.

    Parameters
    ----------
    model : nn.Sequential
        The whole model as a list of named blocks, the last one the head, with `out_features` as an `nn.Linear` has;
        on the device that the edge computes on.
    cut_of : Callable[[int], Cut | int]
        Where the model is cut for a client, by its node id. A number k is short for ``Cut(k, len(model))``: the first k
        blocks are the client's.
    make_optimizer : Callable[[list[nn.Parameter]], Optimizer]
        Makes the optimizer of a server block.
    input_shape : tuple[int, ...], or what the model takes
        Shape of one sample as the model takes it; for a model of other inputs than one tensor of its own data type, a
        batch of one example, on its device.
    evaluation : StrategyEdge
        Evaluates the model on the clients.
    label_policy : "indices" or "labels" (default: "indices")
        How the edge learns labels, see `Labels`.
    frozen : ArrayRecord, optional (default: None)
        Weights of the head that stay as they are (PHSFL). They are not part of the model that travels between edge
        and cloud.
    participation : float (default: 1.0)
        Share of the clients that train in an edge round; at least one.
    max_batch : int, optional (default: None)
        The most samples that a client may send in a mini-batch, which the edge has to have memory for; None: any
        number.
    max_steps : Callable[[int], int], optional (default: None)
        The most mini-batches of a client in an edge round, by its node id; None: as many as it says.
    seed : int (default: 0)
        Decides samples of clients and random orders.
    transport : Transport, optional (default: None)
        How mini-batches travel; None is by messages.
    loss : Callable[[Tensor, Tensor], Tensor] (default: cross-entropy)
        Of outputs and labels, the mean over a mini-batch.
    schedule : Callable[[float, int], float], optional (default: None)
        The learning rate of the server blocks in a round, by the one that they were made with and the round.
    guard : UpdateGuard, optional (default: None)
        Bounds what one client can do to the model, as for `StrategyEdge`.
    evaluates_whole : bool (default: False)
        Evaluations send the whole model to the clients. False: they go through the cut, with the same figures, and no
        client gets other blocks than its own.

    Raises
    ------
    ValueError
        If the model is not such a list, or has not such a cut (where clients may differ, in the first round).
    """

    def __init__(
        self,
        model: nn.Sequential,
        cut_of: Callable[[int], Cut | int],
        make_optimizer: MakeOptimizer,
        *,
        input_shape: Any,
        evaluation: StrategyEdge,
        label_policy: str = "indices",
        frozen: ArrayRecord | None = None,
        participation: float = 1.0,
        max_batch: int | None = None,
        max_steps: Callable[[int], int] | None = None,
        seed: int = 0,
        transport: Transport | None = None,
        loss: Loss = cross_entropy,
        schedule: Callable[[float, int], float] | None = None,
        guard: UpdateGuard | None = None,
        evaluates_whole: bool = False,
    ) -> None:
        first = min(legal_cuts(model))
        self.model = model
        self.cut_of = lambda node_id: Cut.of(model, cut_of(node_id))
        self.make_optimizer = make_optimizer
        self.evaluation = evaluation
        self.labels = Labels(label_policy)
        self.transport = transport or MessageTransport()
        self.frozen = frozen
        self.participation = participation
        self.max_batch = max_batch
        self.max_steps = max_steps
        self.seed = seed
        self.loss = loss
        self.schedule = schedule
        self.guard = guard
        self.evaluates_whole = evaluates_whole
        self.num_classes = num_outputs(model)
        self._cut_shapes = cut_shapes(model, input_shape)
        self._draws = draws_random_numbers(model[first:], self._cut_shapes[first])

    def train_round(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: MemberGrid
    ) -> Exchanges[Update]:
        """Run one edge round of the algorithm."""
        clients = self._sample(grid.get_node_ids(), server_round)
        failures = yield from self.labels.register([n for n in clients if not self.has_tail(n)])
        unregistered = {failure.node_id for failure in failures}
        clients = [node_id for node_id in clients if node_id not in unregistered]
        weights = to_weights(self.whole(arrays))
        losses = Losses(clients)
        if self.guard is not None:
            self.guard.activations.begin_round()
        outcome, new = yield from self.split_round(server_round, weights, config, clients, losses, grid)
        self.labels.forget(outcome.failures)
        failures = [*failures, *outcome.failures]
        if not outcome.blocks:
            return Update(failures=failures)
        total = float(sum(outcome.num_examples.values()))
        metrics = outcome.metrics or MetricRecord({TRAIN_LOSS: losses.mean(outcome.num_examples)})
        record = to_record({name: new[name] for name in arrays})
        told = {n: losses.of(n) for n in outcome.blocks}
        return Update(record, metrics, total, list(outcome.blocks), failures, losses=told)

    @abstractmethod
    def split_round(
        self,
        server_round: int,
        weights: Weights,
        config: ConfigRecord,
        clients: Sequence[int],
        losses: "Losses",
        grid: MemberGrid,
    ) -> Exchanges[tuple[Outcome, Weights]]:
        """Train from `weights` with `clients`, told `config`; return who finished, and the edge's new weights."""

    def evaluate_round(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: MemberGrid
    ) -> Exchanges[Evaluation]:
        """Evaluate the model on the clients."""
        whole = self.whole(arrays)
        conversation = self.evaluation.evaluate_round(server_round, whole, config, grid)
        return conversation if self.evaluates_whole else answered(conversation, partial(self._through_cut, whole))

    def _through_cut(self, whole: ArrayRecord, messages: list[Message]) -> Exchanges[list[Message]]:
        """Answer the messages that would send the whole model."""
        clients = [message.metadata.dst_node_id for message in messages]
        _, replies = yield from evaluate_through_cut(
            self.model, to_weights(whole), self.cut_of, self._cut_shapes, clients
        )
        return replies

    def personalise(self, arrays: ArrayRecord, fine_tuning: FineTuning, grid: MemberGrid) -> Exchanges[Personalised]:
        """Fine-tune a head for every client, from a trained model, and evaluate it."""
        return fine_tune_heads(
            self.model,
            self.whole(arrays),
            self.cut_of,
            self._cut_shapes,
            self.labels,
            fine_tuning,
            grid,
            self.loss,
            evaluate_whole=self.evaluates_whole,
        )

    def state_dict(self) -> dict[str, Any]:
        """Return what must survive an interruption; labels are registered anew."""
        return {"evaluation": self.evaluation.state_dict(), **guard_state(self.guard)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what `state_dict` returned."""
        self.evaluation.load_state_dict(state["evaluation"])
        load_guard_state(self.guard, state)

    def keep_within(self, outcome: Outcome, sent: Weights, models: Mapping[int, Weights]) -> dict[int, Weights]:
        """Return what clients made of the weights sent, by node id, without those whom the guard leaves out."""
        kept = dict(models)
        if self.guard is None:
            return kept
        origin = _as_numpy(sent)
        for node_id, verdict in self.guard.judge({n: (origin, _as_numpy(m)) for n, m in models.items()}).items():
            if verdict.instead is None:
                outcome.leave_out(node_id, verdict.reason)
                del kept[node_id]
            else:
                kept[node_id] = {name: torch.from_numpy(values) for name, values in verdict.instead.items()}
        return kept

    def judge_activations(self) -> dict[int, str]:
        """Return what is wrong with the activations that clients have sent in the round, by node id."""
        return self.activation_guard.judge() if self.activation_guard else {}

    @property
    def activation_guard(self) -> ActivationGuard | None:
        """What judges the clients' activations; None where nothing does."""
        return self.guard.activations if self.guard is not None and self.guard.activations.is_on else None

    def whole(self, arrays: ArrayRecord) -> ArrayRecord:
        """Return the whole model: the travelling part and the frozen one, in the model's order."""
        frozen = self.frozen or ArrayRecord()
        return record_by_reference({n: arrays[n] if n in arrays else frozen[n] for n in self.model.state_dict()})

    def has_tail(self, node_id: int) -> bool:
        """Return whether a client has the last blocks of the model, and so its labels need not leave it."""
        return self.cut_of(node_id).has_tail(self.model)

    def client_block(self, weights: Mapping[str, Any], cut: Cut) -> dict[str, Any]:
        """Return the weights of the client's blocks."""
        return {name: weights[name] for name in client_names(weights, self.model, cut)}

    def server_block(self, cut: Cut | int) -> ServersBlocks:
        """Return the server's new blocks for a cut."""
        cut = checked_cut(self.model, cut)
        if cut.has_tail(self.model):
            return MiddleBlock(self.model, cut, self.make_optimizer)
        is_frozen = self.frozen is not None
        return ServerBlock(self.model, cut, self.make_optimizer, frozen_head=is_frozen, loss=self.loss)

    def begin(self, server: ServersBlocks, weights: Weights, server_round: int) -> None:
        """Let a server half begin a round."""
        server.load(weights)
        self.set_learning_rates(server, server_round)

    def set_learning_rates(self, server: ServersBlocks, server_round: int) -> None:
        """Let a server half go on with the learning rates of a round."""
        if (schedule := self.schedule) is not None:
            server.set_learning_rates(lambda rate: schedule(rate, server_round))

    def converse(
        self,
        groups: Sequence[Sequence[int]],
        weights: Weights,
        server_round: int,
        config: ConfigRecord,
        serve: Serve,
    ) -> Exchanges[Outcome]:
        """Train groups of clients, all from the client blocks of `weights`.

        Parameters
        ----------
        groups : Sequence[Sequence[int]]
            Clients of one group advance together, one mini-batch of each at a time; groups need not.
        weights : Weights
            The model to start from.
        server_round : int
            The round.
        config : ConfigRecord
            Sent along with the instruction that starts a client's round.
        serve : Callable
            Serves one mini-batch of each client given. For clients of different groups it may be called at the same
            time, from threads.
        """
        cuts = {node_id: self.cut_of(node_id) for group in groups for node_id in group}
        by_cut = {cut: to_record(self.client_block(weights, cut)) for cut in set(cuts.values())}
        terms = Terms(
            server_round=server_round,
            blocks={node_id: by_cut[cut] for node_id, cut in cuts.items()},
            cuts=cuts,
            cut_shapes={node_id: self._cut_shapes[cut.first] for node_id, cut in cuts.items()},
            dtype=next(self.model.parameters()).dtype,
            labels=self.labels,
            num_classes=self.num_classes,
            config=config,
            max_batch=self.max_batch,
            max_steps=self.max_steps,
            measures=self.activation_guard is not None,
            with_tail={node_id for node_id, cut in cuts.items() if cut.has_tail(self.model)},
            frozen=self.frozen or (),
        )
        return self.transport.train(groups, terms, serve)

    def step(
        self,
        server: ServersBlocks | OneOfMany,
        batch: MiniBatch,
        server_round: int,
        losses: "Losses",
        together: Sequence[MiniBatch] = (),
    ) -> Step:
        """Serve a mini-batch; return the cut gradient, or why there is none: then the step was not made.

        What clients send whose mini-batches are served `together`, against one server block, is compared.
        """
        guard = self.activation_guard
        cut, length = self.cut_of(batch.node_id).first if guard else 0, batch.length
        try:
            if guard:
                factor = guard.admitted(batch.node_id, cut, length, [one.length for one in together])
                if factor != 1:
                    batch, length = replace(batch, activations=factor * batch.activations), factor * length
            steps = server.serve(batch)
            gradient, loss = yield from _begun_in(
                self._seeded(server.device, server_round, *losses.place_and_step(batch.node_id)), steps
            )
        except ValueError as error:
            return error
        if guard:
            guard.took(batch.node_id, cut, length)
        losses.add(batch, loss)
        return gradient

    @contextmanager
    def _seeded(self, device: torch.device, *purpose: int) -> Iterator[None]:
        """Let what is drawn inside, as by dropout, depend on the seed and the purpose alone."""
        if not self._draws:
            yield
            return
        seed = derived_seed(self.seed, "server", *purpose)
        with DRAWING, torch.random.fork_rng([device] if device.type == "cuda" else []):
            torch.default_generator.manual_seed(seed)
            if device.type == "cuda":
                torch.cuda.manual_seed(seed)
            yield

    def random_order(self, items: Sequence[int], *purpose: int | str) -> list[int]:
        """Return the items in a random order that depends on the seed and the purpose."""
        return random.Random(derived_seed(self.seed, *purpose)).sample(list(items), len(items))

    def _sample(self, node_ids: Sequence[int], server_round: int) -> list[int]:
        how_many = max(1, int(len(node_ids) * self.participation))
        positions = self.random_order(range(len(node_ids)), "sample", server_round)[:how_many]
        return [node_ids[i] for i in sorted(positions)]


class SplitFedV1(SplitEdge):
    """SFL-V1: a server block per client, in parallel; whole models are averaged at the end of the round.

    With plain SGD this is FedAvg with the same mini-batches, whatever the cut, so every client may have a cut of its
    own (Proposition 1 of the SFL cut-layer paper).

    Parameters
    ----------
    model, cut_of, make_optimizer, **options
        As for `SplitEdge`.
    aggregation : StrategyEdge, optional (default: None)
        Its strategy, of any kind, gets the clients' whole models, client block and server block together, as if they
        had been trained whole. None: the average by examples.
    together : Callable[[nn.Module, int], Together], optional (default: None)
        Makes the server's blocks of all clients of a cut as one, for a round, from what each starts from. The results
        agree to rounding. None, and where clients have the head: each client's are a `ServersBlocks` of their own.
    """

    def __init__(
        self,
        model: nn.Sequential,
        cut_of: Callable[[int], Cut | int],
        make_optimizer: MakeOptimizer,
        *,
        aggregation: StrategyEdge | None = None,
        together: MakeTogether | None = None,
        **options: Any,
    ) -> None:
        super().__init__(model, cut_of, make_optimizer, **options)
        self.aggregation = aggregation
        self.together = together

    def split_round(
        self,
        server_round: int,
        weights: Weights,
        config: ConfigRecord,
        clients: Sequence[int],
        losses: "Losses",
        grid: MemberGrid,
    ) -> Exchanges[tuple[Outcome, Weights]]:
        """Train every client against a server block of its own, then aggregate."""
        self.model.load_state_dict(weights)  # once for all of the copies made next
        servers = self._servers(clients, server_round)
        joint = [server for server in servers.values() if isinstance(server, OneOfMany)]

        def generator_of(node_id: int) -> torch.Generator:
            purpose = "server", server_round, *losses.place_and_step(node_id)
            return torch.Generator().manual_seed(derived_seed(self.seed, *purpose))

        def serve(batches: list[MiniBatch]) -> Steps:
            make_together(joint, batches, generator_of)
            return side_by_side({b.node_id: self.step(servers[b.node_id], b, server_round, losses) for b in batches})

        outcome = yield from self.converse([[n] for n in clients], weights, server_round, config, serve)
        losses.report(outcome.train_losses)
        # A client has spoilt its own server block only: that all have trained is soon enough to compare them. It is too
        # late to make its activations smaller, but not the update that it made of them.
        faults = self.judge_activations()
        for node_id, reason in faults.items() if self.guard is not None and self.guard.guard.mode != "clip" else ():
            if node_id in outcome.blocks:
                outcome.leave_out(node_id, reason)
        models = {n: {**block, **_on_cpu(servers[n].state_dict())} for n, block in outcome.blocks.items()}
        models = self.keep_within(outcome, weights, models)
        if not models:
            return outcome, weights
        if self.aggregation is None:
            return outcome, average(models, outcome.num_examples)
        return outcome, (yield from self._aggregate(server_round, weights, config, models, outcome, losses, grid))

    def _servers(self, clients: Sequence[int], server_round: int) -> dict[int, ServersBlocks | OneOfMany]:
        """Return the server's blocks of every client, as the model is now."""
        servers: dict[int, ServersBlocks | OneOfMany] = {}
        joint: dict[Cut, Together] = {}
        for node_id in clients:
            cut = self.cut_of(node_id)
            if cut not in joint:
                own = self.server_block(cut)
                self.set_learning_rates(own, server_round)
                if self.together is None or cut.has_tail(self.model):
                    servers[node_id] = own
                    continue
                joint[cut] = self.together(own.blocks, server_round)
            servers[node_id] = OneOfMany(joint[cut], node_id, next(self.model.parameters()).device)
        return servers

    def _aggregate(
        self,
        server_round: int,
        weights: Weights,
        config: ConfigRecord,
        models: Mapping[int, Weights],
        outcome: Outcome,
        losses: "Losses",
        grid: MemberGrid,
    ) -> Exchanges[Weights]:
        """Let the strategy have its round; its clients have trained already."""
        assert self.aggregation is not None

        def trained(messages: list[Message]) -> Exchanges[list[Message]]:
            yield from ()
            replies = []
            for message in messages:
                n = message.metadata.dst_node_id
                record = ArrayRecord(
                    {name: array for name, array in to_record(models[n]).items() if name in travelling}
                )
                content = Trained(record, losses.of(n), outcome.num_examples[n]).to_content()
                replies.append(Message(content, reply_to=message))
            return replies

        travelling = to_record({n: w for n, w in weights.items() if self.frozen is None or n not in self.frozen})
        nodes = EdgeGrid(grid, list(models))
        update = yield from answered(self.aggregation.train_round(server_round, travelling, config, nodes), trained)
        outcome.failures += update.failures
        # The strategy may have taken a sample of those who trained.
        outcome.keep_only(() if update.arrays is None else update.participants)
        if update.arrays is None:
            return weights
        outcome.metrics = update.metrics
        return {**weights, **update.arrays.to_torch_state_dict()}

    def state_dict(self) -> dict[str, Any]:
        """Return what must survive an interruption, the strategy's state among it."""
        own = {} if self.aggregation is None else {"aggregation": self.aggregation.state_dict()}
        return {**super().state_dict(), **own}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what `state_dict` returned."""
        super().load_state_dict(state)
        if self.aggregation is not None:
            self.aggregation.load_state_dict(state["aggregation"])


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
        weights: Weights,
        config: ConfigRecord,
        clients: Sequence[int],
        losses: "Losses",
        grid: MemberGrid,
    ) -> Exchanges[tuple[Outcome, Weights]]:
        """Train all clients against the shared server block.

        What a client sends is held against rounds before when it comes. In the first there are none: if it turns out at
        the end that somebody's activations were too long, the server block has gone wrong by them, and the round is
        made again by what has been learned.
        """
        guard = self.activation_guard
        is_first = guard is not None and not guard.knows(self.server.cut.first)
        optimizer, known = (self.server.optimizer_arrays(), guard_state(self.guard)) if is_first else ({}, {})

        def train(those: Sequence[int]) -> Exchanges[tuple[Outcome, Weights]]:
            return self.train_clients(server_round, weights, config, those, losses)

        def begin_again() -> None:
            self.server.load_optimizer_arrays(optimizer)
            losses.forget()
            if guard is not None:
                guard.begin_round()

        outcome, new = yield from train(clients)
        if guard is None or not is_first:
            self.judge_activations()
            return outcome, new
        others = list(clients)
        while (suspect := self.spoiler(others, outcome)) is not None:
            others.remove(suspect)
            load_guard_state(self.guard, known)
            begin_again()
            outcome, new = yield from train(others)
        beyond = guard.judge(by_first=True)
        if len(others) == len(clients):
            if not beyond:
                return outcome, new
            learned = guard.state_dict()
            load_guard_state(self.guard, known)  # how long updates are is not to be learned from such a round
            guard.load_state_dict(learned)
        begin_again()
        outcome, new = yield from train(clients)
        guard.judge()
        return outcome, new

    def spoiler(self, clients: Sequence[int], outcome: Outcome) -> int | None:
        """Return who may have spoilt what the others sent first in the round, so that it is no measure."""
        return None  # all start from one client block

    @abstractmethod
    def train_clients(
        self, server_round: int, weights: Weights, config: ConfigRecord, clients: Sequence[int], losses: "Losses"
    ) -> Exchanges[tuple[Outcome, Weights]]:
        """Train from `weights` with `clients`; return who finished, and the edge's new weights."""

    def serve_in_order(
        self, server_round: int, losses: "Losses", order: Callable[[list[MiniBatch]], list[MiniBatch]]
    ) -> Serve:
        """Return a `serve` that makes the shared block's steps one after the other."""

        def serve(batches: list[MiniBatch]) -> Steps:
            steps = {b.node_id: self.step(self.server, b, server_round, losses, batches) for b in order(batches)}
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


class SplitFedV2(SharedServerEdge):
    """SFL-V2: one server block, updated by every client's mini-batches; client blocks are averaged.

    Parameters
    ----------
    model, cut, make_optimizer, **options
        As for `SharedServerEdge`.
    order : str (default: "interleaved")
        ``"interleaved"`` takes one mini-batch of each client per pass, in an order drawn anew for each pass (Algorithm
        2 of the SFL cut-layer paper). ``"one-by-one"`` serves all of a client's mini-batches before the next client's,
        the clients in an order drawn anew for each round, and ``"in-client-order"`` in their own order in each round.
    """

    def __init__(
        self,
        model: nn.Sequential,
        cut: Cut | int,
        make_optimizer: MakeOptimizer,
        *,
        order: Literal["interleaved", "one-by-one", "in-client-order"] = "interleaved",
        **options: Any,
    ) -> None:
        super().__init__(model, cut, make_optimizer, **options)
        self.order = order

    def train_clients(
        self, server_round: int, weights: Weights, config: ConfigRecord, clients: Sequence[int], losses: "Losses"
    ) -> Exchanges[tuple[Outcome, Weights]]:
        """Train all clients against the shared server block, then average the client blocks."""
        self.begin(self.server, weights, server_round)
        passes = count()

        def shuffled(batches: list[MiniBatch]) -> list[MiniBatch]:
            order = self.random_order(range(len(batches)), "order", server_round, next(passes))
            return [batches[i] for i in order]

        serve = self.serve_in_order(server_round, losses, shuffled)
        outcome = Outcome()
        for turn in self._turns(server_round, clients):
            outcome.add((yield from self.converse([turn], weights, server_round, config, serve)))
        outcome.sort(clients)
        losses.report(outcome.train_losses)
        sent = self.client_block(weights, self.server.cut)
        kept = self.keep_within(outcome, sent, outcome.blocks)
        blocks = average(kept, outcome.num_examples) if kept else {}
        return outcome, {**weights, **_on_cpu(self.server.state_dict()), **blocks}

    def _turns(self, server_round: int, clients: Sequence[int]) -> list[list[int]]:
        """Return the clients that train at a time."""
        if self.order == "interleaved":
            return [list(clients)]
        if self.order == "in-client-order":
            return [[client] for client in clients]
        # Orders are drawn over positions: node ids differ from run to run.
        return [[clients[i]] for i in self.random_order(range(len(clients)), "turns", server_round)]


class Relay(SharedServerEdge):
    """SL: clients train one after the other, each from the client block that the one before left."""

    def train_clients(
        self, server_round: int, weights: Weights, config: ConfigRecord, clients: Sequence[int], losses: "Losses"
    ) -> Exchanges[tuple[Outcome, Weights]]:
        """Pass the client block along the clients, in client order."""
        self.begin(self.server, weights, server_round)
        serve = self.serve_in_order(server_round, losses, lambda batches: batches)
        outcome = Outcome()
        for node_id in clients:
            turn = yield from self.converse([[node_id]], weights, server_round, config, serve)
            kept = self.keep_within(turn, self.client_block(weights, self.server.cut), turn.blocks)
            weights = {**weights, **kept.get(node_id, {})}
            outcome.add(turn)
        losses.report(outcome.train_losses)
        return outcome, {**weights, **_on_cpu(self.server.state_dict())}

    def spoiler(self, clients: Sequence[int], outcome: Outcome) -> int | None:
        """Return the client from whose block on activations have another length."""
        unfit = {failure.node_id for failure in outcome.failures if failure.reason == NOT_FINITE}
        return self.activation_guard.before_jump(clients, unfit) if self.activation_guard else None


class Losses:
    """Training losses of a round, by client.

    Parameters
    ----------
    clients : Sequence[int]
        Those who train, in client order.
    """

    def __init__(self, clients: Sequence[int]) -> None:
        self._places = {node_id: i for i, node_id in enumerate(clients)}
        self._steps: Counter[int] = Counter()
        self._sums: dict[int, float] = {}
        self._counts: dict[int, int] = {}

    def add(self, batch: MiniBatch, loss: float | None) -> None:
        """Note a mini-batch, and its mean loss where that is known."""
        n = len(batch.activations)
        self._steps[batch.node_id] += 1
        if loss is None:
            return
        self._sums[batch.node_id] = self._sums.get(batch.node_id, 0.0) + loss * n
        self._counts[batch.node_id] = self._counts.get(batch.node_id, 0) + n

    def report(self, means: Mapping[int, float]) -> None:
        """Note the means over examples of clients that computed their losses themselves."""
        self._sums |= means
        self._counts |= dict.fromkeys(means, 1)

    def forget(self) -> None:
        """Forget all mini-batches, for a round that is made again."""
        self._steps.clear()
        self._sums.clear()
        self._counts.clear()

    def place_and_step(self, node_id: int) -> tuple[int, int]:
        """Return a client's place among those who train, and how many of its mini-batches have been noted."""
        return self._places[node_id], self._steps[node_id]

    def of(self, node_id: int) -> float:
        """Return a client's mean over examples."""
        return self._sums[node_id] / self._counts[node_id]

    def mean(self, weights: Mapping[int, int]) -> float:
        """Return the mean over clients, each with its mean over examples and its weight."""
        total = sum(weights.values())
        return sum(self.of(n) * (weight / total) for n, weight in weights.items())


def _begun_in(
    context: AbstractContextManager[None], steps: Generator[Tensor, Tensor, Served]
) -> Generator[Tensor, Tensor, Served]:
    """Run the generator of a step, up to the features in a context."""
    try:
        with closing(steps):
            with context:
                features = next(steps)
            steps.send((yield features))
    except StopIteration as over:
        return cast(Served, over.value)
    raise AssertionError  # it yields once at most


def average(models: Mapping[int, Weights], num_examples: Mapping[int, int]) -> Weights:
    """Return the average weighted by examples, summed in the order of `models`; integers are rounded."""
    total = sum(num_examples[n] for n in models)
    result: Weights = {}
    for name, first in next(iter(models.values())).items():
        exact = first.dtype if first.is_floating_point() else torch.float64
        parts = (model[name].to(exact) * (num_examples[n] / total) for n, model in models.items())
        summed = cast(Tensor, sum(parts))  # of one model at least
        result[name] = summed if first.is_floating_point() else summed.round().to(first.dtype)
    return result


def _as_numpy(weights: Weights) -> dict[str, np.ndarray]:
    return {name: tensor.detach().cpu().numpy() for name, tensor in weights.items()}


def _on_cpu(weights: Weights) -> Weights:
    return {name: tensor.detach().cpu() for name, tensor in weights.items()}


@torch.no_grad()
def cut_shapes(model: nn.Sequential, example: Any) -> dict[int, tuple[int, ...]]:
    """Return the shape of one sample's activations behind every legal cut, by the number of blocks in front of it.

    `example` is as for `example_input`.
    """
    was_training = model.training
    model.eval()
    sample, shapes = example_input(model, example), {}
    legal = legal_cuts(model)
    for cut, block in enumerate(list(model)[:-1], start=1):
        sample = block(sample)
        if cut in legal:
            shapes[cut] = tuple(sample.shape[1:])
    model.train(was_training)
    return shapes


def example_input(model: nn.Module, example: Any) -> Any:
    """Return a batch of one for a model: `example` itself, or zeros where it is a shape, a tuple of integers."""
    if isinstance(example, tuple) and all(isinstance(size, int) for size in example):
        return next(model.parameters()).new_zeros(1, *example)
    return example


@torch.no_grad()
def draws_random_numbers(blocks: nn.Module, input_shape: tuple[int, ...]) -> bool:
    """Return whether training blocks draws from PyTorch's generator, as dropout does."""
    copied = copy.deepcopy(blocks).cpu().train()
    with torch.random.fork_rng([]):
        before = torch.get_rng_state()
        copied(next(copied.parameters()).new_zeros(2, *input_shape))
        return not torch.equal(before, torch.get_rng_state())
