"""The model and the data: a small network on scikit-learn's handwritten digits."""

from collections import OrderedDict
from functools import cache

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

from espalier.clients.task import ClientTask, Examples, LocalTraining

INPUT_SHAPE = (1, 8, 8)
NUM_CLASSES = 10


def new_model(seed: int) -> nn.Sequential:
    """Return the model: named blocks, the last one a linear head. It can be cut behind any block but the head."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        blocks = OrderedDict(
            edges=nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU()),
            shapes=nn.Sequential(nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
            features=nn.Sequential(nn.Linear(256, 32), nn.ReLU()),
            head=nn.Linear(32, NUM_CLASSES),
        )
        return nn.Sequential(blocks)


@cache
def node_task(seed: int, partition_id: int, num_partitions: int) -> ClientTask:
    """Return what a node trains: the model, its share of the digits, and how."""
    images, labels = load_digits(return_X_y=True)
    mine = np.random.default_rng(seed).permutation(len(labels))[partition_id::num_partitions]
    inputs = torch.tensor(images[mine] / 16, dtype=torch.float32).reshape(-1, *INPUT_SHAPE)
    targets = torch.tensor(labels[mine])
    split = len(mine) * 4 // 5
    return ClientTask(
        model=new_model(seed),
        train=Examples(inputs[:split], targets[:split]),
        test=Examples(inputs[split:], targets[split:]),
        prepare=lambda batch: batch,  # here one would normalise, or turn uint8 pixels into floats
        training=LocalTraining(local_epochs=1, batch_size=32, learning_rate=0.1, momentum=0.9),
        seed=seed,
        partition_id=partition_id,
        class_counts=tuple(torch.bincount(targets[:split], minlength=NUM_CLASSES).tolist()),
        device=torch.device("cpu"),
    )
