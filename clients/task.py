"""What a device trains: handed in from outside, so that the handlers know no data set and no model by name."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from flwr.app import Context, Message
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from .gradients import Gradients, compute_gradients
from .half import PLAIN, ClientHalf, Outgoing
from .messages.train import ACCURACY, LOSS
from .randomness import client_generator
from .shared.arithmetic import AS_USUAL, Arithmetic
from .shared.nested import map_tensors, rows_on, tensors_of

MakeOptimizer = Callable[[list[nn.Parameter], float], torch.optim.Optimizer]


@dataclass(frozen=True)
class Examples:
    """Inputs and labels of a data set that fits in memory.

    Parameters
    ----------
    inputs : Tensor, or a tuple, list or dict of such
        Of shape (N, ...) each, in any form that `ClientTask.prepare` understands, e.g. uint8 pixels, or the ids of a
        text's tokens with a mask.
    labels : Tensor
        Shape (N, ...): int64 class indices, or what else the loss takes.

    Raises
    ------
    ValueError
        If there are not as many inputs as labels.
    """

    inputs: Any
    labels: Tensor

    def __post_init__(self) -> None:
        if wrong := [len(tensor) for tensor in tensors_of(self.inputs) if len(tensor) != len(self.labels)]:
            raise ValueError(f"inputs have {wrong[0]} examples, labels {len(self.labels)}: there must be as many")

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def num_bytes(self) -> int:
        """How much memory they take."""
        return sum(tensor.nbytes for tensor in (*tensors_of(self.inputs), self.labels))

    def to(self, device: torch.device) -> "Examples":
        """Return them on a device, in the same memory layout."""
        return replace(
            self, inputs=map_tensors(lambda tensor: tensor.to(device), self.inputs), labels=self.labels.to(device)
        )


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
    optimizer : "sgd", "adam" or a callable (default: "sgd")
        Starts afresh in every round. A callable makes it from the parameters and the learning rate.
    learning_rate, momentum, weight_decay : float
        Of the optimizer; momentum is SGD's.
    drop_last : bool (default: False)
        A pass over the data leaves out its last mini-batch if that is smaller than the others.
    schedule : Callable[[float, int], float], optional (default: None)
        The learning rate in a round, by `learning_rate` and the round. None: the same in all.
    arithmetic : Arithmetic (default: float32, as PyTorch lays images out)
        How models compute.

    Raises
    ------
    ValueError
        If the optimizer's name is unknown, or `batch_size` is below 1.
    """

    local_epochs: int = 1
    batches_per_epoch: int = 0
    batch_size: int = 32
    optimizer: Literal["sgd", "adam"] | MakeOptimizer = "sgd"
    learning_rate: float = 0.01
    momentum: float = 0.0
    weight_decay: float = 0.0
    drop_last: bool = False
    schedule: Callable[[float, int], float] | None = None
    arithmetic: Arithmetic = AS_USUAL

    def __post_init__(self) -> None:
        if not (callable(self.optimizer) or self.optimizer in ("sgd", "adam")):
            raise ValueError(f"optimizer is {self.optimizer!r}: allowed are 'sgd', 'adam' and a callable")
        if self.batch_size < 1:
            raise ValueError(f"batch_size is {self.batch_size}: it must be 1 at least")

    def num_steps(self, num_examples: int) -> int:
        """Return the number of mini-batches in a round of a client with so many examples."""
        of_a_pass = batches_of_a_pass(num_examples, self.batch_size, drop_last=self.drop_last)
        return self.local_epochs * (self.batches_per_epoch or of_a_pass)

    def at(self, server_round: int) -> "LocalTraining":
        """Return how a client trains in a round."""
        if self.schedule is None:
            return self
        return replace(self, learning_rate=self.schedule(self.learning_rate, server_round), schedule=None)


def batches_of_a_pass(num_examples: int, batch_size: int, *, drop_last: bool) -> int:
    """Return the number of mini-batches of a pass over a client's data.

    With `drop_last` the last one is left out if it is smaller than the others; one that is the only one stays.
    """
    full, rest = divmod(num_examples, batch_size)
    return full if full and drop_last else full + (rest > 0)


@dataclass(frozen=True)
class Objective:
    """What a model is trained for, and what it is judged by.

    Parameters
    ----------
    loss : callable (default: cross-entropy)
        ``loss(outputs, labels)``: the mean over a mini-batch, by whatever rule. An evaluation calls it once, with all
        outputs and labels of a test set.
    metrics : callable, optional (default: None)
        Gives figures by name from all outputs and labels of a test set. None: the accuracy.
    test_loss : callable, optional (default: None)
        What evaluations call instead, where what fails there is to be told otherwise than in training.
    """

    loss: Callable[[Any, Tensor], Tensor] = cross_entropy
    metrics: Callable[[Any, Tensor], Mapping[str, float]] | None = None
    test_loss: Callable[[Any, Tensor], Tensor] | None = None

    @property
    def figures(self) -> tuple[str, ...]:
        """Names of those figures that every evaluation has."""
        return (ACCURACY, LOSS) if self.metrics is None else (LOSS,)


