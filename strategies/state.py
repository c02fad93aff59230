"""The state of a strategy as plain data, so that a run can be saved and resumed."""

import random
from collections.abc import Iterable, Mapping
from inspect import isroutine
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord
from flwr.serverapp.strategy import FedAvg, Strategy

_PLAIN = {type(None), bool, int, float, str}  # nearly all that there is: looked up, not asked of each class in turn
_DATA = (type(None), bool, int, float, str, bytes, np.generic, np.ndarray, ArrayRecord, ConfigRecord, MetricRecord)

KEPT = "espalier.kept"  # what an object that keeps itself told
MOST_NESTED = 100  # lists, tuples and dicts in each other


class UnsavableError(TypeError):
    """An attribute of a strategy can't be saved; the text says which, and what to do."""


def strategy_state(strategy: Any) -> dict[str, Any]:
    """Return the attributes of a strategy, or of another object that keeps something from call to call, that are data.

    A strategy with a `state_dict` of its own is asked for it. Functions and classes are left out, and objects that are
    called like functions and hold nothing: they belong to the code that builds the strategy. Random generators,
    strategies inside, and objects with `state_dict` and `load_state_dict` may be attributes, not parts of one.

    Returns
    -------
    dict[str, Any]
        Numbers, strings, arrays, Flower records, and lists, tuples and dicts of these, but not of types made from them.

    Raises
    ------
    UnsavableError
        If an attribute is of a type that can't be saved.
    """
    if hasattr(strategy, "state_dict"):
        return _told_by(strategy, type(strategy).__name__)
    state = {}
    for name, value in vars(strategy).items():
        if type(value) in _PLAIN:
            state[name] = value
            continue
        if _is_code(value):
            continue
        if _keeps_itself(value):
            state[name] = {KEPT: _told_by(value, f"{type(strategy).__name__}.{name}")}
            continue
        try:
            state[name] = _attribute_as_data(value)
        except TypeError as error:
            raise unsavable_attribute(strategy, name, error) from None
    return state


def unsavable_attribute(owner: Any, name: str, what: TypeError) -> UnsavableError:
    """Return the error for an attribute that is `what`, by its type."""
    methods = "state_dict() and load_state_dict(state)"
    return UnsavableError(
        f"{type(owner).__name__}.{name} is a {what}, which can't be saved: give the class methods {methods}"
    )


def built_attributes(strategy: Any) -> dict[str, Any]:
    """Return the names of a new strategy's attributes; with those of strategies inside, by their names."""
    return {
        name: built_attributes(value) if isinstance(value, Strategy) else {} for name, value in vars(strategy).items()
    }


def restore_strategy_state(strategy: Any, state: Mapping[str, Any], built: Mapping[str, Any]) -> None:
    """Put back what `strategy_state` returned into a strategy built by the same code.

    Parameters
    ----------
    strategy : Strategy
        The strategy; it may have been used.
    state : Mapping[str, Any]
        Its state to be.
    built : Mapping[str, Any]
        What `built_attributes` said when it was new: data that it has had since, and `state` has not, are deleted.

    Raises
    ------
    ValueError
        If `state` is of a strategy with other settings, or not of a strategy.
    """
    if hasattr(strategy, "load_state_dict"):
        strategy.load_state_dict(state)
        return
    is_flowers = type(strategy).__module__.startswith("flwr.") and isinstance(strategy, FedAvg)
    for name, saved in state.items():
        if isroutine(getattr(type(strategy), name, None)):
            raise ValueError(f"{type(strategy).__name__}.{name} is no data")
        now = vars(strategy).get(name)
        # Numbers and strings of Flower's own are their settings; a strategy that one is inside may change them.
        if is_flowers and isinstance(now, int | float | str) and (type(saved) is not type(now) or saved != now):
            raise ValueError(f"{type(strategy).__name__}.{name} is {now!r} in this run")
    _restore(strategy, state, built)


