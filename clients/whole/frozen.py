"""Weights that do not train stay where they are: nobody sends them, and nobody waits for them."""

from functools import partial
from typing import Any

from torch import nn

from ..shared.cut import Module


def without_frozen(model: Module) -> Module:
    """Return the model, whose ``state_dict`` from now on has no weights that do not train; loading needs none.

    So they are part of no message, no average and no saved model: whoever makes the model has to make them, from a
    seed, as `espalier.app.tasks.OwnTask.model` does, or from a file that all hosts have. Buffers stay, and weights that
    are frozen later. Copies of the model, and of parts of it, are alike.

    Parameters
    ----------
    model : nn.Module
        The model; its frozen weights have ``requires_grad`` False now.
    """
    for part in model.modules():
        names = frozenset(name for name, weight in part.named_parameters(recurse=False) if not weight.requires_grad)
        if names:
            part.register_state_dict_post_hook(partial(_leave_out, names))
            part.register_load_state_dict_pre_hook(partial(_put_in, names))
    return model


def _leave_out(names: frozenset[str], part: nn.Module, state: dict[str, Any], prefix: str, metadata: Any) -> None:
    for name in names:
        state.pop(prefix + name, None)


def _put_in(names: frozenset[str], part: nn.Module, state: dict[str, Any], prefix: str, *others: Any) -> None:
    """Put a module's own weights into what it is about to load, which would miss them; a saved whole model's stay."""
    for name in names:
        state.setdefault(prefix + name, part._parameters[name])
