"""SGD on data in which few rows of features occur many times, such as a user's requests for videos.

A mini-batch is collapsed to its distinct rows: the mean cross-entropy over its examples is that of the distinct rows
with soft labels, weighted by how often they occur. The gradient is the same, and the work is that of the distinct rows.

What is left is to multiply small matrices, and half of that goes to units that are off: the rows of one client are much
alike, so that many units are off for all of them. Such a unit takes no part in a step, and its weights have no
gradient. So the units of each hidden layer are sorted, those first that are on for some row, and a step works with
these alone. Whether another unit has come on is looked at in every step; from then on it belongs to them.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn


@torch.inference_mode()
def unique_row_sgd(
    model: nn.Module,
    table: Tensor,
    row_of_example: Tensor,
    labels: Tensor,
    batches: Iterable[Tensor],
    learning_rate: float,
) -> float:
    """Train `model` in place by plain SGD on the mean cross-entropy of one mini-batch after the other.

    The weights become those that a loop over ``cross_entropy(model(table[row_of_example[batch]]), labels[batch])``
    would give, up to the order of sums. Gradients of the parameters are not touched.

    Parameters
    ----------
    model : nn.Module
        Linear layers with bias, with a ReLU between any two, nested as you like. All of them are trained.
    table : Tensor
        Shape (R, features): the distinct rows, in the type of the weights and on their device.
    row_of_example : Tensor
        Shape (N,), int64: each example's row of `table`.
    labels : Tensor
        Shape (N,), int64: each example's class.
    batches : Iterable[Tensor]
        The examples of each mini-batch, int64 indices, e.g. from `mini_batches`. All are collapsed
        before the first step, in memory that grows with R times their number. Empty ones are passed over.
    learning_rate : float
        Of plain SGD, without momentum or weight decay.

    Returns
    -------
    float
        Mean cross-entropy over the examples seen, 0 if there are none.

    Raises
    ------
    ValueError
        If the model is of another kind, or an example has a row or a label that does not exist.
    """
    linears = _linear_layers(model)
    num_classes = linears[-1].out_features
    _check_indices("row_of_example", row_of_example, len(table))
    _check_indices("labels", labels, num_classes)
    filled = [batch for batch in batches if len(batch)]
    if not filled:
        return 0.0
    steps = _collapse(table, row_of_example, labels, filled, num_classes)
    layers = _layers_with_live_units_first(linears, table, most_rows=max(map(len, steps.inputs)))
    views: dict[int, list[_Views]] = {}
    for inputs, shares, cells, minus_shares, log_likelihoods in zip(*steps, strict=True):
        rows = len(inputs)
        if rows not in views:
            views[rows] = _views(layers, rows)
        *hidden, last = views[rows]
        activations = inputs
        for i in range(len(hidden)):
            layer = hidden[i]  # a layer before may have made new views
            torch.mm(activations, layer.forward, out=layer.outputs).relu_()
            if layer.resting.count_nonzero():
                layers[i].num_live = int(layer.outputs.any(0).nonzero()[-1]) + 1
                views = {rows: _views(layers, rows)}
                *hidden, last = views[rows]
            activations = hidden[i].activations
        torch.mm(activations, last.forward, out=last.outputs)

        # With respect to the logits: the row's share times the softmax, less the soft labels.
        torch.log_softmax(last.outputs, 1, out=last.gradient)
        torch.take(last.gradient, cells, out=log_likelihoods)
        last.gradient.exp_().mul_(shares).view(-1).index_add_(0, cells, minus_shares)

        layer = last
        for before in reversed(hidden):
            torch.mm(layer.gradient, layer.backward, out=before.gradient)
            before.gradient.mul_(torch.sign(before.live, out=before.slopes))
            layer.trained.addmm_(before.activations_t, layer.gradient, alpha=-learning_rate)
            layer = before
        layer.trained.addmm_(inputs.t(), layer.gradient, alpha=-learning_rate)
    for weights in layers:
        weights.write_back()
    return -float(torch.cat(steps.log_likelihoods).mean(dtype=torch.float64))


class _Steps(NamedTuple):
    """The mini-batches, collapsed: one tensor per mini-batch in each list. It has n examples and m distinct rows."""

    inputs: tuple[Tensor, ...]  # (m, 1 + features): a one for the bias, then the row
    shares: tuple[Tensor, ...]  # (m, 1): the part of the examples that has this row
    cells: tuple[Tensor, ...]  # (n,): the place of each example's row and label in an (m, classes) matrix, flattened
    minus_shares: tuple[Tensor, ...]  # (n,): -1 / n
    log_likelihoods: tuple[Tensor, ...]  # (n,): to be filled


def _collapse(table: Tensor, row_of_example: Tensor, labels: Tensor, batches: list[Tensor], num_classes: int) -> _Steps:
    """Return the mini-batches with their distinct rows found."""
    num_rows, lengths = len(table), [len(batch) for batch in batches]
    sizes = torch.tensor(lengths, device=table.device)
    examples = torch.cat(batches)
    first_of_batch = torch.arange(len(batches), device=table.device) * num_rows
    pair_of_example = first_of_batch.repeat_interleave(sizes) + row_of_example[examples]
    counts = torch.bincount(pair_of_example, minlength=len(batches) * num_rows)
    pairs = counts.nonzero()[:, 0]
    distinct = counts.view(-1, num_rows).count_nonzero(dim=1)
    first_pair = distinct.cumsum(0) - distinct
    batch_of_pair = pairs // num_rows
    place = torch.empty_like(counts)
    place[pairs] = torch.arange(len(pairs), device=table.device) - first_pair[batch_of_pair]
    per_step = distinct.tolist()
    share = sizes.to(table.dtype).reciprocal()
    minus_share = {length: table.new_full((length,), -1 / length) for length in set(lengths)}
    with_one = torch.cat([table.new_ones(num_rows, 1), table], 1)
    return _Steps(
        inputs=with_one[pairs % num_rows].split(per_step),
        shares=(counts[pairs] * share[batch_of_pair])[:, None].split(per_step),
        cells=(place[pair_of_example] * num_classes + labels[examples]).split(lengths),
        minus_shares=tuple(minus_share[length] for length in lengths),
        log_likelihoods=table.new_empty(len(examples)).split(lengths),
    )


@dataclass
class _Layer:
    """A linear layer's weights while they are trained, and what it computes in a step.

    Attributes
    ----------
    linear : nn.Linear
        Where the weights come from and go to.
    units, units_before : Tensor
        The order in which this layer's units, and those of the layer before, are kept here.
    weights : Tensor
        Shape (1 + in, out): the bias, then the transposed weights; every input has a one before it.
    outputs : Tensor
        Shape (rows, 1 + out): a one, then the outputs; the last layer has no one.
    gradient, slopes : Tensor
        Shape (rows * out,): room for the gradient with respect to the outputs, and for the derivatives of the ReLU.
    num_live : int
        The units computed with are the first `num_live`.
    """

    linear: nn.Linear
    units: Tensor
    units_before: Tensor
    weights: Tensor
    outputs: Tensor
    gradient: Tensor
    slopes: Tensor
    num_live: int

    def write_back(self) -> None:
        """Give the trained weights back to `linear`."""
        weights = self.weights.index_select(1, self.units.argsort())
        self.linear.bias.copy_(weights[0])
        self.linear.weight.copy_(weights[1:].index_select(0, self.units_before.argsort()).t())


def _layers_with_live_units_first(linears: list[nn.Linear], table: Tensor, most_rows: int) -> list[_Layer]:
    """Return the layers with each hidden layer's units sorted by their largest output for any row of the table."""
    layers = []
    activations = table
    units_before = torch.arange(table.shape[1], device=table.device)
    for linear in linears:
        size, is_last = linear.out_features, linear is linears[-1]
        outputs = torch.addmm(linear.bias, activations, linear.weight.t())
        activations = outputs.relu()
        if is_last:
            units, num_live = torch.arange(size, device=table.device), size
        else:
            # By the outputs before the ReLU: units that are nearest to coming on follow on those that are on.
            largest, units = outputs.amax(0).sort(descending=True, stable=True)
            num_live = int((largest > 0).sum())
        weights = linear.weight.index_select(0, units).index_select(1, units_before)
        layers.append(
            _Layer(
                linear=linear,
                units=units,
                units_before=units_before,
                weights=torch.cat([linear.bias[None, units], weights.t()]),
                outputs=table.new_ones(most_rows, size if is_last else 1 + size),
                gradient=table.new_empty(most_rows * size),
                slopes=table.new_empty(most_rows * size),
                num_live=num_live,
            )
        )
        units_before = units
    return layers


