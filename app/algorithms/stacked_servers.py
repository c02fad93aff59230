"""The server's blocks of several clients side by side, for SFL-V1 and what nests it."""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

from espalier.clients.shared.arrays import rows_as_travel
from espalier.clients.stacked.blocks import StackedBlocks
from espalier.clients.stacked.losses import stacked_losses
from espalier.clients.stacked.model import StackedModel, beside
from espalier.clients.task import LocalTraining
from espalier.strategies.split.server_block import Loss, Served
from espalier.strategies.split.serving import MiniBatch


class StackedServers:
    """The server's blocks of clients of one cut in a round; those who come together first stay together.

    Parameters
    ----------
    model : StackedModel
        Computes the blocks.
    blocks : nn.Module
        What each client's start from.
    training : LocalTraining
        How they train in the round.
    loss : Callable[[Tensor, Tensor], Tensor]
        Of outputs and labels, the mean over a mini-batch.
    """

    def __init__(self, model: StackedModel, blocks: nn.Module, training: LocalTraining, loss: Loss) -> None:
        self._model = model
        self._start = {name: tensor.detach() for name, tensor in blocks.state_dict().items()}
        self._device = next(blocks.parameters()).device
        self._trained = [name for name, weights in blocks.named_parameters() if weights.requires_grad]
        self._training = training
        self._loss = loss
        self._places: dict[int, tuple[StackedBlocks, int]] = {}
        self._steps: dict[int, int] = {}

    def step(
        self, batches: Sequence[MiniBatch], generators: Mapping[int, torch.Generator]
    ) -> dict[int, Served | ValueError]:
        """Make a step for each client, see `espalier.strategies.split.joint.JointBlocks`."""
        if new := [batch.node_id for batch in batches if batch.node_id not in self._places]:
            starts = [self._start] * len(new)
            together = StackedBlocks(self._model, starts, self._trained, self._training, self._device)
            self._places |= {node_id: (together, row) for row, node_id in enumerate(new)}
        alike: dict[tuple[int, int, int], list[MiniBatch]] = {}
        for batch in batches:
            number = self._steps[batch.node_id] = self._steps.get(batch.node_id, 0) + 1
            blocks, _ = self._places[batch.node_id]
            alike.setdefault((id(blocks), len(batch.activations), number), []).append(batch)
        answers: dict[int, Served | ValueError] = {}
        for those in alike.values():
            try:
                answers |= self._step_of(those, [generators[batch.node_id] for batch in those])
            except torch.OutOfMemoryError:  # our own
                raise
            except (RuntimeError, ValueError) as error:  # a mini-batch of this size can't be computed
                answers |= {batch.node_id: ValueError(str(error)) for batch in those}
        return answers

    def state_dict(self, node_id: int) -> dict[str, Tensor]:
        """Return the weights of a client's blocks."""
        if node_id not in self._places:
            return self._start
        blocks, row = self._places[node_id]
        return blocks.state(row)

    def _step_of(
        self, batches: Sequence[MiniBatch], generators: Sequence[torch.Generator]
    ) -> dict[int, Served | ValueError]:
        """Make the same step of clients that stay together, whose mini-batches are equally large."""
        blocks, _ = self._places[batches[0].node_id]
        rows = [self._places[batch.node_id][1] for batch in batches]
        inputs = beside([batch.activations for batch in batches]).to(self._device).requires_grad_(True)
        made = blocks.forward(rows, inputs.clone(), generators)  # a layer may write into its input
        labels = torch.stack([batch.labels for batch in batches if batch.labels is not None])
        labels = labels.to(self._device, torch.int64)
        losses = stacked_losses([self._loss] * len(batches), made.outputs, labels.unbind())
        # Of the sum, since no client's loss depends on the weights of another.
        back, *gradients = torch.autograd.grad(losses.sum(), [inputs, *made.leaves])
        statistics = [
            values
            for (kind, name), values in made.tensors.items()
            if kind == "state" and name not in self._trained and values.is_floating_point()
        ]
        fit = _finite_rows(losses.detach(), [back, *statistics], gradients)
        blocks.step(
            made, gradients, self._steps[batches[0].node_id], [place for place, is_fit in enumerate(fit) if is_fit]
        )
        fault = ValueError("its activations make the loss, or a gradient, NaN or too large")
        return {
            batch.node_id: (gradient, loss) if is_fit else fault
            for batch, gradient, loss, is_fit in zip(batches, rows_as_travel(back), losses.tolist(), fit, strict=True)
        }


def stacked_servers(training: LocalTraining, loss: Loss) -> Callable[[nn.Module, int], StackedServers]:
    """Return what makes the server's blocks of a cut in a round, from those that all clients start from.

    Parameters
    ----------
    training : LocalTraining
        How the server's blocks train; its schedule is followed.
    loss : Callable[[Tensor, Tensor], Tensor]
        Of outputs and labels, the mean over a mini-batch.
    """
    models: dict[tuple[str, ...], StackedModel] = {}

    def make(blocks: nn.Module, server_round: int) -> StackedServers:
        names = tuple(blocks.state_dict())
        if names not in models:
            models[names] = StackedModel(blocks)
        return StackedServers(models[names], blocks, training.at(server_round), loss)

    return make


def _finite_rows(losses: Tensor, others: Sequence[Tensor], gradients: Sequence[Tensor]) -> list[bool]:
    """Return for each client whether all that is its own is finite, and its gradients not too large to be squared."""
    total = losses
    for values in others:
        total = total + values.flatten(1).sum(1)
    for gradient in gradients:
        flat = gradient.flatten(1)
        total = total + torch.linalg.vecdot(flat, flat)
    finite: list[bool] = torch.isfinite(total).tolist()
    return finite
