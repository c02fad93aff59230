"""Replies are checked before they are averaged: one bad client must not spoil, or stop, a round."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from flwr.app import Array, ArrayRecord, Error, Message, MessageType, RecordDict

from espalier.clients.messages.arrays import values_of
from espalier.clients.messages.tensor_array import record_by_reference

from .exchange import REJECTED


@dataclass(frozen=True)
class Failure:
    """A node that was left out of a round.

    Parameters
    ----------
    node_id : int
        The node that was asked.
    reason : str
        Why it was left out, in one line.
    """

    node_id: int
    reason: str


def screen(
    instructions: Sequence[Message], replies: Sequence[Message], weight_key: str, numbers: Sequence[str] = ()
) -> tuple[list[Message], list[Failure]]:
    """Turn every reply that can't be averaged into an error reply.

    Parameters
    ----------
    instructions, replies : Sequence[Message]
        What was sent, and one reply to each, in the same order.
    weight_key : str
        The metric by which replies are weighted, e.g. ``"num-examples"``.
    numbers : Sequence[str] (default: none)
        Other metrics that every reply must have, as one number each.

    Returns
    -------
    tuple[list[Message], list[Failure]]
        The replies in their order, bad ones replaced by error replies, and a failure for each of these.

    Notes
    -----
    A reply is left out when it is an error; when its arrays have other names, shapes or kinds of numbers than the
    ones sent, or hold NaN or Inf; when its weight is missing, negative or not finite, or a training metric is not
    finite; when its records and metrics are made otherwise than those of most others.

    Strategies take arrays by their place and sums in the data type of the first, so those of a reply to train are
    given the order and the data types of the ones sent.
    """
    reasons = [_fault(*pair, weight_key, numbers) for pair in zip(instructions, replies, strict=True)]
    forms = [None if reason else _form(reply) for reply, reason in zip(replies, reasons, strict=True)]
    usual = Counter(form for form in forms if form is not None).most_common(1)
    for i, form in enumerate(forms):
        if form is not None and form != usual[0][0]:
            reasons[i] = f"its reply has {', '.join(sorted(form))} where others have {', '.join(sorted(usual[0][0]))}"

    screened, failures = [], []
    for instruction, reply, reason in zip(instructions, replies, reasons, strict=True):
        if reason:
            failures.append(Failure(instruction.metadata.dst_node_id, reason))
            reply = reply if reply.has_error() else Message(Error(REJECTED, reason), reply_to=instruction)
        elif _answers_in_kind(instruction, reply):
            ((name, arrays),) = reply.content.array_records.items()
            (sent,) = instruction.content.array_records.values()
            if (formed := in_form_of(sent, arrays)) is not arrays:
                reply.content = RecordDict({**reply.content, name: formed})
        screened.append(reply)
    return screened, failures


def one_line(error: Exception) -> str:
    """Return an error's text in one line."""
    return " ".join(str(error.args[0] if isinstance(error, KeyError) and error.args else error).split())


def content_of(reply: Message) -> RecordDict:
    """Return what a reply holds; ValueError with its reason for an error reply."""
    if reply.has_error():
        raise ValueError(reply.error.reason or f"error {reply.error.code}")
    return reply.content


def weight_of(reply: Message, weight_key: str) -> float:
    """Return the weight of a screened reply, 0 for an error reply."""
    if reply.has_error():
        return 0.0
    return float(next(iter(reply.content.metric_records.values()))[weight_key])  # type: ignore[arg-type]


def array_fault(arrays: ArrayRecord, reference: ArrayRecord) -> str:
    """Return why `arrays` can't stand in for `reference`, or an empty string."""
    if missing := sorted(set(reference) - set(arrays)):
        return f"array {missing[0]!r} is missing"
    if extra := sorted(set(arrays) - set(reference)):
        return f"array {extra[0]!r} is not in the model"
    for name, expected in reference.items():
        try:
            values, dtype = values_of(arrays[name]), np.dtype(expected.dtype)
        except (ValueError, TypeError) as error:
            return f"array {name!r} {error}"
        if values.shape != tuple(expected.shape):
            return f"array {name!r} has shape {values.shape}, expected {tuple(expected.shape)}"
        if dtype.kind not in "biufc" or values.dtype.kind != dtype.kind:
            return f"array {name!r} has dtype {values.dtype}, expected {dtype}"
        if not is_finite(values, dtype):
            return f"array {name!r} holds NaN or Inf"
    return ""


