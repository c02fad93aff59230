"""The client half of split training: forward through the client block, backward from the cut gradient."""

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import Tensor, nn

from .messages import (
    ACTIVATIONS,
    CLIENT_BLOCK,
    CONFIG,
    CUT,
    CUT_GRADIENT,
    INDICES,
    LABEL_POLICY,
    LABELS,
    LABELS_CHANGED,
    LABELS_DIGEST,
    LOCAL_ROUNDS,
    METRICS,
    NUM_EXAMPLES,
    NUM_STEPS,
    SERVER_ROUND,
    STEP,
    labels_digest,
    to_array,
    to_tensor,
)
from .randomness import client_generator, seeded_torch
from .task import ClientTask
from .training import make_optimizer, mini_batches, planned

STATE = "split"


@dataclass
class Session:
    """A client's split training in one round, between two messages.

    Parameters
    ----------
    block : nn.Sequential
        The client block, of the session's own.
    optimizer : torch.optim.Optimizer
        Of the client block.
    batches : list[Tensor]
        The mini-batches of the round, as indices.
    server_round : int
        The round.
    label_policy : str
        ``"indices"`` or ``"labels"``: what goes with the activations.
    local_epochs : int
        Local epochs that the mini-batches are of.
    step : int (default: 0)
        The mini-batch whose activations are out.
    activations : Tensor, optional
        These activations, with their graph.
    """

    block: nn.Sequential
    optimizer: torch.optim.Optimizer
    batches: list[Tensor]
    server_round: int
    label_policy: str
    local_epochs: int
    step: int = 0
    activations: Tensor | None = None


def open_session(task: ClientTask, local_epochs: int, cut: int, server_round: int, label_policy: str) -> Session:
    """Return a session of the round with a fresh optimizer; the weights of its block are to be loaded."""
    training = replace(task.training, local_epochs=local_epochs)
    if task.num_train(server_round) == 0:
        raise ValueError("it has no training examples yet")
    block = copy.deepcopy(task.model[:cut])  # type: ignore[index]
    order = client_generator(task.seed, task.partition_id, server_round, "batches")
    batches = list(mini_batches(task.num_train(server_round), training, order))
    optimizer = make_optimizer(list(block.parameters()), training)
    return Session(block, optimizer, batches, server_round, label_policy, local_epochs)


def begin_session(task: ClientTask, config: ConfigRecord, block: ArrayRecord) -> Session:
    """Return the session that an instruction begins, with the client block that it brings."""
    check_registered(task, config)
    local_epochs = planned(task.training, config).local_epochs
    session = open_session(task, local_epochs, int(config[CUT]), int(config[SERVER_ROUND]), str(config[LABEL_POLICY]))  # type: ignore[arg-type]
    session.block.load_state_dict(block.to_torch_state_dict())
    return session


def check_registered(task: ClientTask, config: ConfigRecord) -> None:
    """Raise ValueError if an instruction goes by other labels than the client has: its data have changed since."""
    if LABELS_DIGEST in config and config[LABELS_DIGEST] != labels_digest(task.train.labels.cpu().numpy()):
        raise ValueError(f"{LABELS_CHANGED}: its data are not those whose labels it registered")


def forward(session: Session, task: ClientTask) -> None:
    """Send the session's mini-batch through the client block (step 1 of a split step) and keep the graph."""
    dropout = client_generator(task.seed, task.partition_id, session.server_round, f"dropout/{session.step}")
    session.block.train()
    with seeded_torch(dropout, task.device):
        inputs = task.prepare(task.train.inputs[session.batches[session.step]].to(task.device))
        session.activations = session.block(inputs)


