"""Torch's optimizers without its compiler.

An optimizer marks its methods for ``torch.compile``, and the first call imports all of that compiler: more than a
second, which a deployed client would spend on every message, as each starts a process. Nothing is compiled here, so
these call the methods below the marks.
"""

from collections.abc import Callable
from typing import Any

import torch


def _unmarked(method: Callable[..., Any]) -> Any:
    """Return the method below its outermost mark."""
    return method.__wrapped__  # type: ignore[attr-defined]


class _Unmarked:
    """What all optimizers have from `torch.optim.Optimizer`."""

    add_param_group = _unmarked(torch.optim.Optimizer.add_param_group)
    state_dict = _unmarked(torch.optim.Optimizer.state_dict)
    load_state_dict = _unmarked(torch.optim.Optimizer.load_state_dict)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients; they are never filled with zeros."""
        for group in self.param_groups:  # type: ignore[attr-defined]
            for parameter in group["params"]:
                parameter.grad = None


class SGD(_Unmarked, torch.optim.SGD):
    """`torch.optim.SGD`, to the same bits; plain steps, without momentum and weight decay, take a third of the time."""

    _step = _unmarked(torch.optim.SGD.step)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Make a step; there is no `closure`."""
        for group in self.param_groups:
            if any(group[name] for name in ("momentum", "weight_decay", "maximize", "differentiable", "fused")):
                return self._step()
        for group in self.param_groups:
            parameters = [p for p in group["params"] if p.grad is not None]
            if parameters:
                torch._foreach_add_(parameters, [p.grad for p in parameters], alpha=-group["lr"])


class Adam(_Unmarked, torch.optim.Adam):
    """`torch.optim.Adam`, to the same bits."""

    step = torch.no_grad()(_unmarked(torch.optim.Adam.step))


for step in (SGD.step, Adam.step):
    setattr(step, "hooked", True)  # noqa: B010 -- PyTorch would wrap it for its profiler, which takes as long as a step
