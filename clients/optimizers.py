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
    zero_grad = _unmarked(torch.optim.Optimizer.zero_grad)
    state_dict = _unmarked(torch.optim.Optimizer.state_dict)
    load_state_dict = _unmarked(torch.optim.Optimizer.load_state_dict)


class SGD(_Unmarked, torch.optim.SGD):
    """`torch.optim.SGD`, to the same bits."""

    step = torch.no_grad()(_unmarked(torch.optim.SGD.step))


class Adam(_Unmarked, torch.optim.Adam):
    """`torch.optim.Adam`, to the same bits."""

    step = torch.no_grad()(_unmarked(torch.optim.Adam.step))
