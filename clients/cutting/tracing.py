"""A model's forward pass, traced by ``torch.fx`` and divided where given layers begin."""

import traceback
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx, nn

from .segments import Segmentation, Slot, Step
from .unchanged import tensors_of, unchanged

_KINDS = {"call_module": "layer", "get_attr": "weight", "call_function": "function", "call_method": "method"}


class NotTraceable(Exception):
    """A forward pass that can't be traced; the text is one line that says where."""


def traced_parts(module: nn.Module, at: Sequence[str]) -> list[Segmentation]:
    """Return the steps in front of the first of the layers, and those from each on.

    Parameters
    ----------
    module : nn.Module
        The model; its forward pass is called with one argument.
    at : Sequence[str]
        Paths of layers, in the order in which they are called.

    Raises
    ------
    NotTraceable
        If the forward pass takes more than one argument, depends on what it computes, or gives more than a tensor.
    ValueError
        If it can't be divided there.
    """
    tracers = [_traced(module, is_training, at) for is_training in (False, True)]
    _refuse_modes(module, tracers)
    tracer = tracers[0]
    _refuse_order(at, tracer)
    return _divided(tracer, at)


class _One(nn.Module):
    """Calls a model with one argument, so that the others have their defaults."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, value: Tensor) -> Tensor:
        """Return what the model gives."""
        return self.model(value)


class _Tracer(fx.Tracer):
    """Traces into those modules alone that have one of the places inside; notes when the places are called."""

    proxy_buffer_attributes = True  # what is done to a buffer is part of the graph, and not done while tracing

    def __init__(self, at: Sequence[str]) -> None:
        super().__init__()
        self.context = _context()
        self.at = at
        self.began: list[tuple[str, int]] = []  # a place, and the number of nodes there were when it was called
        self.inside = [""]  # where an error comes from is not taken off

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        path = module_qualified_name.removeprefix("model").removeprefix(".")
        return bool(path) and not any(place.startswith(f"{path}.") for place in self.at)

    def call_module(
        self, m: nn.Module, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        path = self.path_of_module(m).removeprefix("model").removeprefix(".")
        if path in self.at:
            self.began.append((path, len(self.graph.nodes)))
        # Whatever is in the way of a layer's call is so in what calls it.
        self.inside.append(self.inside[-1] if self.is_leaf_module(m, f"model.{path}") else path)
        result = super().call_module(m, forward, args, kwargs)
        self.inside.pop()
        return result

    def create_node(self, *args: Any, **kwargs: Any) -> fx.Node:
        if _context() != self.context:  # the graph has only what is computed, not in which context
            raise RuntimeError("torch.no_grad or torch.autocast, which can be inside of layers only")
        return super().create_node(*args, **kwargs)

    def get_fresh_qualname(self, prefix: str) -> str:
        # What has no name yet is to be kept as a constant: not to move with the model, and if random the same for ever.
        raise RuntimeError("a tensor that is made there; self.register_buffer(name, tensor, persistent=False) keeps it")


def _context() -> list[Any]:
    """Return whether gradients are noted, and which types of device compute in another precision."""
    precisions = [torch.is_autocast_enabled(kind) and torch.get_autocast_dtype(kind) for kind in ("cpu", "cuda")]
    return [torch.is_grad_enabled(), *precisions]


def _traced(module: nn.Module, is_training: bool, at: Sequence[str]) -> _Tracer:
    """Return a tracer that has traced a model."""
    with unchanged(module), torch.enable_grad():
        tracer = _Tracer(at)
        before = [(*place, place[-1]._version) for place in tensors_of(module)]
        try:
            tracer.trace(_One(module.train(is_training)))
        except Exception as error:  # the model is foreign code
            frames = [f for f in traceback.extract_tb(error.__traceback__) if not _is_of_torch(f.filename)]
            line = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}, " if frames else ""
            reason = " ".join(str(error).split())
            where = tracer.inside[-1] or type(module).__name__
            raise NotTraceable(f"the forward pass of {where} can't be traced ({line}{reason})") from None
        for holder, name, tensor, version in before:
            if holder.get(name) is not tensor or tensor._version != version:
                raise NotTraceable(
                    f"the forward pass of {type(module).__name__} can't be traced (it sets {name!r} outside of layers: "
                    "allowed are methods of a registered buffer that change it, such as add_ and copy_)"
                )
    return tracer


def _is_of_torch(file: str) -> bool:
    return file == __file__ or Path(torch.__file__).parent in Path(file).parents


def _refuse_modes(module: nn.Module, tracers: Sequence[_Tracer]) -> None:
    """Raise ValueError if a model computes something else in training than in evaluation, outside of its layers."""
    texts = [[node.format_node() for node in tracer.graph.nodes] for tracer in tracers]
    if texts[0] != texts[1]:
        differing = next(
            (node for node, *lines in zip(tracers[1].graph.nodes, *texts, strict=False) if lines[0] != lines[1]), None
        )
        where = f"at {differing.name.removeprefix('model_')!r}" if differing is not None else "at its end"
        raise ValueError(
            f"{type(module).__name__} computes something else in training than in evaluation, outside of its layers "
            f"({where}): functions that know the mode have to be layers, as nn.Dropout is"
        )


def _refuse_order(at: Sequence[str], tracer: _Tracer) -> None:
    """Raise ValueError unless each place is called once, in order."""
    called = [path for path, _ in tracer.began]
    for path in at:
        if called.count(path) != 1:
            raise ValueError(f"at: the forward pass calls {path!r} {called.count(path)} times, allowed is once")
    if called != list(at):
        raise ValueError(f"at = {tuple(at)!r}: the forward pass has them in the order {tuple(called)!r}")


def _divided(tracer: _Tracer, at: Sequence[str]) -> list[Segmentation]:
    """Return the steps of each part; ValueError unless one value goes from each to the next."""
    *nodes, last = tracer.graph.nodes
    (output,) = last.args
    if not isinstance(output, fx.Node):
        kind = type(output).__name__.removeprefix("immutable_")
        raise NotTraceable(f"the model gives a {kind}, allowed is one tensor")
    starts = [start for _, start in tracer.began]
    part_of = {node: sum(start <= i for start in starts) for i, node in enumerate(nodes)} | {last: len(at)}
    ends = [nodes[0]]
    for boundary, path in enumerate(at):
        crossing = [
            node
            for node in nodes
            if node.op != "get_attr" and part_of[node] <= boundary and any(part_of[u] > boundary for u in node.users)
        ]
        if len(crossing) != 1:
            names = " and ".join(node.name.removeprefix("model_") for node in crossing) or "none"
            raise ValueError(f"in front of {path!r} {len(crossing)} values go on ({names}): allowed is one tensor")
        ends += crossing
    parts = []
    for number, (entry, end) in enumerate(pairwise([*ends, output])):
        slots, steps = {entry: 0}, list[Step]()
        for node in nodes:
            # A weight is looked up where it is used.
            places = {part_of[user] for user in node.users} if node.op == "get_attr" else {part_of[node]}
            if number in places and node.op != "placeholder":
                slots[node] = len(slots)
                steps.append(_step(node, slots))
        if end is entry:
            raise ValueError(f"at: in front of {[*at, 'the end'][number]!r} nothing is computed")
        parts.append(Segmentation(tuple(steps), slots[end]))
    return parts


def _step(node: fx.Node, slots: dict[fx.Node, int]) -> Step:
    """Return the step that a node of a graph stands for."""
    target = node.target
    if node.op in ("call_module", "get_attr"):
        target = str(target).removeprefix("model.")
    args, kwargs = fx.map_arg((node.args, node.kwargs), lambda other: Slot(slots[other]))
    return Step(_KINDS[node.op], target, tuple(args), dict(kwargs), slots[node])  # type: ignore[arg-type]
