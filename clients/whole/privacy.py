"""Differential privacy by the client itself: of its update as a whole, or of each of its examples."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from flwr.app import Context, Message, MetricRecord, RecordDict
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap

from ..messages.train import TRAIN, TRAIN_LOSS, Train, model_in_reply
from ..shared.arrays import to_record, to_weights
from ..shared.corners import corner_of, filled_up
from ..shared.correction import CorrectedSteps
from ..shared.generators import seeded_torch
from ..shared.local_round import WHOLE_PASS, Pass
from ..shared.nested import map_tensors
from ..shared.privacy import (
    clipped,
    frozen_weights,
    noise_generator,
    noised,
    with_finite_update,
    with_possible_variances,
)
from ..shared.records import records_in
from ..task import ClientTask, LocalTraining
from .training import make_optimizer, model_reply, only_training, train_by

MOST_AT_ONCE = 256  # examples whose gradients are in memory together


def without_loss(reply: Message, message: Message, context: Context, task: ClientTask) -> Message:
    """Return the reply to an instruction to train without the training loss, which has no noise; others as they are."""
    if message.metadata.message_type == TRAIN and not reply.has_error():
        told = {
            name: MetricRecord({key: value for key, value in record.items() if key != TRAIN_LOSS})
            for name, record in records_in(reply.content, MetricRecord).items()
        }
        reply.content = RecordDict({**reply.content, **told})
    return reply


@dataclass(frozen=True)
class PrivateUpdates:
    """Clips the update in the reply to an instruction to train, and adds noise; other replies stay as they are.

    An update that is not finite counts as zero: an error, or no reply, would tell of it.

    Parameters
    ----------
    clip : float
        The longest update; 0: any.
    noise : float
        The noise multiplier: the standard deviation at every number, over `clip`.
    is_secret : bool
        The noise follows the system's entropy, not the task's seed.
    """

    clip: float
    noise: float
    is_secret: bool

    def __call__(self, reply: Message, message: Message, context: Context, task: ClientTask) -> Message:
        """Return the reply as it travels; ValueError if the model is not of the form of the one that was sent."""
        if message.metadata.message_type != TRAIN or reply.has_error():
            return reply
        instruction = Train.from_content(message.content)
        name, model = model_in_reply(reply.content)
        draws = noise_generator(
            None if self.is_secret else task.seed, "client", task.partition_id, instruction.server_round
        )
        sent, trained = to_weights(instruction.arrays), to_weights(model)
        # Such a weight may have changed otherwise than by gradients, and has no noise.
        fixed = {name: sent[name] for name in frozen_weights(task.model) if name in sent}
        bounded = {**trained, **fixed} if fixed else trained
        short = clipped(with_finite_update(bounded, sent), sent, self.clip)
        private = noised(short, self.noise * self.clip, draws, fixed)
        if private is not trained:
            reply.content = RecordDict({**reply.content, name: to_record(with_possible_variances(private))})
        return reply


@dataclass(frozen=True)
class PrivateSteps:
    """How a client trains with each of its examples protected (DP-SGD, Abadi et al., arXiv:1607.00133).

    Parameters
    ----------
    clip : float
        The longest gradient of an example; 0: any.
    noise : Callable[[LocalTraining, int], float]
        The noise multiplier for a number of training examples: the standard deviation of the noise at the sum of
        clipped gradients, over `clip`.
    is_secret : bool
        Mini-batches and noise follow the system's entropy, not the task's seed.
    """

    clip: float
    noise: Callable[[LocalTraining, int], float]
    is_secret: bool

    def __call__(self, message: Message, context: Context, task: ClientTask) -> Message:
        """Answer an instruction to train."""
        return model_reply(message, train_by(partial(private_sgd, steps=self), message, context, task))


def private_sgd(
    task: ClientTask, server_round: int, training: LocalTraining, due: Pass = WHOLE_PASS, *, steps: PrivateSteps
) -> float:
    """Train `task.model` in place; parameters and what is returned as of `local_sgd`.

    A mini-batch has each example with the probability `batch_size` over their number, independently (Poisson), so its
    size varies; it may be empty. As many steps are made as `local_sgd` makes. The sum of clipped gradients and noise is
    divided by `batch_size`, the expected size, and goes through the optimizer.
    """
    model, device, training = task.model, task.device, training.at(server_round)
    num_examples = task.num_train(server_round)
    share = min(1.0, training.batch_size / num_examples)
    deviation = steps.noise(training, num_examples) * steps.clip
    seed = None if steps.is_secret else task.seed
    draws = noise_generator(seed, "examples", task.partition_id, server_round)
    total_loss, seen = 0.0, 0
    model.train()
    with only_training(model, due) as parameters, seeded_torch(int(draws.integers(2**62)), device):
        corrected = CorrectedSteps(make_optimizer([p for _, p in parameters], training), parameters, due.correction)
        for number in range(training.num_steps(num_examples)):
            batch = torch.from_numpy(np.flatnonzero(draws.random(num_examples) < share))
            corrected.zero_grad()
            sums, loss = dict[str, Tensor](), 0.0
            if len(batch):
                inputs, labels = task.training_inputs(batch, server_round, number), task.train.labels[batch].to(device)
                sums, loss = clipped_gradients(model, task.objective.loss, inputs, labels, steps.clip)
            for name, parameter in parameters:
                noisy = noised({name: sums.get(name, torch.zeros_like(parameter))}, deviation, draws)[name]
                if name in task.corners:  # all else of it stays 0
                    noisy = filled_up(corner_of(noisy, task.corners[name]), tuple(noisy.shape))
                parameter.grad = noisy / (share * num_examples)
            corrected.step()
            total_loss, seen = total_loss + loss, seen + len(batch)
    return total_loss / max(seen, 1)


def clipped_gradients(
    model: nn.Module, loss: Callable[[Any, Tensor], Tensor], inputs: Any, labels: Tensor, clip: float
) -> tuple[dict[str, Tensor], float]:
    """Return the sum over examples of their gradients, each clipped, and the sum of their losses.

    With a bound, an example whose gradient is not finite counts as blank: it has none, and no loss.

    Parameters
    ----------
    model : nn.Module
        One that treats every example by itself: none with batch normalisation.
    loss : Callable
        ``loss(outputs, labels)`` of a mini-batch, here of one example each.
    inputs, labels
        The mini-batch, which is not empty.
    clip : float
        The longest L2 norm of an example's gradient, over all weights that train; 0: any.
    """
    weights = {name: own.detach() for name, own in model.named_parameters() if own.requires_grad}
    fixed = {name: own.detach() for name, own in model.named_parameters() if not own.requires_grad}
    fixed |= dict(model.named_buffers())

    def of_one(own: dict[str, Tensor], example: Any, label: Tensor) -> Tensor:
        alone = map_tensors(lambda tensor: tensor.unsqueeze(0), example)
        return loss(functional_call(model, {**own, **fixed}, (alone,)), label.unsqueeze(0))

    of_each = vmap(grad_and_value(of_one), in_dims=(None, 0, 0), randomness="different")
    sums: dict[str, Tensor] = {}
    losses = 0.0
    for start in range(0, len(labels), MOST_AT_ONCE):
        part = slice(start, start + MOST_AT_ONCE)
        gradients, values = of_each(weights, map_tensors(lambda tensor: tensor[part], inputs), labels[part])  # noqa: B023
        squares = torch.stack([own.reshape(len(own), -1).double().square().sum(1) for own in gradients.values()])
        lengths = squares.sum(0).sqrt()
        factors = torch.ones_like(lengths)
        if clip:
            good = lengths.isfinite()
            factors = torch.where(good, torch.clamp(clip / lengths.clamp(min=1e-300), max=1.0), 0.0)
            # A factor of zero would make no zero of what is infinite.
            gradients = {n: torch.where(good.view(-1, *[1] * (own.ndim - 1)), own, 0.0) for n, own in gradients.items()}
            values = torch.where(good, values, 0.0)
        for name, own in gradients.items():
            added = torch.einsum("n...,n->...", own, factors.to(own.dtype))
            sums[name] = sums[name] + added if name in sums else added
        losses += float(values.sum())
    return sums, losses
