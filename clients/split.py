"""The client's part of split training: forward through its first blocks, backward from the cut gradient.

A client that has the model's last blocks too, its tail, makes the forward and the backward pass of these in between.
"""

import math
import secrets
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import cast

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord
from flwr.clientapp import ClientApp
from torch import Tensor, nn

from .messages.arrays import count_of, record_of, to_record, to_weights
from .messages.cut import Cut, as_blocks, copied
from .messages.generators import seeded_torch
from .messages.optimizer_state import load_optimizer_tensors, optimizer_tensors
from .messages.split import (
    CUT,
    FROZEN_HEAD,
    INDICES,
    KEPT,
    LABELS_CHANGED,
    STEP,
    TAIL,
    Activations,
    FeatureGradient,
    LabelTerms,
    RegisteredLabels,
    SplitBegin,
    SplitResult,
    SplitStep,
    SplitTail,
)
from .messages.train import LOCAL_ROUNDS, SERVER_ROUND
from .randomness import client_generator, client_seed, may_draw
from .task import ClientTask, LocalTraining
from .training import make_optimizer, mini_batches, planned

# Records of a node's state.
STATE = "split"
TAIL_STATE = "split-tail"
SALT = "labels-salt"
# Keys of the one that says where a session is.
AWAITS_FEATURES = "awaits-features"
LOSS_SUM = "loss-sum"


