"""Local training of several clients at once, each from its own weights on its own mini-batches.

What comes out is what `espalier.clients.training` gives for each of them, to rounding.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from .nested import take
from .randomness import client_generator
from .stacked_model import StackedModel, stacked_states
from .task import ClientTask, LocalTraining
from .training import mini_batches

# Tensors of all clients of a stack, (n, ...) each, by what they are ("state", "start" and what an optimizer keeps) and
# the name of the weights.
Tensors = dict[tuple[str, str], Tensor]

ADAM_BETAS, ADAM_EPSILON = (0.9, 0.999), 1e-8  # as PyTorch has them


def stacked_sgd(
    model: StackedModel,
    tasks: Sequence[ClientTask],
    starts: Sequence[Mapping[str, Tensor]],
    server_round: int,
    trainings: Sequence[LocalTraining],
    proximal_mu: float = 0.0,
) -> tuple[list[dict[str, Tensor]], list[float]]:
    """Train several clients; return the states of their models, and their mean losses over the examples seen.

    Parameters
    ----------
    model : StackedModel
        Computes the models.
    tasks : Sequence[ClientTask]
        The clients.
    starts : Sequence[Mapping[str, Tensor]]
        The state that each one's model starts from.
    server_round : int
        Selects the mini-batches, and what dropout drops.
    trainings : Sequence[LocalTraining]
        How each trains; they differ in `local_epochs` alone.
    proximal_mu : float (default: 0.0)
        The weight of FedProx's term, see `espalier.clients.training.local_sgd`.

    Raises
    ------
    ValueError
        If a client has nothing to train on in this round.

    Notes
    -----
    In step k those clients advance that have a k-th mini-batch, and together those whose k-th mini-batches are equally
    large. So no mini-batch is padded, and BatchNorm's statistics are those of each one's own.
    """
    batches = [_batches(task, server_round, training) for task, training in zip(tasks, trainings, strict=True)]
    dropout = [client_generator(task.seed, task.partition_id, server_round, "dropout") for task in tasks]
    trained = [name for name, weights in tasks[0].model.named_parameters() if weights.requires_grad]
    tensors = {("state", name): tensor for name, tensor in stacked_states(starts).items()}
    if proximal_mu:
        tensors |= {("start", name): tensors["state", name].clone() for name in trained}
    for kind in kept_by_optimizer(trainings[0]):
        tensors |= {(kind, name): torch.zeros_like(tensors["state", name]) for name in trained}
    totals, seen = torch.zeros(len(tasks), device=tasks[0].device), torch.zeros(len(tasks))
    for number in range(max(map(len, batches))):
        for rows, size in _of_equal_size(batches, number):
            # Nearly always it is all of them, and nothing is copied.
            these = tensors if len(rows) == len(tasks) else {key: tensor[rows] for key, tensor in tensors.items()}
            state = {name: tensor for (kind, name), tensor in these.items() if kind == "state"}
            state |= {name: state[name].detach().requires_grad_() for name in trained}
            examples = [(tasks[row], batches[row][number]) for row in rows]
            losses = mini_batch_losses(model, state, examples, [dropout[row] for row in rows])
            # Of the sum, since no client's loss depends on the weights of another.
            gradients = list(torch.autograd.grad(losses.sum(), [state[name] for name in trained]))
            with torch.no_grad():
                if proximal_mu:
                    gradients = [
                        gradient.add_(these["state", name] - these["start", name], alpha=proximal_mu)
                        for name, gradient in zip(trained, gradients, strict=True)
                    ]
                optimizer_step(trainings[0], these, trained, gradients, number + 1)
                totals[rows] += losses.detach() * size
                seen[rows] += size
                if these is not tensors:
                    for key, tensor in these.items():
                        tensors[key][rows] = tensor
    states = [
        {name: tensor[i] for (kind, name), tensor in tensors.items() if kind == "state"} for i in range(len(tasks))
    ]
    return states, (totals.cpu() / seen.clamp(min=1)).tolist()


def mini_batch_losses(
    model: StackedModel,
    state: Mapping[str, Tensor],
    examples: Sequence[tuple[ClientTask, Tensor]],
    dropout: Sequence[torch.Generator],
) -> Tensor:
    """Return the losses (n,) of n clients, each on a mini-batch of its own, given by its indices."""
    inputs = torch.stack([task.prepare(take(task.train.inputs, batch, task.device)) for task, batch in examples])
    outputs = model(state, inputs, dropout)
    labels = [task.train.labels[batch].to(task.device) for task, batch in examples]
    return torch.stack([task.objective.loss(*own) for (task, _), *own in zip(examples, outputs, labels, strict=True)])


def kept_by_optimizer(training: LocalTraining) -> tuple[str, ...]:
    """Return what an optimizer keeps of every weight from step to step."""
    if training.optimizer == "adam":
        return ("mean", "square")
    return ("momentum",) if training.momentum else ()


def optimizer_step(
    training: LocalTraining, tensors: Tensors, names: Sequence[str], gradients: list[Tensor], number: int
) -> None:
    """Make step `number`, from 1, of SGD or Adam as PyTorch does; the weights and what it keeps change in place."""
    weights = [tensors["state", name] for name in names]
    if training.weight_decay:
        gradients = list(torch._foreach_add(gradients, weights, alpha=training.weight_decay))
    rate = training.learning_rate
    if training.optimizer == "adam":
        (beta, beta_of_square), epsilon = ADAM_BETAS, ADAM_EPSILON
        means, squares = ([tensors[kind, name] for name in names] for kind in ("mean", "square"))
        torch._foreach_lerp_(means, gradients, 1 - beta)
        torch._foreach_mul_(squares, beta_of_square)
        torch._foreach_addcmul_(squares, gradients, gradients, 1 - beta_of_square)
        scales = torch._foreach_div(torch._foreach_sqrt(squares), (1 - beta_of_square**number) ** 0.5)
        torch._foreach_addcdiv_(weights, means, torch._foreach_add(scales, epsilon), -rate / (1 - beta**number))
        return
    if training.momentum:
        momenta = [tensors["momentum", name] for name in names]
        torch._foreach_mul_(momenta, training.momentum)
        torch._foreach_add_(momenta, gradients)
        gradients = momenta
    torch._foreach_add_(weights, gradients, alpha=-rate)


def _batches(task: ClientTask, server_round: int, training: LocalTraining) -> list[Tensor]:
    """Return the indices of a client's mini-batches of a round."""
    num_examples = task.num_train(server_round)
    if num_examples == 0:
        raise ValueError("it has no training examples yet")
    return list(
        mini_batches(num_examples, training, client_generator(task.seed, task.partition_id, server_round, "batches"))
    )


def _of_equal_size(batches: Sequence[Sequence[Tensor]], number: int) -> list[tuple[list[int], int]]:
    """Return the rows of clients that have a mini-batch of this number, those of one size together, with the size."""
    rows_of: dict[int, list[int]] = {}
    for row, own in enumerate(batches):
        if number < len(own):
            rows_of.setdefault(len(own[number]), []).append(row)
    return [(rows, size) for size, rows in rows_of.items()]
