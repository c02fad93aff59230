"""Tasks whose models are split where much is in the way, for tests."""

import threading
import warnings
from collections import OrderedDict

import torch
from torch import nn
from torch.nn.utils import parametrizations, prune, weight_norm

from espalier.app.tasks import Examples, OwnTask, blocks_of


class Pictures(OwnTask):
    """Pictures (2, 6, 6) of two classes; `layout` is "channels-last" or "" for PyTorch's own."""

    channels = 2

    def __init__(self, layout: str = "") -> None:
        self.layout = torch.channels_last if layout == "channels-last" else torch.contiguous_format

    def model(self):
        return nn.Sequential(
            OrderedDict(
                conv=nn.Sequential(nn.Conv2d(self.channels, 4, 3, padding=1), nn.Tanh()),
                body=nn.Sequential(nn.Conv2d(4, 5, 3, padding=1), nn.BatchNorm2d(5), nn.ReLU()),
                rest=nn.Sequential(nn.AvgPool2d(2), nn.Flatten()),
                head=nn.Linear(45, 2),
            )
        )

    def client_data(self, client, num_clients, seed):
        draw = torch.Generator().manual_seed(100 * seed + client)
        images = torch.randn(60, self.channels, 6, 6, generator=draw)
        labels = (images.mean((1, 2, 3)) > 0).long()
        return Examples(images[:40], labels[:40]), Examples(images[40:], labels[40:])

    def prepare(self, inputs):
        return inputs.contiguous(memory_format=self.layout)


class View(nn.Module):
    """Takes images that lie in memory as PyTorch has them by itself, and no others."""

    def forward(self, images):
        return images.view(len(images), -1)


class Viewed(Pictures):
    """A layer behind the cut that takes one memory layout."""

    def model(self):
        model = super().model()
        model.rest = nn.Sequential(View(), nn.Linear(180, 45))
        return model


class InPlace(Pictures):
    """Blocks that write into their inputs."""

    def model(self):
        model = super().model()
        model.conv = nn.Conv2d(self.channels, 4, 3, padding=1)
        model.body = nn.Sequential(nn.ReLU(inplace=True), *model.body[:2])
        model.rest = nn.Sequential(nn.ReLU(inplace=True), *model.rest)
        return model


class Traced(Pictures):
    """An ordinary model, cut at layers that write into their inputs."""

    def __init__(self, at: tuple[str, ...] = ("features.1", "classifier")) -> None:
        super().__init__()
        self.at = at

    def model(self):
        return blocks_of(Ordinary(self.channels), at=self.at)


class Ordinary(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(channels, 4, 3), nn.ReLU(inplace=True), nn.Conv2d(4, 4, 3), nn.ReLU(inplace=True)
        )
        self.classifier = nn.Linear(16, 2)

    def forward(self, images):
        return self.classifier(torch.flatten(self.features(images), 1))


class Named(nn.Sequential):
    """A list of blocks that is made in a way of its own."""

    def __init__(self, channels: int) -> None:
        conv = nn.Sequential(nn.Conv2d(channels, 4, 3, padding=1), nn.Tanh(), nn.AvgPool2d(3))
        super().__init__(OrderedDict(conv=conv, rest=nn.Sequential(nn.Flatten(), nn.Tanh()), head=nn.Linear(16, 2)))


class Centred(Named):
    def forward(self, images):
        return super().forward(images / 10)


class Tenth(torch.autograd.Function):
    @staticmethod
    def forward(ctx, values):
        return values.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient / 10


class OwnList(Pictures):
    """A model of a class of its own, which computes `more` than its blocks do."""

    def __init__(self, more: str = "") -> None:
        super().__init__()
        self.more = more

    def model(self):
        model = (Centred if self.more == "forward" else Named)(self.channels)
        if self.more == "pre-hook":
            model.register_forward_pre_hook(lambda module, inputs: (inputs[0] / 10,))
        if self.more == "hook":
            model.register_forward_hook(lambda module, inputs, outputs: outputs / 10)
        if self.more == "training":
            model.register_forward_pre_hook(lambda module, inputs: (inputs[0] / (10 if module.training else 1),))
        if self.more == "gradient":
            model.register_forward_hook(lambda module, inputs, outputs: Tenth.apply(outputs))
        if self.more == "weights":
            model.conv[0].weight.register_hook(lambda gradient: gradient / 10)
        if self.more == "block":
            model.conv.register_forward_hook(lambda module, inputs, outputs: outputs / 10)
        return model


class Computed(Pictures):
    """Layers with weights that are computed from others in every forward pass."""

    def __init__(self, by: str) -> None:
        super().__init__()
        self.by = by

    def model(self):
        model = super().model()
        for block in (model.conv, model.body):
            if self.by == "pruning":
                prune.l1_unstructured(block[0], "weight", 0.5)
            if self.by == "weight_norm":
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", FutureWarning)
                    weight_norm(block[0])
            if self.by == "parametrization":
                parametrizations.weight_norm(block[0])
        if self.by == "recurrent":
            model.rest = nn.Sequential(nn.AvgPool2d(2), nn.Flatten(2), Recurrent())
        return model


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.GRU(9, 9, batch_first=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            weight_norm(self.layer, "weight_hh_l0")

    def forward(self, rows):
        return self.layer(rows)[0].flatten(1)


class Locked(Pictures):
    """A layer that can't be copied."""

    def model(self):
        model = super().model()
        model.body[0].lock = threading.Lock()
        return model


class Double(Pictures):
    """A model of double precision."""

    def model(self):
        return super().model().double()

    def prepare(self, inputs):
        return inputs.double()


class Misfit(Pictures):
    """One thing is in the way of split training that is not of whole models, or is blamed on something else."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self.what = what

    def model(self):
        model = super().model()
        if self.what == "dtype":
            model.body = nn.Sequential(model.body, Cast(torch.float64))
            model.rest = nn.Sequential(Cast(torch.float32), model.rest)
        if self.what == "time first":
            model.body = nn.Sequential(nn.Conv2d(4, 5, 3, padding=1), Swapped())
            model.rest = nn.Sequential(Swapped(), model.rest)
        if self.what == "head":
            model.head = nn.Linear(46, 2)
        if self.what == "mixed":
            model.conv = nn.Sequential(nn.Conv2d(self.channels, 4, 3, padding=1), Turned((0, 2, 3, 1)))
            model.body = nn.Sequential(Turned((0, 3, 1, 2)), nn.Conv2d(4, 5, 3, padding=1))
        if self.what == "half":
            model.body = nn.Sequential(model.body, Detached())
        return model


class Cast(nn.Module):
    def __init__(self, dtype):
        super().__init__()
        self.dtype = dtype

    def forward(self, values):
        return values.to(self.dtype)


class Swapped(nn.Module):
    def forward(self, values):
        return values.transpose(0, 1)


class Turned(nn.Module):
    def __init__(self, order):
        super().__init__()
        self.order = order

    def forward(self, values):
        return values.permute(self.order)


class Detached(nn.Module):
    def forward(self, values):
        return values.detach()


class Noise(nn.Module):
    """Adds noise, in evaluations too."""

    def forward(self, values):
        return values + 0.1 * torch.randn_like(values)


class Noisy(Pictures):
    """Draws where images are prepared, or in a layer."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self.where = where

    def model(self):
        model = super().model()
        if self.where == "layer":
            model.body.append(Noise())
        return model

    def prepare(self, inputs):
        return inputs + 0.1 * torch.randn_like(inputs) if self.where == "prepare" else inputs