class Part:
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
        parameters = [p for p in self.blocks.parameters() if p.requires_grad]
        self.optimizer = make_optimizer(parameters, training) if parameters else None

    def load(self, weights: Mapping[str, Tensor]) -> None:
        """Take the blocks' weights out of those of more blocks."""
        self.blocks.load_state_dict({name: weights[name] for name in self.blocks.state_dict()})

    def zero_grad(self) -> None:
        """Forget the gradients."""
        if self.optimizer is not None:
            self.optimizer.zero_grad()

    def step(self) -> None:
        """Let the optimizer make a step."""
        if self.optimizer is not None:
            self.optimizer.step()

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
    """

    cut: Cut
    server_round: int
    label_policy: str
    local_epochs: int
    frozen_head: bool = False


class Session:
    """A client's split training in one round, without any I/O.

    `forward` says what goes to the edge, `backward` is told what came back, in turns until the session `is_over`; then
    there is a `result`. With a tail, `at_tail` comes between the two: it is told what the edge's blocks made of the
    mini-batch, and says what goes there.

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
    front : Part
        The client's first blocks.
    tail : Part, optional
        Its last ones, where it has some.
    batches : list[Tensor]
        The mini-batches of the round, as indices.
    step : int
        The mini-batch that goes forward next, or whose cut gradient is due.
    awaits_features : bool
        Whether its features are due before, for the tail.
    loss_sum : float
        The sum of the tail's losses so far, over the examples seen.
    """

    def __init__(self, task: ClientTask, terms: SessionTerms) -> None:
        if task.num_train(terms.server_round) == 0:
            raise ValueError("it has no training examples yet")
        training = replace(task.training, local_epochs=terms.local_epochs).at(terms.server_round)
        order = client_generator(task.seed, task.partition_id, terms.server_round, "batches")
        model, cut = as_blocks(task.model), terms.cut
        self.task = task
        self.terms = terms
        self.server_round = terms.server_round
        self.front = Part(cut.front(model), training)
        self.tail = Part(cut.tail(model), training, frozen_head=terms.frozen_head) if cut.has_tail(model) else None
        self.batches = list(mini_batches(task.num_train(terms.server_round), training, order))
        self.step = 0
        self.awaits_features = False
        self.loss_sum = 0.0
        self._draws = task.prepare_draws or may_draw(self.front.blocks)
        self._tail_draws = self.tail is not None and may_draw(self.tail.blocks)
        self._output: Tensor | None = None  # of the first blocks, with its graph

    @classmethod
    def begin(cls, task: ClientTask, instruction: SplitBegin) -> "Session":
        """Return the session that an instruction begins, with the weights that it brings."""
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
            ),
        )
        weights = to_weights(instruction.block)
        for part in (session.front, session.tail) if session.tail else (session.front,):
            part.load(weights)
        return session

    @property
    def is_over(self) -> bool:
        """Whether all mini-batches have been trained on."""
        return self.step == len(self.batches)

    def forward(self) -> Activations:
        """Send the next mini-batch through the client's first blocks (step 1 of a split step) and keep the graph."""
        task, batch, policy = self.task, self.batches[self.step], self.terms.label_policy
        with self._seeded(self._draws, f"dropout/{self.step}"):
            inputs = task.training_inputs(batch, self.server_round, self.step)
            self._output = cast(Tensor, self.front.blocks(inputs))
        self.awaits_features = self.tail is not None
        return Activations(
            values=self._output,
            label_policy=policy,
            numbers=label_numbers(batch, task, policy),
            step=self.step,
            num_steps=len(self.batches),
            num_examples=task.num_train(self.server_round),
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
        inputs = features.to(task.device).requires_grad_(True)
        with self._seeded(self._tail_draws, f"dropout/{self.step}/tail"):
            outputs = self.tail.blocks(inputs)
        loss = task.objective.loss(outputs, task.train.labels[batch].to(task.device))
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

        Raises
        ------
        ValueError
            If the gradient's shape is not that of the activations.
        """
        output = self._output
        assert output is not None
        if gradient.shape != output.shape:
            raise ValueError(f"cut gradient of shape {tuple(gradient.shape)} for {tuple(output.shape)}")
        self.front.zero_grad()
        output.backward(gradient.to(output.device, output.dtype))
        self.front.step()
        self._output = None
        self.step += 1

    def result(self) -> SplitResult:
        """Return what the client has learned."""
        count, step = self.task.num_train(self.server_round), self.step - 1
        weights, loss = self.front.blocks.state_dict(), None
        if self.tail is not None:
            trained = self.tail.blocks[:-1] if self.terms.frozen_head else self.tail.blocks
            weights |= trained.state_dict()
            loss = self.loss_sum / sum(map(len, self.batches))
        return SplitResult(to_record(weights), count, step, loss)

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


class Sessions:
    """Keeps sessions from one message to the next.

    Parameters
    ----------
    durable : bool (default: True)
        The next message may find another process: what a session needs is kept in the context's state too, and the
        forward pass is made again there. Not durable suits an engine that runs all messages in one process.
    """

    def __init__(self, durable: bool = True) -> None:
        self._durable = durable
        self._alive: dict[int, Session] = {}

    def put(self, context: Context, session: Session) -> Activations:
        """Keep a session, make the forward pass of its next mini-batch, and return what goes to the edge."""
        if self._durable:
            context.state[STATE] = session.front.snapshot()
            # Some of earlier rounds went on in other processes: their graphs would stay. Edges may be a round apart.
            self._alive = {n: s for n, s in self._alive.items() if s.server_round >= session.server_round - 1}
        activations = session.forward()
        self.keep(context, session)
        return activations

    def keep(self, context: Context, session: Session) -> None:
        """Keep a session whose mini-batch is on its way: its first blocks are kept as before the forward pass."""
        if self._durable:
            terms = session.terms
            at: dict[str, int | float | list[int] | list[float]] = {
                SERVER_ROUND: session.server_round,
                STEP: session.step,
                CUT: terms.cut.first,
                LOCAL_ROUNDS: terms.local_epochs,
            }
            if session.tail is not None:
                context.state[TAIL_STATE] = session.tail.snapshot()
                at |= {TAIL: terms.cut.last, FROZEN_HEAD: int(terms.frozen_head)}
                at |= {AWAITS_FEATURES: int(session.awaits_features), LOSS_SUM: session.loss_sum}
            context.state[STATE + "-at"] = MetricRecord(at)
        self._alive[context.node_id] = session

    def take(self, context: Context, task: ClientTask, instruction: SplitStep | SplitTail) -> Session:
        """Return the session that waits for what an instruction brings, and forget it.

        Raises
        ------
        ValueError
            If there is none: the message is of another round or another step.
        """
        brings_features = isinstance(instruction, SplitTail)
        due = server_round, step, _ = instruction.server_round, instruction.step, brings_features
        alive = self._alive.pop(context.node_id, None)
        session = alive if alive and (alive.server_round, alive.step, alive.awaits_features) == due else None
        if session and not self._durable:
            return session
        at = context.state.metric_records.get(STATE + "-at", MetricRecord())
        if self._durable and (at.get(SERVER_ROUND), at.get(STEP), bool(at.get(AWAITS_FEATURES, 0))) == due:
            return session or _restored(context, task, at, instruction.label_policy)
        what = "features" if brings_features else "a cut gradient"
        raise ValueError(f"no mini-batch of round {server_round}, step {step} waits for {what}")

    def drop(self, context: Context) -> None:
        """Forget the node's session, its state too."""
        self._alive.pop(context.node_id, None)
        for name in (STATE, TAIL_STATE, STATE + "-at"):
            context.state.pop(name, None)


def _restored(context: Context, task: ClientTask, at: MetricRecord, label_policy: str) -> Session:
    """Return the session that a node's state holds."""
    last = count_of(at, TAIL) if TAIL in at else len(as_blocks(task.model))
    terms = SessionTerms(
        cut=Cut(count_of(at, CUT), last),
        server_round=count_of(at, SERVER_ROUND),
        label_policy=label_policy,
        local_epochs=count_of(at, LOCAL_ROUNDS),
        frozen_head=bool(at.get(FROZEN_HEAD, 0)),
    )
    session, awaits_features = Session(task, terms), bool(at.get(AWAITS_FEATURES, 0))
    tail = record_of(context.state, TAIL_STATE) if session.tail else None
    session.restore(record_of(context.state, STATE), tail, count_of(at, STEP), awaits_features=awaits_features)
    session.loss_sum = cast(float, at.get(LOSS_SUM, 0.0))
    return session


Handler = Callable[[Message, Context, ClientTask, Sessions], Message]


def labels_digest(context: Context, task: ClientTask) -> int:
    """Return a number of 63 bits that tells the client's labels from others, to nobody but the client.

    It goes along with the labels when they are registered, and comes back with every instruction. By a plain checksum
    whoever reads these could confirm a guess of all labels; by one with a salt of the edge's too, since that has to
    travel. So the client draws the salt, once, and keeps it in the node's state. Where that is lost, another salt gives
    another digest, and the labels are registered anew, as where they have changed. Two registrations of the same labels
    have the same digest, so either is good. Nothing that is trained or drawn depends on it.
    """
    if SALT not in context.state.config_records:
        context.state[SALT] = ConfigRecord({SALT: secrets.token_bytes(16)})
    salt = bytes(context.state.config_records[SALT][SALT])  # type: ignore[arg-type]
    labels = np.ascontiguousarray(task.train.labels.cpu().numpy(), "<i4")
    return int.from_bytes(blake2b(labels.data, key=salt, digest_size=8).digest()) >> 1


def check_registered(context: Context, task: ClientTask, labels: LabelTerms) -> None:
    """Raise ValueError if the edge goes by other labels than the client has: its data have changed since."""
    if labels.digest is not None and labels.digest != labels_digest(context, task):
        raise ValueError(f"{LABELS_CHANGED}: its data are not those whose labels it registered")


def split_begin(message: Message, context: Context, task: ClientTask, sessions: Sessions) -> Message:
    """Answer ``train.split_begin``: take the client block and send the first mini-batch's activations."""
    instruction = SplitBegin.from_content(message.content)
    sessions.drop(context)
    check_registered(context, task, instruction.labels)
    session = Session.begin(task, instruction)
    return Message(sessions.put(context, session).to_content(), reply_to=message)


def split_tail(message: Message, context: Context, task: ClientTask, sessions: Sessions) -> Message:
    """Answer ``train.split_tail``: compute the loss of the edge's features, and send its gradient."""
    instruction = SplitTail.from_content(message.content)
    session = sessions.take(context, task, instruction)
    gradient = FeatureGradient(session.at_tail(instruction.features), instruction.step)
    sessions.keep(context, session)
    return Message(gradient.to_content(), reply_to=message)


def split_step(message: Message, context: Context, task: ClientTask, sessions: Sessions) -> Message:
    """Answer ``train.split_step``: apply the cut gradient and send the next mini-batch's activations."""
    session = _apply_gradient(message, context, task, sessions)
    return Message(sessions.put(context, session).to_content(), reply_to=message)


def split_end(message: Message, context: Context, task: ClientTask, sessions: Sessions) -> Message:
    """Answer ``train.split_end``: apply the last cut gradient and send the client block back."""
    session = _apply_gradient(message, context, task, sessions)
    sessions.drop(context)
    return Message(session.result().to_content(), reply_to=message)


def register_labels(message: Message, context: Context, task: ClientTask) -> Message:
    """Answer ``query.labels``: register the training labels at the edge, once."""
    labels = RegisteredLabels(class_indices(task.train.labels), labels_digest(context, task))
    return Message(labels.to_content(), reply_to=message)


def register_split_handlers(app: ClientApp, load_task: Callable[[Context], ClientTask], sessions: Sessions) -> None:
    """Register the handlers of split training with a ClientApp.

    Parameters
    ----------
    app : ClientApp
        The app.
    load_task : Callable[[Context], ClientTask]
        Called for every message.
    sessions : Sessions
        Keeps sessions between messages.
    """
    handlers: dict[str, Handler] = {
        "split_begin": split_begin,
        "split_tail": split_tail,
        "split_step": split_step,
        "split_end": split_end,
    }
    for action, handler in handlers.items():

        @app.train(action)
        def handle(message: Message, context: Context, handler: Handler = handler) -> Message:
            return handler(message, context, load_task(context), sessions)

    @app.query("labels")
    def handle_labels(message: Message, context: Context) -> Message:
        return register_labels(message, context, load_task(context))


def _apply_gradient(message: Message, context: Context, task: ClientTask, sessions: Sessions) -> Session:
    instruction = SplitStep.from_content(message.content)
    session = sessions.take(context, task, instruction)
    session.backward(instruction.gradient)
    return session


def label_numbers(batch: Tensor, task: ClientTask, label_policy: str) -> np.ndarray | None:
    """Return what goes with the activations of a mini-batch, int32: its labels, or sample indices alone, or nothing."""
    if label_policy == KEPT:
        return None
    return batch.to(torch.int32).cpu().numpy() if label_policy == INDICES else class_indices(task.train.labels[batch])


def class_indices(labels: Tensor) -> np.ndarray:
    """Return labels as the edge gets them, int32; ValueError where they are no integers, which would be cut off."""
    if labels.is_floating_point() or labels.is_complex():
        allowed = "integers, the classes; train such a model whole, or give the device a tail"
        raise ValueError(f"labels are {labels.dtype}, an edge takes {allowed}")
    return labels.to(torch.int32).cpu().numpy()
