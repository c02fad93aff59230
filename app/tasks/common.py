"""What all tasks take from a run config."""

import torch

from app.config import RunConfig
from app.errors import bad_value
from clients.task import LocalTraining


def compute_device(config: RunConfig) -> torch.device:
    """Return the device that `device` names; "auto" takes a GPU where there is one."""
    if config.device == "cuda" and not torch.cuda.is_available():
        raise bad_value("device", "cuda", "'cpu' or 'auto': torch finds no GPU here")
    return torch.device("cpu" if config.device == "cpu" or not torch.cuda.is_available() else "cuda")


def local_training(config: RunConfig) -> LocalTraining:
    """Return how a client trains."""
    return LocalTraining(
        local_epochs=config.local_epochs,
        batches_per_epoch=config.batches_per_epoch,
        batch_size=config.batch_size,
        optimizer=config.optimizer,
        learning_rate=config.learning_rate,
        momentum=config.momentum,
        weight_decay=config.weight_decay,
    )
