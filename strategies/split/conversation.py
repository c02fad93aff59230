"""The messages of a split round: clients in lock step, each mini-batch served by the edge."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecordValues, Message
from torch import Tensor

from espalier.clients.messages.cut import Cut
from espalier.clients.messages.split import (
    INDICES,
    LABELS_CHANGED,
    Activations,
    LabelsQuery,
    LabelTerms,
    RegisteredLabels,
    SplitBegin,
    SplitEnd,
    SplitResult,
    SplitStep,
    labels_digest,
)

from ..exchange import Exchanges
from ..screening import Failure, array_fault, in_form_of, one_line

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


@dataclass(frozen=True)
class Terms:
    """What holds for a round of split training, however its mini-batches travel.

    Parameters
    ----------
    server_round : int
        The round.
    blocks, cuts, cut_shapes : Mapping[int, ...]
        By node id: the client block to start from, where the model is cut, and the shape of one sample's activations
        behind the client block.
    dtype : torch.dtype
        Of the activations, as the model computes.
    labels : Labels
        Finds the labels.
    num_classes : int
        Labels are below it.
    config : Mapping[str, ...] (default: none)
        Sent along with the instruction that starts a client's round.
    max_batch : int, optional (default: None)
        The most samples in a mini-batch; None: any number.
    """

    server_round: int
    blocks: Mapping[int, ArrayRecord]
    cuts: Mapping[int, Cut]
    cut_shapes: Mapping[int, tuple[int, ...]]
    dtype: torch.dtype
    labels: "Labels"
    num_classes: int
    config: Mapping[str, ConfigRecordValues] = field(default_factory=dict)
    max_batch: int | None = None

    def mini_batch(self, node_id: int, activations: Tensor, numbers: np.ndarray) -> MiniBatch:
        """Return a client's mini-batch from its activations and the labels, or indices, that came with them.

        Raises
        ------
        ValueError
            For what does not fit.
        """
        labels = self.labels.find(node_id, numbers, self.num_classes)
        cut_shape = self.cut_shapes[node_id]
        if activations.dtype != self.dtype:
            raise ValueError(f"activations have dtype {activations.dtype}, expected {self.dtype}")
        if tuple(activations.shape[1:]) != cut_shape or not len(activations):
            raise ValueError(
                f"activations have shape {tuple(activations.shape)}, expected (N, {', '.join(map(str, cut_shape))})"
            )
        if self.max_batch is not None and len(activations) > self.max_batch:
            raise ValueError(f"{len(activations)} activations in a mini-batch, expected {self.max_batch} at most")
        # The sum is finite nearly always, and much faster to have.
        if not torch.isfinite(activations.sum()) and not torch.isfinite(activations).all():
            raise ValueError("activations hold NaN or Inf")
        if len(labels) != len(activations):
            raise ValueError(f"{len(labels)} labels for {len(activations)} activations")
        return MiniBatch(node_id, activations, torch.from_numpy(labels))

    def begin(self, node_id: int) -> SplitBegin:
        """Return the instruction that begins a client's round."""
        block, labels = self.blocks[node_id], self.labels.terms(node_id)
        return SplitBegin(block, self.server_round, self.cuts[node_id].first, labels, self.config)


# Serves one mini-batch of each client given and returns the cut gradients, or why there is none, by client.
Serve = Callable[[list[MiniBatch]], Mapping[int, Tensor | ValueError]]


