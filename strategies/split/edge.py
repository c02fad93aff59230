"""An edge that holds the server half of its clients' models: what all split algorithms share."""

import random
from abc import abstractmethod
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, cast

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Error, Message, MetricRecord
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from espalier.clients.messages.train import PROXIMAL_MU, TRAIN_LOSS
from espalier.clients.shared.arrays import to_record, to_weights
from espalier.clients.shared.cut import Cut, part_of
from espalier.clients.shared.generators import seeded_torch
from espalier.clients.shared.tensor_array import record_by_reference

from ..edge_base import Edge
from ..edge_half import of_blocks
from ..exchange import REJECTED, Exchanges, answered
from ..guards.activations import ActivationGuard
from ..guards.updates import UpdateGuard, guard_state, load_guard_state
from ..outcomes import Evaluation, Update
from ..randomness import derived_seed, sample_size
from ..replies import one_line
from ..strategy_edge import StrategyEdge
from ..views import MemberGrid
from .choices import beyond_a_choice
from .cuts import checked_cut, client_names, legal_cuts, num_outputs
from .evaluation import evaluate_through_cut
from .fine_tuning import FineTuning, Personalised, fine_tune_heads
from .joint import ClientOfJoint
from .labels import Labels
from .loop import SplitOutcome, State, Terms
from .losses import Losses
from .server_block import Loss, MakeOptimizer, MiddleBlock, Served, ServerBlock, ServerSide
from .serving import MiniBatch, Serve, ServerStep
from .shapes import draws_random_numbers, forms_at_cuts
from .transports import MessageTransport, Transport


