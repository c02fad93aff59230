"""The loop of split training at the edge, without any I/O: what arrived, who left, what to send next."""

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecordValues, MetricRecord
from torch import Tensor

from espalier.clients.messages.labels import LabelTerms
from espalier.clients.messages.split import SplitBegin, SplitResult
from espalier.clients.messages.split_names import INDICES, KEPT
from espalier.clients.messages.train import TRAIN_LOSS
from espalier.clients.shared.arrays import to_record, to_weights
from espalier.clients.shared.crossing import ROWS, Crossing
from espalier.clients.shared.cut import Cut
from espalier.clients.shared.tensor_array import record_by_reference
from espalier.clients.shared.text import quoted

from ..edge_half import told_fault
from ..outcomes import Failure
from ..replies import number_of, one_line
from ..reply_faults import array_fault, figure_fault
from ..reply_forms import in_form_of
from .labels import Labels
from .serving import MiniBatch, Serve, Steps
from .shapes import check_activations, check_lengths

State = dict[str, Tensor]
NOT_FINITE = "activations hold NaN or Inf"


def longest_sample(activations: Tensor) -> float:
    """Return the Euclidean length of the longest sample's activations, of shape (N, ...); finite only if all are."""
    return longest_samples(activations.unsqueeze(0)).item()


def longest_samples(together: Tensor) -> Tensor:
    """Return that of n clients' activations, (n, N, ...), as (n,)."""
    return torch.linalg.vector_norm(together.flatten(2), dim=2).amax(1)


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
    with_tail : Collection[int] (default: none)
        Node ids of those who have the model's last blocks, compute the loss, and keep their labels.
    crossings : Mapping[int, Crossing] (default: rows)
        By node id: how activations behind the client block are where the model is whole.
    frozen : Collection[str] (default: none)
        Names of the head's weights where nobody trains it; who has it does not send it back.
    beside : Mapping[int, Mapping[str, Tensor]] (default: none)
        What goes to a client beside its blocks, by node id.
    parts : int (default: 1)
        The most parts of a mini-batch; more than one only where a client advances alone.
    ends_together : bool (default: False)
        By messages, who has fewer mini-batches brings its result with the others.
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
    with_tail: Collection[int] = ()
    frozen: Collection[str] = ()
    beside: Mapping[int, Mapping[str, Tensor]] = field(default_factory=dict)
    crossings: Mapping[int, Crossing] = field(default_factory=dict)
    parts: int = 1
    ends_together: bool = False

    def has_lengths(self, node_id: int) -> bool:
        """Return whether lengths come with a client's activations."""
        return self.crossings.get(node_id, ROWS).has_lengths

    def label_policy(self, node_id: int) -> str:
        """Return what goes with a client's activations."""
        return KEPT if node_id in self.with_tail else self.labels.policy

    def magnitudes(self, sent: Mapping[int, Tensor]) -> dict[int, float]:
        """Return the `magnitude` of those activations that fit, by node id; those of one shape are read at once."""
        alike: dict[tuple[int, ...], dict[int, Tensor]] = defaultdict(dict)
        for node_id, activations in sent.items():
            form = activations.shape[1:], activations.dtype
            if form == (self.cut_shapes[node_id], self.dtype) and len(activations):
                alike[activations.shape][node_id] = activations
        found: dict[int, float] = {}
        for those in alike.values():
            together = torch.stack(list(those.values()))
            measured = longest_samples(together) if self.measures else together.flatten(1).sum(1)
            found |= zip(those, measured.tolist(), strict=True)
        return found

    def magnitude(self, activations: Tensor) -> float:
        """Return a number that is finite nearly always if all activations are, and much faster to have."""
        return longest_sample(activations) if self.measures else activations.sum().item()

    def mini_batch(
        self,
        node_id: int,
        activations: Tensor,
        numbers: np.ndarray | None,
        magnitude: float | None = None,
        lengths: np.ndarray | None = None,
    ) -> MiniBatch:
        """Return a client's mini-batch from its activations and the labels, or indices, that came with them.

        Parameters
        ----------
        node_id, activations, numbers, lengths
            As for `SplitLoop.receive`.
        magnitude : float, optional (default: None)
            That of the activations where it is known.

        Raises
        ------
        ValueError
            For what does not fit.
        """
        labels = None if numbers is None else self.labels.find(node_id, numbers, self.num_classes)
        check_activations(activations, self.cut_shapes[node_id], self.dtype)
        if self.max_batch is not None and len(activations) > self.max_batch:
            raise ValueError(f"{len(activations)} activations in a mini-batch, expected {self.max_batch} at most")
        number = self.magnitude(activations) if magnitude is None else magnitude
        if not math.isfinite(number) and not torch.isfinite(activations).all():
            raise ValueError(NOT_FINITE)
        if labels is not None and len(labels) != len(activations):
            raise ValueError(f"{len(labels)} labels for {len(activations)} activations")
        found = None if labels is None else torch.from_numpy(labels)
        samples = numbers if self.label_policy(node_id) == INDICES else None
        counting = None if lengths is None else torch.from_numpy(lengths)
        check_lengths(counting, activations, self.crossings.get(node_id, ROWS))
        return MiniBatch(node_id, activations, found, number if self.measures else 0.0, samples, counting)

    def begin(self, node_id: int) -> SplitBegin:
        """Return the instruction that begins a client's round."""
        block, cut = self.blocks[node_id], self.cuts[node_id]
        sent = to_record(beside) if (beside := self.beside.get(node_id)) else None
        if node_id not in self.with_tail:
            labels = self.labels.terms(node_id)
            return SplitBegin(block, self.server_round, cut.first, labels, self.config, sent=sent)
        is_frozen, labels = any(name in self.frozen for name in block), LabelTerms(KEPT)
        return SplitBegin(block, self.server_round, cut.first, labels, self.config, cut.last, is_frozen, sent)

    def client_block(self, node_id: int, result: SplitResult) -> State:
        """Return a client's blocks after the round: what it has trained, and what was frozen as it was sent.

        Raises
        ------
        ValueError
            If it sends other weights than were to be trained.
        """
        sent = self.blocks[node_id]
        frozen = record_by_reference({name: sent[name] for name in self.frozen if name in sent})
        trained = record_by_reference({name: array for name, array in sent.items() if name not in frozen})
        if fault := array_fault(result.block, trained):
            raise ValueError(fault)
        return {**to_weights(in_form_of(trained, result.block)), **to_weights(frozen)}


