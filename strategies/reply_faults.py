"""Whether a reply fits, judged on its own and beside the others: why it does not, in one line."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict

from espalier.clients.messages.train import (
    ACCURACY,
    CLIENT_HALF,
    LOSS,
    NUM_EXAMPLES,
    NUM_VALIDATION,
    TOP,
    TRAIN_LOSS,
    VALIDATION,
)
from espalier.clients.shared import text
from espalier.clients.shared.arrays import values_of
from espalier.clients.shared.records import records_in
from espalier.clients.shared.text import quoted

from .replies import is_training, model_sent, number_of, one_line, reason_of

MOST_RECORDS = 16  # in a reply
MOST_METRICS = 1000  # in a reply, and numbers in one of them
ROUNDED_ONE = 1.0 + 1e-9  # a mean of accuracies that are all 1 may be more by a rounding
LARGEST_FIGURE = float(np.finfo(np.float32).max)
LOSSES = LOSS, VALIDATION + LOSS, TRAIN_LOSS
ABSURD_LOSS = 1e18  # times the loss that others usually have, and at least 1: no data differ as much
NAME = f"{text.LONGEST_NAME} printable characters at most"


def content_of(reply: Message) -> RecordDict:
    """Return what a reply holds; ValueError with its reason for an error reply."""
    if reply.has_error():
        raise ValueError(reason_of(reply.error))
    if fault := size_fault(reply.content):
        raise ValueError(fault)
    return reply.content


def size_fault(content: RecordDict) -> str:
    """Return why a reply is larger, or has other names, than there is use for, or an empty string."""
    if len(content) > MOST_RECORDS:
        return f"{len(content)} records, expected {MOST_RECORDS} at most"
    for name, record in content.items():
        if not text.is_name(name):
            return f"the name of a record is {quoted(name)}, expected {NAME}"
        if isinstance(record, ArrayRecord):
            continue
        if len(record) > MOST_METRICS:
            return f"{len(record)} entries in record {quoted(name)}, expected {MOST_METRICS} at most"
        for key, value in record.items():
            if not text.is_name(key):
                return f"a name in record {quoted(name)} is {quoted(key)}, expected {NAME}"
            if isinstance(value, list) and len(value) > MOST_METRICS:
                return f"{quoted(key)} has {len(value)} values, expected {MOST_METRICS} at most"
    return ""


def array_fault(arrays: ArrayRecord, reference: ArrayRecord) -> str:
    """Return why `arrays` can't stand in for `reference`, or an empty string."""
    if arrays.keys() != reference.keys():
        if missing := sorted(reference.keys() - arrays.keys()):
            return f"array {missing[0]!r} is missing"
        return f"array {quoted(next(name for name in arrays if name not in reference))} is not in the model"
    for name, expected in reference.items():
        try:
            values, dtype = _values_in_shape(arrays[name], expected), np.dtype(expected.dtype)
        except (ValueError, TypeError) as error:
            return f"array {name!r} {error}"
        if dtype.kind == "c":
            return f"array {name!r} is complex, expected real numbers: hold its two parts"
        if dtype.kind not in "biuf" or values.dtype.kind != dtype.kind:
            return f"array {name!r} has dtype {values.dtype}, expected {dtype}"
        if not is_finite(values, dtype):
            return f"array {name!r} holds NaN or Inf"
    return ""


def model_fault(arrays: ArrayRecord, reference: ArrayRecord) -> str:
    """Return why what a strategy made of models like `reference` is none, or an empty string; data types may differ."""
    if set(arrays) != set(reference):
        return "has other arrays"
    for name, expected in reference.items():
        try:
            values = _values_in_shape(arrays[name], expected)
        except (ValueError, TypeError) as error:
            return f"is none: array {name!r} {one_line(error)}"
        if not is_finite(values, np.dtype(expected.dtype)):
            return "holds NaN or Inf"
    return ""


