"""A model for images of any size: a function that `model` names, for the data sets that come with the app."""

from collections import OrderedDict

from torch import nn


def averaging_cnn(num_classes, input_shape, width=32):
    """Return two convolutions, the mean over all places of an image, and a head: blocks that can be cut."""
    channels = input_shape[0]  # of (channels, height, width)
    blocks = OrderedDict(
        conv1=nn.Sequential(nn.Conv2d(channels, width, 3, padding=1), nn.ReLU()),
        conv2=nn.Sequential(nn.Conv2d(width, width, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()),
        head=nn.Linear(width, num_classes),
    )
    return nn.Sequential(blocks)
