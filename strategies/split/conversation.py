"""The messages of a split round: clients in lock step, each mini-batch served by the edge."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from torch import Tensor

from clients.messages import (
    ACTIVATIONS,
    CLIENT_BLOCK,
    CONFIG,
    CUT,
    CUT_GRADIENT,
    INDICES,
    LABEL_POLICY,
    LABELS,
    METRICS,
    NUM_EXAMPLES,
    NUM_STEPS,
    QUERY_LABELS,
    SERVER_ROUND,
    SPLIT_BEGIN,
    SPLIT_END,
    SPLIT_STEP,
    STEP,
    to_array,
    to_tensor,
)

from ..exchange import Exchanges
from ..screening import Failure, array_fault

Weights = dict[str, Tensor]


@dataclass(frozen=True)
class MiniBatch:
    """A client's activations and their labels, checked.

    Parameters
    ----------
    node_id : int
        The client.
    activations : Tensor
        Shape (N, *cut_shape).
    labels : Tensor
        Shape (N,).
    """

    node_id: int
    activations: Tensor
    labels: Tensor


# Serves one mini-batch of each client given and returns the cut gradients, by client.
Serve = Callable[[list[MiniBatch]], Mapping[int, Tensor]]


@dataclass
class Outcome:
    """How a lock step ended.

    Parameters
    ----------
    blocks : dict[int, Weights]
        Client blocks of those who finished, by node id, in the order of the clients.
    num_examples : dict[int, int]
        Their training examples.
    failures : list[Failure]
        Those who left.
    """

    blocks: dict[int, Weights] = field(default_factory=dict)
    num_examples: dict[int, int] = field(default_factory=dict)
    failures: list[Failure] = field(default_factory=list)

    def add(self, other: "Outcome") -> None:
        """Take in the outcome of clients that trained after these."""
        self.blocks |= other.blocks
        self.num_examples |= other.num_examples
        self.failures += other.failures

    def sort(self, clients: Sequence[int]) -> None:
        """Put the blocks in the order of the clients."""
        self.blocks = {n: self.blocks[n] for n in clients if n in self.blocks}


class Labels:
    """Where an edge finds the labels of a mini-batch.

    Parameters
    ----------
    policy : str
        ``"indices"``: clients register their labels once, then send sample indices. ``"labels"``: labels come with
        the activations.
    """

    def __init__(self, policy: str) -> None:
        self.policy = policy
        self._registered: dict[int, np.ndarray] = {}

    def register(self, node_ids: Iterable[int]) -> Exchanges[list[Failure]]:
        """Ask those clients for their labels that have not registered them yet."""
        unknown = [n for n in node_ids if n not in self._registered] if self.policy == INDICES else []
        if not unknown:
            return []
        failures = []
        replies = yield [Message(RecordDict(), node_id, QUERY_LABELS) for node_id in unknown]
        for node_id, reply in zip(unknown, replies, strict=True):
            try:
                _raise_error(reply)
                self._registered[node_id] = _vector(reply.content.array_records[LABELS], LABELS)
            except (ValueError, KeyError, TypeError) as error:
                failures.append(Failure(node_id, f"no labels registered: {one_line(error)}"))
        return failures

    def find(self, node_id: int, content: RecordDict, num_classes: int) -> np.ndarray:
        """Return the labels of a client's mini-batch.

        Raises
        ------
        ValueError
            If they, or the indices, are missing or out of range.
        """
        if self.policy == INDICES:
            indices = _vector(_record(content, INDICES), INDICES)
            known = self._registered[node_id]
            if indices.size and not (indices.min() >= 0 and indices.max() < len(known)):
                raise ValueError(f"an index is out of range, {len(known)} labels are registered")
            labels = known[indices]
        else:
            labels = _vector(_record(content, LABELS), LABELS)
        if labels.size and not (labels.min() >= 0 and labels.max() < num_classes):
            raise ValueError(f"a label is out of range, there are {num_classes} classes")
        return labels


def lock_step(
    clients: Sequence[int],
    blocks: Mapping[int, ArrayRecord],
    cuts: Mapping[int, int],
    cut_shapes: Mapping[int, tuple[int, ...]],
    server_round: int,
    dtype: torch.dtype,
    labels: Labels,
    num_classes: int,
    serve: Serve,
) -> Exchanges[Outcome]:
    """Train clients for one round, one mini-batch of each per exchange: S mini-batches are S + 1 exchanges.

    A client that fails, or sends what does not fit, leaves the round; the others go on. One with fewer mini-batches
    ends earlier.

    Parameters
    ----------
    clients : Sequence[int]
        Node ids, in client order.
    blocks, cuts, cut_shapes : Mapping[int, ...]
        By node id: the client block to start from, the number of blocks in it, and the shape of one sample's
        activations behind it.
    server_round : int
        The round.
    dtype : torch.dtype
        Of the activations, as the model computes.
    labels : Labels
        Finds the labels.
    num_classes : int
        Labels are below it.
    serve : Callable
        Makes the server's steps for one mini-batch of each client in the list, which is in client order.
    """
    outcome = Outcome()
    num_steps: dict[int, int] = {}
    messages = {n: _begin(n, blocks[n], cuts[n], server_round, labels.policy) for n in clients}
    step = 0
    while messages:
        replies = yield list(messages.values())
        batches = []
        for node_id, message, reply in zip(messages, messages.values(), replies, strict=True):
            try:
                _raise_error(reply)
                if message.metadata.message_type == SPLIT_END:
                    outcome.blocks[node_id] = _client_block(reply.content, blocks[node_id])
                    outcome.num_examples[node_id] = _count(reply.content, NUM_EXAMPLES)
                else:
                    activations = _activations(reply.content, step, cut_shapes[node_id], dtype)
                    own_labels = labels.find(node_id, reply.content, num_classes)
                    if len(own_labels) != len(activations):
                        raise ValueError(f"{len(own_labels)} labels for {len(activations)} activations")
                    batches.append(MiniBatch(node_id, activations, torch.from_numpy(own_labels)))
                    num_steps.setdefault(node_id, max(1, _count(reply.content, NUM_STEPS)))
            except (ValueError, KeyError, TypeError) as error:
                outcome.failures.append(Failure(node_id, one_line(error)))
        gradients = serve(batches) if batches else {}
        messages = {
            n: _gradient(n, g, SPLIT_END if step + 1 == num_steps[n] else SPLIT_STEP, server_round, step, labels.policy)
            for n, g in gradients.items()
        }
        step += 1
    outcome.sort(clients)
    return outcome


def one_line(error: Exception) -> str:
    """Return an error's text in one line."""
    return " ".join(str(error.args[0] if isinstance(error, KeyError) and error.args else error).split())


