"""How much rebuilt images are like the true ones."""

import math
from collections.abc import Mapping

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

MSE, PSNR, SSIM = "mse", "psnr", "ssim"
LEAST_MSE = 1e-10  # a signal-to-noise ratio of 100 dB; float32 tells no more
STEADY = (0.01**2, 0.03**2)  # of SSIM, for values from 0 to 1


def matched(rebuilt: Tensor, images: Tensor) -> Tensor:
    """Return rebuilt images in the order of the true ones, so that the mean squared error is least.

    Parameters
    ----------
    rebuilt, images : Tensor
        Shape (N, ...) both.
    """
    errors = torch.cdist(images.flatten(1).double(), rebuilt.flatten(1).double()).square()
    _, order = linear_sum_assignment(errors.numpy())
    return rebuilt[torch.as_tensor(order)]


def squared_errors(rebuilt: Tensor, images: Tensor) -> Tensor:
    """Return each image's mean squared error, shape (N,)."""
    return (rebuilt - images).flatten(1).double().square().mean(1)


def structural(rebuilt: Tensor, images: Tensor) -> Tensor:
    """Return each image's structural similarity (Wang et al., 2004), with one window: the whole image; shape (N,)."""
    x, y = rebuilt.flatten(1).double(), images.flatten(1).double()
    mean_x, mean_y = x.mean(1), y.mean(1)
    product = ((x - mean_x[:, None]) * (y - mean_y[:, None])).mean(1)
    spread = x.var(1, correction=0) + y.var(1, correction=0)
    first, second = STEADY
    means = (2 * mean_x * mean_y + first) / (mean_x.square() + mean_y.square() + first)
    return means * (2 * product + second) / (spread + second)


def psnr_of(mse: float) -> float:
    """Return the peak signal-to-noise ratio in dB of a mean squared error of values from 0 to 1; at most 100."""
    return -10 * math.log10(max(mse, LEAST_MSE))


def likeness(rebuilt: Tensor, images: Tensor) -> Mapping[str, float]:
    """Return mean squared error, the ratio in dB of that mean, and mean structural similarity; values from 0 to 1."""
    mse = float(squared_errors(rebuilt, images).mean())
    return {MSE: mse, PSNR: psnr_of(mse), SSIM: float(structural(rebuilt, images).mean())}
