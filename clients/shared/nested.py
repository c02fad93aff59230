"""Inputs of any nesting: a tensor, or a tuple, list or dict of such, whose tensors all have a row per example."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor


def map_tensors(function: Callable[..., Any], *trees: Any) -> Any:
    """Return the tree of what a function makes of the tensors at each place of some trees of the same form.

    Raises
    ------
    TypeError
        If something in them is neither a tensor nor a tuple, list or dict.
    """
    first = trees[0]
    if isinstance(first, Tensor):
        return function(*trees)
    if isinstance(first, Mapping):
        return {key: map_tensors(function, *(tree[key] for tree in trees)) for key in first}
    if isinstance(first, list | tuple):
        items = [map_tensors(function, *parts) for parts in zip(*trees, strict=True)]
        return type(first)(*items) if hasattr(first, "_fields") else type(first)(items)
    raise TypeError(f"inputs hold a {type(first).__name__}: allowed are tensors, and tuples, lists and dicts of them")


def rows_on(inputs: Any, rows: Tensor | slice, device: torch.device) -> Any:
    """Return some examples' inputs on a device; copies, which a model may change in place."""
    return map_tensors(lambda tensor: tensor[rows].to(device, copy=isinstance(rows, slice)), inputs)


def concatenate(parts: Sequence[Any]) -> Any:
    """Return the inputs of several data sets as those of one."""
    return map_tensors(lambda *tensors: torch.cat(tensors), *parts)


def tensors_of(inputs: Any) -> list[Tensor]:
    """Return all tensors of some inputs, in order."""
    found: list[Tensor] = []
    map_tensors(found.append, inputs)
    return found
