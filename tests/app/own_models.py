"""Models as users write them, for tests."""

from collections import OrderedDict

import torch
from torch import nn

from espalier.app.tasks.models import build_model


def small_cnn(num_classes, input_shape):
    """Draws what `model="small-cnn"` draws, from the same generator."""
    seed = torch.initial_seed()
    return build_model("small-cnn", image_shape=input_shape, num_classes=num_classes, seed=seed)


def linear(input_shape, outputs=10):
    channels, height, width = input_shape
    return nn.Sequential(OrderedDict(flat=nn.Flatten(), head=nn.Linear(channels * height * width, outputs)))


def dropping(num_classes, input_shape):
    """Drops units of images, whose order in memory decides which."""
    channels, height, width = input_shape
    return nn.Sequential(
        OrderedDict(
            conv1=nn.Sequential(nn.Conv2d(channels, 4, 3, padding=1), nn.ReLU(), nn.Dropout(0.5)),
            conv2=nn.Sequential(
                nn.Conv2d(4, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.5), nn.Flatten()
            ),
            head=nn.Linear(height * width, num_classes),
        )
    )


def log_outputs(num_classes, input_shape):
    channels, height, width = input_shape
    return nn.Sequential(nn.Flatten(), nn.Linear(channels * height * width, num_classes), nn.LogSoftmax(1))


class OneLayer(nn.Linear):
    """Flattens its images by itself, so it has no blocks."""

    def forward(self, images):
        return super().forward(images.flatten(1))


def one_layer(num_classes, input_shape):
    channels, height, width = input_shape
    return OneLayer(channels * height * width, num_classes)


class Masked(nn.Module):
    """Has truth values, of which training turns one."""

    def __init__(self, num_classes, size):
        super().__init__()
        self.head = nn.Linear(size, num_classes)
        self.register_buffer("mask", torch.ones(size, dtype=torch.bool))
        self.register_buffer("trained", torch.tensor(False))

    def forward(self, images):
        if self.training:
            self.trained.fill_(True)
        return self.head(images.flatten(1) * self.mask)


def masked(num_classes, input_shape):
    channels, height, width = input_shape
    return Masked(num_classes, channels * height * width)


def grey_alone(num_classes):
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.LazyLinear(num_classes))


def no_module(**options):
    return sorted(options)


def failing(num_classes):
    raise RuntimeError("no such weights")


class TwoOutputs(nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.layer = nn.Linear(64, num_classes)

    def forward(self, images):
        return self.layer(images.flatten(1)), images


class Whole(TwoOutputs):
    def forward(self, images):
        return super().forward(images)[0]


class Drawing(Whole):
    """Takes one example at a time in training."""

    def forward(self, images):
        if self.training and len(images) > 1:
            raise RuntimeError("one at a time")
        return super().forward(images)


constant = 3


def with_dropout(num_classes):
    blocks = {
        "conv": nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten()),
        "body": nn.Sequential(nn.Dropout(0.3), nn.Linear(144, 16), nn.Dropout(0.3)),
        "head": nn.Linear(16, num_classes),
    }
    return nn.Sequential(OrderedDict(blocks))


def with_frozen_front(num_classes):
    model = with_dropout(num_classes)
    model[0].requires_grad_(False)
    return model


class Noise(nn.Module):
    """Draws in evaluations, too."""

    def forward(self, inputs):
        return inputs + 0.1 * torch.randn_like(inputs)


def with_noise(num_classes):
    return nn.Sequential(nn.Flatten(), Noise(), nn.Linear(64, num_classes))
