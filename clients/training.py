"""Local training of the whole model: FedAvg's client."""

from collections.abc import Iterator

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from .messages import ARRAYS, METRICS, NUM_EXAMPLES, PROXIMAL_MU, SERVER_ROUND, TRAIN_LOSS
from .randomness import client_generator, seeded_torch
from .task import ClientTask, LocalTraining


def train(message: Message, task: ClientTask) -> Message:
    """Answer an instruction to train: local SGD from the weights in the message.

    The config record may hold ``server-round``, which selects the mini-batches, and ``proximal-mu``, the weight of
    FedProx's proximal term.
    """
    config = next(iter(message.content.config_records.values()), ConfigRecord())
    server_round = int(config.get(SERVER_ROUND, 0))  # type: ignore[arg-type]
    load_weights(task.model, message.content)
    loss = local_sgd(task, server_round, proximal_mu=float(config.get(PROXIMAL_MU, 0.0)))  # type: ignore[arg-type]
    metrics = MetricRecord({TRAIN_LOSS: loss, NUM_EXAMPLES: len(task.train)})
    return Message(RecordDict({ARRAYS: ArrayRecord(task.model.state_dict()), METRICS: metrics}), reply_to=message)


def load_weights(model: nn.Module, content: RecordDict) -> None:
    """Load the one ArrayRecord of a message into a model; names and shapes must fit."""
    (arrays,) = content.array_records.values()
    model.load_state_dict(arrays.to_torch_state_dict())


def local_sgd(task: ClientTask, server_round: int, proximal_mu: float = 0.0) -> float:
    """Train `task.model` in place on the client's mini-batches of this round.

    Parameters
    ----------
    task : ClientTask
        Model, data and settings.
    server_round : int
        Selects the mini-batches, and what dropout drops.
    proximal_mu : float (default: 0.0)
        Adds ``mu/2 * ||w - w_start||^2`` to the loss (FedProx, arXiv:1812.06127, eq. 2).

    Returns
    -------
    float
        Mean cross-entropy over the examples seen, without the proximal term.
    """
    model, device = task.model, task.device
    parameters = [p for p in model.parameters() if p.requires_grad]
    start = [p.detach().clone() for p in parameters] if proximal_mu else []
    optimizer = make_optimizer(parameters, task.training)
    batch_order = client_generator(task.seed, task.partition_id, server_round, "batches")
    dropout = client_generator(task.seed, task.partition_id, server_round, "dropout")
    total_loss, seen = torch.zeros((), device=device), 0
    model.train()
    with seeded_torch(dropout, device):
        for batch in mini_batches(len(task.train), task.training, batch_order):
            inputs = task.prepare(task.train.inputs[batch].to(device))
            labels = task.train.labels[batch].to(device)
            loss = cross_entropy(model(inputs), labels)
            optimizer.zero_grad()
            loss.backward()
            for parameter, origin in zip(parameters, start, strict=False):
                parameter.grad.add_(parameter.detach() - origin, alpha=proximal_mu)  # type: ignore[union-attr]
            optimizer.step()
            total_loss += loss.detach() * len(batch)
            seen += len(batch)
    return float(total_loss) / max(seen, 1)


def mini_batches(num_examples: int, training: LocalTraining, generator: torch.Generator) -> Iterator[Tensor]:
    """Yield the indices of one round's mini-batches.

    Every epoch starts with a fresh permutation. An epoch of more mini-batches than the data hold goes on with
    another permutation; one of fewer leaves the rest out.
    """
    for _ in range(training.local_epochs):
        left = training.batches_per_epoch or -(-num_examples // training.batch_size)
        while left > 0:
            batches = torch.randperm(num_examples, generator=generator).split(training.batch_size)[:left]
            left -= len(batches)
            yield from batches


def make_optimizer(parameters: list[nn.Parameter], training: LocalTraining) -> torch.optim.Optimizer:
    """Return a fresh optimizer with the settings of `training`."""
    if training.optimizer == "adam":
        return torch.optim.Adam(parameters, lr=training.learning_rate, weight_decay=training.weight_decay)
    return torch.optim.SGD(
        parameters, lr=training.learning_rate, momentum=training.momentum, weight_decay=training.weight_decay
    )
