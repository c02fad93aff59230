"""A model cut along its own list of layers, for models whose forward pass can't be traced."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from .segments import Segmentation, Slot, Step
from .unchanged import unchanged


def layer_list_of(module: nn.Module, at: Sequence[str]) -> str | None:
    """Return the path of the list of layers that the first of some layers is in; None where it is in none."""
    path = at[0].rpartition(".")[0]
    return path if path and isinstance(module.get_submodule(path), nn.ModuleList) else None


def parts_along_layers(
    module: nn.Module, at: Sequence[str], layers: str, example: Any
) -> tuple["UpTo", list[Segmentation]]:
    """Return what is in front of the first layer of `at`, and the steps from each on.

    The model is run on the example, and what is called with what is noted: the layers of the list, and those that
    stand beside it in the model. From the first layer of `at` on, each has to take what the one before gave, and no
    other tensor that it looks at.

    Parameters
    ----------
    module : nn.Module
        The model.
    at : Sequence[str]
        Paths of layers; the first is in the list.
    layers : str
        Path of the list.
    example : Any
        A mini-batch.

    Raises
    ------
    ValueError
        If it can't be cut there, in one line that names the place.
    """
    with unchanged(module), torch.no_grad():
        calls, output = _watched(module.eval(), _outermost(module, (*at, f"{layers}.0")), example)
        called = [call.path for call in calls]
        for path in at:
            if called.count(path) != 1:
                raise ValueError(f"at: the forward pass calls {path!r} {called.count(path)} times, allowed is once")
        starts = [called.index(path) for path in at]
        if sorted(starts) != starts:
            raise ValueError(f"at = {tuple(at)!r}: the forward pass has them in another order")
        chain = calls[starts[0] :]
        steps = [_step(module, call) for call in chain]
        for before, call in pairwise(chain):
            if not _is_same(before.output, _carried(call)):
                raise ValueError(f"between {before.path!r} and {call.path!r} something is computed that is in no layer")
        if not any(_is_same(chain[-1].output, tensor) for tensor in _tensors(output)):
            raise ValueError(f"behind {chain[-1].path!r} something is computed that is in no layer")
    ends = [*(start - starts[0] for start in starts[1:]), len(chain)]
    parts = [_plan(steps[start - starts[0] : end]) for start, end in zip(starts, ends, strict=True)]
    return UpTo(module, at[0], called[: starts[0]]), parts


class UpTo(nn.Module):
    """A model's own forward pass up to one of its layers, which is not called any more.

    Parameters
    ----------
    module : nn.Module
        The model. Of its layers those in front are kept, and shared.
    layer : str
        Path of the layer, which is in an ``nn.ModuleList``.
    before : Sequence[str]
        Paths of the layers that are called before.
    """

    def __init__(self, module: nn.Module, layer: str, before: Sequence[str]) -> None:
        super().__init__()
        self.model = _pruned(module, "", layer, set(before))

    def forward(self, inputs: Any) -> Tensor:
        """Return what the layer would be given."""
        try:
            self.model(inputs)
        except _ReachedError as reached:
            return reached.value
        raise AssertionError("the model did not come to the layer that it ends at")


class _ReachedError(Exception):
    """The forward pass has come to where it ends."""

    def __init__(self, value: Tensor) -> None:
        super().__init__()
        self.value = value


class _End(nn.Module):
    """Stands in place of the layer where a forward pass ends."""

    def forward(self, value: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """Raise what brings the value out."""
        raise _ReachedError(value)


def _pruned(module: nn.Module, path: str, layer: str, kept: set[str]) -> nn.Module:
    """Return a copy of a module whose only layers are those kept, the same ones, and the end in place of a layer."""
    if isinstance(module, nn.ModuleList) and layer.rpartition(".")[0] == path:
        names = (f"{path}.{i}" for i in range(len(module)))
        return nn.ModuleList([*(part for part, name in zip(module, names, strict=True) if name in kept), _End()])
    twin = copy.copy(module)
    twin._modules = {}
    for name, child in module.named_children():
        inner = f"{path}.{name}".removeprefix(".")
        if inner in kept:
            twin._modules[name] = child
        else:
            holds_some = any(other.startswith(f"{inner}.") for other in (*kept, layer))
            twin._modules[name] = _pruned(child, inner, layer, kept) if holds_some else None
    return twin


@dataclass(frozen=True)
class _Call:
    """A call of a layer."""

    path: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    output: Any


def _outermost(module: nn.Module, inner: Sequence[str], prefix: str = "") -> list[str]:
    """Return the paths of the outermost modules that have none of those inside."""
    found = []
    for name, child in module.named_children():
        path = f"{prefix}{name}"
        holds_some = any(other.startswith(f"{path}.") for other in inner)
        found += _outermost(child, inner, f"{path}.") if holds_some else [path]
    return found


def _watched(module: nn.Module, paths: Sequence[str], example: Any) -> tuple[list[_Call], Any]:
    """Run a model; return the calls of some of its layers, in order, and what came out."""
    calls: list[_Call] = []
    hooks = [
        module.get_submodule(path).register_forward_hook(
            lambda layer, args, kwargs, output, path=path: calls.append(_Call(path, args, kwargs, output)),
            with_kwargs=True,
        )
        for path in paths
    ]
    try:
        return calls, module(example)
    finally:
        for hook in hooks:
            hook.remove()


class _Untouchable:
    """Stands in place of a tensor that a layer is said not to look at."""

    def __getattr__(self, name: str) -> Any:
        raise LookupError(name)

    def __bool__(self) -> bool:
        raise LookupError


def _carried(call: _Call) -> Any:
    return call.args[0] if call.args else None


def _step(module: nn.Module, call: _Call) -> Step:
    """Return the step that a call is; ValueError where more than one tensor goes into the layer, or comes out."""
    if not isinstance(_carried(call), Tensor) or not isinstance(call.output, Tensor):
        raise ValueError(f"{call.path!r} takes and gives other things than one tensor")
    others = {**{f"argument {i}": value for i, value in enumerate(call.args[1:], start=1)}, **call.kwargs}
    for name, value in others.items():
        if not (value is None or isinstance(value, bool | int | float | str | Tensor)):
            raise ValueError(f"{call.path!r} gets a {type(value).__name__} besides ({name}): allowed is one tensor")
    blank = _with_tensors_as(call, _Untouchable())
    if names := [name for name, value in others.items() if isinstance(value, Tensor)]:
        try:
            module.get_submodule(call.path)(*blank.args, **blank.kwargs)
        except Exception:  # the layer is foreign code, and what it does with that is its own affair
            raise ValueError(
                f"{call.path!r} takes another tensor besides ({', '.join(names)}): allowed is one"
            ) from None
    kept = _with_tensors_as(call, None)
    return Step("layer", call.path, (Slot(0), *kept.args[1:]), kept.kwargs, 0)


def _with_tensors_as(call: _Call, value: Any) -> _Call:
    """Return a call with something in place of all tensors but the first."""

    def changed(argument: Any) -> Any:
        return value if isinstance(argument, Tensor) else argument

    args = (call.args[0], *map(changed, call.args[1:]))
    return _Call(call.path, args, {name: changed(argument) for name, argument in call.kwargs.items()}, None)


def _plan(steps: Sequence[Step]) -> Segmentation:
    """Return the plan in which each layer takes what the one before gave."""
    numbered = [s._replace(args=(Slot(i), *s.args[1:]), slot=i + 1) for i, s in enumerate(steps)]
    return Segmentation(tuple(numbered), len(steps))


def _is_same(tensor: Any, other: Any) -> bool:
    """Return whether two tensors are one, or views of it that are alike."""
    if not (isinstance(tensor, Tensor) and isinstance(other, Tensor)):
        return False
    if tensor is other:
        return True
    forms = [(t.data_ptr(), t.shape, t.stride(), t.dtype, t.device) for t in (tensor, other)]
    return forms[0] == forms[1]


def _tensors(output: Any) -> list[Any]:
    return list(output.values() if isinstance(output, dict) else output) if not isinstance(output, Tensor) else [output]
