"""Tables that scikit-learn ships: one with classes to tell apart, one with a number to predict."""

from functools import cached_property

import numpy as np
import torch
from sklearn.datasets import load_breast_cancer, load_diabetes
from torch import nn
from torch.nn.functional import mse_loss

from espalier.app.tasks import Examples, OwnTask


class BreastCancer(OwnTask):
    """Is a tumour malignant? 569 patients, 30 measurements of each, shared out evenly."""

    def __init__(self, hidden: int = 16) -> None:
        self.hidden = hidden

    @cached_property
    def table(self) -> tuple[np.ndarray, np.ndarray]:
        """All patients' measurements and labels."""
        return load_breast_cancer(return_X_y=True)

    def model(self) -> nn.Module:
        """Return a small network."""
        return nn.Sequential(nn.BatchNorm1d(30), nn.Linear(30, self.hidden), nn.ReLU(), nn.Linear(self.hidden, 2))

    def client_data(self, client: int, num_clients: int, seed: int) -> tuple[Examples, Examples]:
        """Return a client's share of the patients: four fifths to train on, the rest to test on."""
        inputs, labels = self.table
        mine = np.random.default_rng(seed).permutation(len(labels))[client::num_clients]
        examples = Examples(torch.tensor(inputs[mine], dtype=torch.float32), torch.tensor(labels[mine]))
        return split(examples, len(mine) * 4 // 5)


class Diabetes(BreastCancer):
    """How far does a disease go in a year? 442 patients, 10 measurements of each: a regression."""

    @cached_property
    def table(self) -> tuple[np.ndarray, np.ndarray]:
        """All patients' measurements, and how far it went: 25 to 346, scaled to mean 0 and deviation 1."""
        inputs, progress = load_diabetes(return_X_y=True)
        return inputs, ((progress - progress.mean()) / progress.std()).astype(np.float32)

    def model(self) -> nn.Module:
        """Return a small network with one output."""
        return nn.Sequential(nn.Linear(10, self.hidden), nn.ReLU(), nn.Linear(self.hidden, 1), nn.Flatten(0))

    def prepare(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return measurements of deviation 1, which scikit-learn has scaled down."""
        return inputs * 21.0

    def loss(self, outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return the mean squared error."""
        return mse_loss(outputs, labels)

    def metrics(self, outputs: torch.Tensor, labels: torch.Tensor) -> dict[str, float]:
        """Return the mean absolute error, and the share of the variance that is explained."""
        explained = 1 - mse_loss(outputs, labels) / labels.var(correction=0)
        return {"mae": (outputs - labels).abs().mean().item(), "r2": explained.item()}

    def learning_rate(self, rate: float, server_round: int) -> float:
        """Halve the rate every ten rounds."""
        return rate * 0.5 ** (server_round // 10)


def split(examples: Examples, first: int) -> tuple[Examples, Examples]:
    """Return the first examples, and the rest."""
    return Examples(examples.inputs[:first], examples.labels[:first]), Examples(
        examples.inputs[first:], examples.labels[first:]
    )
