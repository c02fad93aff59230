"""What a device trains: handed in from outside, so that the handlers know no data set and no model by name."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Examples:
    """Inputs and labels of a data set that fits in memory.

    Parameters
    ----------
    inputs : Tensor
        Shape (N, ...), in any form that `ClientTask.prepare` understands, e.g. uint8 pixels.
    labels : Tensor
        Shape (N,), int64 class indices.
    """

    inputs: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class LocalTraining:
    """How a client trains in one round.

    Parameters
    ----------
    local_epochs : int (default: 1)
        Local epochs per round, the papers' kappa_0.
    batches_per_epoch : int (default: 0)
        Mini-batches per local epoch; 0 makes an epoch a pass over the whole local set.
    batch_size : int (default: 32)
        Examples per mini-batch.
    optimizer : "sgd" or "adam" (default: "sgd")
        Starts afresh in every round.
    learning_rate, momentum, weight_decay : float
        Of the optimizer; momentum is SGD's.
    """

    local_epochs: int = 1
    batches_per_epoch: int = 0
    batch_size: int = 32
    optimizer: Literal["sgd", "adam"] = "sgd"
    learning_rate: float = 0.01
    momentum: float = 0.0
    weight_decay: float = 0.0


@dataclass(frozen=True)
class ClientTask:
    """A device's model, data and settings.

    Parameters
    ----------
    model : nn.Module
        Workspace: every message brings its own weights. It may be shared by clients that run one after another.
    train, test : Examples
        The device's own data.
    prepare : Callable[[Tensor], Tensor]
        Turns a batch of inputs, already on `device`, into what the model takes.
    training : LocalTraining
        How it trains.
    seed : int
        With `partition_id` and the round, the source of all of the client's randomness.
    partition_id : int
        The client's place among the clients.
    class_counts : tuple[int, ...]
        Its training examples per class.
    device : torch.device
        Where the model lives.
    edge_name : str (default: "")
        The edge it asks to belong to; empty leaves that to the server.
    available : Callable[[int], int], optional (default: None)
        Number of training examples, from the first on, that are there in a round, for data that grow while they are
        trained on. None: all of them.
    top_m : tuple[int, ...] (default: ())
        An evaluation reports the top-M accuracy for these M too.
    sgd : Callable, optional (default: None)
        Does the work of plain SGD faster, for models that it suits: called with the model, the training examples, the
        indices of every mini-batch and the learning rate, it trains the model in place and returns the mean loss over
        the examples seen. None: PyTorch's automatic differentiation.
    """

    model: nn.Module
    train: Examples
    test: Examples
    prepare: Callable[[Tensor], Tensor]
    training: LocalTraining
    seed: int
    partition_id: int
    class_counts: tuple[int, ...]
    device: torch.device
    edge_name: str = ""
    available: Callable[[int], int] | None = None
    top_m: tuple[int, ...] = ()
    sgd: Callable[[nn.Module, Examples, Iterable[Tensor], float], float] | None = None

    def num_train(self, server_round: int) -> int:
        """Return the number of training examples in a round."""
        return len(self.train) if self.available is None else self.available(server_round)
