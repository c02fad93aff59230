"""The corrections of several clients' steps at once."""

from collections.abc import Hashable, Sequence

import torch
from torch import Tensor

from ..shared.correction import Correction
from ..shared.local_round import Pass
from .blocks import StackedBlocks


class StackedCorrection:
    """Corrections of the steps of copies that train side by side, see `espalier.clients.shared.correction`.

    Parameters
    ----------
    corrections : Sequence[Correction]
        One per copy; they differ in their tensors alone.
    trained : Sequence[str]
        The names of the weights that train.
    device : torch.device
        Where the copies compute.
    """

    def __init__(self, corrections: Sequence[Correction], trained: Sequence[str], device: torch.device) -> None:
        first = corrections[0]
        self._pull = first.pull
        self._trained = list(trained)

        def stacked(of: str) -> dict[str, Tensor]:
            names = [name for name in trained if name in getattr(first, of)]
            return {name: torch.stack([getattr(c, of)[name] for c in corrections]).to(device) for name in names}

        self._anchors = stacked("anchor") if first.pull else {}
        self._drifts = stacked("drift")

    @torch.no_grad()
    def pulled(self, rows: Sequence[int], weights: Sequence[Tensor], gradients: list[Tensor]) -> list[Tensor]:
        """Return the gradients of some copies' weights with the pull to their anchors."""
        if not self._anchors:
            return gradients
        for name, own, gradient in zip(self._trained, weights, gradients, strict=True):
            if name in self._anchors:
                gradient.add_(own - self._anchors[name][list(rows)], alpha=self._pull)
        return gradients

    def drift(self, rows: Sequence[int], blocks: StackedBlocks, rate: float) -> None:
        """Let some copies drift, after the optimizer's step."""
        blocks.move(rows, {name: drifts[list(rows)] for name, drifts in self._drifts.items()}, -rate)


def alike(due: Pass) -> tuple[Hashable, ...]:
    """Return what passes of copies that train side by side have in common."""
    correction, optimizer = due.correction, due.optimizer
    of_correction = correction.pull, frozenset(correction.anchor), frozenset(correction.drift)
    trains = None if due.trains is None else frozenset(due.trains)
    goes_on = None if optimizer is None or optimizer.held is None else optimizer.held.steps
    return of_correction, trains, optimizer is None, goes_on
