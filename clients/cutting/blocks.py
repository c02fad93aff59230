"""Any model as a list of blocks, which split training cuts: `blocks_of`."""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..shared.generators import seeded_torch
from .layer_list import layer_list_of, parts_along_layers
from .segments import Segment, Segmentation
from .tracing import NotTraceable, traced_parts
from .unchanged import unchanged

STEM, HEAD = "stem", "head"


def blocks_of(module: nn.Module, at: Sequence[str], example: Any = None) -> nn.Sequential:
    """Return a model as a list of named blocks, which compute what it computes, to the bit, and share its weights.

    The forward pass is traced by ``torch.fx``, no deeper than to the places where it is cut: all other layers stay as
    they are, whatever is inside of them. A model that can't be traced so far, such as an encoder of Hugging Face's, is
    cut along its own list of layers (an ``nn.ModuleList``): what is in front of the first layer of `at` stays the
    model's own code, and from there on each layer has to take what the one before gave.

    Parameters
    ----------
    module : nn.Module
        The model: its forward pass takes one argument, and gives one tensor (or what holds it, as Hugging Face's
        outputs do).
    at : Sequence[str]
        The layers that begin a new block, in the order of the forward pass, by their paths in the model, such as
        ``("layer1", "layer2.1", "fc")``. For a list of blocks that can be split the last one is the head, an
        ``nn.Linear``, with nothing behind it.
    example : optional (default: None)
        A mini-batch. With it the blocks are tried: they have to give what the model gives, and its gradients. Needed
        for a model that can't be traced.

    Returns
    -------
    nn.Sequential
        ``stem``, a block for each layer of `at` but the last, by its path with ``_`` in place of dots, and ``head``.
        A weight that is ``layer1.0.conv1.weight`` in the model is ``layer1.layer1.0.conv1.weight`` in the block
        ``layer1``; a head that is one layer is that layer, with ``head.weight``; see `original_names`. Weights that the
        forward pass does not use are in no block.

    Raises
    ------
    ValueError
        In one line that names the place: for a path that there is not, that comes earlier in the forward pass or more
        than once; where more than one value crosses a boundary, or weights are on both sides of one; for a forward pass
        that can be traced neither way, or that depends on the training mode, or has ``torch.no_grad`` or
        ``torch.autocast``, outside of layers.
    """
    at = _checked_places(module, at)
    try:
        parts: list[nn.Module] = [_block(module, plan) for plan in traced_parts(module, at)]
    except NotTraceable as reason:
        if (layers := layer_list_of(module, at)) is None:
            raise ValueError(str(reason)) from None
        if example is None:
            raise ValueError(f"{reason}; to cut along the layers {layers!r} takes example=, a mini-batch") from None
        stem, chain = parts_along_layers(module, at, layers, example)
        parts = [stem, *(_block(module, plan) for plan in chain)]
    names = [STEM, *(path.replace(".", "_") for path in at[:-1]), HEAD]
    if len(set(names)) < len(names):
        raise ValueError(f"at = {at!r}: blocks would have the same name")
    blocks = nn.Sequential(OrderedDict(zip(names, parts, strict=True)))
    _refuse_shared_weights(module, blocks)
    if example is not None:
        _compare(module, blocks, example)
    return blocks


def original_names(blocks: nn.Sequential, module: nn.Module) -> dict[str, str]:
    """Return the names that a model's weights have in it, by those that they have in its blocks."""
    names = {id(tensor): name for name, tensor in module.state_dict(keep_vars=True).items()}
    return {name: names[id(tensor)] for name, tensor in blocks.state_dict(keep_vars=True).items()}


def _checked_places(module: nn.Module, at: Sequence[str]) -> tuple[str, ...]:
    """Return the paths; ValueError unless each leads to a layer of its own."""
    places = (at,) if isinstance(at, str) else tuple(at)
    known = dict(module.named_modules(remove_duplicate=False))
    if not places or len(set(places)) < len(places):
        raise ValueError(f"at = {places!r}: allowed are one or more different layers")
    for path in places:
        if not path or path not in known:
            children = ", ".join(name for name, _ in module.named_children())
            raise ValueError(f"at: there is no layer {path!r} in {type(module).__name__}, which has {children}")
    return places