@dataclass
class Outcome:
    """How a round of some clients ended.

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

    def conclude(self, node_id: int, reply: Message, terms: Terms) -> None:
        """Take in a client's last reply.

        Raises
        ------
        ValueError, KeyError, TypeError
            If it is an error, or does not hold the block that was trained.
        """
        raise_error(reply)
        result, sent = SplitResult.from_content(reply.content), terms.blocks[node_id]
        if fault := array_fault(result.block, sent):
            raise ValueError(fault)
        self.blocks[node_id] = dict(in_form_of(sent, result.block).to_torch_state_dict())
        self.num_examples[node_id] = result.num_examples

    def sort(self, clients: Sequence[int]) -> None:
        """Put the blocks in the order of the clients."""
        self.blocks = {n: self.blocks[n] for n in clients if n in self.blocks}


class Labels:
    """Where an edge finds the labels of a mini-batch.

    Parameters
    ----------
    policy : str
        ``"indices"``: clients register their labels once, then send sample indices; a client whose labels have changed
        leaves the round, and registers them anew in the next. ``"labels"``: labels come with the activations.
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
        replies = yield [LabelsQuery().to_message(node_id) for node_id in unknown]
        for node_id, reply in zip(unknown, replies, strict=True):
            try:
                raise_error(reply)
                self._registered[node_id] = RegisteredLabels.from_content(reply.content).labels
            except (ValueError, KeyError, TypeError) as error:
                failures.append(Failure(node_id, f"no labels registered: {one_line(error)}"))
        return failures

    def forget(self, failures: Iterable[Failure]) -> None:
        """Let those who failed because their labels have changed register them again."""
        for failure in failures:
            if LABELS_CHANGED in failure.reason:
                self._registered.pop(failure.node_id, None)

    def terms(self, node_id: int) -> LabelTerms:
        """Return what a client has to know: the policy, and by a digest which of its labels it goes by."""
        known = self._registered.get(node_id)
        return LabelTerms(self.policy, None if known is None else labels_digest(known))

    def find(self, node_id: int, numbers: np.ndarray, num_classes: int) -> np.ndarray:
        """Return the labels of a client's mini-batch.

        Parameters
        ----------
        node_id : int
            The client.
        numbers : np.ndarray
            What it sent, int64, of shape (N,): labels or indices, by the policy.
        num_classes : int
            Labels are below it.

        Raises
        ------
        ValueError
            If a label or an index is out of range.
        """
        labels = numbers
        if self.policy == INDICES:
            known = self._registered[node_id]
            if numbers.size and not (numbers.min() >= 0 and numbers.max() < len(known)):
                raise ValueError(f"an index is out of range, {len(known)} labels are registered")
            labels = known[numbers]
        if labels.size and not (labels.min() >= 0 and labels.max() < num_classes):
            raise ValueError(f"a label is out of range, there are {num_classes} classes")
        return labels


def lock_step(clients: Sequence[int], terms: Terms, serve: Serve) -> Exchanges[Outcome]:
    """Train clients for one round, one mini-batch of each per exchange: S mini-batches are S + 1 exchanges.

    A client that fails, or sends what does not fit, leaves the round; the others go on. One with fewer mini-batches
    ends earlier.

    Parameters
    ----------
    clients : Sequence[int]
        Node ids, in client order.
    terms : Terms
        What the clients start from, and what they may send.
    serve : Callable
        Makes the server's steps for one mini-batch of each client in the list, which is in client order.
    """
    outcome = Outcome()
    num_steps: dict[int, int] = {}
    messages = {n: terms.begin(n).to_message(n) for n in clients}
    step = 0
    while messages:
        replies = yield list(messages.values())
        batches = []
        for node_id, message, reply in zip(messages, messages.values(), replies, strict=True):
            try:
                if message.metadata.message_type == SplitEnd.message_type:
                    outcome.conclude(node_id, reply, terms)
                else:
                    raise_error(reply)
                    found = Activations.from_content(reply.content, step=step, label_policy=terms.labels.policy)
                    num_steps.setdefault(node_id, found.num_steps)
                    batches.append(terms.mini_batch(node_id, found.values, found.numbers))
            except (ValueError, KeyError, TypeError) as error:
                outcome.failures.append(Failure(node_id, one_line(error)))
        gradients = serve(batches) if batches else {}
        outcome.failures += [Failure(n, one_line(g)) for n, g in gradients.items() if isinstance(g, ValueError)]
        messages = {}
        for n, gradient in gradients.items():
            if not isinstance(gradient, ValueError):
                kind = SplitEnd if step + 1 == num_steps[n] else SplitStep
                messages[n] = kind(terms.server_round, step, terms.labels.policy, gradient).to_message(n)
        step += 1
    outcome.sort(clients)
    return outcome


def raise_error(reply: Message) -> None:
    """Raise ValueError for an error reply."""
    if reply.has_error():
        raise ValueError(reply.error.reason or f"error {reply.error.code}")