def backward(session: Session, gradient: Tensor) -> None:
    """Finish the backward pass from the cut gradient and step the client block (step 5 of a split step).

    Raises
    ------
    ValueError
        If the gradient's shape is not that of the activations.
    """
    activations = session.activations
    assert activations is not None
    if gradient.shape != activations.shape:
        raise ValueError(f"cut gradient of shape {tuple(gradient.shape)} for {tuple(activations.shape)}")
    session.optimizer.zero_grad()
    activations.backward(gradient.to(activations.device, activations.dtype))
    session.optimizer.step()
    session.activations = None


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

    def put(self, context: Context, session: Session, task: ClientTask) -> None:
        """Keep a session whose `step` is the next mini-batch to go forward, and make that forward pass."""
        if self._durable:
            context.state[STATE] = snapshot(session)
            context.state[STATE + "-at"] = MetricRecord(
                {
                    SERVER_ROUND: session.server_round,
                    STEP: session.step,
                    CUT: len(session.block),
                    LOCAL_ROUNDS: session.local_epochs,
                }
            )
            # Some of earlier rounds went on in other processes: their graphs would stay. Edges may be a round apart.
            self._alive = {n: s for n, s in self._alive.items() if s.server_round >= session.server_round - 1}
        forward(session, task)
        self._alive[context.node_id] = session

    def take(self, context: Context, task: ClientTask, server_round: int, step: int, label_policy: str) -> Session:
        """Return the session that waits for the cut gradient of `step`, and forget it.

        Raises
        ------
        ValueError
            If there is none: the message is of another round or another step.
        """
        session = self._alive.pop(context.node_id, None)
        if self._durable:
            at = context.state.metric_records.get(STATE + "-at", MetricRecord())
            if (at.get(SERVER_ROUND), at.get(STEP)) == (server_round, step):
                if session is None or (session.server_round, session.step) != (server_round, step):
                    session = open_session(
                        task,
                        int(at[LOCAL_ROUNDS]),  # type: ignore[arg-type]
                        int(at[CUT]),  # type: ignore[arg-type]
                        server_round,
                        label_policy,
                    )
                    restore(session, context.state.array_records[STATE], step, task)
                return session
        elif session is not None and (session.server_round, session.step) == (server_round, step):
            return session
        raise ValueError(f"no mini-batch of round {server_round}, step {step} waits for a cut gradient")

    def drop(self, context: Context) -> None:
        """Forget the node's session, its state too."""
        self._alive.pop(context.node_id, None)
        for name in (STATE, STATE + "-at"):
            context.state.pop(name, None)


def snapshot(session: Session) -> ArrayRecord:
    """Return the client block and its optimizer's state as arrays, as they are before the forward pass."""
    arrays = {f"block/{name}": _array(tensor) for name, tensor in session.block.state_dict().items()}
    for index, values in session.optimizer.state_dict()["state"].items():
        arrays |= {f"optimizer/{index}/{name}": _array(value) for name, value in values.items() if value is not None}
    return ArrayRecord(arrays)


def restore(session: Session, arrays: ArrayRecord, step: int, task: ClientTask) -> None:
    """Bring a session to where `snapshot` was taken, and make the forward pass of its step again."""
    block, states = {}, {}
    for name, array in arrays.items():
        kind, rest = name.split("/", 1)
        tensor = torch.from_numpy(array.numpy())
        if kind == "block":
            block[rest] = tensor
        else:
            index, key = rest.split("/")
            states.setdefault(int(index), {})[key] = tensor
    session.block.load_state_dict(block)
    groups = session.optimizer.state_dict()["param_groups"]
    session.optimizer.load_state_dict({"state": states, "param_groups": groups})
    session.step = step
    forward(session, task)


def split_begin(message: Message, context: Context, task: ClientTask, sessions: Sessions) -> Message:
    """Answer ``train.split_begin``: take the client block and send the first mini-batch's activations."""
    sessions.drop(context)
    session = begin_session(task, message.content.config_records[CONFIG], message.content.array_records[CLIENT_BLOCK])
    sessions.put(context, session, task)
    return Message(_activations(session, task), reply_to=message)


def split_step(message: Message, context: Context, task: ClientTask, sessions: Sessions) -> Message:
    """Answer ``train.split_step``: apply the cut gradient and send the next mini-batch's activations."""
    session = _apply_gradient(message, context, task, sessions)
    session.step += 1
    sessions.put(context, session, task)
    return Message(_activations(session, task), reply_to=message)


def split_end(message: Message, context: Context, task: ClientTask, sessions: Sessions) -> Message:
    """Answer ``train.split_end``: apply the last cut gradient and send the client block back."""
    session = _apply_gradient(message, context, task, sessions)
    sessions.drop(context)
    return Message(result(session, task), reply_to=message)


