"""Images out of updates: of a linear layer exactly, of other models by search (gradient inversion).

The search is that of Zhu et al. (Deep Leakage from Gradients, arXiv:1906.08935) with the distance and the prior of
Geiping et al. (Inverting Gradients, arXiv:2003.14053): images whose update points the same way, that are not rough.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, grad_and_value, vmap
from torch.nn.functional import cosine_similarity, cross_entropy

Weights = Mapping[str, Tensor]


def input_of_linear(weight_change: Tensor, bias_change: Tensor) -> Tensor:
    """Return what came into a linear layer, by how its weights changed in a step on one example.

    The gradient of a row of weights is the input times that of the row's bias (Phong et al., 2018), so each row tells
    the input. Rows are weighed by their biases' changes, which is the least squares under equal noise.

    Parameters
    ----------
    weight_change : Tensor
        Shape (outputs, inputs).
    bias_change : Tensor
        Shape (outputs,).
    """
    weight, bias = weight_change.double(), bias_change.double()
    return (bias @ weight / bias.square().sum().clamp_min(1e-300)).to(weight_change.dtype)


def label_of_one(bias_change: Tensor) -> int:
    """Return the label of a step's only example: its output's bias alone has grown (iDLG, arXiv:2001.02610)."""
    return int(bias_change.argmax())


@dataclass(frozen=True)
class Search:
    """How images are searched for.

    Parameters
    ----------
    iterations : int (default: 40)
        Steps of Adam.
    rate : float (default: 0.1)
        Its learning rate at first; it falls to 0 by half a cosine.
    smoothness : float (default: 0.01)
        The weight of the mean difference of neighbouring pixels, beside one minus the cosine.
    noise : float (default: 0.3)
        The share of uniform noise in the images that it begins with.
    """

    iterations: int = 40
    rate: float = 0.1
    smoothness: float = 0.01
    noise: float = 0.3


SEARCH = Search()


def roughness(images: Tensor) -> Tensor:
    """Return the mean difference of neighbouring pixels, over rows and over columns (total variation)."""
    across, down = images.diff(dim=-1).abs().mean(), images.diff(dim=-2).abs().mean()
    return across + down


def update_of(
    model: nn.Module, weights: Weights, inputs: Tensor, labels: Tensor, learning_rate: float
) -> dict[str, Tensor]:
    """Return the update that plain SGD makes from some weights.

    Parameters
    ----------
    model : nn.Module
        Says how weights are applied; its own do not matter.
    weights : Mapping[str, Tensor]
        Where it starts.
    inputs, labels : Tensor
        Shape (steps, N, ...) and (steps, N): a mini-batch for each step.
    learning_rate : float
        The rate.
    """

    def loss(own: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return cross_entropy(functional_call(model, own, (x,)), y)

    own = dict(weights)
    for x, y in zip(inputs, labels, strict=True):
        gradient = grad(loss)(own, x, y)
        own = {name: value - learning_rate * gradient[name] for name, value in own.items()}
    return {name: value - weights[name] for name, value in own.items()}


def flat(tensors: Mapping[str, Tensor], names: Weights) -> Tensor:
    """Return tensors as one vector, in the order of `names`."""
    return torch.cat([tensors[name].flatten() for name in names])


def inverted(
    model: nn.Module,
    weights: Weights,
    updates: Tensor,
    labels: Tensor,
    prepare: Callable[[Tensor], Tensor],
    learning_rate: float,
    guess: Tensor,
    *,
    sent: Tensor | None = None,
    search: Search = SEARCH,
    seed: int = 0,
) -> Tensor:
    """Return images whose updates are most like those that came, all of them searched for side by side.

    Parameters
    ----------
    model : nn.Module
        What the clients train.
    weights : Mapping[str, Tensor]
        The model that was sent.
    updates : Tensor
        Shape (V, numbers of the model): what came of V clients, in the order of `weights`.
    labels : Tensor
        Shape (V, steps, N): the labels, which the edge knows.
    prepare : Callable[[Tensor], Tensor]
        Makes of pixels from 0 to 1 what the model takes.
    learning_rate : float
        Of the clients.
    guess : Tensor
        Where the search begins but for some noise, such as the mean of images of the same kind; of an image's shape.
    sent : Tensor, optional (default: None)
        Of the shape of `updates`: which numbers say something. None: all.
    search : Search (default: 40 steps)
        How.
    seed : int (default: 0)
        Of that noise.

    Returns
    -------
    Tensor
        Shape (V, steps * N, *guess.shape), from 0 to 1.
    """
    told = torch.ones_like(updates) if sent is None else sent.to(updates.dtype)

    def distance(images: Tensor, own_labels: Tensor, update: Tensor, seen: Tensor) -> Tensor:
        made = flat(update_of(model, weights, prepare(images), own_labels, learning_rate), weights)
        alike = cosine_similarity(made * seen, update * seen, dim=0, eps=1e-12)
        return 1 - alike + search.smoothness * roughness(images)

    of_each = vmap(grad_and_value(distance))
    draw = torch.Generator().manual_seed(seed)
    images = guess + search.noise * (torch.rand((*labels.shape, *guess.shape), generator=draw) - guess)
    optimizer = torch.optim.Adam([images], lr=search.rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, search.iterations)
    for _ in range(search.iterations):
        images.grad, _ = of_each(images, labels, updates, told)
        optimizer.step()
        schedule.step()
        images.clamp_(0, 1)
    return images.flatten(1, 2)
