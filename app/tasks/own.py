"""The base of a user's own task."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from espalier.clients.task import Examples


@dataclass(frozen=True)
class Pool:
    """Examples that the run shares out to the clients, as ``partition`` says.

    Attributes
    ----------
    train, test : Examples
        To train on, and to test on; the second is the server's test pool, too.
    """

    train: Examples
    test: Examples


class OwnTask(ABC):
    """A model, its data and how it is trained: what ``task = "package.module:NAME(argument=value)"`` names.

    A subclass has `model`, `client_data` or `pool`, and of the others what it does differently. One is made in every
    process of a run, the server's and the clients', and keeps what it has loaded as it likes. Inputs are a tensor, or a
    tuple, list or dict of tensors, with a row per example in each.

    Attributes
    ----------
    side_by_side : bool, optional (default: None)
        Whether clients of one process may run at the same time, in threads, each with a model of its own. True says
        that methods and model are safe there, and draw nothing from PyTorch's generator but in layers such as
        `nn.Dropout`: training with these takes turns. None: they do where the model is made of PyTorch's own layers and
        the class has none of the methods from `prepare` to `learning_rate`. False: they run one after the other. The
        results are the same.
    """

    side_by_side: bool | None = None

    @abstractmethod
    def model(self) -> nn.Module:
        """Return a new model. PyTorch's generator has been seeded by the run's `seed`: the initial weights follow it.

        Split algorithms need an ``nn.Sequential`` of named blocks that pass on one tensor, the last of them an
        ``nn.Linear`` called ``head``, and labels that are classes, unless a tail-layer keeps them
        on the device.
        """

    def pool(self) -> Pool:
        """Return all examples, where the run shares them out to the clients by ``partition`` and its other settings.

        Labels are classes, int64 of shape (N,); of others ``partition = "iid"`` and functions of one's own know how to
        share them out. It is read by every process of the run.
        """
        raise NotImplementedError

    def client_data(self, client: int, num_clients: int, seed: int) -> tuple[Examples, Examples]:
        """Return what a client trains on, and what it is tested on, at least one example of each.

        A task that has `pool` is not asked.

        Parameters
        ----------
        client : int
            Its number, from 0.
        num_clients : int
            Clients of the run.
        seed : int
            The run's, the only source of chance: the same three numbers give the same data in every process.

        Returns
        -------
        tuple[Examples, Examples]
            ``Examples(inputs, labels)`` with labels of shape (N, ...), e.g. int64 classes of shape (N,).
        """
        raise NotImplementedError

    def num_examples(self, client: int, num_clients: int, seed: int) -> tuple[int, int] | None:
        """Return how many examples `client_data` gives, to train on and to test on; parameters as for that.

        With it the data of a client are made when it first trains or is evaluated, so that a run of many clients costs
        what those cost who take part. It then tells no counts of classes (`partition.csv`). None, the default: all
        clients' data are made at the start. A task that has `pool` is not asked.
        """
        return None

    def test_data(self) -> Examples | None:
        """Return the server's test pool. None, the default: that of `pool`, or the test examples of all clients.

        It is read where the server runs, so it has to be given where clients' data can be read on their devices alone.
        """
        return None

    def prepare(self, inputs: Any) -> Any:
        """Return what the model takes for a mini-batch's inputs, which are on its device. By default themselves."""
        return inputs

    def augment(self, inputs: Any, generator: torch.Generator) -> Any:
        """Return what a mini-batch's inputs become in training, before `prepare`. By default themselves.

        Evaluations leave it out. Whatever is drawn comes from `generator`, of the CPU: it follows the seed, the client,
        the round and the mini-batch, so a run can be repeated, resumed and split.
        """
        return inputs

    def loss(self, outputs: Any, labels: Tensor) -> Tensor:
        """Return the mean loss of a mini-batch. By default the cross-entropy of logits (N, C)."""
        return cross_entropy(outputs, labels)

    def metrics(self, outputs: Any, labels: Tensor) -> Mapping[str, float]:
        """Return figures by name, from all outputs and labels of a test set. By default none.

        The loss is reported besides, and the accuracy where labels are classes.
        """
        return {}

    def optimizer(self, parameters: list[nn.Parameter], learning_rate: float) -> torch.optim.Optimizer:
        """Return an optimizer; each client makes one in every round. By default that of the run config."""
        raise NotImplementedError

    def learning_rate(self, rate: float, server_round: int) -> float:
        """Return the learning rate in a round. By default `rate`, that of the run config, in all.

        Rounds are counted from 1: edge rounds, on over global rounds, or with one tier global rounds.
        """
        return rate

    def corner(self, client: int, name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of the part of a weight that a client has: of each dimension the first entries.

        By default all of it. The part alone travels between the client and its edge. On the client the rest is 0, and
        it counts as 0 in averages. That suits adapters of low rank: where the rest is 0 nothing of it trains, so a
        client trains adapters of a lower rank (HetLoRA, arXiv:2401.06432).

        Parameters
        ----------
        client : int
            Its number, from 0.
        name, shape : str, tuple[int, ...]
            Of a weight of the model.
        """
        return shape

    def fingerprint(self) -> str:
        """Return what tells other data apart when a run is resumed. By default a hash of the server's test pool."""
        return ""