def _block(module: nn.Module, plan: Segmentation) -> nn.Module:
    """Return what a plan says; the layer itself where there is but one, which takes what comes in alone."""
    first, *others = plan.steps
    if first.kind == "layer" and len(first.args) == 1 and not first.kwargs and not others:
        return module.get_submodule(str(first.target))
    return Segment(module, plan)


def _refuse_shared_weights(module: nn.Module, blocks: nn.Sequential) -> None:
    names = {id(tensor): name for name, tensor in module.state_dict(keep_vars=True).items()}
    found: dict[int, str] = {}
    for block, part in blocks.named_children():
        for tensor in {id(t): t for t in (*part.parameters(), *part.buffers())}.values():
            if (other := found.setdefault(id(tensor), block)) != block:
                name = names.get(id(tensor), "a buffer")
                raise ValueError(
                    f"the blocks {other!r} and {block!r} share a weight, {name}: it can't be on both sides"
                )


def _compare(module: nn.Module, blocks: nn.Sequential, example: Any) -> None:
    """Raise ValueError unless the blocks do what the model does with an example, in evaluation and in training."""
    for is_training in (False, True):
        found = _tried(blocks, module, example, is_training)
        expected = _tried(module, module, example, is_training, found.output)
        size = max((float(values.norm()) for values in expected.gradients.values() if values is not None), default=0)
        differing = [
            *(["output"] if expected.output is None else []),
            *(
                f"gradient of {name}"
                for name, values in expected.gradients.items()
                if not _are_alike(values, found.gradients[name], size)
            ),
            *(name for name, values in expected.buffers.items() if not _are_alike(values, found.buffers[name], 0)),
        ]
        if differing:
            raise ValueError(
                f"the blocks of {type(module).__name__} do not give its {differing[0]} for the example (in "
                f"{'training' if is_training else 'evaluation'}): it computes something between its layers, or has "
                "torch.no_grad there"
            )


class _Tried(NamedTuple):
    """What a model has done with an example."""

    output: Tensor | None
    gradients: dict[str, Tensor | None]
    buffers: dict[str, Tensor]


def _tried(
    model: nn.Module, module: nn.Module, example: Any, is_training: bool, wanted: Tensor | None = None
) -> _Tried:
    """Run a model, or its blocks, and put it back; of more outputs the one that is wanted counts."""
    weights = dict(module.named_parameters())
    device = next(iter(weights.values())).device
    with unchanged(module), unchanged(model), seeded_torch(0, device), torch.set_grad_enabled(is_training):
        for weight in weights.values():
            weight.grad = None
        outputs = outputs_of(model.train(is_training)(example))
        output = next((tensor for tensor in outputs if wanted is None or torch.equal(tensor, wanted)), None)
        if output is not None and output.requires_grad:
            output.backward(torch.rand(output.shape, generator=torch.Generator().manual_seed(0)).to(output))
        gradients = {name: None if weight.grad is None else weight.grad.to_dense() for name, weight in weights.items()}
        buffers = {name: buffer.detach().clone() for name, buffer in module.named_buffers()}
    return _Tried(output, gradients, buffers)


def _are_alike(own: Tensor | None, other: Tensor | None, size: float) -> bool:
    """Return whether two tensors are the same, but for the last digits of sums, whose order differs between runs."""
    if own is None or other is None:
        return own is other
    share = torch.finfo(own.dtype).eps ** 0.5 if own.is_floating_point() else 0
    return torch.allclose(own, other, share, share * size, equal_nan=True)


def outputs_of(output: Any) -> list[Tensor]:
    """Return the tensors that a model gives, alone or in a tuple or dict."""
    items = output.values() if isinstance(output, dict) else output if isinstance(output, tuple | list) else (output,)
    return [item for item in items if isinstance(item, Tensor)]