class _Views(NamedTuple):
    """The parts of a layer that a step with m rows works on; `live` units follow on `live_before`."""

    forward: Tensor  # (1 + live_before, out)
    backward: Tensor  # (live, live_before)
    trained: Tensor  # (1 + live_before, live)
    outputs: Tensor  # (m, out)
    resting: Tensor  # (m, out - live): outputs of the units that should be off
    live: Tensor  # (m, live): the other outputs
    activations: Tensor  # (m, 1 + live): these with a one before them
    activations_t: Tensor  # (1 + live, m): transposed
    gradient: Tensor  # (m, live)
    slopes: Tensor  # (m, live)


def _views(layers: list[_Layer], rows: int) -> list[_Views]:
    """Return the layers' parts for a step with so many rows."""
    views = []
    live_before = len(layers[0].units_before)
    for layer in layers:
        live, size = layer.num_live, layer.weights.shape[1]
        outputs = layer.outputs[:rows, -size:]
        views.append(
            _Views(
                forward=layer.weights[: 1 + live_before],
                backward=layer.weights[1 : 1 + live_before, :live].t(),
                trained=layer.weights[: 1 + live_before, :live],
                outputs=outputs,
                resting=outputs[:, live:],
                live=outputs[:, :live],
                activations=layer.outputs[:rows, : 1 + live],
                activations_t=layer.outputs[:rows, : 1 + live].t(),
                gradient=layer.gradient[: rows * live].view(rows, live),
                slopes=layer.slopes[: rows * live].view(rows, live),
            )
        )
        live_before = live
    return views


def _linear_layers(model: nn.Module) -> list[nn.Linear]:
    """Return the linear layers of a model that has a ReLU between any two and nothing else."""
    leaves = [module for module in model.modules() if not any(module.children())]
    linears = [leaf for leaf in leaves[::2] if isinstance(leaf, nn.Linear) and leaf.bias is not None]
    relus = [leaf for leaf in leaves[1::2] if isinstance(leaf, nn.ReLU)]
    if len(linears) != len(relus) + 1 or len(linears) + len(relus) != len(leaves):
        kinds = ", ".join(type(leaf).__name__ for leaf in leaves)
        raise ValueError(f"model = {kinds}: allowed are linear layers with bias and a ReLU between any two")
    return linears


def _check_indices(name: str, values: Tensor, count: int) -> None:
    """Raise `ValueError` unless all values are from 0 to `count` - 1."""
    if len(values) and not 0 <= int(values.min()) <= int(values.max()) < count:
        raise ValueError(f"{name} = {int(values.min())} ... {int(values.max())}: allowed is 0 ... {count - 1}")
