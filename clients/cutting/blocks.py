"""Any model as a list of blocks, which split training cuts: `blocks_of`."""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..shared.generators import seeded_torch
from .layer_list import layer_list_of, parts_along_layers
from .segments import Segment, Segmentation
from .tracing import NotTraceable, traced_parts

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
        A mini-batch. With it the blocks are tried: they have to give what the model gives. Needed for a model that
        can't be traced.

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
        that can be traced neither way, or that depends on the training mode outside of layers.
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
    """Raise ValueError unless the blocks give what the model gives for an example, in evaluation and in training."""
    modes = [(part, part.training) for part in (*module.modules(), *blocks.modules())]
    buffers = [(buffer, buffer.clone()) for buffer in module.buffers()]
    device = next(module.parameters()).device
    try:
        for is_training in (False, True):
            outputs = []
            for model in (module, blocks):
                model.train(is_training)
                with seeded_torch(0, device), torch.no_grad():
                    outputs.append(model(example))
                for buffer, before in buffers:
                    buffer.copy_(before)
            whole, parts = outputs
            if not any(torch.equal(parts, tensor) for tensor in outputs_of(whole)):
                raise ValueError(
                    f"the blocks of {type(module).__name__} do not give what it gives for the example "
                    f"(in {'training' if is_training else 'evaluation'}): it computes something between its layers"
                )
    finally:
        for part, was_training in modes:
            part.training = was_training


def outputs_of(output: Any) -> list[Tensor]:
    """Return the tensors that a model gives, alone or in a tuple or dict."""
    items = output.values() if isinstance(output, dict) else output if isinstance(output, tuple | list) else (output,)
    return [item for item in items if isinstance(item, Tensor)]