@dataclass(frozen=True)
class ClientTask:
    """A device's model, data and settings.

    Parameters
    ----------
    model : nn.Module
        Workspace: every message brings its own weights. It may be shared by clients that run one after another, and not
        by those that run at the same time, in threads.
    train, test : Examples
        The device's own data.
    prepare : Callable
        Turns a batch of inputs, already on `device`, into what the model takes.
    training : LocalTraining
        How it trains.
    seed : int
        With `partition_id` and the round, the source of all of the client's randomness.
    partition_id : int
        The client's place among the clients.
    class_counts : tuple[int, ...]
        Its training examples per class; empty where labels are no classes.
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
    objective : Objective (default: cross-entropy and accuracy)
        What it trains for and is judged by.
    prepare_draws : bool (default: True)
        Whether `prepare` may draw from PyTorch's generator, as random crops do: then it is seeded for every mini-batch.
    model_draws : bool (default: True)
        Whether a step of training may draw from PyTorch's generator, as dropout does: then it is seeded, and clients
        that train in threads take turns.
    augment : Callable, optional (default: None)
        Changes a mini-batch of training inputs before `prepare`, with draws from the generator (of the CPU) that it is
        given: one for every mini-batch, so that a model which is cut is trained on the same inputs. None: no change.
    validation : Examples, optional (default: None)
        Examples held back from training, on which every evaluation tells its figures too; there may be none of them.
        None: the run holds none back.
    gradients : Gradients (default: `espalier.clients.gradients.compute_gradients`)
        Computes loss and gradients of a mini-batch where the whole model is trained.
    half : ClientHalf (default: FedAvg's client)
        What the algorithm's clients do.
    own : Mapping[str, Tensor] (default: none)
        The weights that never leave the client, as they are before it has trained, see `ClientHalf.stays`.
    outgoing : Sequence[Outgoing] (default: none)
        What replies pass on their way out, one after the other, when handlers and mods of the algorithm are done.
    auxiliary : nn.Sequential, optional (default: None)
        The auxiliary head behind the client's blocks, as it is before any training, for algorithms that train by its
        loss: see `espalier.clients.split.local_loss`. It is copied.
    corners : Mapping[str, tuple[int, ...]] (default: none)
        By the names of weights, the shapes of those of which the client has but a corner, see
        `espalier.clients.shared.corners`.

    Raises
    ------
    ValueError
        If `half` has weights that stay, and `own` has none.
    """

    model: nn.Module
    train: Examples
    test: Examples
    prepare: Callable[[Any], Any]
    training: LocalTraining
    seed: int
    partition_id: int
    class_counts: tuple[int, ...]
    device: torch.device
    edge_name: str = ""
    available: Callable[[int], int] | None = None
    top_m: tuple[int, ...] = ()
    sgd: Callable[[nn.Module, Examples, Iterable[Tensor], float], float] | None = None
    objective: Objective = Objective()
    prepare_draws: bool = True
    model_draws: bool = True
    augment: Callable[[Any, torch.Generator], Any] | None = None
    validation: Examples | None = None
    gradients: Gradients = compute_gradients
    half: ClientHalf = PLAIN
    own: Mapping[str, Tensor] = field(default_factory=dict)
    outgoing: Sequence[Outgoing] = ()
    auxiliary: nn.Sequential | None = None
    corners: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.half.stays_any and not self.own and list(self.half.stays(self.model)):
            raise ValueError("own is empty: without their first values here, the weights that half.stays names travel")

    def num_train(self, server_round: int) -> int:
        """Return the number of training examples in a round."""
        return len(self.train) if self.available is None else self.available(server_round)

    def as_travels(self, reply: Message, message: Message, context: Context) -> Message:
        """Return the reply to a message when it has passed `outgoing`."""
        for last in self.outgoing:
            reply = last(reply, message, context, self)
        return reply

    @property
    def num_bytes(self) -> int:
        """How much memory its examples take."""
        return sum(examples.num_bytes for examples in (self.train, self.test, self.validation) if examples is not None)

    def on_device(self) -> "ClientTask":
        """Return the task with its examples on `device`, where mini-batches are then taken out of them."""
        validation = None if self.validation is None else self.validation.to(self.device)
        return replace(self, train=self.train.to(self.device), test=self.test.to(self.device), validation=validation)

    def training_inputs(self, batch: Tensor, server_round: int, step: int) -> Any:
        """Return a mini-batch as the model takes it in training.

        Parameters
        ----------
        batch : Tensor
            Indices of its examples.
        server_round : int
            The round as its server counts it.
        step : int
            The mini-batches that the client has trained on before in this round.
        """
        inputs = rows_on(self.train.inputs, batch, self.device)
        if self.augment is not None:
            draws = client_generator(self.seed, self.partition_id, server_round, f"augmentation/{step}")
            inputs = self.augment(inputs, draws)
        return self.prepare(inputs)
