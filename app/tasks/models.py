"""The models: each a sequence of named blocks that can be cut between any two of them."""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from espalier.app.ground.errors import bad_value
from espalier.app.ground.object_spec import ObjectSpec
from espalier.app.ground.registered import built_in, call_with, parse_registered
from espalier.clients.shared.generators import seeded_torch
from espalier.clients.shared.lazy_layers import draw_weights, lacks_weights

Blocks = OrderedDict[str, nn.Module]
Shape = tuple[int, int, int]


@dataclass(frozen=True)
class BuiltIn:
    """A model that comes with the app.

    Parameters
    ----------
    name : str
        As the settings have it.
    blocks : Callable[[tuple[int, int, int], int], OrderedDict[str, nn.Module]]
        Makes its blocks for an image's shape and a number of classes.
    least : int
        The least side of an image in pixels.
    """

    name: str
    blocks: Callable[[Shape, int], Blocks]
    least: int

    def __call__(self, image_shape: Shape, num_classes: int) -> nn.Sequential:
        """Return a new model; UserError if the image is too small for it."""
        _, height, width = image_shape
        if min(height, width) < self.least:
            fitting = ", ".join(other.name for other in _MODELS.values() if min(height, width) >= other.least)
            least = f"{self.name}: {self.least}x{self.least} or more"
            raise bad_value("model", self.name, f"{fitting or 'none'} for images of {width}x{height} ({least})")
        return nn.Sequential(self.blocks(image_shape, num_classes))


def build_model(name: str, *, image_shape: Shape, num_classes: int, seed: int) -> nn.Module:
    """Return a model, initialised.

    ``small-cnn``, ``cnn``
        Two convolutions, each with ReLU and max-pooling (by 2 and by 4 a side), one fully connected
        layer and the head: blocks ``conv1``, ``conv2``, ``fc1``, ``head``. For a 32x32 image the second
        block of ``cnn`` ends in 512 = 128 x 2 x 2 values.
    ``resnet18``, ``resnet50``
        Torchvision's, with the stem for small images: a 3x3 convolution of stride 1 and no max-pooling.
        Blocks ``stage1`` (with the stem) to ``stage4`` (with the average pooling) and ``head``.

    ``package.module:function``
        A user's own function or class: it gets ``num_classes`` and ``input_shape`` (channels, height and width), each
        if it has a parameter of that name, and the arguments that the text has in brackets. Where it takes any by
        ``**``, as torchvision's do, it gets ``num_classes``. What it returns is taken as it is.

    Parameters
    ----------
    name : str
        One of `MODELS`, or a user's own.
    image_shape : tuple[int, int, int]
        Channels, height and width of an image.
    num_classes : int
        The number of outputs.
    seed : int
        Decides the initial weights, which are drawn as torch and torchvision do by default. The global
        generators are left as they were.

    Returns
    -------
    nn.Module
        Maps ``(batch, channels, height, width)`` to logits ``(batch, num_classes)``, on the CPU. Those of `MODELS` are
        an nn.Sequential of the named blocks; the last is always ``head``, a single `nn.Linear`.

    Raises
    ------
    UserError
        There is no such model, the image is too small for it, or a user's own fails or returns no module.
    """
    try:
        spec = parse_registered("model", name)
    except ValueError as error:
        raise bad_value("model", name, str(error)) from None
    known = model_named(spec)
    with seeded_torch(seed, torch.device("cpu")):
        if known:
            return known(image_shape, num_classes)
        model = _own_model(spec, image_shape, num_classes)
        if lacks_weights(model):
            draw_weights(model, lambda: torch.zeros(1, *image_shape))
        return model


def model_named(spec: ObjectSpec) -> "BuiltIn | None":
    """Return the built-in model of a name, None for a user's own and for ``auto``; UserError for another name."""
    return built_in(spec, {AUTO: None, **_MODELS})


def parameter_counts(model: nn.Module) -> dict[str, int]:
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
    return _stages(whole, OrderedDict(conv=stem, norm=whole.bn1, relu=whole.relu))


def _imagenet_resnet(image_shape: Shape, num_classes: int, *, name: str) -> Blocks:
    """Return the blocks of a residual network with torchvision's stem: 7x7 with stride 2, and max-pooling."""
    from espalier.app.tasks.torchvision_compat import torchvision

    whole = torchvision.models.get_model(name, weights=None, num_classes=num_classes)
    if image_shape[0] != 3:
        whole.conv1 = nn.Conv2d(image_shape[0], whole.bn1.num_features, 7, stride=2, padding=3, bias=False)
        nn.init.kaiming_normal_(whole.conv1.weight, mode="fan_out", nonlinearity="relu")
    return _stages(whole, OrderedDict(conv=whole.conv1, norm=whole.bn1, relu=whole.relu, pool=whole.maxpool))


def _stages(whole: Any, stem: Blocks) -> Blocks:
    """Return the blocks of one of torchvision's residual networks behind a stem, which is part of the first."""
    return OrderedDict(
        stage1=nn.Sequential(OrderedDict([*stem.items(), ("layer", whole.layer1)])),
        stage2=whole.layer2,
        stage3=whole.layer3,
        stage4=nn.Sequential(OrderedDict(layer=whole.layer4, pool=whole.avgpool, flatten=nn.Flatten())),
        head=whole.fc,
    )


def _own_model(spec: ObjectSpec, image_shape: Shape, num_classes: int) -> nn.Module:
    """Return what a function of a user's own makes."""
    if spec.module.partition(".")[0] == "torchvision":
        import espalier.app.tasks.torchvision_compat  # noqa: F401  which lets it be imported beside any PyTorch
    offered = {"num_classes": num_classes, "input_shape": tuple(image_shape)}
    model = call_with(spec, offered, to_any=("num_classes",))
    if not isinstance(model, nn.Module):
        raise bad_value("model", spec.text, f"a function that returns an nn.Module, not a {type(model).__name__}")
    return model


_MODELS = {
    model.name: model
    for model in (
        BuiltIn("small-cnn", partial(_cnn, channels=(16, 32), pool=2, hidden=64), 8),
        BuiltIn("cnn", partial(_cnn, channels=(64, 128), pool=4, hidden=256), 16),
        BuiltIn("resnet18", partial(_resnet, name="resnet18"), 16),
        BuiltIn("resnet18-imagenet", partial(_imagenet_resnet, name="resnet18"), 16),
        BuiltIn("resnet50", partial(_resnet, name="resnet50"), 16),
    )
}

MODELS = tuple(_MODELS)
AUTO = "auto"  # that of the data set