class SplitEdge(Edge):
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
    label_shape : tuple[int, ...] (default: one label)
        Of a sample's labels.
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
        If the model is not such a list, or has not such a cut (where clients may differ, in the first round); if
        another argument is not as above.
    """

    is_guarded = True

    def __init__(
        self,
        model: nn.Sequential,
        cut_of: Callable[[int], Cut | int],
        make_optimizer: MakeOptimizer,
        *,
        input_shape: Any,
        evaluation: StrategyEdge,
        label_policy: str = "indices",
        label_shape: tuple[int, ...] = (),
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
        if not isinstance(evaluation, StrategyEdge):
            raise ValueError(f"evaluation is a {type(evaluation).__name__}: it must be a StrategyEdge(...)")
        if not 0 < participation <= 1:
            raise ValueError(f"participation is {participation!r}: it must be above 0, and 1 at most")
        first = min(legal_cuts(model))
        self.model = model
        self.cut_of = lambda node_id: Cut.of(model, cut_of(node_id))
        self.make_optimizer = make_optimizer
        self.evaluation = evaluation
        self.labels: Labels = Labels(label_policy, label_shape)
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
        try:
            self._forms = forms_at_cuts(model, input_shape)
        except torch.OutOfMemoryError:  # our own
            raise
        except (ValueError, IndexError, RuntimeError) as error:
            raise ValueError(f"input_shape is none that the model takes: {one_line(error)}") from error
        self._draws = draws_random_numbers(part_of(model, first, len(model)), *self._forms[first])

    def train_round(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: MemberGrid
    ) -> Exchanges[Update]:
        """Run one edge round of the algorithm."""
        clients = self._sample(grid.get_node_ids(), server_round)
        failures = yield from self.labels.register([n for n in clients if not self.has_tail(n)])
        unregistered = {failure.node_id for failure in failures}
        clients = [node_id for node_id in clients if node_id not in unregistered]
        weights = to_weights(record_by_reference({**self.whole(arrays), **arrays}))
        losses = Losses(clients)
        if self.guard is not None:
            self.guard.begin_round(grid.terms.local_rounds)
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
        weights: State,
        config: ConfigRecord,
        clients: Sequence[int],
        losses: Losses,
        grid: MemberGrid,
    ) -> Exchanges[tuple[SplitOutcome, State]]:
        """Train from `weights` with `clients`, told `config`; return who finished, and the edge's new weights."""

    def evaluate_round(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: MemberGrid
    ) -> Exchanges[Evaluation]:
        """Evaluate the model on the clients."""
        whole = self.whole(arrays)
        conversation = self.evaluator.evaluate_round(server_round, whole, config, grid)
        if self.evaluates_whole:
            return conversation
        return answered(conversation, partial(self._through_cut, whole, config))

    def _through_cut(
        self, whole: ArrayRecord, config: ConfigRecord, messages: list[Message]
    ) -> Exchanges[list[Message]]:
        """Answer the messages that would send the whole model."""
        for message in messages:
            if fault := beyond_a_choice(message, whole, config):
                error = Error(REJECTED, f"{self.evaluator.name} {fault}")
                return [Message(error, reply_to=one) for one in messages]
        clients = [message.metadata.dst_node_id for message in messages]
        _, replies = yield from evaluate_through_cut(self.model, to_weights(whole), self.cut_of, self._forms, clients)
        return replies

    def personalise(self, arrays: ArrayRecord, fine_tuning: FineTuning, grid: MemberGrid) -> Exchanges[Personalised]:
        """Fine-tune a head for every client, from a trained model, and evaluate it."""
        return fine_tune_heads(
            self.model,
            self.whole(arrays),
            self.cut_of,
            self._forms,
            self.labels,
            fine_tuning,
            grid,
            self.loss,
            evaluates_whole=self.evaluates_whole,
        )

    def state_dict(self) -> dict[str, Any]:
        """Return what must survive an interruption; labels are registered anew."""
        return {"evaluation": self.evaluation.state_dict(), **guard_state(self.guard)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what `state_dict` returned."""
        self.evaluation.load_state_dict(state["evaluation"])
        load_guard_state(self.guard, state)

    def keep_within(self, outcome: SplitOutcome, sent: State, models: Mapping[int, State]) -> dict[int, State]:
        """Return what clients made of the weights sent, by node id, without those whom the guard leaves out."""
        kept = dict(models)
        if self.guard is None:
            return kept
        origin = _as_numpy(sent)
        pairs = {n: (origin, _as_numpy(m)) for n, m in models.items()}
        for node_id, verdict in self.guard.judge(pairs, examples=outcome.num_examples).items():
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
    def clips(self) -> bool:
        """Whether there is a guard that makes smaller what is too long."""
        return self.guard is not None and self.guard.guard.mode == "clip"

    @property
    def activation_guard(self) -> ActivationGuard | None:
        """What judges the clients' activations; None where nothing does."""
        return self.guard.activations if self.guard is not None and self.guard.activations.is_on else None

    @property
    def evaluator(self) -> StrategyEdge:
        """What evaluates the model."""
        return self.evaluation

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

    def server_block(self, cut: Cut | int) -> ServerSide:
        """Return the server's new blocks for a cut."""
        cut = checked_cut(self.model, cut)
        own, crossing = (self.model, cut, self.make_optimizer), self._forms[cut.first].crossing
        if cut.has_tail(self.model):
            return MiddleBlock(*own, crossing=crossing, behind=self._forms[cut.last].crossing)
        return ServerBlock(*own, crossing=crossing, frozen_head=self.frozen is not None, loss=self.loss)

    def begin(self, server: ServerSide, weights: State, server_round: int) -> None:
        """Let a server half begin a round."""
        server.load(weights)
        self.set_learning_rates(server, server_round)

    def set_learning_rates(self, server: ServerSide, server_round: int) -> None:
        """Let a server half go on with the learning rates of a round."""
        if (schedule := self.schedule) is not None:
            server.set_learning_rates(lambda rate: schedule(rate, server_round))

    def converse(
        self,
        groups: Sequence[Sequence[int]],
        weights: State,
        server_round: int,
        config: ConfigRecord,
        serve: Serve,
        pull: float = 0.0,
    ) -> Exchanges[SplitOutcome]:
        """Train groups of clients, all from the client blocks of `weights`.

        Parameters
        ----------
        groups : Sequence[Sequence[int]]
            Clients of one group advance together, one mini-batch of each at a time; groups need not.
        weights : State
            The model to start from.
        server_round : int
            The round.
        config : ConfigRecord
            Sent along with the instruction that starts a client's round.
        serve : Callable
            Serves one mini-batch of each client given. For clients of different groups it may be called at the same
            time, from threads.
        pull : float (default: 0.0)
            The weight of FedProx's proximal term of the clients' blocks; that in `config` is told to nobody.
        """
        cuts = {node_id: self.cut_of(node_id) for group in groups for node_id in group}
        by_cut = {cut: to_record(self.client_block(weights, cut)) for cut in set(cuts.values())}
        blocks = {node_id: by_cut[cut] for node_id, cut in cuts.items()}
        terms = Terms(
            server_round=server_round,
            blocks=blocks,
            cuts=cuts,
            cut_shapes={node_id: self._forms[cut.first].shape for node_id, cut in cuts.items()},
            crossings={node_id: self._forms[cut.first].crossing for node_id, cut in cuts.items()},
            dtype=next(self.model.parameters()).dtype,
            labels=self.labels,
            num_classes=self.num_classes,
            config={n: v for n, v in config.items() if n != PROXIMAL_MU} | ({PROXIMAL_MU: pull} if pull else {}),
            max_batch=self.max_batch,
            max_steps=self.max_steps,
            measures=self.activation_guard is not None,
            with_tail={node_id for node_id, cut in cuts.items() if cut.has_tail(self.model)},
            frozen=self.frozen or (),
            beside={n: of_blocks(self.beside(n), block, weights) for n, block in blocks.items()},
            ends_together=self.ends_together,
        )
        return self.transport.train(groups, terms, serve)

    def beside(self, node_id: int) -> Mapping[str, Tensor]:
        """Return what is for a client beside the model, by the names of the model's weights, and numbers."""
        return {}

    def step(
        self,
        server: ServerSide | ClientOfJoint,
        batch: MiniBatch,
        server_round: int,
        losses: Losses,
        most: float | None = None,
    ) -> ServerStep:
        """Serve a mini-batch; return the cut gradient, or why there is none: then the step was not made.

        Activations are not to be longer than `most`; None: than rounds before allow.
        """
        guard = self.activation_guard
        cut, length = self.cut_of(batch.node_id).first if guard else 0, batch.length
        try:
            if guard:
                factor = guard.admitted(batch.node_id, cut, length, most)
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

    def _seeded(self, device: torch.device, *purpose: int) -> AbstractContextManager[None]:
        """Let what is drawn inside, as by dropout, depend on the seed and the purpose alone."""
        return seeded_torch(derived_seed(self.seed, "server", *purpose), device) if self._draws else nullcontext()

    def random_order(self, items: Sequence[int], *purpose: int | str) -> list[int]:
        """Return the items in a random order that depends on the seed and the purpose."""
        return random.Random(derived_seed(self.seed, *purpose)).sample(list(items), len(items))

    def _sample(self, node_ids: Sequence[int], server_round: int) -> list[int]:
        count = sample_size(len(node_ids), self.participation)
        positions = self.random_order(range(len(node_ids)), "sample", server_round)[:count]
        return [node_ids[i] for i in sorted(positions)]


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


def _as_numpy(weights: State) -> dict[str, np.ndarray]:
    return {name: tensor.detach().cpu().numpy() for name, tensor in weights.items()}
