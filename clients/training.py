"""Local training of the whole model: FedAvg's client."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

import torch
from flwr.app import ConfigRecordValues, Message
from torch import Tensor, nn

from .messages.arrays import to_record, to_weights
from .messages.train import LOCAL_ROUNDS, AccumulatedGradient, Train, Trained
from .nested import take
from .optimizers import SGD, Adam
from .randomness import client_generator, client_seed, seeded_torch
from .task import ClientTask, LocalTraining


def train(message: Message, task: ClientTask) -> Message:
    """Answer an instruction to train: local SGD from the weights in the message.

    The config record may hold ``server-round``, which selects the mini-batches, ``proximal-mu``, the weight of
    FedProx's proximal term, and ``local-rounds``, see `planned`.
    """
    instruction = Train.from_content(message.content)
    loss, num_examples, _ = _train(instruction, task)
    return Message(Trained(to_record(task.model.state_dict()), loss, num_examples).to_content(), reply_to=message)


def train_accumulated(message: Message, task: ClientTask) -> Message:
    """Answer ``train.accumulated``: train, and send the sum of all steps' gradients (RawHFL, step 4).

    With plain SGD this sum is the difference of the weights over the learning rate, and so it is computed. Integers,
    such as BatchNorm's counters, are sent as the plain difference.
    """
    instruction = Train.from_content(message.content)
    loss, num_examples, training = _train(instruction, task)
    before, gradient = to_weights(instruction.arrays), {}
    for name, after in task.model.state_dict().items():
        rate = training.learning_rate if after.is_floating_point() else 1
        gradient[name] = ((before[name] - after.cpu()) / rate).to(after.dtype)
    return Message(AccumulatedGradient(to_record(gradient), loss, num_examples).to_content(), reply_to=message)


def _train(instruction: Train, task: ClientTask) -> tuple[float, int, LocalTraining]:
    """Train `task.model` as an instruction says; return the loss, the number of examples and how it was trained."""
    server_round = instruction.server_round
    task.model.load_state_dict(to_weights(instruction.arrays))
    training = planned(task.training, instruction.config).at(server_round)
    loss = local_sgd(task, server_round, training, instruction.proximal_mu)
    return loss, task.num_train(server_round), training


def planned(training: LocalTraining, config: Mapping[str, ConfigRecordValues]) -> LocalTraining:
    """Return how to train by the plan in an instruction: with ``local-rounds`` local epochs where it is given."""
    if LOCAL_ROUNDS not in config:
        return training
    return replace(training, local_epochs=int(config[LOCAL_ROUNDS]))  # type: ignore[arg-type]


def local_sgd(
    task: ClientTask, server_round: int, training: LocalTraining | None = None, proximal_mu: float = 0.0
) -> float:
    """Train `task.model` in place on the client's mini-batches of this round.

    Parameters
    ----------
    task : ClientTask
        Model, data and settings.
    server_round : int
        Selects the mini-batches, and what dropout drops.
    training : LocalTraining, optional (default: None)
        How to train; None: as the task says.
    proximal_mu : float (default: 0.0)
        Adds ``mu/2 * ||w - w_start||^2`` to the loss (FedProx, arXiv:1812.06127, eq. 2).

    Returns
    -------
    float
        Mean loss over the examples seen, without the proximal term.

    Raises
    ------
    ValueError
        If there is nothing to train on in this round.
    """
    model, device = task.model, task.device
    training, num_examples = (training or task.training).at(server_round), task.num_train(server_round)
    if num_examples == 0:
        raise ValueError("it has no training examples yet")
    batch_order = client_generator(task.seed, task.partition_id, server_round, "batches")
    batches = mini_batches(num_examples, training, batch_order)
    is_plain_sgd = training.optimizer == "sgd" and not (training.momentum or training.weight_decay or proximal_mu)
    if task.sgd is not None and is_plain_sgd:
        return task.sgd(model, task.train, batches, training.learning_rate)
    parameters = [p for p in model.parameters() if p.requires_grad]
    start = [p.detach().clone() for p in parameters] if proximal_mu else []
    optimizer = make_optimizer(parameters, training)
    dropout = client_seed(task.seed, task.partition_id, server_round, "dropout")
    total_loss, seen = torch.zeros((), device=device), 0
    model.train()
    with seeded_torch(dropout, device):
        for batch in batches:
            inputs = task.prepare(take(task.train.inputs, batch, device))
            labels = task.train.labels[batch].to(device)
            loss = task.objective.loss(model(inputs), labels)
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
    if callable(training.optimizer):
        return training.optimizer(parameters, training.learning_rate)
    if training.optimizer == "adam":
        return Adam(parameters, lr=training.learning_rate, weight_decay=training.weight_decay)
    return SGD(parameters, lr=training.learning_rate, momentum=training.momentum, weight_decay=training.weight_decay)
