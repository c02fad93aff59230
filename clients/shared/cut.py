"""Where a model is cut, and copies of what is on either side."""

import copy
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from torch import Tensor, nn

Module = TypeVar("Module", bound=nn.Module)


@dataclass(frozen=True, order=True)
class Cut:
    """Where a model, a list of blocks, is cut in three: the blocks between are the server's, the others the client's.

    With ``last`` the number of blocks, the model is cut once: the client has no tail, and the server has the head. A
    smaller one is U-shaped split learning (arXiv:1812.00564): the head is the client's, and so are labels and loss.

    Parameters
    ----------
    first : int
        Blocks before this one are the client's; what travels is what comes out of them.
    last : int
        Blocks from this one on are the client's, too: its tail.
    """

    first: int
    last: int

    @classmethod
    def of(cls, model: nn.Sequential, cut: "Cut | int") -> "Cut":
        """Return a cut of a model; a number k is short for ``Cut(k, len(model))``, the first k blocks at the client.

        Raises
        ------
        ValueError
            If the model has not so many blocks.
        """
        cut = cut if isinstance(cut, Cut) else cls(cut, len(model))
        if cut.last > len(model):
            allowed = f"to {len(model)} at most, the model's number of blocks"
            raise ValueError(f"cut {cut.first} to {cut.last}: allowed is {allowed}")
        return cut

    def has_tail(self, model: nn.Sequential) -> bool:
        """Return whether the last blocks of a model are the client's."""
        return self.last < len(model)

    def places(self, model: nn.Sequential) -> tuple[int, ...]:
        """Return where tensors cross between client and server, as numbers of blocks in front."""
        return (self.first, self.last) if self.has_tail(model) else (self.first,)

    def front(self, model: nn.Sequential) -> nn.Sequential:
        """Return the client's first blocks of a model, which share its weights."""
        return part_of(model, 0, self.first)

    def tail(self, model: nn.Sequential) -> nn.Sequential:
        """Return the client's last blocks of a model, which share its weights; none where it is cut once."""
        return part_of(model, self.last, len(model))

    def server_side(self, model: nn.Sequential) -> nn.Sequential:
        """Return the server's blocks of a model, which share its weights."""
        return part_of(model, self.first, self.last)


def part_of(model: nn.Sequential, first: int, last: int) -> nn.Sequential:
    """Return consecutive blocks. A slice would be of the model's own class, whose `__init__` may take other things."""
    return nn.Sequential(OrderedDict(list(model._modules.items())[first:last]))


def as_blocks(model: nn.Module) -> nn.Sequential:
    """Return a model that is split, or some of its blocks, as the list that it is known to be; nothing is checked."""
    return cast(nn.Sequential, model)


def copied(module: Module, memo: dict[int, Any] | None = None) -> Module:
    """Return what `copy.deepcopy` does, in a fifth of the time: most of it goes into empty dictionaries for hooks.

    What it refuses, weights that a layer has computed, is copied without a graph.

    Parameters
    ----------
    module : nn.Module
        The module; those in it that say how they are copied or pickled are copied in that way.
    memo : dict, optional (default: None)
        As for `copy.deepcopy`: what has been copied already, by its id.
    """
    memo = _values_computed(module) if memo is None else memo
    kind = type(module)
    if id(module) in memo or any(getattr(kind, name, None) is not getattr(nn.Module, name, None) for name in _COPYING):
        return copy.deepcopy(module, memo)
    result = memo[id(module)] = kind.__new__(kind)
    state: dict[str, Any] = {}
    for name, value in cast(dict[str, Any], module.__getstate__()).items():
        if name == "_modules":
            state[name] = {key: None if child is None else copied(child, memo) for key, child in value.items()}
        elif name == "_parameters":
            state[name] = {key: copy.deepcopy(parameter, memo) for key, parameter in value.items()}
        elif type(value) in _ATOMS or (type(value) is tuple and all(type(item) in _ATOMS for item in value)):
            state[name] = value
        elif type(value) in _EMPTY and not value:
            state[name] = type(value)()
        else:
            state[name] = copy.deepcopy(value, memo)
    result.__setstate__(state)
    return result


def _values_computed(module: nn.Module) -> dict[int, Any]:
    """Return copies, by id, of tensors with a graph, which `copy.deepcopy` refuses.

    A layer that is pruned or has `weight_norm` keeps the weights of its last forward pass, and computes them anew.
    """
    kept = (value for part in module.modules() for value in vars(part).values())
    each = (item for value in kept for item in (value if type(value) is list else (value,)))
    return {id(one): one.detach().clone() for one in each if isinstance(one, Tensor) and not one.is_leaf}


_COPYING = ("__deepcopy__", "__reduce__", "__reduce_ex__", "__getstate__")
_ATOMS = (type(None), bool, int, float, str)
_EMPTY = (dict, OrderedDict, set, list)
