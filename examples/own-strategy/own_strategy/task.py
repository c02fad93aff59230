"""The model and the data: a small network on scikit-learn's handwritten digits."""

from functools import cache

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn


def new_model(seed: int) -> nn.Module:
    """Return the model with initial weights that depend on the seed alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


@cache
def node_data(seed: int, partition_id: int, num_partitions: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return a node's share of the digits: training images and labels, test images and labels."""
    images, labels = load_digits(return_X_y=True)
    mine = np.random.default_rng(seed).permutation(len(labels))[partition_id::num_partitions]
    inputs, targets = torch.tensor(images[mine] / 16, dtype=torch.float32), torch.tensor(labels[mine])
    split = len(mine) * 4 // 5
    return inputs[:split], targets[:split], inputs[split:], targets[split:]
