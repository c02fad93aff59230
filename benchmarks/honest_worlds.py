"""Tasks whose clients are honest and as different as they can be; `benchmarks.guards` trains them."""

from collections import OrderedDict

import torch
from torch import nn

from espalier.app.tasks import Examples, OwnTask

FEATURES = 8
TRAIN, TEST = 40, 20


class Plain(OwnTask):
    """Normal features, and a class that two of them make."""

    def model(self) -> nn.Module:
        """Return two layers, the first of which is the client's where the model is cut."""
        first = nn.Sequential(nn.Linear(FEATURES, 16), nn.Tanh())
        return nn.Sequential(OrderedDict(first=first, head=nn.Linear(16, 2)))

    def client_data(self, client: int, num_clients: int, seed: int) -> tuple[Examples, Examples]:
        """Return a client's examples to train on, and to test on."""
        count = self.num_train(client)
        draw = torch.Generator().manual_seed(1000 * seed + client)
        inputs = torch.randn(count + TEST, FEATURES, generator=draw)
        labels = (inputs[:, 0] * inputs[:, 1] > 0).long()
        inputs = self.spread(client) * inputs
        return Examples(inputs[:count], labels[:count]), Examples(inputs[count:], labels[count:])

    def num_train(self, client: int) -> int:
        """Return how many examples a client has to train on."""
        return TRAIN

    def spread(self, client: int) -> float:
        """Return the standard deviation of a client's features."""
        return 1.0


class Sizes(Plain):
    """One client has 200 times the examples of the others."""

    def num_train(self, client: int) -> int:
        """Return 4,000 of the first client, 20 of each other."""
        return 4000 if client == 0 else 20


class Spreads(Plain):
    """One client's features have 4 times the spread of the others'."""

    def spread(self, client: int) -> float:
        """Return 4 of the first client, 1 of each other."""
        return 4.0 if client == 0 else 1.0


class Norm(Plain):
    """A normalisation between the layers, and features so small that its statistics shrink."""

    def model(self) -> nn.Module:
        """Return a model that normalises what the first layer gives."""
        first = nn.Sequential(nn.Linear(FEATURES, 16), nn.BatchNorm1d(16), nn.ReLU())
        return nn.Sequential(OrderedDict(first=first, head=nn.Linear(16, 2)))

    def spread(self, client: int) -> float:
        """Return 0.1 of all."""
        return 0.1


class Units(Plain):
    """The model normalises raw features, which one client measures in a unit 4 times as small."""

    def model(self) -> nn.Module:
        """Return a model that begins with a normalisation."""
        first = nn.Sequential(nn.BatchNorm1d(FEATURES), nn.Linear(FEATURES, 16), nn.ReLU())
        return nn.Sequential(OrderedDict(first=first, head=nn.Linear(16, 2)))

    def spread(self, client: int) -> float:
        """Return 40 of the first client, 10 of each other."""
        return 40.0 if client == 0 else 10.0