def _values_in_shape(array: Array, expected: Array) -> np.ndarray:
    """Return an array's values; ValueError where they can't be read, or have another shape than `expected`."""
    values = values_of(array)
    if values.shape != tuple(expected.shape):
        raise ValueError(f"has shape {values.shape}, expected {tuple(expected.shape)}")
    return values


def is_finite(values: np.ndarray, dtype: np.dtype) -> bool:
    """Return whether all values are finite numbers in `dtype`: 1e300 is none in float32."""
    if values.dtype != dtype:
        with np.errstate(over="ignore"):
            values = values.astype(dtype)
    return bool(np.isfinite(values).all())


def reply_fault(instruction: Message, reply: Message, weight_key: str, least: Mapping[str, float]) -> str:
    """Return why a reply can't be averaged, judged on its own, or an empty string."""
    if reply.has_error():
        return reason_of(reply.error)
    if fault := size_fault(reply.content):
        return fault
    sent, received = model_sent(instruction), records_in(reply.content, ArrayRecord).values()
    if sent is not None and len(received) != 1:
        why = f" ({CLIENT_HALF!r} is for an AlgorithmEdge)" if CLIENT_HALF in reply.content else ""
        return f"{len(received)} array records, expected 1{why}"
    for arrays in received:
        # In a vocabulary of its own, say with control variates, only the numbers can be judged.
        if fault := array_fault(arrays, arrays if sent is None else sent):
            return fault
    told = records_in(reply.content, MetricRecord)
    if len(told) != 1:
        return f"{len(told)} metric records, expected 1"
    (metrics,) = told.values()
    for name, lowest in {**least, weight_key: 0.0}.items():
        value = number_of(metrics.get(name))
        if value is None or value < lowest:
            wanted = "a number" if lowest == -math.inf else f"a number >= {lowest:g}"
            return f"metric {name!r} is {quoted(metrics.get(name))}, expected {wanted}"
    faults = [figure_fault(name, value) for name, value in metrics.items()]
    if not is_training(instruction):
        faults += [share_fault(name, value) for name, value in metrics.items()]
    return next(filter(None, faults), "")


def figure_fault(name: str, value: Any) -> str:
    """Return why a metric can't be one, or an empty string: none is beyond float32."""
    if _is_within(value, -LARGEST_FIGURE, LARGEST_FIGURE):
        return ""
    return f"metric {name!r} is {quoted(value)}, expected a finite number"


def loss_faults(records: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return for each of some records of metrics why a loss in it can't be one, or an empty string.

    A model that gets worse without bound has large losses with everybody, so each is held against the others' median.
    """
    faults = [""] * len(records)
    for name in LOSSES:
        sizes = [abs(number_of(record.get(name)) or 0.0) for record in records]
        for i in (i for i, size in enumerate(sizes) if size > ABSURD_LOSS):
            others = sizes[:i] + sizes[i + 1 :]
            usual = max(1.0, float(np.median(others))) if others else 1.0
            if sizes[i] > ABSURD_LOSS * usual:
                told = quoted(records[i][name])
                faults[i] = f"metric {name!r} is {told}, expected a loss of less than {ABSURD_LOSS * usual:.2g}"
    return faults


def share_fault(name: str, value: Any) -> str:
    """Return why a metric of an evaluation can't be the accuracy, or the count, that it is named, or an empty string.

    Those of training have names as their strategies like, and may be in percent.
    """
    if name in (NUM_EXAMPLES, NUM_VALIDATION) and not _is_within(value, 0.0, LARGEST_FIGURE):
        return f"metric {name!r} is {quoted(value)}, expected a number >= 0"
    is_share = name in (ACCURACY, VALIDATION + ACCURACY) or name.startswith(TOP)
    if not is_share or _is_within(value, 0.0, ROUNDED_ONE):
        return ""
    return f"metric {name!r} is {quoted(value)}, expected a number from 0 to 1"


def _is_within(value: Any, lowest: float, highest: float) -> bool:
    if isinstance(value, list):
        return all(_is_within(number, lowest, highest) for number in value)
    return isinstance(value, (int, float)) and lowest <= value <= highest
