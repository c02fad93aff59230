"""The client's part of split training: forward through its first blocks, backward from the cut gradient.

A client that has the model's last blocks too, its tail, makes the forward and the backward pass of these in between.
"""

import math
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Self, cast

from flwr.app import ArrayRecord, Context, Message
from torch import Tensor, nn

from ..memory import keep
from ..messages.split import Activations, SplitBegin, SplitResult
from ..messages.train import proximal_mu
from ..randomness import client_seed, may_draw
from ..shared.arrays import to_record, to_weights
from ..shared.correction import CorrectedSteps, Correction, Weights
from ..shared.crossing import Crossing, as_numbers, parts_of
from ..shared.cut import Cut, as_blocks, copied
from ..shared.generators import seeded_torch
from ..shared.layouts import as_laid_out
from ..shared.local_round import Begun, Learned, LocalRound, begun_by, ended, first_correction
from ..shared.nested import rows_on
from ..shared.optimizer_state import load_optimizer_tensors, optimizer_tensors
from ..task import ClientTask, LocalTraining
from ..whole.ruled_round import planned
from ..whole.training import batches_there, make_optimizer, round_batches
from .crossings import front_crossing, tail_crossing
from .registered_labels import label_numbers


class TrainedBlocks:
    """Consecutive blocks of a client's, copied, and what trains them in a round.

    Parameters
    ----------
    blocks : nn.Sequential
        The blocks; those that are frozen keep their weights.
    training : LocalTraining
        Settings of the optimizer.
    frozen_head : bool (default: False)
        The last block keeps its weights.
    """

    def __init__(self, blocks: nn.Sequential, training: LocalTraining, *, frozen_head: bool = False) -> None:
        self.blocks = copied(blocks).train()
        if frozen_head:
            self.blocks[-1].requires_grad_(False)
        self.trained = {name: p for name, p in self.blocks.named_parameters() if p.requires_grad}
        self.optimizer = make_optimizer(list(self.trained.values()), training) if self.trained else None
        self._steps = CorrectedSteps(self.optimizer, self.trained.items())

    def correct(self, correction: Correction) -> None:
        """Correct every step from now on."""
        self._steps = CorrectedSteps(self.optimizer, self.trained.items(), correction)

    def load(self, weights: Mapping[str, Tensor]) -> None:
        """Take the blocks' weights out of those of more blocks."""
        self.blocks.load_state_dict({name: weights[name] for name in self.blocks.state_dict()})

    def zero_grad(self) -> None:
        """Forget the gradients."""
        self._steps.zero_grad()

    def step(self) -> None:
        """Let the optimizer make a step."""
        self._steps.step()

    def snapshot(self) -> ArrayRecord:
        """Return the blocks and the optimizer's state as arrays."""
        tensors = {f"block/{name}": tensor for name, tensor in self.blocks.state_dict().items()}
        tensors |= {f"optimizer/{name}": tensor for name, tensor in optimizer_tensors(self.optimizer).items()}
        return to_record(tensors)

    def restore(self, arrays: ArrayRecord) -> None:
        """Go to where `snapshot` was taken."""
        parts: dict[str, dict[str, Tensor]] = {"block": {}, "optimizer": {}}
        for name, tensor in to_weights(arrays).items():
            kind, rest = name.split("/", 1)
            parts[kind][rest] = tensor
        self.blocks.load_state_dict(parts["block"])
        load_optimizer_tensors(self.optimizer, {name: tensor.clone() for name, tensor in parts["optimizer"].items()})


@dataclass(frozen=True)
class SessionTerms:
    """What a client has to know of a round of split training, beside its weights.

    Parameters
    ----------
    cut : Cut
        Which blocks are the client's.
    server_round : int
        The round.
    label_policy : "indices", "labels" or "kept"
        What goes with the activations.
    local_epochs : int
        Local epochs to train for.
    frozen_head : bool (default: False)
        The head, in the client's tail, keeps its weights.
    pull : float (default: 0.0)
        The weight of FedProx's proximal term.
    """

    cut: Cut
    server_round: int
    label_policy: str
    local_epochs: int
    frozen_head: bool = False
    pull: float = 0.0


