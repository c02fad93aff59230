"""A task: a model, and the data that it learns from."""

from collections import OrderedDict

import torch
from sklearn.datasets import load_breast_cancer
from torch import nn

from espalier.app.tasks import Examples, OwnTask, Pool

TO_TRAIN_ON = 400  # of 569 patients


class Tumours(OwnTask):
    """Is a tumour malignant? 30 measurements of each patient, shared out to the clients by `partition` and `alpha`."""

    def __init__(self, hidden: int = 16) -> None:
        self.hidden = hidden

    def model(self) -> nn.Module:
        """Return named blocks with a linear head, so that split algorithms can cut it too."""
        hidden = nn.Sequential(nn.Linear(30, self.hidden), nn.ReLU())
        return nn.Sequential(OrderedDict(hidden=hidden, head=nn.Linear(self.hidden, 2)))

    def pool(self) -> Pool:
        """Return the examples to train on, and those to test on."""
        inputs, labels = map(torch.tensor, load_breast_cancer(return_X_y=True))
        inputs = ((inputs - inputs.mean(0)) / inputs.std(0)).float()
        train, test = slice(TO_TRAIN_ON), slice(TO_TRAIN_ON, None)
        return Pool(Examples(inputs[train], labels[train]), Examples(inputs[test], labels[test]))
