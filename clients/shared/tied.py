"""Weights that layers share: one tensor, which a model's state has under several names."""

from collections.abc import Mapping

from torch import nn

from .correction import Weights


def other_names(model: nn.Module) -> dict[str, str]:
    """Return the further names of weights that layers share, each with the name that training knows them by."""
    first: dict[int, str] = {}
    names = {
        name: first.setdefault(id(weights), name) for name, weights in model.named_parameters(remove_duplicate=False)
    }
    return {name: known for name, known in names.items() if name != known}


def as_loaded(state: Weights, others: Mapping[str, str]) -> Weights:
    """Return a state as a model has it that loads it: a shared weight has the value of its last name under each.

    The names of one weight come with different values where messages are compressed, or noise is added.
    """
    if not others:
        return state
    return with_other_names(
        {**state, **{known: state[name] for name, known in others.items() if name in state}}, others
    )


def with_other_names(weights: Weights, others: Mapping[str, str]) -> Weights:
    """Return weights in which each that has further names, see `other_names`, has its value under all of them."""
    if not others:
        return weights
    return {**weights, **{name: weights[known] for name, known in others.items() if name in weights}}
