"""What corrects a client's local steps: FedProx, SCAFFOLD and Ditto are values of `Correction`."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

Weights = Mapping[str, Tensor]


NOWHERE: Weights = {}


@dataclass(frozen=True)
class Correction:
    """Each local step follows ``g + pull * (w - anchor)``, through the optimizer, and ``drift`` beside it.

    With plain SGD that is ``w -= rate * (g + pull * (w - anchor) + drift)``. The pull is the gradient of a term of the
    loss, ``pull / 2 * ||w - anchor||^2`` (FedProx, arXiv:1812.06127, eq. 2), so momentum and Adam see it. The drift is
    a step of its own, ``w -= rate * drift`` after the optimizer's, as in the public codes of SCAFFOLD: a momentum would
    make ten times as much of it.

    Parameters
    ----------
    drift : Mapping[str, Tensor] (default: none)
        By the names of weights; a weight that is not in it has none.
    pull : float (default: 0.0)
        How much weights are drawn to the anchor.
    anchor : Mapping[str, Tensor] (default: none)
        Where to; a weight that is not in it is not drawn.
    """

    drift: Weights = field(default_factory=dict)
    pull: float = 0.0
    anchor: Weights = field(default_factory=lambda: NOWHERE)

    def __post_init__(self) -> None:
        """Refuse a pull without an anchor; one that is given may be empty, as of a client that keeps nothing yet."""
        if self.pull and self.anchor is NOWHERE:
            raise ValueError(f"Correction(pull={self.pull}) draws nowhere: give the anchor too, such as begun.trained")

    def pulled(self, pull: float, anchor: Weights) -> "Correction":
        """Return this with a pull, as a strategy asks for by ``proximal-mu``; ValueError if there is one already."""
        if not pull:
            return self
        if self.pull:
            raise ValueError("proximal-mu can't be told to clients whose algorithm draws them to an anchor of its own")
        return replace(self, pull=pull, anchor=anchor)

    @property
    def is_none(self) -> bool:
        """Whether steps are left as they are."""
        return not (self.drift or self.pull)


NO_CORRECTION = Correction()


class CorrectedSteps:
    """Makes the steps of an optimizer, corrected.

    Parameters
    ----------
    optimizer : Optimizer, optional
        None: there is nothing to train.
    parameters : Iterable[tuple[str, nn.Parameter]]
        The weights that train, with their names.
    correction : Correction (default: none)
        How.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer | None,
        parameters: Iterable[tuple[str, nn.Parameter]],
        correction: Correction = NO_CORRECTION,
    ) -> None:
        self._optimizer = optimizer
        self._pull = correction.pull
        anchored, drifting = (correction.anchor if correction.pull else {}), correction.drift
        named = [] if correction.is_none else list(parameters)
        self._anchors = [(p, anchored[name].detach().to(p.device)) for name, p in named if name in anchored]
        self._drifts = {id(p): drifting[name].detach().to(p.device, p.dtype) for name, p in named if name in drifting}

    def zero_grad(self) -> None:
        """Forget the gradients."""
        if self._optimizer is not None:
            self._optimizer.zero_grad()

    def step(self) -> None:
        """Make a step; a weight without a gradient stays where it is."""
        if self._optimizer is None:
            return
        for parameter, anchor in self._anchors:
            if parameter.grad is not None:
                parameter.grad.add_(parameter.detach() - anchor, alpha=self._pull)
        self._optimizer.step()
        for group in self._optimizer.param_groups if self._drifts else ():
            for parameter in group["params"]:
                if id(parameter) in self._drifts and parameter.grad is not None:
                    with torch.no_grad():
                        parameter.add_(self._drifts[id(parameter)], alpha=-group["lr"])
