"""Corners of weights: of each dimension the first entries, where a client has no more of a weight than that."""

from collections.abc import Callable, Mapping

import torch
from flwr.app import ArrayRecord, RecordDict
from torch import Tensor

from .arrays import to_weights
from .tensor_array import TensorArray, record_by_reference

Shape = tuple[int, ...]
Change = Callable[[Tensor, Shape], Tensor]


def corner_of(weight: Tensor, shape: Shape) -> Tensor:
    """Return a copy of a weight's corner."""
    return weight[tuple(map(slice, shape))].clone(memory_format=torch.contiguous_format)


def filled_up(corner: Tensor, shape: Shape) -> Tensor:
    """Return a weight of which all but the corner is 0."""
    weight = corner.new_zeros(shape)
    weight[tuple(map(slice, corner.shape))] = corner
    return weight


def with_corners(content: RecordDict, corners: Mapping[str, Shape], whole: Mapping[str, Shape]) -> RecordDict:
    """Return records with corners in place of the weights of these names that are whole."""
    return _changed(content, {n: (whole[n], shape) for n, shape in corners.items()}, corner_of)


def with_whole(content: RecordDict, corners: Mapping[str, Shape], whole: Mapping[str, Shape]) -> RecordDict:
    """Return records with whole weights in place of their corners; what has another shape stays as it is."""
    return _changed(content, {n: (shape, whole[n]) for n, shape in corners.items()}, filled_up)


def _changed(content: RecordDict, shapes: Mapping[str, tuple[Shape, Shape]], change: Change) -> RecordDict:
    if not shapes:
        return content
    records = dict(content.items())
    for name, record in records.items():
        if isinstance(record, ArrayRecord) and shapes.keys() & record.keys():
            arrays = dict(record.items())
            for weight, (before, after) in shapes.items():
                if weight in arrays and tuple(arrays[weight].shape) == before:
                    (values,) = to_weights(record_by_reference({weight: arrays[weight]})).values()
                    arrays[weight] = TensorArray(change(values, after))
            records[name] = record_by_reference(arrays)
    return RecordDict(records)