def loss_in(result: SplitResult) -> float:
    """Return the loss that a client computed; ValueError if it tells none, or one that can't be."""
    if (loss := number_of(result.train_loss)) is None:
        raise ValueError(f"metric {TRAIN_LOSS!r} is {quoted(result.train_loss)}, expected a number")
    if fault := figure_fault(TRAIN_LOSS, loss):
        raise ValueError(fault)
    return loss


@dataclass
class SplitOutcome:
    """How a round of some clients ended.

    Parameters
    ----------
    blocks : dict[int, State]
        Client blocks of those who finished, by node id, in the order of the clients.
    num_examples : dict[int, int]
        Their training examples.
    failures : list[Failure]
        Those who left.
    metrics : MetricRecord, optional
        What a strategy made of the clients' metrics, where one aggregated their models.
    train_losses : dict[int, float]
        Mean losses over the examples seen, of those who computed them themselves.
    told : dict[int, Mapping[str, Tensor]]
        What clients told beside their blocks.
    """

    blocks: dict[int, State] = field(default_factory=dict)
    num_examples: dict[int, int] = field(default_factory=dict)
    failures: list[Failure] = field(default_factory=list)
    metrics: MetricRecord | None = None
    train_losses: dict[int, float] = field(default_factory=dict)
    told: dict[int, Mapping[str, Tensor]] = field(default_factory=dict)

    def add(self, other: "SplitOutcome") -> None:
        """Take in the outcome of clients that trained after these."""
        self.blocks |= other.blocks
        self.num_examples |= other.num_examples
        self.failures += other.failures
        self.train_losses |= other.train_losses
        self.told |= other.told

    def leave_out(self, node_id: int, reason: str) -> None:
        """Go on without a client that has finished."""
        del self.blocks[node_id], self.num_examples[node_id]
        self.failures.append(Failure(node_id, reason))

    def keep_only(self, clients: Collection[int]) -> None:
        """Go on with some of those who finished; nothing is wrong with the others."""
        self.blocks = {n: block for n, block in self.blocks.items() if n in clients}
        self.num_examples = {n: count for n, count in self.num_examples.items() if n in clients}

    def sort(self, clients: Sequence[int]) -> None:
        """Put all that is of clients in their order: sums go by it."""
        self.blocks = {n: self.blocks[n] for n in clients if n in self.blocks}
        self.num_examples = {n: self.num_examples[n] for n in clients if n in self.num_examples}


