"""The client half of split training: forward through the client block, backward from the cut gradient."""

import secrets
from collections.abc import Callable
from dataclasses import replace
from hashlib import blake2b

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord
from flwr.clientapp import ClientApp
from torch import Tensor

from .messages.arrays import count_of, record_of, to_record, to_weights
from .messages.cut import Cut, as_blocks, copied
from .messages.split import (
    CUT,
    INDICES,
    LABELS_CHANGED,
    STEP,
    Activations,
    Features,
    LabelTerms,
    RegisteredLabels,
    SplitBegin,
    SplitFeatures,
    SplitResult,
    SplitStep,
)
from .messages.train import LOCAL_ROUNDS, SERVER_ROUND
from .nested import take
from .randomness import client_generator, client_seed, seeded_torch
from .task import ClientTask
from .training import make_optimizer, mini_batches, planned

# Records of a node's state.
STATE = "split"
SALT = "labels-salt"


class Session:
    """A client's split training in one round, without any I/O.

    `forward` says what goes to the edge, `backward` is told what came back, in turns until the session `is_over`; then
    there is a `result`.

    Parameters
    ----------
    task : ClientTask
        Model, data and settings.
    cut : Cut
        Which blocks are the client's. They are copied; the round's weights are to be loaded.
    server_round : int
        The round.
    label_policy : "indices" or "labels"
        What goes with the activations.
    local_epochs : int
        Local epochs to train for.

    Raises
    ------
    ValueError
        If there is nothing to train on.

    Attributes
    ----------
    batches : list[Tensor]
        The mini-batches of the round, as indices.
    step : int
        The mini-batch that goes forward next, or whose cut gradient is due.
    """

    def __init__(self, task: ClientTask, cut: Cut, server_round: int, label_policy: str, local_epochs: int) -> None:
        if task.num_train(server_round) == 0:
            raise ValueError("it has no training examples yet")
        training = replace(task.training, local_epochs=local_epochs).at(server_round)
        order = client_generator(task.seed, task.partition_id, server_round, "batches")
        self.task = task
        self.server_round = server_round
        self.label_policy = label_policy
        self.local_epochs = local_epochs
        self.cut = cut
        self.block = copied(cut.client_side(as_blocks(task.model))).train()
        self.optimizer = make_optimizer(list(self.block.parameters()), training)
        self.batches = list(mini_batches(task.num_train(server_round), training, order))
        self.step = 0
        self._output: Tensor | None = None  # of the block, with its graph

    @classmethod
    def begin(cls, task: ClientTask, instruction: SplitBegin) -> "Session":
        """Return the session that an instruction begins, with the client block that it brings."""
        local_epochs = planned(task.training, instruction.config).local_epochs
        cut = Cut.of(as_blocks(task.model), instruction.cut)
        session = cls(task, cut, instruction.server_round, instruction.labels.policy, local_epochs)
        session.block.load_state_dict(to_weights(instruction.block))
        return session

    @property
    def is_over(self) -> bool:
        """Whether all mini-batches have been trained on."""
        return self.step == len(self.batches)

    def forward(self) -> Activations:
        """Send the next mini-batch through the client block (step 1 of a split step) and keep the graph."""
        task, batch = self.task, self.batches[self.step]
        dropout = client_seed(task.seed, task.partition_id, self.server_round, f"dropout/{self.step}")
        with seeded_torch(dropout, task.device):
            self._output = self.block(task.prepare(take(task.train.inputs, batch, task.device)))
        return Activations(
            values=self._output,
            label_policy=self.label_policy,
            numbers=_numbers(batch, task, self.label_policy),
            step=self.step,
            num_steps=len(self.batches),
            num_examples=task.num_train(self.server_round),
        )

    def backward(self, gradient: Tensor) -> None:
        """Finish the backward pass from the cut gradient and step the client block (step 5 of a split step).

        Raises
        ------
        ValueError
            If the gradient's shape is not that of the activations.
        """
        output = self._output
        assert output is not None
        if gradient.shape != output.shape:
            raise ValueError(f"cut gradient of shape {tuple(gradient.shape)} for {tuple(output.shape)}")
        self.optimizer.zero_grad()
        output.backward(gradient.to(output.device, output.dtype))
        self.optimizer.step()
        self._output = None
        self.step += 1

    def result(self) -> SplitResult:
        """Return what the client has learned."""
        block = to_record(self.block.state_dict())
        return SplitResult(block, self.task.num_train(self.server_round), self.step - 1)

    def snapshot(self) -> ArrayRecord:
        """Return the client block and its optimizer's state as arrays, as they are before a forward pass."""
        tensors = {f"block/{name}": tensor for name, tensor in self.block.state_dict().items()}
        for index, values in self.optimizer.state_dict()["state"].items():
            tensors |= {f"optimizer/{index}/{name}": value for name, value in values.items() if value is not None}
        return to_record(tensors)

    def restore(self, arrays: ArrayRecord, step: int) -> None:
        """Go to where `snapshot` was taken, and make the forward pass of that step again."""
        block: dict[str, Tensor] = {}
        states: dict[int, dict[str, Tensor]] = {}
        for name, tensor in to_weights(arrays).items():
            kind, rest = name.split("/", 1)
            if kind == "block":
                block[rest] = tensor
            else:
                index, key = rest.split("/")
                states.setdefault(int(index), {})[key] = tensor.clone()  # the optimizer takes it as its own
        self.block.load_state_dict(block)
        groups = self.optimizer.state_dict()["param_groups"]
        self.optimizer.load_state_dict({"state": states, "param_groups": groups})
        self.step = step
        self.forward()


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
            context.state[STATE] = session.snapshot()
            context.state[STATE + "-at"] = MetricRecord(
                {
                    SERVER_ROUND: session.server_round,
                    STEP: session.step,
                    CUT: session.cut.first,
                    LOCAL_ROUNDS: session.local_epochs,
                }
            )
            # Some of earlier rounds went on in other processes: their graphs would stay. Edges may be a round apart.
            self._alive = {n: s for n, s in self._alive.items() if s.server_round >= session.server_round - 1}
        activations = session.forward()
        self._alive[context.node_id] = session
        return activations

    def take(self, context: Context, task: ClientTask, instruction: SplitStep) -> Session:
        """Return the session that waits for the cut gradient of an instruction, and forget it.

        Raises
        ------
        ValueError
            If there is none: the message is of another round or another step.
        """
        due = server_round, step = instruction.server_round, instruction.step
        alive = self._alive.pop(context.node_id, None)
        session = alive if alive and (alive.server_round, alive.step) == due else None
        if session and not self._durable:
            return session
        at = context.state.metric_records.get(STATE + "-at", MetricRecord())
        if self._durable and (at.get(SERVER_ROUND), at.get(STEP)) == due:
            if session is None:
                first, local_epochs = count_of(at, CUT), count_of(at, LOCAL_ROUNDS)
                cut = Cut.of(as_blocks(task.model), first)
                session = Session(task, cut, server_round, instruction.label_policy, local_epochs)
                session.restore(record_of(context.state, STATE), step)
            return session
        raise ValueError(f"no mini-batch of round {server_round}, step {step} waits for a cut gradient")

    def drop(self, context: Context) -> None:
        """Forget the node's session, its state too."""
        self._alive.pop(context.node_id, None)
        for name in (STATE, STATE + "-at"):
            context.state.pop(name, None)


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
    labels = RegisteredLabels(task.train.labels.to(torch.int32).cpu().numpy(), labels_digest(context, task))
    return Message(labels.to_content(), reply_to=message)


