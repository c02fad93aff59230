"""Random changes to images that are trained on, each drawn for itself."""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Generator, Tensor
from torch.nn.functional import affine_grid, grid_sample, pad

from espalier.clients.shared.layouts import as_laid_out

PADDING = 4
MOST_DEGREES = 20.0


def augmentation(names: Sequence[str]) -> Callable[[Tensor, Generator], Tensor]:
    """Return the function that makes some `CHANGES`, one after the other, in a mini-batch."""

    def augment(images: Tensor, generator: Generator) -> Tensor:
        for name in names:
            images = CHANGES[name](images, generator)
        return images

    return augment


def cropped(images: Tensor, generator: Generator) -> Tensor:
    """Return images of the same size, cut out of images with 4 black pixels more on each side.

    Parameters
    ----------
    images : Tensor
        Pixels (N, C, H, W).
    generator : Generator
        Of the CPU, so that other devices make the same changes.
    """
    count, _, height, width = images.shape
    padded = pad(images, (PADDING,) * 4)
    top, left = torch.randint(2 * PADDING + 1, (2, count, 1), generator=generator).to(images.device)
    rows = top + torch.arange(height, device=images.device)
    columns = left + torch.arange(width, device=images.device)
    numbers = torch.arange(count, device=images.device)
    # Indices on both sides of a slice put the channels last.
    return padded[numbers[:, None, None], :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


def flipped(images: Tensor, generator: Generator) -> Tensor:
    """Return every second image, on average, with left and right exchanged; parameters as of `cropped`."""
    return torch.where(_coins(images, generator), images.flip(3), images)


def flipped_upside_down(images: Tensor, generator: Generator) -> Tensor:
    """Return every second image, on average, with top and bottom exchanged; parameters as of `cropped`."""
    return torch.where(_coins(images, generator), images.flip(2), images)


def rotated(images: Tensor, generator: Generator) -> Tensor:
    """Return images turned by up to 20 degrees, either way, with black corners; parameters as of `cropped`.

    A pixel is that of the image which is nearest.
    """
    count, _, height, width = images.shape
    degrees = (2 * torch.rand(count, generator=generator, dtype=torch.float64) - 1) * MOST_DEGREES
    angles = degrees * (math.pi / 180)
    cos, sin, zero = angles.cos(), angles.sin(), torch.zeros(count, dtype=torch.float64)
    # Coordinates go from -1 to 1 along both sides, whatever their lengths.
    there = torch.stack([cos, -sin * height / width, zero, sin * width / height, cos, zero], 1).reshape(count, 2, 3)
    grid = affine_grid(there.float(), list(images.shape), align_corners=False).to(images.device)
    turned = grid_sample(images.float(), grid, mode="nearest", align_corners=False)
    return as_laid_out(turned, images)


def _coins(images: Tensor, generator: Generator) -> Tensor:
    heads = torch.rand(len(images), generator=generator) < 0.5
    return heads.to(images.device)[:, None, None, None]


CHANGES: dict[str, Callable[[Tensor, Generator], Tensor]] = {
    "crop": cropped,
    "flip": flipped,
    "vertical-flip": flipped_upside_down,
    "rotation": rotated,
}
