"""Fine-tuning of a trained model on a client, after all rounds: of its head, or of all of it."""

from collections.abc import Collection, Mapping

from torch import Tensor

from ..randomness import client_generator
from ..shared.head import fine_tuned
from ..shared.nested import rows_on
from ..task import ClientTask
from .training import mini_batches


def tuned_state(
    task: ClientTask,
    state: Mapping[str, Tensor],
    num_steps: int,
    learning_rate: float,
    only: Collection[str] | None = None,
) -> dict[str, Tensor]:
    """Return the state of a model after plain SGD steps on a client's mini-batches, in eval mode throughout.

    Parameters
    ----------
    task : ClientTask
        The client's.
    state : Mapping[str, Tensor]
        To start from.
    num_steps : int
        Steps, a mini-batch each.
    learning_rate : float
        Of the steps.
    only : Collection[str], optional (default: None)
        The names of the weights that train. None: all.

    Raises
    ------
    ValueError
        If weights are not finite any more.
    """
    task.model.load_state_dict(state)
    task.model.eval()
    batches = fine_tuning_batches(task, num_steps)
    inputs = (task.prepare(rows_on(task.train.inputs, batch, task.device)) for batch in batches)
    labels = (task.train.labels[batch].to(task.device) for batch in batches)
    pairs = zip(inputs, labels, strict=True)
    return fine_tuned(task.model, pairs, learning_rate, task.objective.loss, only).state_dict()


def fine_tuning_batches(task: ClientTask, num_steps: int) -> list[Tensor]:
    """Return the indices of mini-batches for fine-tuning, drawn as for a round of their own."""
    order = client_generator(task.seed, task.partition_id, 0, "fine-tuning")
    training = type(task.training)(batches_per_epoch=num_steps, batch_size=task.training.batch_size)
    return list(mini_batches(len(task.train), training, order))
