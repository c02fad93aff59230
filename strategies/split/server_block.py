"""The server's part of a split model. It knows nothing of Flower."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from espalier.clients.messages.cut import Cut, copied
from espalier.clients.messages.optimizer_state import load_optimizer_tensors, optimizer_tensors

from .serving import MiniBatch

MakeOptimizer = Callable[[list[nn.Parameter]], torch.optim.Optimizer]
Loss = Callable[[Tensor, Tensor], Tensor]  # the mean over a mini-batch, of outputs and labels
Served = tuple[Tensor, float | None]  # the cut gradient, and the loss where it is known


class ServersBlocks(ABC):
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
    """

    def __init__(
        self, model: nn.Sequential, cut: Cut | int, make_optimizer: MakeOptimizer, *, frozen_head: bool = False
    ) -> None:
        self.cut = Cut.of(model, cut)
        self.device = next(model.parameters()).device
        self.blocks = copied(self.cut.server_side(model)).train()
        if frozen_head and not self.cut.has_tail(model):
            self.blocks[-1].requires_grad_(False)
        self._parameters = [p for p in self.blocks.parameters() if p.requires_grad]
        self._buffers = list(self.blocks.buffers())
        self._optimizer = make_optimizer(self._parameters) if self._parameters else None
        self._rates = [group["lr"] for group in self._optimizer.param_groups] if self._optimizer else []

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
        if self._optimizer is not None:
            self._optimizer.zero_grad()
        outputs.backward(gradient)
        assert inputs.grad is not None
        gradients = [p.grad for p in self._parameters if p.grad is not None]
        statistics = [buffer for buffer in self._buffers if buffer.is_floating_point()]
        # A sum of all is quick to make, and not finite if one of them is not. Of the gradients it takes the squares:
        # where these are too large, Adam's state would be infinite for good.
        sums = [values.sum() for values in (inputs.grad, *statistics)]
        squares = [torch.dot(values, values) for values in map(torch.flatten, gradients)]
        if not _is_finite([*numbers, *sums, *squares]):
            raise ValueError("its activations make the loss, or a gradient, NaN or too large")
        if self._optimizer is not None:
            self._optimizer.step()
        return inputs.grad

    def _as_inputs(self, activations: Tensor) -> Tensor:
        return channels_last(activations.to(self.device)).requires_grad_(True)

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


class ServerBlock(ServersBlocks):
    """All blocks behind the cut: the server has the head, learns the labels and computes the loss.

    Parameters
    ----------
    model, cut, make_optimizer, **options
        As for `ServersBlocks`.
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
        return self.step(batch.activations, batch.labels)

    def step(self, activations: Tensor, labels: Tensor) -> tuple[Tensor, float]:
        """Make steps 3 and 4 of a split step: forward, loss, backward, and step the blocks.

        Parameters
        ----------
        activations : Tensor
            Shape (N, *cut_shape).
        labels : Tensor
            Shape (N,), class indices.

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
            inputs = self._as_inputs(activations)
            loss = self._loss(self.blocks(inputs), labels.to(self.device, torch.int64))
            return self._backward(loss, None, inputs, [loss.detach()]), loss.item()


class MiddleBlock(ServersBlocks):
    """The blocks between two cuts: the client has the head, and sends the gradient of what comes out of these."""

    def serve(self, batch: MiniBatch) -> Generator[Tensor, Tensor, Served]:
        """Make the forward pass, yield the features, and make the backward pass with their gradient."""
        with self._untouched_on_failure():
            inputs = self._as_inputs(batch.activations)
            features = self.blocks(inputs)
            if not _is_finite([features.detach().sum()]) and not torch.isfinite(features).all():
                raise ValueError("its activations make the features NaN or too large")
            gradient = yield features.detach()
            return self._backward(features, gradient.to(self.device), inputs, []), None


def _is_finite(numbers: Sequence[Tensor]) -> bool:
    """Return whether the sum of some tensors of one number each is finite; a GPU is waited for once."""
    on_cpu = numbers[0].device.type == "cpu"
    return math.isfinite(sum(number.item() for number in numbers) if on_cpu else float(sum(numbers)))


def channels_last(images: Tensor) -> Tensor:
    """Return images (N, C, H, W) in the memory layout that convolutions on a CPU are fastest with."""
    return images.contiguous(memory_format=torch.channels_last) if images.dim() == 4 else images


def block_names(model: nn.Sequential) -> list[str]:
    """Return the names of a model's blocks, in order."""
    return [name for name, _ in model.named_children()]


def num_outputs(model: nn.Sequential) -> int:
    """Return how many classes a model's head tells apart."""
    return cast(int, model[-1].out_features)


def client_names(names: Iterable[str], model: nn.Sequential, cut: Cut) -> list[str]:
    """Return those names of weights that belong to the client's blocks of a model."""
    servers = set(block_names(model)[cut.first : cut.last])
    return [name for name in names if name.split(".", 1)[0] not in servers]


def legal_cuts(model: nn.Module) -> range:
    """Return the numbers of blocks that a client can hold: something to train at least, and never the head.

    Raises
    ------
    ValueError
        If the model is not a list of different named blocks, with weights in front of the last, the head.
    """
    if not isinstance(model, nn.Sequential) or not len(model) or not hasattr(model[-1], "out_features"):
        raise ValueError(
            "the model is not an nn.Sequential of blocks that ends with a head with `out_features`, such as an "
            "nn.Linear: it can't be split"
        )
    if len(set(map(id, model))) < len(model):  # its weights would be on both sides, and its name is there once
        raise ValueError("one block stands in the model twice: it can't be split, so make a second block")
    trains = (any(weight.requires_grad for weight in block.parameters()) for block in model)
    first = next((i for i, block_trains in enumerate(trains, start=1) if block_trains), len(model))
    if first == len(model):
        raise ValueError("the model has no weights that train in front of its last block: it can't be split")
    return range(first, len(model))


def weight_on_both_sides(model: nn.Sequential, cut: Cut) -> str:
    """Return the name of a weight that a cut would take apart, as the client's blocks and the server's share it."""
    clients = {id(weight) for part in (cut.front(model), cut.tail(model)) for weight in part.parameters()}
    names = (name for name, weight in cut.server_side(model).named_parameters() if id(weight) in clients)
    return next(names, "")


def checked_cut(model: nn.Sequential, cut: Cut | int) -> Cut:
    """Return a cut, see `Cut.of`; ValueError for one that the model does not have."""
    cut = Cut.of(model, cut)
    if cut.first not in (legal := legal_cuts(model)):
        allowed = f"{', '.join(map(str, legal))}; the last block stays at the server"
        raise ValueError(f"cut {cut.first}: allowed are {allowed}")
    if cut.last not in range(cut.first + 1, len(model) + 1):
        allowed = f"{cut.first + 1} to {len(model)}, so that a block is the server's"
        raise ValueError(f"tail from block {cut.last} on, with cut {cut.first}: allowed are {allowed}")
    if shared := weight_on_both_sides(model, cut):
        raise ValueError(
            f"cut {cut.first}: {shared} is a weight of the client's blocks too, and can't be on both sides"
        )
    return cut
