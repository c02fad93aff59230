"""Activations that are clipped and get noise before they travel; the app has no such setting."""

from dataclasses import replace

import torch
from torch import Tensor, nn

from espalier.clients.shared.cut import as_blocks, copied
from espalier.clients.task import ClientTask

# By the cut: about the median length of a sample's activations, of `small-cnn` on digits before training.
CLIPS = {1: 9.0, 2: 3.0, 3: 1.0}


class Noisy(nn.Module):
    """Clips each sample's values and adds Gaussian noise in training; evaluations get the values as they are.

    Parameters
    ----------
    clip : float
        The longest L2 norm of a sample's values.
    noise : float
        The standard deviation at each value, over `clip`.
    """

    def __init__(self, clip: float, noise: float) -> None:
        super().__init__()
        self.clip, self.noise = clip, noise

    def forward(self, values: Tensor) -> Tensor:
        """Return the values as they travel, of shape (N, ...)."""
        if not self.training:
            return values
        lengths = values.flatten(1).norm(dim=1).clamp_min(1e-12)
        factors = (self.clip / lengths).clamp_max(1).view(-1, *[1] * (values.ndim - 1))
        return factors * values + self.noise * self.clip * torch.randn_like(values)


def with_noise(task: ClientTask, cut: int, noise: float) -> ClientTask:
    """Return a task whose activations at a cut are clipped and get noise; as it is where the noise is 0."""
    if not noise:
        return task
    model = copied(as_blocks(task.model))
    block = model[cut - 1]
    assert isinstance(block, nn.Sequential)
    block.append(Noisy(CLIPS[cut], noise))
    return replace(task, model=model, model_draws=True)
