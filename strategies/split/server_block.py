"""The server's part of a split model. It knows nothing of Flower."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from espalier.clients.shared.correction import CorrectedSteps, Correction
from espalier.clients.shared.crossing import ROWS, Crossing
from espalier.clients.shared.cut import Cut, copied
from espalier.clients.shared.layouts import as_laid_out
from espalier.clients.shared.optimizer_state import load_optimizer_tensors, optimizer_tensors

from .serving import MiniBatch

MakeOptimizer = Callable[[list[nn.Parameter]], torch.optim.Optimizer]
Loss = Callable[[Tensor, Tensor], Tensor]  # the mean over a mini-batch, of outputs and labels
Served = tuple[Tensor, float | None]  # the cut gradient, and the loss where it is known


class ServerSide(ABC):
    """Blocks of a model that are the server's, with their own optimizer.

    SFL-V1 has them once per client, SFL-V2 and SL have them once for all clients.

    Parameters
    ----------
    model : nn.Sequential
        The whole model as a list of named blocks, the last one the head. Its blocks between the cuts are copied.
    cut : Cut | int
        Where the model is cut; a number is that of the first blocks, which are the client's, see `Cut.of`.
    make_optimizer : Callable[[list[nn.Parameter]], Optimizer]
        Makes the optimizer of the parameters that train.
    frozen_head : bool (default: False)
        The head keeps its weights, as in PHSFL.
    crossing : Crossing (default: rows)
        How activations are where the model is whole; they travel in another way.
    """

    def __init__(
        self,
        model: nn.Sequential,
        cut: Cut | int,
        make_optimizer: MakeOptimizer,
        *,
        frozen_head: bool = False,
        crossing: Crossing = ROWS,
    ) -> None:
        self.cut = Cut.of(model, cut)
        self._crossing = crossing
        self.device = next(model.parameters()).device
        self.blocks = copied(self.cut.server_side(model)).train()
        if frozen_head and not self.cut.has_tail(model):
            self.blocks[-1].requires_grad_(False)
        self.trained = {name: p for name, p in self.blocks.named_parameters() if p.requires_grad}
        self._parameters = list(self.trained.values())
        self._buffers = list(self.blocks.buffers())
        self._optimizer = make_optimizer(self._parameters) if self._parameters else None
        self._rates = [group["lr"] for group in self._optimizer.param_groups] if self._optimizer else []
        self._steps = CorrectedSteps(self._optimizer, self.trained.items())
        self.path, self.steps = 0.0, 0  # the sum of the learning rates of its steps, and their number
        self.pull = 0.0  # of their correction
        self._samples = 0  # in the parts of a mini-batch so far

    @property
    def momentum(self) -> float:
        """The optimizer's; 0 where it has none."""
        return self._optimizer.param_groups[0].get("momentum", 0.0) if self._optimizer else 0.0

    def correct(self, correction: Correction) -> None:
        """Correct every step from now on."""
        self._steps = CorrectedSteps(self._optimizer, self.trained.items(), correction)
        self.pull = correction.pull

    def load(self, weights: dict[str, Tensor]) -> None:
        """Take the weights of the server's blocks out of a whole model's."""
        own = self.blocks.state_dict()
        self.blocks.load_state_dict({name: weights[name] for name in own})

    def set_learning_rates(self, rate_of: Callable[[float], float]) -> None:
        """Let the optimizer go on with other learning rates, by those that it was made with."""
        for group, rate in zip(self._optimizer.param_groups if self._optimizer else (), self._rates, strict=True):
            group["lr"] = rate_of(rate)

    @contextmanager
    def _untouched_on_failure(self) -> Iterator[None]:
        """Put the statistics of BatchNorm back where a step is not made."""
        before = [buffer.clone() for buffer in self._buffers]
        try:
            yield
        except BaseException:  # that a generator is closed, too
            for buffer, values in zip(self._buffers, before, strict=True):
                buffer.copy_(values)
            raise

    def _backward(self, outputs: Tensor, gradient: Tensor | None, inputs: Tensor, numbers: Sequence[Tensor]) -> Tensor:
        """Make the backward pass, step the blocks and return the gradient of the inputs.

        ValueError if it, another gradient, a statistic of BatchNorm or one of the `numbers` is not finite.
        """
        self._steps.zero_grad()
        outputs.backward(gradient)
        assert inputs.grad is not None
        self._check_finite(inputs.grad, numbers)
        self._make_step()
        return inputs.grad

    def _backward_of_part(self, loss: Tensor, inputs: Tensor, *, part: int, more: bool) -> Tensor:
        """Make the backward pass of a part, and the step if it is the last; return the gradient of its mean loss.

        Gradients of the parts' sums of losses are added up, and divided by the number of all examples.
        """
        if part == 0:
            self._steps.zero_grad()
            self._samples = 0
        self._samples += len(inputs)
        loss.backward(torch.full_like(loss, len(inputs)))
        assert inputs.grad is not None
        if not more:
            for parameter in self._parameters:
                if parameter.grad is not None:
                    parameter.grad /= self._samples
        self._check_finite(inputs.grad, [loss.detach()])
        if not more:
            self._make_step()
        return inputs.grad / len(inputs)

    def _check_finite(self, gradient: Tensor, numbers: Sequence[Tensor]) -> None:
        gradients = [p.grad for p in self._parameters if p.grad is not None]
        statistics = [buffer for buffer in self._buffers if buffer.is_floating_point()]
        # One sum for each tensor is quick to compute, and is not finite if any of its numbers is not. Gradients are
        # squared first: Adam adds up their squares, and if these overflowed, its state would stay infinite.
        sums = [values.sum() for values in (gradient, *statistics)]
        squares = [torch.dot(values, values) for values in map(torch.flatten, gradients)]
        if not _is_finite([*numbers, *sums, *squares]):
            raise ValueError("its activations make the loss, or a gradient, NaN or too large")

    def _make_step(self) -> None:
        self._steps.step()
        self.path += self._optimizer.param_groups[0]["lr"] if self._optimizer else 0.0
        self.steps += 1

    def _through(self, activations: Tensor, lengths: Tensor | None) -> tuple[Tensor, Any]:
        """Return activations that get a gradient, and what the blocks make of a copy of them."""
        inputs = activations.to(self.device).detach().requires_grad_(True)
        counting = None if lengths is None else lengths.to(self.device)
        return inputs, self.blocks(self._crossing.given(inputs, counting))

    def optimizer_arrays(self) -> dict[str, np.ndarray]:
        """Return the optimizer's state as arrays named ``<parameter>/<quantity>``."""
        return {
            name: tensor.detach().cpu().numpy().copy() for name, tensor in optimizer_tensors(self._optimizer).items()
        }

    def load_optimizer_arrays(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Take back what `optimizer_arrays` returned."""
        tensors = {name: torch.from_numpy(np.array(array)) for name, array in arrays.items()}
        load_optimizer_tensors(self._optimizer, tensors)

    def state_dict(self) -> dict[str, Tensor]:
        """Return the weights under the names that they have in the whole model."""
        return self.blocks.state_dict()

    @abstractmethod
    def serve(self, batch: MiniBatch) -> Generator[Tensor, Tensor, Served]:
        """Make a step, see `espalier.strategies.split.serving`; return the cut gradient, and the loss where known.

        Raises
        ------
        ValueError
            If the loss, a gradient or a statistic of BatchNorm is not finite; the blocks stay as they were.
        """


class ServerBlock(ServerSide):
    """All blocks behind the cut: the server has the head, learns the labels and computes the loss.

    Parameters
    ----------
    model, cut, make_optimizer, **options
        As for `ServerSide`.
    loss : Callable[[Tensor, Tensor], Tensor] (default: cross-entropy)
        Of outputs and labels, the mean over a mini-batch.
    """

    def __init__(
        self,
        model: nn.Sequential,
        cut: Cut | int,
        make_optimizer: MakeOptimizer,
        *,
        loss: Loss = cross_entropy,
        **options: Any,
    ) -> None:
        super().__init__(model, cut, make_optimizer, **options)
        self._loss = loss

    def serve(self, batch: MiniBatch) -> Generator[Tensor, Tensor, Served]:
        """Make a step in one go."""
        yield from ()
        assert batch.labels is not None
        if batch.part or batch.more:
            return self.step_in_parts(batch.activations, batch.labels, batch.lengths, part=batch.part, more=batch.more)
        return self.step(batch.activations, batch.labels, batch.lengths)

    def step(self, activations: Tensor, labels: Tensor, lengths: Tensor | None = None) -> tuple[Tensor, float]:
        """Make steps 3 and 4 of a split step: forward, loss, backward, and step the blocks.

        Parameters
        ----------
        activations : Tensor
            Shape (N, *cut_shape).
        labels : Tensor
            Shape (N, ...), class indices.
        lengths : Tensor, optional (default: None)
            Shape (N,), where blocks pass on lengths with sequences.

        Returns
        -------
        tuple[Tensor, float]
            The gradient of the mean loss with respect to the activations, and that loss.

        Raises
        ------
        ValueError
            As `serve`.
        """
        with self._untouched_on_failure():
            inputs, loss = self._mean_loss(activations, labels, lengths)
            return self._backward(loss, None, inputs, [loss.detach()]), loss.item()

    def step_in_parts(
        self, activations: Tensor, labels: Tensor, lengths: Tensor | None = None, *, part: int, more: bool
    ) -> tuple[Tensor, float]:
        """Do what `step` does, for a part of a mini-batch; the blocks are stepped after the last part.

        Parameters
        ----------
        activations, labels, lengths : Tensor
            As for `step`.
        part : int
            Which part, from 0.
        more : bool
            Another part follows.

        Raises
        ------
        ValueError
            As `serve`.
        """
        with self._untouched_on_failure():
            inputs, loss = self._mean_loss(activations, labels, lengths)
            return self._backward_of_part(loss, inputs, part=part, more=more), loss.item()

    def _mean_loss(self, activations: Tensor, labels: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return activations that get a gradient, and the mean loss."""
        inputs, outputs = self._through(activations, lengths)
        return inputs, self._loss(outputs, labels.to(self.device, torch.int64))

    def gradient(self, activations: Tensor, labels: Tensor) -> Tensor:
        """Return the gradient of the mean loss with respect to activations, and leave the blocks as they are.

        Parameters
        ----------
        activations, labels : Tensor
            As for `step`.
        """
        before = [buffer.clone() for buffer in self._buffers]
        try:
            inputs, loss = self._mean_loss(activations, labels, None)
            (gradient,) = torch.autograd.grad(loss, inputs)
        finally:
            for buffer, values in zip(self._buffers, before, strict=True):
                buffer.copy_(values)
        return gradient


class MiddleBlock(ServerSide):
    """The blocks between two cuts: the client has the head, and sends the gradient of what comes out of these.

    Parameters
    ----------
    model, cut, make_optimizer, **options
        As for `ServerSide`.
    behind : Crossing (default: rows)
        How what comes out of them is where the model is whole; lengths do not go down.
    """

    def __init__(
        self,
        model: nn.Sequential,
        cut: Cut | int,
        make_optimizer: MakeOptimizer,
        *,
        behind: Crossing = ROWS,
        **options: Any,
    ) -> None:
        super().__init__(model, cut, make_optimizer, **options)
        if behind.has_lengths:
            raise ValueError("blocks in front of a tail pass on a tensor, and no lengths")
        self._behind = behind

    def serve(self, batch: MiniBatch) -> Generator[Tensor, Tensor, Served]:
        """Make the forward pass, yield the features, and make the backward pass with their gradient."""
        with self._untouched_on_failure():
            inputs, made = self._through(batch.activations, batch.lengths)
            features = self._behind.rows(made)
            if not _is_finite([features.detach().sum()]) and not torch.isfinite(features).all():
                raise ValueError("its activations make the features NaN or too large")
            gradient = yield features.detach()
            return self._backward(features, as_laid_out(gradient, features), inputs, []), None


def _is_finite(numbers: Sequence[Tensor]) -> bool:
    """Return whether the sum of some tensors of one number each is finite; a GPU is waited for once."""
    on_cpu = numbers[0].device.type == "cpu"
    return math.isfinite(sum(number.item() for number in numbers) if on_cpu else float(sum(numbers)))
