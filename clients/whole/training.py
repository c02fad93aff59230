"""Local training of the whole model: FedAvg's client."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import lru_cache

import torch
from flwr.app import Context, Message
from torch import Tensor, nn

from ..messages.train import AccumulatedGradient, Trained
from ..optimizers import SGD, Adam
from ..randomness import client_generator, client_seed
from ..shared.arrays import to_record, to_weights
from ..shared.correction import CorrectedSteps
from ..shared.generators import seeded_torch
from ..shared.local_round import WHOLE_PASS, Pass
from ..shared.nested import tensors_of
from ..task import ClientTask, Examples, LocalTraining, batches_of_a_pass
from .ruled_round import NO_EXAMPLES, LocalResult, RuledRound

Trains = Callable[[ClientTask, int, LocalTraining, Pass], float]


def train(message: Message, context: Context, task: ClientTask) -> Message:
    """Answer an instruction to train, by the rule of the algorithm: local SGD from the weights in the message.

    The config record may hold ``server-round``, which selects the mini-batches, ``proximal-mu``, the weight of
    FedProx's proximal term, and ``local-rounds``, see `planned`.
    """
    return model_reply(message, train_by(local_sgd, message, context, task))


def train_accumulated(message: Message, context: Context, task: ClientTask) -> Message:
    """Answer ``train.accumulated``: train, and send the sum of all steps' gradients (RawHFL, step 4)."""
    return accumulated_reply(message, train_by(local_sgd, message, context, task))


def model_reply(message: Message, result: LocalResult) -> Message:
    """Return the reply that holds the model."""
    told = to_record(result.told) if result.told else None
    content = Trained(to_record(result.weights), result.loss, result.num_examples, told).to_content()
    return Message(content, reply_to=message)


def accumulated_reply(message: Message, result: LocalResult) -> Message:
    """Return the reply that holds the sum of all steps' gradients.

    With plain SGD this sum is the difference of the weights over the learning rate, and so it is computed. Integers,
    such as BatchNorm's counters, are sent as the plain difference, and truth values as whether they changed.
    """
    before, gradient = to_weights(result.instruction.arrays), {}
    for name, after in result.weights.items():
        if after.dtype == torch.bool:
            gradient[name] = before[name] ^ after.cpu()
            continue
        rate = result.training.learning_rate if after.is_floating_point() else 1
        gradient[name] = ((before[name] - after.cpu()) / rate).to(after.dtype)
    content = AccumulatedGradient(to_record(gradient), result.loss, result.num_examples).to_content()
    return Message(content, reply_to=message)


def train_by(trains: Trains, message: Message, context: Context, task: ClientTask) -> LocalResult:
    """Train `task.model` as an instruction and the algorithm's rule say, each pass by what `local_sgd` is one of."""
    ruled = RuledRound(message, context, task)
    while not ruled.is_over:
        task.model.load_state_dict(ruled.start)
        loss = trains(task, ruled.instruction.server_round, ruled.training, ruled.due)
        state = task.model.state_dict()
        # A rule may train the same model again.
        ruled.learned(state if task.half.is_plain else {name: tensor.clone() for name, tensor in state.items()}, loss)
    return ruled.result()