class Session:
    """A client's split training in one round, without any I/O.

    `forward` says what goes to the edge, `backward` is told what came back, in turns until the session `is_over`; then
    there is a `result`. With a tail, `at_tail` comes between the two: it is told what the edge's blocks made of the
    mini-batch, and says what goes there. Without one a mini-batch can go forward in parts (`forward_parts`), and
    `backward` is told what came back of each.

    Parameters
    ----------
    task : ClientTask
        Model, data and settings.
    terms : SessionTerms
        What holds for the round. The client's blocks are copied; the round's weights are to be loaded.

    Raises
    ------
    ValueError
        If there is nothing to train on.

    Attributes
    ----------
    front : TrainedBlocks
        The client's first blocks.
    tail : TrainedBlocks, optional
        Its last ones, where it has some.
    batches : list[Tensor]
        The mini-batches of the round, as indices.
    step : int
        The mini-batch that goes forward next, or whose cut gradient is due.
    awaits_features : bool
        Whether its features are due before, for the tail.
    loss_sum : float
        The sum of the tail's losses so far, over the examples seen.
    kept : Mapping[str, Tensor], optional
        What the client keeps of the round when there is a result, see `espalier.clients.shared.local_round.Done`.
    """

    def __init__(self, task: ClientTask, terms: SessionTerms) -> None:
        training = replace(task.training, local_epochs=terms.local_epochs).at(terms.server_round)
        model, cut = as_blocks(task.model), terms.cut
        self.task = task
        self.terms = terms
        self.server_round = terms.server_round
        self.front = TrainedBlocks(cut.front(model), training)
        self.tail = self.new_tail(model, training)
        self.batches = round_batches(task, terms.server_round, training)
        self._there = list(batches_there(task.train, self.batches))
        self.step = 0
        self.awaits_features = False
        self.loss_sum = 0.0
        self._draws = task.prepare_draws or (task.model_draws and may_draw(self.front.blocks))
        self._tail_draws = self.tail is not None and self.tail_may_draw(self.tail)
        self._front_crossing: Crossing | None = None  # known when the first blocks have computed
        self._tail_crossing: Crossing | None = None  # known when features have come
        # Of the first blocks, with their graphs, whose cut gradients are due; and the parts' shares of the mini-batch.
        self._outputs: deque[tuple[Tensor, float]] = deque()
        self._is_new = True  # no part of the mini-batch has come back
        self._training = training
        self.kept: Weights | None = None
        self._conversation: LocalRound | None = None
        self._pull = 0.0

    def new_tail(self, model: nn.Sequential, training: LocalTraining) -> TrainedBlocks | None:
        """Return the last blocks of a model, where they are the client's."""
        terms = self.terms
        if not terms.cut.has_tail(model):
            return None
        return TrainedBlocks(terms.cut.tail(model), training, frozen_head=terms.frozen_head)

    def tail_may_draw(self, tail: TrainedBlocks) -> bool:
        """Return whether the tail may draw random numbers, as dropout does."""
        return self.task.model_draws and may_draw(tail.blocks)

    def crossing_at_tail(self, features: Tensor) -> Crossing:
        """Return how features are what the tail takes where the model is whole."""
        return tail_crossing(self.task, self.terms.cut.last, features)

    @classmethod
    def begin(cls, task: ClientTask, instruction: SplitBegin, kept: Weights | None = None) -> Self:
        """Return the session that an instruction begins, with the weights that it brings and what the client kept."""
        model = as_blocks(task.model)
        last = len(model) if instruction.tail is None else instruction.tail
        session = cls(
            task,
            SessionTerms(
                cut=Cut.of(model, Cut(instruction.cut, last)),
                server_round=instruction.server_round,
                label_policy=instruction.labels.policy,
                local_epochs=planned(task.training, instruction.config).local_epochs,
                frozen_head=instruction.frozen_head,
                pull=proximal_mu(instruction.config),
            ),
        )
        weights = to_weights(instruction.block)
        for part in session.parts:
            part.load(weights)
        session.follow(weights, {} if instruction.sent is None else to_weights(instruction.sent), kept or {})
        return session

    @property
    def parts(self) -> tuple[TrainedBlocks, ...]:
        """The client's blocks: those in front of the edge's, and the tail where there is one."""
        return (self.front,) if self.tail is None else (self.front, self.tail)

    def follow(self, start: Weights, sent: Weights, kept: Weights) -> None:
        """Let the algorithm's rule, for the client's blocks, correct the steps from now on.

        Parameters
        ----------
        start, sent, kept : Mapping[str, Tensor]
            As for `espalier.clients.shared.local_round.Begun`.
        """
        trained = {name: start[name] for part in self.parts for name in part.trained}
        self._conversation = begun_by(self.task.half.rule, Begun(start, trained, sent, kept))
        correction = first_correction(self._conversation).pulled(self.terms.pull, trained)
        self._pull = correction.pull
        for part in self.parts:
            part.correct(correction)

    @property
    def is_over(self) -> bool:
        """Whether all mini-batches have been trained on."""
        return self.step == len(self.batches)

    def forward(self) -> Activations:
        """Send the next mini-batch through the client's first blocks (step 1 of a split step) and keep the graph."""
        (whole,) = self.forward_parts(1)
        return whole

    def forward_parts(self, count: int) -> Iterator[Activations]:
        """Send the next mini-batch through the client's first blocks in parts, each when it is asked for.

        Gradients add up to those of the whole, for blocks that treat each example by itself. What is drawn to prepare
        the mini-batch is drawn for the whole; what blocks draw, as dropout does, is another draw in each part.

        Parameters
        ----------
        count : int
            How many parts of nearly one size; at most one for each example.
        """
        task, batch, policy = self.task, self.batches[self.step], self.terms.label_policy
        self._outputs.clear()
        self.awaits_features = self.tail is not None
        end = 0
        for part, numbers in enumerate(batch.tensor_split(min(count, len(batch)))):
            rows, end = slice(end, end + len(numbers)), end + len(numbers)
            with self._seeded(self._draws, f"dropout/{self.step}/{part}" if part else f"dropout/{self.step}"):
                if part == 0:
                    inputs = task.training_inputs(self._there[self.step], self.server_round, self.step)
                own = inputs if len(numbers) == len(batch) else rows_on(inputs, rows, task.device)
                output = self.front.blocks(own)
            if self._front_crossing is None:
                self._front_crossing = front_crossing(task, self.terms.cut.first, output, len(numbers))
            values = self._front_crossing.rows(output)
            self._outputs.append((values, len(numbers) / len(batch)))
            yield Activations(
                values=values,
                label_policy=policy,
                numbers=label_numbers(numbers, task, policy),
                step=self.step,
                num_steps=len(self.batches),
                num_examples=task.num_train(self.server_round),
                lengths=as_numbers(parts_of(output)[1]),
            )

    def at_tail(self, features: Tensor) -> Tensor:
        """Send the edge's features through the tail and step it; return the mean loss's gradient with respect to them.

        Parameters
        ----------
        features : Tensor
            Shape (N, ...), of the mini-batch that went forward.

        Raises
        ------
        ValueError
            If they are not those of a mini-batch of this size, or the loss is not finite.
        """
        assert self.tail is not None
        task, batch = self.task, self.batches[self.step]
        if len(features) != len(batch):
            raise ValueError(f"features of shape {tuple(features.shape)} for a mini-batch of {len(batch)}")
        if self._tail_crossing is None:
            self._tail_crossing = self.crossing_at_tail(features)
        inputs = features.to(task.device).detach().requires_grad_(True)
        with self._seeded(self._tail_draws, f"dropout/{self.step}/tail"):
            outputs = self.tail.blocks(self._tail_crossing.given(inputs))
        loss = task.objective.loss(outputs, task.train.labels[self._there[self.step]].to(task.device))
        if not math.isfinite(value := loss.item()):
            raise ValueError(f"the loss of mini-batch {self.step} is {value}")
        self.tail.zero_grad()
        loss.backward()
        self.tail.step()
        self.loss_sum += value * len(batch)
        self.awaits_features = False
        return cast(Tensor, inputs.grad)

    def backward(self, gradient: Tensor) -> None:
        """Finish the backward pass from the cut gradient and step the first blocks (step 5 of a split step).

        Of a mini-batch in parts it is the first part's that has not come back, of the mean loss over that part; the
        blocks are stepped after the last.

        Raises
        ------
        ValueError
            If the gradient's shape is not that of the activations.
        """
        output, share = self._outputs[0]
        if gradient.shape != output.shape:
            raise ValueError(f"cut gradient of shape {tuple(gradient.shape)} for {tuple(output.shape)}")
        if self._is_new:
            self.front.zero_grad()
        output.backward(as_laid_out(gradient if share == 1 else share * gradient, output))
        self._outputs.popleft()
        self._is_new = not self._outputs
        if self._is_new:
            self.front.step()
            self.step += 1

    def result(self) -> SplitResult:
        """Return what the client has learned; `kept` is then what it keeps."""
        assert self._conversation is not None
        count, step = self.task.num_train(self.server_round), self.step - 1
        weights, loss = self.front.blocks.state_dict(), None
        if self.tail is not None:
            trained = self.tail.blocks[:-1] if self.terms.frozen_head else self.tail.blocks
            weights |= trained.state_dict()
            loss = self.loss_sum / sum(map(len, self.batches))
        training, steps = self._training, len(self.batches)
        path = training.learning_rate * steps
        done = ended(self._conversation, Learned(weights, path, steps, training.momentum, self._pull))
        told = to_record(done.told) if done.told else None
        self.kept = done.kept if done.kept is not None and done.is_of_use else None
        return SplitResult(to_record(done.weights), count, step, loss, told)

    def restore(self, front: ArrayRecord, tail: ArrayRecord | None, step: int, *, awaits_features: bool) -> None:
        """Go to where snapshots of the parts were taken, and make the forward pass of that step again."""
        self.front.restore(front)
        if self.tail is not None and tail is not None:
            self.tail.restore(tail)
        self.step = step
        self.forward()
        self.awaits_features = awaits_features

    def _seeded(self, draws: bool, purpose: str) -> AbstractContextManager[None]:
        """Let what is drawn, as by dropout, follow the seed; to seed takes as long as a small layer."""
        if not draws:
            return nullcontext()
        task = self.task
        return seeded_torch(client_seed(task.seed, task.partition_id, self.server_round, purpose), task.device)


def result_reply(message: Message, context: Context, session: Session) -> Message:
    """Return the reply that ends a client's round, when it keeps what its algorithm's rule says."""
    content = session.result().to_content()
    keep(context, session.kept)
    return Message(content, reply_to=message)
