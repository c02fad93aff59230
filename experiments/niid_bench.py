"""The model of Flower's baseline `niid_bench`: NIID-Bench's CNN (Li et al., ICDE 2022)."""

from torch import nn


def cnn(num_classes: int, input_shape: tuple[int, int, int]) -> nn.Module:
    """Return two convolutions of 5x5 with 6 and 16 channels, and linear layers of 120 and 84.

    Parameters
    ----------
    num_classes : int
        Number of outputs.
    input_shape : tuple[int, int, int]
        Channels, height and width of an image, which has to be square.
    """
    channels, size, _ = input_shape
    left = ((size - 4) // 2 - 4) // 2  # behind both convolutions and their pooling
    return nn.Sequential(
        nn.Sequential(nn.Conv2d(channels, 6, 5), nn.ReLU(), nn.MaxPool2d(2)),
        nn.Sequential(nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
        nn.Sequential(nn.Linear(16 * left * left, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU()),
        nn.Linear(84, num_classes),
    )
