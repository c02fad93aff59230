"""A part of a model's forward pass as a module of its own, which shares the model's layers."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, cast

from torch import Tensor, nn


class Slot(NamedTuple):
    """Stands, among the arguments of a step, for a value that was computed before; 0 is what the segment is given."""

    number: int


class Step(NamedTuple):
    """One computation of a forward pass.

    Parameters
    ----------
    kind : "layer", "weight", "function" or "method"
        What `target` is: the path of a layer or of a weight in the model, a function, or the name of a method of the
        first argument.
    target : str or callable
        What is called; a weight is only looked up.
    args, kwargs : tuple, dict
        Numbers, texts, and tuples, lists, dicts and slices of them, with a `Slot` for every value.
    slot : int
        The number that the result gets.
    last_uses : tuple[int, ...]
        Numbers of the values that nothing needs afterwards.
    """

    kind: Literal["layer", "weight", "function", "method"]
    target: str | Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    slot: int
    last_uses: tuple[int, ...] = ()


@dataclass(frozen=True)
class Segmentation:
    """What a segment computes.

    Parameters
    ----------
    steps : tuple[Step, ...]
        In order. The only value that comes from outside is number 0.
    result : int
        The number of the value that comes out.
    """

    steps: tuple[Step, ...]
    result: int

    def __deepcopy__(self, memo: dict[int, Any]) -> "Segmentation":
        return self  # nothing in it changes


class Segment(nn.Module):
    """Makes some steps of a model's forward pass, with the model's own layers and weights under their own names.

    Parameters
    ----------
    model : nn.Module
        The model.
    plan : Segmentation
        What to compute.
    """

    def __init__(self, model: nn.Module, plan: Segmentation) -> None:
        super().__init__()
        self._plan = Segmentation(tuple(_with_last_uses(plan)), plan.result)
        for kind, path in dict.fromkeys((s.kind, s.target) for s in plan.steps if isinstance(s.target, str)):
            if kind == "layer":
                self._place(path).register_module(path.rpartition(".")[2], model.get_submodule(path))
            elif kind == "weight":
                _share_weight(model, self._place(path), path)

    def forward(self, value: Any) -> Tensor:
        """Return what comes out."""
        values = {0: value}
        for step in self._plan.steps:
            values[step.slot] = self._result(step, values)
            for number in step.last_uses:
                del values[number]
        return cast(Tensor, values[self._plan.result])

    def _result(self, step: Step, values: dict[int, Any]) -> Any:
        if step.kind == "weight":
            return self._at(step.target)
        args = [filled(argument, values) for argument in step.args]
        kwargs = {name: filled(argument, values) for name, argument in step.kwargs.items()}
        if step.kind == "method":
            return getattr(args[0], str(step.target))(*args[1:], **kwargs)
        function = step.target if callable(step.target) else self._at(step.target)
        return function(*args, **kwargs)

    def _at(self, path: Any) -> Any:
        found: Any = self
        for name in path.split("."):
            found = getattr(found, name)
        return found

    def _place(self, path: str) -> nn.Module:
        """Return the module that is to hold what has this path; those that are missing on the way are made."""
        place: nn.Module = self
        for name in path.split(".")[:-1]:
            if name not in place._modules:
                place.register_module(name, nn.Module())
            place = place.get_submodule(name)
        return place


def filled(argument: Any, values: dict[int, Any]) -> Any:
    """Return an argument of a step with values in place of slots."""
    if isinstance(argument, Slot):
        return values[argument.number]
    if isinstance(argument, tuple | list):
        return type(argument)(filled(item, values) for item in argument)
    if isinstance(argument, dict):
        return {key: filled(item, values) for key, item in argument.items()}
    if isinstance(argument, slice):
        return slice(filled(argument.start, values), filled(argument.stop, values), filled(argument.step, values))
    return argument


def slots_of(argument: Any) -> set[int]:
    """Return the numbers of the values that an argument of a step needs."""
    if isinstance(argument, Slot):
        return {argument.number}
    if isinstance(argument, slice):
        argument = (argument.start, argument.stop, argument.step)
    items = argument.values() if isinstance(argument, dict) else argument
    return set().union(*map(slots_of, items)) if isinstance(argument, tuple | list | dict) else set()


def _with_last_uses(plan: Segmentation) -> list[Step]:
    """Return the steps, each with the values that nothing needs after it."""
    needed, steps = {plan.result}, list[Step]()
    for step in reversed(plan.steps):
        seen = slots_of([step.args, step.kwargs]) | {step.slot}
        steps.insert(0, step._replace(last_uses=tuple(sorted(seen - needed))))
        needed |= seen
    return steps


def _share_weight(model: nn.Module, place: nn.Module, path: str) -> None:
    """Let a module have a weight, or another tensor, of a model's own."""
    owner, name = model.get_submodule(path.rpartition(".")[0]), path.rpartition(".")[2]
    tensor = getattr(owner, name)
    if isinstance(tensor, nn.Parameter):
        place.register_parameter(name, tensor)
    elif name not in vars(place):  # where the place is the layer itself, it has what is not registered already
        is_saved = name in owner._buffers and name not in owner._non_persistent_buffers_set
        place.register_buffer(name, tensor, persistent=is_saved)