def in_form_of(reference: ArrayRecord, arrays: ArrayRecord) -> ArrayRecord:
    """Return `arrays`, of the same names, in the order and the data types of `reference`; itself if it is so.

    Averages turn the integer counters of BatchNorm into floats, and Flower's adaptive strategies turn float32
    into float64. Integers are rounded to the nearest.
    """
    formed = {name: _in_form_of(expected, arrays[name]) for name, expected in reference.items()}
    if list(arrays) == list(formed) and all(array is arrays[name] for name, array in formed.items()):
        return arrays
    return record_by_reference(formed)


def _in_form_of(expected: Array, array: Array) -> Array:
    values, dtype = values_of(array), np.dtype(expected.dtype)
    # What an array says of itself need not be so.
    if values.dtype == dtype and array.dtype == expected.dtype and tuple(array.shape) == tuple(expected.shape):
        return array
    rounds = dtype.kind in "iu" and values.dtype.kind == "f"
    return Array(np.asarray(np.rint(values) if rounds else values, dtype))


def is_finite(values: np.ndarray, dtype: np.dtype) -> bool:
    """Return whether all values are finite numbers in `dtype`: 1e300 is none in float32."""
    with np.errstate(over="ignore"):
        return bool(np.isfinite(values.astype(dtype, copy=False)).all())


def all_finite(arrays: ArrayRecord, reference: ArrayRecord) -> bool:
    """Return whether a model is all finite numbers in the data types of `reference`."""
    return all(is_finite(values_of(array), np.dtype(reference[name].dtype)) for name, array in arrays.items())


def _fault(instruction: Message, reply: Message, weight_key: str, numbers: Sequence[str]) -> str:
    """Return why a reply can't be averaged, judged on its own, or an empty string."""
    if reply.has_error():
        return " ".join((reply.error.reason or f"error {reply.error.code}").split())
    sent, received = instruction.content.array_records, reply.content.array_records
    if _answers_in_kind(instruction, reply):
        if len(received) != 1:
            return f"{len(received)} array records, expected 1"
        (reference,), (arrays,) = sent.values(), received.values()
        if fault := array_fault(arrays, reference):
            return fault
    else:  # a vocabulary of its own, say with control variates: only the numbers can be judged
        for arrays in received.values():
            if fault := array_fault(arrays, arrays):
                return fault
    if len(reply.content.metric_records) != 1:
        return f"{len(reply.content.metric_records)} metric records, expected 1"
    (metrics,) = reply.content.metric_records.values()
    weight = metrics.get(weight_key)
    if not isinstance(weight, int | float) or not math.isfinite(weight) or weight < 0:
        return f"metric {weight_key!r} is {weight!r}, expected a number >= 0"
    for name in numbers:
        if not isinstance(value := metrics.get(name), int | float):
            return f"metric {name!r} is {value!r}, expected a number"
    for name, value in metrics.items() if _is_training(instruction) else ():
        if not np.isfinite(value).all():
            return f"metric {name!r} is {value!r}"
    return ""


def _is_training(instruction: Message) -> bool:
    return instruction.metadata.message_type.split(".")[0] == MessageType.TRAIN


def _answers_in_kind(instruction: Message, reply: Message) -> bool:
    """Return whether a reply has to hold arrays like those sent."""
    return _is_training(instruction) and len(instruction.content.array_records) == 1 and not reply.has_error()


def _form(reply: Message) -> frozenset[str]:
    """Return what Flower's averages need to be alike: the names of records and metrics, and lists' lengths."""
    form = {f"record {name!r}" for name in reply.content}
    for metrics in reply.content.metric_records.values():
        for name, value in metrics.items():
            form.add(f"metric {name!r}" + (f" of {len(value)}" if isinstance(value, list) else ""))
    return frozenset(form)