def result(session: Session, task: ClientTask) -> RecordDict:
    """Return the records of a client that has finished its round."""
    return RecordDict(
        {
            CLIENT_BLOCK: ArrayRecord({name: _array(tensor) for name, tensor in session.block.state_dict().items()}),
            METRICS: MetricRecord({NUM_EXAMPLES: task.num_train(session.server_round), STEP: session.step}),
        }
    )


def register_labels(message: Message, task: ClientTask) -> Message:
    """Answer ``query.labels``: register the training labels at the edge, once."""
    record = ArrayRecord({LABELS: _array(task.train.labels.to(torch.int32))})
    return Message(RecordDict({LABELS: record}), reply_to=message)


@torch.no_grad()
def fine_tuning_features(message: Message, task: ClientTask) -> Message:
    """Answer ``train.split_features``: the activations of mini-batches for fine-tuning a head, all in one reply.

    The client block is frozen, in eval mode; ``num-steps`` mini-batches are drawn as for a round of their own.
    """
    config = message.content.config_records[CONFIG]
    check_registered(task, config)
    num_steps = int(config[NUM_STEPS])  # type: ignore[arg-type]
    block = copy.deepcopy(task.model[: int(config[CUT])])  # type: ignore[index,arg-type]
    block.load_state_dict(message.content.array_records[CLIENT_BLOCK].to_torch_state_dict())
    block.eval()
    order = client_generator(task.seed, task.partition_id, 0, "fine-tuning")
    training = type(task.training)(batches_per_epoch=num_steps, batch_size=task.training.batch_size)
    batches = list(mini_batches(len(task.train), training, order))
    outputs = [block(task.prepare(task.train.inputs[batch].to(task.device))) for batch in batches]
    content = RecordDict(
        {
            ACTIVATIONS: ArrayRecord({f"{i}": to_array(output) for i, output in enumerate(outputs)}),
            METRICS: MetricRecord({NUM_EXAMPLES: len(task.train)}),
        }
    )
    policy = str(config[LABEL_POLICY])
    content[policy] = ArrayRecord({policy: _array(_labels(torch.cat(batches), task, policy))})
    return Message(content, reply_to=message)


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
        def handle(message: Message, context: Context, handler: Callable = handler) -> Message:
            return handler(message, context, load_task(context), sessions)

    @app.train("split_features")
    def handle_features(message: Message, context: Context) -> Message:
        return fine_tuning_features(message, load_task(context))

    @app.query("labels")
    def handle_labels(message: Message, context: Context) -> Message:
        return register_labels(message, load_task(context))


def _apply_gradient(message: Message, context: Context, task: ClientTask, sessions: Sessions) -> Session:
    config = message.content.config_records[CONFIG]
    round_and_step = int(config[SERVER_ROUND]), int(config[STEP])  # type: ignore[arg-type]
    session = sessions.take(context, task, *round_and_step, str(config[LABEL_POLICY]))
    backward(session, to_tensor(message.content.array_records[CUT_GRADIENT][CUT_GRADIENT]))
    return session


def _activations(session: Session, task: ClientTask) -> RecordDict:
    """Return the record of a step: activations, and either labels or the sample indices alone."""
    assert session.activations is not None
    content = RecordDict(
        {
            ACTIVATIONS: ArrayRecord({ACTIVATIONS: to_array(session.activations)}),
            METRICS: MetricRecord(
                {
                    STEP: session.step,
                    NUM_STEPS: len(session.batches),
                    NUM_EXAMPLES: task.num_train(session.server_round),
                }
            ),
        }
    )
    policy = session.label_policy
    content[policy] = ArrayRecord({policy: _array(batch_labels(session, task))})
    return content


def batch_labels(session: Session, task: ClientTask) -> Tensor:
    """Return what goes with the activations of the session's mini-batch, int32: its labels, or sample indices alone."""
    return _labels(session.batches[session.step], task, session.label_policy)


def _labels(batch: Tensor, task: ClientTask, label_policy: str) -> Tensor:
    return (batch if label_policy == INDICES else task.train.labels[batch]).to(torch.int32)


def _array(tensor: Tensor) -> Array:
    return Array(tensor.detach().cpu().contiguous().numpy())
