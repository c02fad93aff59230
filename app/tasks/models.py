"""The models: each a sequence of named blocks that can be cut between any two of them."""

from collections import OrderedDict
from collections.abc import Callable
from functools import partial

import torch
from torch import nn

from espalier.app.ground.errors import bad_value
from espalier.clients.shared.generators import seeded_torch

Blocks = OrderedDict[str, nn.Module]
Shape = tuple[int, int, int]


def build_model(name: str, *, image_shape: Shape, num_classes: int, seed: int) -> nn.Sequential:
    """Return a model, initialised.

    ``small-cnn``, ``cnn``
        Two convolutions, each with ReLU and max-pooling (by 2 and by 4 a side), one fully connected
        layer and the head: blocks ``conv1``, ``conv2``, ``fc1``, ``head``. For a 32x32 image the second
        block of ``cnn`` ends in 512 = 128 x 2 x 2 values.
    ``resnet18``, ``resnet50``
        Torchvision's, with the stem for small images: a 3x3 convolution of stride 1 and no max-pooling.
        Blocks ``stage1`` (with the stem) to ``stage4`` (with the average pooling) and ``head``.

    Parameters
    ----------
    name : str
        One of `MODELS`.
    image_shape : tuple[int, int, int]
        Channels, height and width of an image.
    num_classes : int
        The number of outputs.
    seed : int
        Decides the initial weights, which are drawn as torch and torchvision do by default. The global
        generators are left as they were.

    Returns
    -------
    nn.Sequential
        Maps ``(batch, channels, height, width)`` to logits ``(batch, num_classes)``, on the CPU. Its
        children are the named blocks; the last is always ``head``, a single `nn.Linear`.

    Raises
    ------
    UserError
        There is no such model, or the image is too small for it.
    """
    if name not in _MODELS:
        raise bad_value("model", name, "one of " + ", ".join(MODELS))
    build, least = _MODELS[name]
    _, height, width = image_shape
    if min(height, width) < least:
        fitting = ", ".join(other for other, (_, side) in _MODELS.items() if min(height, width) >= side) or "none"
        raise bad_value("model", name, f"{fitting} for images of {width}x{height} ({name}: {least}x{least} or more)")
    with seeded_torch(seed, torch.device("cpu")):
        return nn.Sequential(build(image_shape, num_classes))


def parameter_counts(model: nn.Sequential) -> dict[str, int]:
    """Return the number of parameters of each block, in order."""
    return {name: sum(weights.numel() for weights in block.parameters()) for name, block in model.named_children()}


def _cnn(image_shape: Shape, num_classes: int, *, channels: tuple[int, int], pool: int, hidden: int) -> Blocks:
    """Return the blocks of a plain convolutional network: two convolutions and two linear layers.

    The maximum is taken before the ReLU. The two commute, and this way the ReLU has `pool` squared less to do.
    """
    depth, height, width = image_shape
    first, second = channels
    flat = second * (height // pool // pool) * (width // pool // pool)
    return OrderedDict(
        conv1=nn.Sequential(nn.Conv2d(depth, first, 3, padding=1), nn.MaxPool2d(pool), nn.ReLU()),
        conv2=nn.Sequential(nn.Conv2d(first, second, 3, padding=1), nn.MaxPool2d(pool), nn.ReLU(), nn.Flatten()),
        fc1=nn.Sequential(nn.Linear(flat, hidden), nn.ReLU()),
        head=nn.Linear(hidden, num_classes),
    )


def _resnet(image_shape: Shape, num_classes: int, *, name: str) -> Blocks:
    """Return the blocks of a residual network for small images."""
    from espalier.app.tasks.torchvision_compat import torchvision  # slow to import, and only needed here

    whole = torchvision.models.get_model(name, weights=None, num_classes=num_classes)
    stem = nn.Conv2d(image_shape[0], whole.bn1.num_features, 3, padding=1, bias=False)
    nn.init.kaiming_normal_(stem.weight, mode="fan_out", nonlinearity="relu")  # as torchvision's own
    return OrderedDict(
        stage1=nn.Sequential(OrderedDict(conv=stem, norm=whole.bn1, relu=whole.relu, layer=whole.layer1)),
        stage2=whole.layer2,
        stage3=whole.layer3,
        stage4=nn.Sequential(OrderedDict(layer=whole.layer4, pool=whole.avgpool, flatten=nn.Flatten())),
        head=whole.fc,
    )


# Each model's builder, and the least side of an image in pixels.
_MODELS: dict[str, tuple[Callable[[Shape, int], Blocks], int]] = {
    "small-cnn": (partial(_cnn, channels=(16, 32), pool=2, hidden=64), 8),
    "cnn": (partial(_cnn, channels=(64, 128), pool=4, hidden=256), 16),
    "resnet18": (partial(_resnet, name="resnet18"), 16),
    "resnet50": (partial(_resnet, name="resnet50"), 16),
}

MODELS = tuple(_MODELS)
