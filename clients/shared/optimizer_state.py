"""An optimizer's state as named tensors: what clients and edges keep of it between messages and rounds."""

from collections.abc import Mapping

import torch
from torch import Tensor


def optimizer_tensors(optimizer: torch.optim.Optimizer | None) -> dict[str, Tensor]:
    """Return the state of an optimizer, the tensors themselves, by ``<parameter>/<quantity>``; empty without one."""
    states = optimizer.state_dict()["state"] if optimizer else {}
    return {
        f"{index}/{name}": value
        for index, values in states.items()
        for name, value in values.items()
        if value is not None
    }


def load_optimizer_tensors(optimizer: torch.optim.Optimizer | None, tensors: Mapping[str, Tensor]) -> None:
    """Take back what `optimizer_tensors` returned; the optimizer takes the tensors as its own."""
    if optimizer is None:
        return
    states: dict[int, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        index, name = key.split("/")
        states.setdefault(int(index), {})[name] = tensor
    optimizer.load_state_dict({"state": states, "param_groups": optimizer.state_dict()["param_groups"]})