def _restore(strategy: Any, state: Mapping[str, Any], built: Mapping[str, Any]) -> None:
    own = {*built, *state}
    for name in [name for name, value in vars(strategy).items() if name not in own and not _is_code(value)]:
        delattr(strategy, name)
    for name, saved in state.items():
        current: Any = getattr(strategy, name, None)
        if isinstance(current, Strategy) and hasattr(current, "load_state_dict"):
            current.load_state_dict(saved)
        elif isinstance(saved, dict) and KEPT in saved:
            if not _keeps_itself(current):
                raise ValueError(f"{type(strategy).__name__}.{name} is made during a run: make it in __init__()")
            current.load_state_dict(saved[KEPT])
        elif isinstance(current, Strategy):
            _restore(current, saved, built.get(name, {}))
        elif isinstance(current, np.random.Generator):
            current.bit_generator.state = saved
        elif isinstance(current, random.Random):
            version, internal, gauss_next = saved
            current.setstate((version, tuple(internal), gauss_next))
        else:
            setattr(strategy, name, saved)


def spoilt_attribute(strategy: Strategy, arrays: Iterable[str]) -> str:
    """Return the name of an attribute with an array per array of the model that holds NaN or Inf, or an empty string.

    An adaptive strategy whose second moments are infinite makes the same model for ever.
    """
    names = set(arrays)
    for attribute, values in vars(strategy).items():
        if isinstance(values, dict) and values.keys() == names:
            for one in values.values():
                # The sum is finite nearly always, and much faster to have.
                with np.errstate(over="ignore", invalid="ignore"):
                    if isinstance(one, np.ndarray) and not np.isfinite(one.sum()) and not np.isfinite(one).all():
                        return attribute
    return ""


def _is_code(value: Any) -> bool:
    if isinstance(value, Strategy):
        return False
    return (
        isroutine(value)
        or isinstance(value, type | np.ufunc)
        or (callable(value) and not getattr(value, "__dict__", None))
    )


def _keeps_itself(value: Any) -> bool:
    """Return whether an object in a strategy, such as Flower's accountants of privacy, tells its state and takes it."""
    return not isinstance(value, Strategy) and hasattr(value, "state_dict") and hasattr(value, "load_state_dict")


def _told_by(owner: Any, name: str) -> dict[str, Any]:
    """Return what an object says is its state."""
    own = dict(owner.state_dict())
    try:
        check_savable(own)
    except TypeError as error:
        raise UnsavableError(
            f"{name}.state_dict() holds a {error}, which can't be saved: let it return numbers, strings, arrays, "
            "Flower records, and lists, tuples and dicts of these"
        ) from None
    return own


def _attribute_as_data(value: Any) -> Any:
    if isinstance(value, Strategy):
        return strategy_state(value)
    if isinstance(value, np.random.Generator):
        return dict(value.bit_generator.state)
    if isinstance(value, random.Random):
        return value.getstate()
    return _as_data(value)


def check_savable(value: Any, depth: int = 0) -> None:
    """Raise TypeError unless a value can be saved, if as a plainer one, such as a dict for a Counter."""
    if isinstance(value, list | tuple | dict):
        _check_depth(value, depth)
        for item in value if not isinstance(value, dict) else (*value, *value.values()):
            check_savable(item, depth + 1)
    elif not isinstance(value, _DATA):
        raise TypeError(type(value).__name__)


def _check_depth(value: Any, depth: int) -> None:
    if depth == MOST_NESTED:
        raise TypeError(f"{type(value).__name__} nested more than {MOST_NESTED} deep")


def _as_data(value: Any, depth: int = 0) -> Any:
    if isinstance(value, _DATA):
        return value
    _check_depth(value, depth)
    # What is made from them, such as a Counter, would come back as something else.
    if type(value) in (list, tuple):
        return type(value)(_as_data(item, depth + 1) for item in value)
    if type(value) is dict:
        return {key: _as_data(item, depth + 1) for key, item in value.items()}
    raise TypeError(type(value).__name__)
