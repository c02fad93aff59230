"""A model's update in a message: one array of bytes for all weights, and beside it what no optimizer moves.

Running statistics and arrays of integers travel as they are: the model's data for them are in the record of the model,
under their own names. All other arrays are weights, and their updates are one after the other, in the order of their
names, in the record ``compressed``.
"""

import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from flwr.app import Array, ArrayRecord
from torch import Tensor

from ..arrays import to_record, to_vector, to_weights, values_of
from ..correction import Weights
from ..statistics import is_beside_weights
from ..tensor_array import record_by_reference
from ..text import one_line
from .codec import Codec

COMPRESSED: Final = "compressed"


@dataclass(frozen=True)
class Compressed:
    """A model that was compressed.

    Parameters
    ----------
    beside : ArrayRecord
        What travels as it is.
    update : ArrayRecord
        The bytes of all updates, as the one array ``compressed``.
    errors : Mapping[str, Tensor]
        What was left out of it, to be added to the next; none of codecs that keep none.
    """

    beside: ArrayRecord
    update: ArrayRecord
    errors: Weights


def compressed(
    codec: Codec, model: ArrayRecord, start: ArrayRecord, errors: Weights, draws: torch.Generator
) -> Compressed:
    """Return a model as it travels.

    Parameters
    ----------
    codec : Codec
        Writes updates.
    model : ArrayRecord
        What is sent.
    start : ArrayRecord
        What it started from, which the receiver knows; with arrays of the same names, shapes and data types.
    errors : Mapping[str, Tensor]
        What was left out of the update before this one; none at first.
    draws : torch.Generator
        The only source of chance.

    Raises
    ------
    ValueError
        If the arrays are others than those of `start`, or an update can't be written.
    """
    _check_alike(model, start)
    got_to, began = to_weights(model), to_weights(start)
    parts, left = [np.empty(0, np.uint8)], dict[str, Tensor]()
    for name in _moved(start):
        values, known = got_to[name].reshape(-1), began[name].reshape(-1)
        error = errors[name].reshape(-1) if name in errors else torch.zeros_like(values)
        # Not values + 0 where nothing was left out: -0.0 would lose its sign.
        wanted = values + error if bool(error.any()) else values
        parts.append(_encoded(codec, wanted, known, draws))
        if codec.keeps_errors:
            told = _decoded(codec, parts[-1], known)
            left[name] = ((values - told) + error).reshape(got_to[name].shape)
    update = record_by_reference({COMPRESSED: to_vector(np.concatenate(parts))})
    return Compressed(_beside(model), update, left)


def form_of_update(codec: Codec, model: ArrayRecord) -> Compressed:
    """Return what is as long as each update of a model, and says nothing."""
    began = to_weights(model)
    length = sum(codec.num_bytes(began[name].numel(), began[name].dtype) for name in _moved(model))
    update = record_by_reference({COMPRESSED: to_vector(np.zeros(length, np.uint8))})
    return Compressed(_beside(model), update, {})


def decompressed(codec: Codec, beside: ArrayRecord, update: ArrayRecord, start: ArrayRecord) -> ArrayRecord:
    """Return the model that was compressed; what is allocated follows the size of `start`, not what came in.

    Parameters
    ----------
    codec : Codec
        Reads updates.
    beside, update : ArrayRecord
        What came in.
    start : ArrayRecord
        What the model started from.

    Raises
    ------
    ValueError
        In one line, if they are no update of this model.
    """
    if list(update) != [COMPRESSED]:
        raise ValueError(f"its record {COMPRESSED!r} has not the one array of that name")
    data = values_of(update[COMPRESSED])
    began, names = to_weights(start), _moved(start)
    sizes = {name: _num_bytes(codec, began[name]) for name in names}
    if data.dtype != np.uint8 or data.shape != (sum(sizes.values()),):
        raise ValueError(f"its update is {data.dtype} of shape {data.shape}, expected {sum(sizes.values())} bytes")
    if beside.keys() != (rest := {name for name, array in start.items() if not _is_moved(name, array)}):
        raise ValueError(f"beside its update are {len(beside)} arrays, expected are the {len(rest)} that don't train")
    model, place = dict[str, Array](), 0
    for name in names:
        told = _decoded(codec, data[place : place + sizes[name]], began[name].reshape(-1))
        model[name] = to_record({name: told.reshape(began[name].shape)})[name]
        place += sizes[name]
    return record_by_reference({name: model[name] if name in model else beside[name] for name in start})


def _num_bytes(codec: Codec, start: Tensor) -> int:
    """Return how many bytes a codec says that it writes for a weight."""
    try:
        return operator.index(codec.num_bytes(start.numel(), start.dtype))
    except Exception as error:  # it may be foreign code
        raise ValueError(f"{type(codec).__name__}.num_bytes() gives no number of bytes: {_said(error)}") from None


def _decoded(codec: Codec, data: np.ndarray, start: Tensor) -> Tensor:
    """Return what a codec reads, of the form of `start`."""
    try:
        told = codec.decode(data, start)
        if not isinstance(told, Tensor):
            raise TypeError(f"decode() gave a {type(told).__name__}, not a tensor")
    except Exception as error:  # it reads foreign data, and may be foreign code
        raise ValueError(f"its update can't be read: {_said(error)}") from None
    if told.shape != start.shape or told.dtype != start.dtype:
        raise ValueError(
            f"{type(codec).__name__} made {told.dtype} of shape {tuple(told.shape)} of {len(start)} values"
        )
    return told


def _encoded(codec: Codec, values: Tensor, start: Tensor, draws: torch.Generator) -> np.ndarray:
    """Return what a codec writes, if it is as long as it says."""
    try:
        data = codec.encode(values, start, draws)
        if not isinstance(data, np.ndarray):
            raise TypeError(f"encode() gave a {type(data).__name__}, not an array of bytes")
    except Exception as error:  # it may be foreign code
        raise ValueError(f"its update can't be written: {_said(error)}") from None
    expected = _num_bytes(codec, start)
    if data.dtype != np.uint8 or data.shape != (expected,):
        raise ValueError(f"{type(codec).__name__} wrote {data.dtype} of shape {data.shape}, and said {expected} bytes")
    return data


def _said(error: Exception) -> str:
    said = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
    return one_line(said)


def _check_alike(model: ArrayRecord, start: ArrayRecord) -> None:
    forms: list[Mapping[str, tuple[str, tuple[int, ...]]]] = [
        {name: (array.dtype, tuple(array.shape)) for name, array in record.items()} for record in (model, start)
    ]
    if forms[0] != forms[1]:
        raise ValueError("what is to be compressed are other arrays than those that were sent")


def _beside(model: ArrayRecord) -> ArrayRecord:
    return record_by_reference({name: array for name, array in model.items() if not _is_moved(name, array)})


def _moved(model: ArrayRecord) -> list[str]:
    """Return the names of a model's weights, in their order."""
    return sorted(name for name, array in model.items() if _is_moved(name, array))


def _is_moved(name: str, array: Array) -> bool:
    """Return whether an array's update is compressed: a weight, of one value or more."""
    return not is_beside_weights(name, np.dtype(array.dtype)) and 0 not in array.shape