def local_sgd(
    task: ClientTask,
    server_round: int,
    training: LocalTraining | None = None,
    due: Pass = WHOLE_PASS,
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
    due : Pass (default: all of the model, on all mini-batches)
        What trains, on which of them, and what corrects every step. It starts from what `task.model` is.

    Returns
    -------
    float
        Mean loss over the examples seen, without the term of a pull.

    Raises
    ------
    ValueError
        If there is nothing to train on in this round.
    """
    model, device = task.model, task.device
    training = (training or task.training).at(server_round)
    batches = round_batches(task, server_round, training, due)
    is_plain_sgd = training.optimizer == "sgd" and not (training.momentum or training.weight_decay)
    if task.sgd is not None and is_plain_sgd and due.correction.is_none and due.trains is None:
        return task.sgd(model, task.train, batches, training.learning_rate)
    draws = nullcontext() if not (task.prepare_draws or task.model_draws) else _drawing(task, server_round, due)
    total_loss, seen = torch.zeros((), device=device), 0
    numbers = range(len(batches)) if due.batches is None else due.batches
    model.train()
    with only_training(model, due) as parameters, draws:
        optimizer = make_optimizer([p for _, p in parameters], training)
        if due.optimizer is not None and due.optimizer.held is not None:
            optimizer.load_state_dict(due.optimizer.held)
        steps = CorrectedSteps(optimizer, parameters, due.correction)
        for number, batch in zip(numbers, batches_there(task.train, batches), strict=True):
            inputs = task.training_inputs(batch, server_round, number)
            labels, size = task.train.labels[batch].to(device), len(batch)
            steps.zero_grad()
            loss = task.gradients(model, task.objective.loss, inputs, labels)
            steps.step()
            total_loss = total_loss + loss * size  # of the more precise data type
            seen += size
        if due.optimizer is not None:
            due.optimizer.held = optimizer.state_dict()
    return float(total_loss) / max(seen, 1)


def _drawing(task: ClientTask, server_round: int, due: Pass) -> AbstractContextManager[None]:
    """Return what lets draws from torch's generators, such as those of dropout, follow the client and the round."""
    return seeded_torch(client_seed(task.seed, task.partition_id, server_round, due.dropout_purpose()), task.device)


@contextmanager
def only_training(model: nn.Module, due: Pass) -> Iterator[list[tuple[str, nn.Parameter]]]:
    """Freeze what does not train in a pass, and give what does."""
    named = {name: p for name, p in model.named_parameters() if p.requires_grad}
    trained = due.among(list(named))
    frozen = [named[name] for name in named.keys() - set(trained)]
    for parameter in frozen:
        parameter.requires_grad_(False)
        parameter.grad = None
    try:
        yield [(name, named[name]) for name in trained]
    finally:
        for parameter in frozen:
            parameter.requires_grad_(True)


def round_batches(task: ClientTask, server_round: int, training: LocalTraining, due: Pass = WHOLE_PASS) -> list[Tensor]:
    """Return the indices of a client's mini-batches of a pass; ValueError if it has nothing to train on yet."""
    num_examples = task.num_train(server_round)
    if num_examples == 0:
        raise ValueError(NO_EXAMPLES)
    whose = task.seed, task.partition_id, server_round
    if due.batches is None:
        return list(mini_batches(num_examples, training, client_generator(*whose, "batches")))
    every = _of_round(*whose, num_examples, training)
    return [every[number] for number in due.batches]


@lru_cache(maxsize=256)  # Clients that train side by side or stacked: with more, each pass draws them all again.
def _of_round(
    seed: int, partition_id: int, server_round: int, num_examples: int, training: LocalTraining
) -> tuple[Tensor, ...]:
    """Return all mini-batches of a client's round, of which passes see some, one pass after the other."""
    return tuple(mini_batches(num_examples, training, client_generator(seed, partition_id, server_round, "batches")))


def mini_batches(num_examples: int, training: LocalTraining, generator: torch.Generator) -> Iterator[Tensor]:
    """Yield the indices of one round's mini-batches.

    Every epoch starts with a fresh permutation. An epoch of more mini-batches than the data hold goes on with
    another permutation; one of fewer leaves the rest out. With `drop_last` every permutation ends with its last full
    mini-batch.
    """
    of_a_pass = batches_of_a_pass(num_examples, training.batch_size, drop_last=training.drop_last)
    for _ in range(training.local_epochs):
        left = training.batches_per_epoch or of_a_pass
        while left > 0:
            batches = torch.randperm(num_examples, generator=generator).split(training.batch_size)
            batches = batches[: min(left, of_a_pass or left)]
            left -= len(batches)
            yield from batches


def batches_there(examples: Examples, batches: Iterable[Tensor]) -> Iterable[Tensor]:
    """Return mini-batches with their indices where the examples are: copied at once, where that is not the CPU.

    Indices that are on the CPU would be copied to a GPU for every mini-batch, each time with a wait.
    """
    device = examples.labels.device
    if device.type == "cpu" or any(tensor.device != device for tensor in tensors_of(examples.inputs)):
        return batches
    if not (given := list(batches)):
        return given
    return torch.cat(given).to(device).split([len(batch) for batch in given])


def make_optimizer(parameters: list[nn.Parameter], training: LocalTraining) -> torch.optim.Optimizer:
    """Return a fresh optimizer with the settings of `training`."""
    if callable(training.optimizer):
        return training.optimizer(parameters, training.learning_rate)
    if training.optimizer == "adam":
        return Adam(parameters, lr=training.learning_rate, weight_decay=training.weight_decay)
    return SGD(parameters, lr=training.learning_rate, momentum=training.momentum, weight_decay=training.weight_decay)
