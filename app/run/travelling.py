"""Which weights of a new model the cloud and the clients send each other, and which stay as they are."""

from flwr.app import ArrayRecord
from torch import nn

from espalier.app.algorithms.algorithm import Algorithm
from espalier.app.algorithms.auxiliary_heads import auxiliary_head
from espalier.app.algorithms.split_edges import frozen_weights
from espalier.app.settings.sections import Split
from espalier.app.tasks.task import Task


def travelling_weights(algorithm: Algorithm, split: Split, seed: int, task: Task, model: nn.Module) -> ArrayRecord:
    """Return the weights that the cloud and the clients send each other: a new model's, and those beside it."""
    frozen = frozen_weights(algorithm, model)
    beside = auxiliary_head(split, task, seed) if algorithm.auxiliary == "averaged" else nn.Module()
    own = {name: array for name, array in ArrayRecord(model.state_dict()).items() if name not in frozen}
    return ArrayRecord({**own, **ArrayRecord(beside.state_dict())})