def to_record(weights: Mapping[str, Tensor]) -> ArrayRecord:
    """Return weights as a Flower record."""
    return ArrayRecord({name: Array(tensor.detach().cpu().contiguous().numpy()) for name, tensor in weights.items()})


def _begin(node_id: int, block: ArrayRecord, cut: int, server_round: int, policy: str) -> Message:
    config = ConfigRecord({SERVER_ROUND: server_round, CUT: cut, LABEL_POLICY: policy})
    return Message(RecordDict({CLIENT_BLOCK: block.copy(), CONFIG: config}), node_id, SPLIT_BEGIN)


def _gradient(node_id: int, gradient: Tensor, kind: str, server_round: int, step: int, policy: str) -> Message:
    config = ConfigRecord({SERVER_ROUND: server_round, STEP: step, LABEL_POLICY: policy})
    record = ArrayRecord({CUT_GRADIENT: to_array(gradient)})
    return Message(RecordDict({CUT_GRADIENT: record, CONFIG: config}), node_id, kind)


def _activations(content: RecordDict, step: int, cut_shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Return a step's activations, or raise ValueError for what does not fit."""
    if (answered := _count(content, STEP)) != step:
        raise ValueError(f"it answered step {answered}, not step {step}")
    values = to_tensor(_record(content, ACTIVATIONS)[ACTIVATIONS])
    if values.dtype != dtype:
        raise ValueError(f"activations have dtype {values.dtype}, expected {dtype}")
    if tuple(values.shape[1:]) != cut_shape or not len(values):
        raise ValueError(
            f"activations have shape {tuple(values.shape)}, expected (N, {', '.join(map(str, cut_shape))})"
        )
    # The sum is finite nearly always, and much faster to have.
    if not torch.isfinite(values.sum()) and not torch.isfinite(values).all():
        raise ValueError("activations hold NaN or Inf")
    return values


def _client_block(content: RecordDict, sent: ArrayRecord) -> Weights:
    record = _record(content, CLIENT_BLOCK)
    if fault := array_fault(record, sent):
        raise ValueError(fault)
    return dict(record.to_torch_state_dict())


def _record(content: RecordDict, name: str) -> ArrayRecord:
    if name not in content.array_records:
        raise ValueError(f"its reply has no record {name!r}")
    return content.array_records[name]


def _vector(record: ArrayRecord, name: str) -> np.ndarray:
    values = record[name].numpy()
    if values.ndim != 1 or values.dtype.kind not in "iu":
        raise ValueError(f"{name} are {values.dtype} of shape {values.shape}, expected a vector of integers")
    return values.astype(np.int64)


def _count(content: RecordDict, key: str) -> int:
    value = content.metric_records[METRICS].get(key)
    if not isinstance(value, int) or value < 0:
        raise ValueError(f"{key} is {value!r}, expected a whole number")
    return value


def _raise_error(reply: Message) -> None:
    if reply.has_error():
        raise ValueError(reply.error.reason or f"error {reply.error.code}")
