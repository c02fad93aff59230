"""The loop of split training at the edge, without any I/O: what arrived, who left, what to send next."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecordValues, MetricRecord
from torch import Tensor

from espalier.clients.messages.arrays import to_weights
from espalier.clients.messages.cut import Cut
from espalier.clients.messages.split import SplitBegin, SplitResult

from ..screening import Failure, array_fault, in_form_of, one_line
from .labels import Labels

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
    length : float (default: 0.0)
        Of the longest sample's activations, where it was measured.
    """

    node_id: int
    activations: Tensor
    labels: Tensor
    length: float = 0.0


def longest_sample(activations: Tensor) -> float:
    """Return the Euclidean length of the longest sample's activations, of shape (N, ...); finite only if all are."""
    return torch.linalg.vector_norm(activations.flatten(1), dim=1).max().item()


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
    max_steps : Callable[[int], int], optional (default: None)
        The most mini-batches of a client in the round, by its node id; None: any number.
    measures : bool (default: False)
        The length of activations is measured, which tells whether they are finite, too.
    """

    server_round: int
    blocks: Mapping[int, ArrayRecord]
    cuts: Mapping[int, Cut]
    cut_shapes: Mapping[int, tuple[int, ...]]
    dtype: torch.dtype
    labels: Labels
    num_classes: int
    config: Mapping[str, ConfigRecordValues] = field(default_factory=dict)
    max_batch: int | None = None
    max_steps: Callable[[int], int] | None = None
    measures: bool = False

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
        # One number is finite nearly always if all are, and much faster to have.
        number = longest_sample(activations) if self.measures else activations.sum().item()
        if not math.isfinite(number) and not torch.isfinite(activations).all():
            raise ValueError("activations hold NaN or Inf")
        if len(labels) != len(activations):
            raise ValueError(f"{len(labels)} labels for {len(activations)} activations")
        return MiniBatch(node_id, activations, torch.from_numpy(labels), number if self.measures else 0.0)

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
    metrics : MetricRecord, optional
        What a strategy made of the clients' metrics, where one aggregated their models.
    """

    blocks: dict[int, Weights] = field(default_factory=dict)
    num_examples: dict[int, int] = field(default_factory=dict)
    failures: list[Failure] = field(default_factory=list)
    metrics: MetricRecord | None = None

    def add(self, other: "Outcome") -> None:
        """Take in the outcome of clients that trained after these."""
        self.blocks |= other.blocks
        self.num_examples |= other.num_examples
        self.failures += other.failures

    def leave_out(self, node_id: int, reason: str) -> None:
        """Go on without a client that has finished."""
        del self.blocks[node_id], self.num_examples[node_id]
        self.failures.append(Failure(node_id, reason))

    def sort(self, clients: Sequence[int]) -> None:
        """Put the blocks in the order of the clients."""
        self.blocks = {n: self.blocks[n] for n in clients if n in self.blocks}


@dataclass(frozen=True)
class Answer:
    """What goes back to a client: the cut gradient of a step, and whether its round ends with it."""

    step: int
    gradient: Tensor
    is_last: bool


class SplitLoop:
    """A round of split training of some clients, one mini-batch of each at a time; it neither sends nor waits.

    Whoever carries the mini-batches asks who is `active`, hands in what each of these sent (`receive`) or that it is
    gone (`leave`), and sends each of the `answers`. A client that got its last answer has `trained`: its result is
    handed in (`conclude`). One with fewer mini-batches ends earlier; one that leaves does not hold up the others.

    Parameters
    ----------
    clients : Sequence[int]
        Node ids, in client order.
    terms : Terms
        What the clients start from, and what they may send.
    serve : Callable
        Makes the server's steps for one mini-batch of each client in the list, which is in client order.

    Attributes
    ----------
    step : int
        Number of the mini-batch that is due, from 0.
    active : list[int]
        Those whose mini-batch of this step is due, in client order.
    trained : set[int]
        Those who got their last answer.
    left : dict[int, Exception]
        Why who has left, in the order of leaving.
    """

    def __init__(self, clients: Sequence[int], terms: Terms, serve: Serve) -> None:
        self.step = 0
        self.active = list(clients)
        self.trained: set[int] = set()
        self.left: dict[int, Exception] = {}
        self._clients = list(clients)
        self._terms = terms
        self._serve = serve
        self._arrived: dict[int, MiniBatch] = {}
        self._num_steps: dict[int, int] = {}
        self._outcome = Outcome()

    def receive(self, node_id: int, activations: Tensor, numbers: np.ndarray, num_steps: int) -> None:
        """Take in the mini-batch of an active client.

        Parameters
        ----------
        node_id : int
            The client.
        activations : Tensor
            Shape (N, *cut_shape).
        numbers : np.ndarray
            Shape (N,), int64: labels or sample indices.
        num_steps : int
            Its mini-batches in the round; what it says first counts.

        Raises
        ------
        ValueError
            For what does not fit: the client has to leave.
        """
        batch = self._terms.mini_batch(node_id, activations, numbers)
        if num_steps < 1:
            raise ValueError(f"num-steps is {num_steps}, expected a whole number from 1 on")
        most = self._terms.max_steps(node_id) if self._terms.max_steps else num_steps
        if num_steps > most:
            raise ValueError(f"num-steps is {num_steps}, its examples make {most} at most")
        self._num_steps.setdefault(node_id, num_steps)
        self._arrived[node_id] = batch

    def leave(self, node_id: int, reason: Exception) -> None:
        """Go on without a client; called again it gives a better reason."""
        self.left[node_id] = reason
        self.active = [n for n in self.active if n != node_id]

    def answers(self) -> dict[int, Answer]:
        """Serve what has arrived from all active clients; return what goes back to each, and go to the next step.

        Those with whose mini-batch no step could be made have left.
        """
        batches = [self._arrived[n] for n in self.active]
        self._arrived = {}
        answers = {}
        for node_id, gradient in (self._serve(batches) if batches else {}).items():
            if isinstance(gradient, ValueError):
                self.leave(node_id, gradient)
            else:
                is_last = self.step + 1 == self._num_steps[node_id]
                answers[node_id] = Answer(self.step, gradient, is_last)
        self.trained |= {n for n, answer in answers.items() if answer.is_last}
        self.active = [n for n in self.active if n not in self.trained]
        self.step += 1
        return answers

    def conclude(self, node_id: int, result: SplitResult) -> None:
        """Take in the result of a client that has trained.

        Raises
        ------
        ValueError
            If it does not hold the block that was trained: the client has to leave.
        """
        sent = self._terms.blocks[node_id]
        if fault := array_fault(result.block, sent):
            raise ValueError(fault)
        self._outcome.blocks[node_id] = to_weights(in_form_of(sent, result.block))
        self._outcome.num_examples[node_id] = result.num_examples

    def outcome(self) -> Outcome:
        """Return how the round ended."""
        self._outcome.failures = [Failure(n, one_line(reason)) for n, reason in self.left.items()]
        self._outcome.sort(self._clients)
        return self._outcome