@torch.no_grad()
def fine_tuning_features(message: Message, context: Context, task: ClientTask) -> Message:
    """Answer ``train.split_features``: the activations of mini-batches for fine-tuning a head, all in one reply.

    The client block is frozen, in eval mode; ``num-steps`` mini-batches are drawn as for a round of their own.
    """
    asked = SplitFeatures.from_content(message.content)
    check_registered(context, task, asked.labels)
    model = as_blocks(task.model)
    block = copied(Cut.of(model, asked.cut).client_side(model))
    block.load_state_dict(to_weights(asked.block))
    block.eval()
    order = client_generator(task.seed, task.partition_id, 0, "fine-tuning")
    training = type(task.training)(batches_per_epoch=asked.num_steps, batch_size=task.training.batch_size)
    batches = list(mini_batches(len(task.train), training, order))
    outputs = [block(task.prepare(take(task.train.inputs, batch, task.device))) for batch in batches]
    policy = asked.labels.policy
    features = Features(outputs, policy, _numbers(torch.cat(batches), task, policy), len(task.train))
    return Message(features.to_content(), reply_to=message)


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
    for action, handler in (("split_begin", split_begin), ("split_step", split_step), ("split_end", split_end)):

        @app.train(action)
        def handle(message: Message, context: Context, handler: Handler = handler) -> Message:
            return handler(message, context, load_task(context), sessions)

    @app.train("split_features")
    def handle_features(message: Message, context: Context) -> Message:
        return fine_tuning_features(message, context, load_task(context))

    @app.query("labels")
    def handle_labels(message: Message, context: Context) -> Message:
        return register_labels(message, context, load_task(context))


def _apply_gradient(message: Message, context: Context, task: ClientTask, sessions: Sessions) -> Session:
    instruction = SplitStep.from_content(message.content)
    session = sessions.take(context, task, instruction)
    session.backward(instruction.gradient)
    return session


def _numbers(batch: Tensor, task: ClientTask, label_policy: str) -> np.ndarray:
    """Return what goes with the activations of a mini-batch, int32: its labels, or sample indices alone."""
    return (batch if label_policy == INDICES else task.train.labels[batch]).to(torch.int32).cpu().numpy()