@dataclass(frozen=True)
class Answer:
    """What goes back to a client.

    Parameters
    ----------
    step : int
        The mini-batch.
    values : Tensor
        The cut gradient, or features.
    is_last : bool
        Its round ends with it.
    are_features : bool
        The values are what the edge's blocks made of its activations; it answers with their gradient.
    """

    step: int
    values: Tensor
    is_last: bool
    are_features: bool


class SplitLoop:
    """A round of split training of some clients, one mini-batch of each at a time; it neither sends nor waits.

    Whoever carries the mini-batches asks of whom something is `due`, hands in what each of these sent (`receive`, or
    `receive_gradient` where it `awaits_gradients`) or that it is gone (`leave`), and sends each of the `answers`. A
    client that got its last answer has `trained`: its result is handed in (`conclude`). One with fewer mini-batches
    ends earlier; one that leaves does not hold up the others.

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
        Those who still train, in client order.
    due : list[int]
        Those of them who are to send something next.
    awaits_gradients : bool
        Whether it is the gradient of the features that they got; else it is the activations of this step.
    trained : set[int]
        Those who got their last answer.
    left : dict[int, Exception]
        Why who has left, in the order of leaving.
    """

    def __init__(self, clients: Sequence[int], terms: Terms, serve: Serve) -> None:
        self.step = 0
        self.active = list(clients)
        self.due = list(clients)
        self.awaits_gradients = False
        self.trained: set[int] = set()
        self.left: dict[int, Exception] = {}
        self._clients = list(clients)
        self._terms = terms
        self._serve = serve
        self._steps: Steps | None = None
        self._arrived: dict[int, MiniBatch] = {}
        self._features: Mapping[int, Tensor] = {}
        self._gradients: dict[int, Tensor] = {}
        self._num_steps: dict[int, int] = {}
        self._part, self._samples, self._more = 0, 0, False  # of the mini-batch that comes in parts
        self._outcome = SplitOutcome()

    def receive(
        self,
        node_id: int,
        activations: Tensor,
        numbers: np.ndarray | None,
        num_steps: int,
        magnitude: float | None = None,
        lengths: np.ndarray | None = None,
        *,
        more: bool = False,
    ) -> None:
        """Take in the mini-batch of an active client, or the next part of it.

        Parameters
        ----------
        node_id : int
            The client.
        activations : Tensor
            Shape (N, *cut_shape).
        numbers : np.ndarray, optional
            int64: labels, (N, ...), or sample indices, (N,). None from a client that keeps its labels.
        num_steps : int
            Its mini-batches in the round; what it says first counts.
        magnitude : float, optional (default: None)
            See `Terms.mini_batch`.
        lengths : np.ndarray, optional (default: None)
            Shape (N,), int64: those that came with the activations.
        more : bool (default: False)
            Another part of the mini-batch follows.

        Raises
        ------
        ValueError
            For what does not fit: the client has to leave.
        """
        batch = self._terms.mini_batch(node_id, activations, numbers, magnitude, lengths)
        if more or self._more:
            batch = self._as_part(batch, more)
        if num_steps < 1:
            raise ValueError(f"num-steps is {num_steps}, expected a whole number from 1 on")
        most = self._terms.max_steps(node_id) if self._terms.max_steps else num_steps
        if num_steps > most:
            raise ValueError(f"num-steps is {num_steps}, its examples make {most} at most")
        self._num_steps.setdefault(node_id, num_steps)
        self._arrived[node_id] = batch

    def _as_part(self, batch: MiniBatch, more: bool) -> MiniBatch:
        """Return a mini-batch as the next part of one; ValueError where it is one too many, or too large."""
        samples = len(batch.activations)
        part, samples = (self._part + 1, self._samples + samples) if self._more else (0, samples)
        if part + more >= self._terms.parts:
            raise ValueError(f"a mini-batch in more than {self._terms.parts} parts")
        if (most := self._terms.max_batch) is not None and samples > most:
            raise ValueError(f"{samples} activations in a mini-batch, expected {most} at most")
        self._part, self._samples, self._more = part, samples, more
        return replace(batch, part=part, more=more)

    def feature_shape(self, node_id: int) -> tuple[int, ...]:
        """Return the shape of the features that a client got, and of their gradient."""
        return tuple(self._features[node_id].shape)

    def receive_gradient(self, node_id: int, gradient: Tensor) -> None:
        """Take in the gradient of a client's features; ValueError for what does not fit: the client has to leave."""
        if tuple(gradient.shape) != (expected := self.feature_shape(node_id)):
            raise ValueError(f"feature gradient of shape {tuple(gradient.shape)}, expected {expected}")
        if gradient.dtype != self._terms.dtype:
            raise ValueError(f"feature gradient has dtype {gradient.dtype}, expected {self._terms.dtype}")
        if not math.isfinite(gradient.sum().item()) and not torch.isfinite(gradient).all():
            raise ValueError("feature gradient holds NaN or Inf")
        self._gradients[node_id] = gradient

    def leave(self, node_id: int, reason: Exception) -> None:
        """Go on without a client; called again it gives a better reason."""
        self.left[node_id] = reason
        self.active = [n for n in self.active if n != node_id]
        self.due = [n for n in self.due if n != node_id]

    def answers(self) -> dict[int, Answer]:
        """Go on with what has arrived from all who were due; return what goes back, features or the step's gradients.

        Those with whose mini-batch no step could be made have left.
        """
        try:
            if self._steps is None:
                batches = [self._arrived[n] for n in self.active]
                self._steps = self._serve(batches) if batches else _no_steps()
                self._features = next(self._steps)
            else:
                self._features = self._steps.send({n: self._gradients[n] for n in self.due})
        except StopIteration as over:
            return self._end_of_step(over.value)
        finally:
            self._arrived, self._gradients = {}, {}
        self.due, self.awaits_gradients = list(self._features), True
        return {n: Answer(self.step, features, False, True) for n, features in self._features.items()}

    def _end_of_step(self, gradients: Mapping[int, Tensor | ValueError]) -> dict[int, Answer]:
        answers = {}
        for node_id, gradient in gradients.items():
            if isinstance(gradient, ValueError):
                self.leave(node_id, gradient)
            else:
                is_last = self.step + 1 == self._num_steps[node_id] and not self._more
                answers[node_id] = Answer(self.step, gradient, is_last, False)
        self.trained |= {n for n, answer in answers.items() if answer.is_last}
        self.active = [n for n in self.active if n not in self.trained]
        self.due, self.awaits_gradients = list(self.active), False
        self._steps, self._features = None, {}
        self.step += not self._more
        return answers

    def conclude(self, node_id: int, result: SplitResult) -> None:
        """Take in the result of a client that has trained.

        Raises
        ------
        ValueError
            If it does not hold the block that was trained, or a loss that is due: the client has to leave.
        """
        block = self._terms.client_block(node_id, result)
        if fault := told_fault(result.told, self._terms.blocks[node_id]):
            raise ValueError(fault)
        if node_id in self._terms.with_tail:
            self._outcome.train_losses[node_id] = loss_in(result)
        self._outcome.blocks[node_id] = block
        self._outcome.num_examples[node_id] = result.num_examples
        if result.told is not None:
            self._outcome.told[node_id] = to_weights(result.told)

    def outcome(self) -> SplitOutcome:
        """Return how the round ended."""
        self._outcome.failures = [Failure(n, one_line(reason)) for n, reason in self.left.items()]
        self._outcome.sort(self._clients)
        return self._outcome


def _no_steps() -> Steps:
    yield from ()
    return {}
