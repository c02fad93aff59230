"""The server half of a split model. It knows nothing of Flower."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from espalier.clients.messages.cut import Cut, copied

MakeOptimizer = Callable[[list[nn.Parameter]], torch.optim.Optimizer]
Loss = Callable[[Tensor, Tensor], Tensor]  # the mean over a mini-batch, of outputs and labels


class ServerBlock:
    """The blocks behind the cut, with their own optimizer.

    SFL-V1 has one per client, SFL-V2 and SL have one that all clients share.

    Parameters
    ----------
    model : nn.Sequential
        The whole model as a list of named blocks, the last one the head. Its blocks behind the cut are copied.
    cut : Cut | int
        Where the model is cut; a number is that of the first blocks, which are the client's, see `Cut.of`.
    make_optimizer : Callable[[list[nn.Parameter]], Optimizer]
        Makes the optimizer of the parameters that train.
    frozen_head : bool (default: False)
        The head keeps its weights, as in PHSFL.
    loss : Callable[[Tensor, Tensor], Tensor] (default: cross-entropy)
        Of outputs and labels, the mean over a mini-batch.
    """

    def __init__(
        self,
        model: nn.Sequential,
        cut: Cut | int,
        make_optimizer: MakeOptimizer,
        *,
        frozen_head: bool = False,
        loss: Loss = cross_entropy,
    ) -> None:
        self.cut = Cut.of(model, cut)
        self.blocks = copied(self.cut.server_side(model)).train()
        self.device = next(self.blocks.parameters()).device
        if frozen_head:
            self.blocks[-1].requires_grad_(False)
        self._parameters = [p for p in self.blocks.parameters() if p.requires_grad]
        self._buffers = list(self.blocks.buffers())
        self._loss = loss
        self._optimizer = make_optimizer(self._parameters) if self._parameters else None
        self._rates = [group["lr"] for group in self._optimizer.param_groups] if self._optimizer else []

    def load(self, weights: dict[str, Tensor]) -> None:
        """Take the weights of the blocks behind the cut out of a whole model's."""
        own = self.blocks.state_dict()
        self.blocks.load_state_dict({name: weights[name] for name in own})

    def set_learning_rates(self, rate_of: Callable[[float], float]) -> None:
        """Let the optimizer go on with other learning rates, by those that it was made with."""
        for group, rate in zip(self._optimizer.param_groups if self._optimizer else (), self._rates, strict=True):
            group["lr"] = rate_of(rate)

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
            If the loss, a gradient or a statistic of BatchNorm is not finite; the blocks stay as they were.
        """
        before = [buffer.clone() for buffer in self._buffers]
        inputs = channels_last(activations.to(self.device)).requires_grad_(True)
        loss = self._loss(self.blocks(inputs), labels.to(self.device, torch.int64))
        if self._optimizer is not None:
            self._optimizer.zero_grad()
        loss.backward()
        assert inputs.grad is not None
        gradients = [p.grad for p in self._parameters if p.grad is not None]
        statistics = [buffer for buffer in self._buffers if buffer.is_floating_point()]
        # A sum of all is quick to make, and not finite if one of them is not. Of the gradients it takes the squares:
        # where these are too large, Adam's state would be infinite for good.
        sums = [values.sum() for values in (inputs.grad, *statistics)]
        squares = [torch.dot(values, values) for values in map(torch.flatten, gradients)]
        if not _is_finite([loss.detach(), *sums, *squares]):
            for buffer, values in zip(self._buffers, before, strict=True):
                buffer.copy_(values)
            raise ValueError("its activations make the loss, or a gradient, NaN or too large")
        if self._optimizer is not None:
            self._optimizer.step()
        return inputs.grad, loss.item()

    def optimizer_arrays(self) -> dict[str, np.ndarray]:
        """Return the optimizer's state as arrays named ``<parameter>/<quantity>``."""
        states = self._optimizer.state_dict()["state"] if self._optimizer else {}
        return {
            f"{index}/{name}": value.detach().cpu().numpy().copy()
            for index, values in states.items()
            for name, value in values.items()
            if value is not None
        }

    def load_optimizer_arrays(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Take back what `optimizer_arrays` returned."""
        states: dict[int, dict[str, Tensor]] = {}
        for key, array in arrays.items():
            index, name = key.split("/")
            states.setdefault(int(index), {})[name] = torch.from_numpy(np.array(array))
        if self._optimizer is not None:
            groups = self._optimizer.state_dict()["param_groups"]
            self._optimizer.load_state_dict({"state": states, "param_groups": groups})

    def state_dict(self) -> dict[str, Tensor]:
        """Return the weights under the names that they have in the whole model."""
        return self.blocks.state_dict()


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


def names_before(names: Iterable[str], model: nn.Sequential, cut: Cut) -> list[str]:
    """Return those names of weights that belong to the blocks of a model in front of the cut."""
    blocks = set(block_names(model)[: cut.first])
    return [name for name in names if name.split(".", 1)[0] in blocks]


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
    first = next((i for i, block in enumerate(model, start=1) if any(True for _ in block.parameters())), len(model))
    if first == len(model):
        raise ValueError("the model has no weights in front of its last block: it can't be split")
    return range(first, len(model))


def checked_cut(model: nn.Sequential, cut: Cut | int) -> Cut:
    """Return a cut, see `Cut.of`; ValueError for one that the model does not have."""
    cut = Cut.of(model, cut)
    if cut.first not in (legal := legal_cuts(model)):
        allowed = f"{', '.join(map(str, legal))}; the last block stays at the server"
        raise ValueError(f"cut {cut.first}: allowed are {allowed}")
    return cut
