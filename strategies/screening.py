"""Replies are checked before they are averaged: one bad client must not spoil, or stop, a round."""

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from flwr.app import Array, ArrayRecord, Error, Message, MessageType, MetricRecord, RecordDict

from espalier.clients.messages import text
from espalier.clients.messages.arrays import values_of
from espalier.clients.messages.tensor_array import record_by_reference
from espalier.clients.messages.text import quoted
from espalier.clients.messages.train import (
    ACCURACY,
    LOSS,
    NUM_EXAMPLES,
    NUM_VALIDATION,
    TOP,
    TRAIN_LOSS,
    VALIDATION,
)

from .exchange import REJECTED

MOST_RECORDS = 16  # in a reply
MOST_METRICS = 1000  # in a reply, and numbers in one of them
MOST_RARE_FIGURES = 100  # that half of the evaluations or fewer have
ROUNDED_ONE = 1.0 + 1e-9  # a mean of accuracies that are all 1 may be more by a rounding
LARGEST_FIGURE = float(np.finfo(np.float32).max)
LOSSES = LOSS, VALIDATION + LOSS, TRAIN_LOSS
ABSURD_LOSS = 1e18  # times the loss that others usually have, and at least 1: no data differ as much
# What Flower makes of an exception of a ClientApp: <class 'builtins.ValueError'>:<'no such column'>; it may be cut off.
RAISED = re.compile(r"<class '(?:[^']*\.)?(?P<kind>\w+)'>:<'(?P<text>.*?)(?:'>)?$")
NAME = f"{text.LONGEST_NAME} printable characters at most"


@dataclass(frozen=True)
class Failure:
    """A node that was left out of a round.

    Parameters
    ----------
    node_id : int
        The node that was asked.
    reason : str
        Why it was left out; a text that is long, or has other than printable characters, is made one short line.
    """

    node_id: int
    reason: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "reason", text.one_line(self.reason))


def screen(
    instructions: Sequence[Message],
    replies: Sequence[Message],
    weight_key: str,
    least: Mapping[str, float] | None = None,
) -> tuple[list[Message], list[Failure]]:
    """Turn every reply that can't be averaged into an error reply.

    Parameters
    ----------
    instructions, replies : Sequence[Message]
        What was sent, and one reply to each, in the same order.
    weight_key : str
        The metric by which replies are weighted, e.g. ``"num-examples"``.
    least : Mapping[str, float], optional (default: None)
        Other metrics that every reply must have, as one number each, and the least that it may be.

    Returns
    -------
    tuple[list[Message], list[Failure]]
        The replies in their order, bad ones replaced by error replies, and a failure for each of these.

    Notes
    -----
    A reply is left out when it is an error; when its arrays have other names, shapes or kinds of numbers than the
    ones sent, or hold NaN or Inf; when its weight is missing, negative or not finite, or another metric is not finite,
    or, in an evaluation, is an accuracy and not from 0 to 1, or a number of examples below 0; when its loss is absurd
    beside the others'; when it holds more records or metrics, or longer names,
    than there is use for; when it is a reply to train and lacks a metric that more than half of the others have.

    A metric that half or less of the replies to train have is dropped, so that nobody who adds one decides who fits;
    evaluations keep some, if they are numbers, see `complete`. What is left has the same form, as Flower's averages
    need it: records have the same names, and the arrays of a reply to train the order and the data types of the ones
    sent, for strategies take arrays by their place and sums in the type of the first.
    """
    reasons = [reply_fault(*pair, weight_key, least or {}) for pair in zip(instructions, replies, strict=True)]
    fit = [i for i, reason in enumerate(reasons) if not reason]
    for i, fault in zip(fit, loss_faults([_record_of_metrics(replies[i]) for i in fit]), strict=True):
        reasons[i] = fault
    forms = [None if reason else _form(*pair) for *pair, reason in zip(instructions, replies, reasons, strict=True)]
    good = [form for form in forms if form is not None]
    counts = Counter(part for form in good for part in form)
    trains = any(map(_is_training, instructions))
    usual = {part for part, count in counts.items() if 2 * count > len(good)}
    usual |= set() if trains else _rare_figures(counts, usual)
    for i, form in enumerate(forms):
        if form is None or not (missing := usual - form):
            continue
        if trains or any(part.kind != "metric" for part in missing):
            reasons[i] = f"its reply has no {' and no '.join(map(str, sorted(missing)[:3]))}, which others have"

    names = _usual_names([reply for reply, reason in zip(replies, reasons, strict=True) if not reason])
    screened, failures = [], []
    for instruction, reply, reason in zip(instructions, replies, reasons, strict=True):
        if reason:
            failures.append(Failure(instruction.metadata.dst_node_id, reason))
            code, words = (reply.error.code, reply.error.reason or "") if reply.has_error() else (REJECTED, reason)
            if not reply.has_error() or text.one_line(words) != words:  # strategies write them into the log
                reply = Message(Error(code, text.one_line(words)), reply_to=instruction)
        else:
            _bring_into_form(instruction, reply, usual, names)
        screened.append(reply)
    return screened, failures


def complete(replies: Sequence[Message], weight_key: str) -> None:
    """Give screened evaluations the metrics that others have: their weighted means, which leave the means as they are.

    A figure need not be there for every test set, and Flower's averages need all replies alike. In a tier above, the
    mean of these replies weighs as all of them do.
    """
    good = [reply for reply in replies if not reply.has_error()]
    found: dict[_Part, list[tuple[Any, float]]] = {}
    for reply in good:
        for part, value in _metrics_of(reply).items():
            found.setdefault(part, []).append((value, weight_of(reply, weight_key)))
    means: dict[_Part, Any] = {}
    for part, own in found.items():
        if len(own) < len(good):
            values, weights = zip(*own, strict=True)
            means[part] = np.average(values, axis=0, weights=weights if sum(weights) else None).tolist()
    for reply in good:
        there = _metrics_of(reply)
        if missing := {part.name: mean for part, mean in means.items() if part not in there}:
            ((name, record),) = reply.content.metric_records.items()
            reply.content = RecordDict({**reply.content, name: MetricRecord({**record, **missing})})


def one_line(error: Exception) -> str:
    """Return an error's text in one line."""
    return text.one_line(str(error.args[0] if isinstance(error, KeyError) and error.args else error))


def reason_of(error: Error) -> str:
    """Return why a reply is an error, in one line that is never empty."""
    reason = text.one_line(error.reason or "")
    if raised := RAISED.match(reason):
        return f"{raised['kind']}: {raised['text']}"
    return reason or f"error {error.code}"


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
    for records in (content.metric_records, content.config_records):
        for name, record in records.items():
            if len(record) > MOST_METRICS:
                return f"{len(record)} entries in record {quoted(name)}, expected {MOST_METRICS} at most"
            for key, value in record.items():
                if not text.is_name(key):
                    return f"a name in record {quoted(name)} is {quoted(key)}, expected {NAME}"
                if isinstance(value, list) and len(value) > MOST_METRICS:
                    return f"{quoted(key)} has {len(value)} values, expected {MOST_METRICS} at most"
    if unfit := [name for name in content if not text.is_name(name)]:
        return f"the name of a record is {quoted(unfit[0])}, expected {NAME}"
    return ""


def number_of(value: Any) -> float | None:
    """Return what came as one number, if it is one and finite."""
    try:
        return float(value) if isinstance(value, int | float) and math.isfinite(value) else None
    except OverflowError:  # an integer that no float can hold
        return None


def weight_of(reply: Message, weight_key: str) -> float:
    """Return the weight of a screened reply, 0 for an error reply."""
    if reply.has_error():
        return 0.0
    return float(next(iter(reply.content.metric_records.values()))[weight_key])  # type: ignore[arg-type]


def array_fault(arrays: ArrayRecord, reference: ArrayRecord) -> str:
    """Return why `arrays` can't stand in for `reference`, or an empty string."""
    if missing := sorted(set(reference) - set(arrays)):
        return f"array {missing[0]!r} is missing"
    if len(arrays) > len(reference):
        return f"array {quoted(next(name for name in arrays if name not in reference))} is not in the model"
    for name, expected in reference.items():
        try:
            values, dtype = _values_in_shape(arrays[name], expected), np.dtype(expected.dtype)
        except (ValueError, TypeError) as error:
            return f"array {name!r} {error}"
        if dtype.kind not in "biufc" or values.dtype.kind != dtype.kind:
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


def in_form_of(reference: ArrayRecord, arrays: ArrayRecord) -> ArrayRecord:
    """Return `arrays`, of the same names, in the order and the data types of `reference`; itself if it is so.

    Averages turn the integer counters of BatchNorm into floats, and Flower's adaptive strategies turn float32
    into float64. Integers are rounded to the nearest, and so are booleans: the majority decides.
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
    rounds = dtype.kind in "biu" and values.dtype.kind == "f"
    return Array(np.asarray(np.rint(values) if rounds else values, dtype))


def is_finite(values: np.ndarray, dtype: np.dtype) -> bool:
    """Return whether all values are finite numbers in `dtype`: 1e300 is none in float32."""
    with np.errstate(over="ignore"):
        return bool(np.isfinite(values.astype(dtype, copy=False)).all())


def reply_fault(instruction: Message, reply: Message, weight_key: str, least: Mapping[str, float]) -> str:
    """Return why a reply can't be averaged, judged on its own, or an empty string."""
    if reply.has_error():
        return reason_of(reply.error)
    if fault := size_fault(reply.content):
        return fault
    sent, received = instruction.content.array_records, reply.content.array_records
    if answers_in_kind(instruction, reply):
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
    for name, lowest in {**least, weight_key: 0.0}.items():
        value = number_of(metrics.get(name))
        if value is None or value < lowest:
            wanted = "a number" if lowest == -math.inf else f"a number >= {lowest:g}"
            return f"metric {name!r} is {quoted(metrics.get(name))}, expected {wanted}"
    faults = [figure_fault(name, value) for name, value in metrics.items()]
    if not _is_training(instruction):
        faults += [share_fault(name, value) for name, value in metrics.items()]
    return next((fault for fault in faults if fault), "")


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
    numbers = value if isinstance(value, list) else [value]
    return all(isinstance(number, int | float) and lowest <= number <= highest for number in numbers)


def _is_training(instruction: Message) -> bool:
    return instruction.metadata.message_type.split(".")[0] == MessageType.TRAIN


def answers_in_kind(instruction: Message, reply: Message) -> bool:
    """Return whether a reply has to hold arrays like those sent."""
    return _is_training(instruction) and len(instruction.content.array_records) == 1 and not reply.has_error()


class _Part(NamedTuple):
    """A part of a reply that others may have as well."""

    kind: Literal["record", "metric"]
    name: str
    length: int = -1  # of a list of numbers

    def __str__(self) -> str:
        return f"{self.kind} {self.name!r}" + (f" of {self.length}" if self.length >= 0 else "")


def _rare_figures(counts: Counter[_Part], usual: set[_Part]) -> set[_Part]:
    """Return numbers that only some evaluations have, the most frequent ones: a figure need not be there for all."""
    names = {part.name for part in usual}
    rare = [part for part in counts if part.kind == "metric" and part.length < 0 and part.name not in names]
    return set(sorted(rare, key=lambda part: (-counts[part], part))[:MOST_RARE_FIGURES])


def _form(instruction: Message, reply: Message) -> frozenset[_Part]:
    """Return what Flower's averages need to be alike, beside the names of single records and their arrays."""
    records = () if answers_in_kind(instruction, reply) else reply.content.array_records
    return frozenset((*(_Part("record", name) for name in records), *_metrics_of(reply)))


def _metrics_of(reply: Message) -> dict[_Part, Any]:
    return {_metric(name, value): value for name, value in _record_of_metrics(reply).items()}


def _record_of_metrics(reply: Message) -> MetricRecord:
    (metrics,) = reply.content.metric_records.values()
    return metrics


def _metric(name: str, value: Any) -> _Part:
    return _Part("metric", name, len(value)) if isinstance(value, list) else _Part("metric", name)


def _usual_names(replies: Sequence[Message]) -> dict[type, str]:
    """Return what most call the record of metrics, and that of arrays where there is one."""
    kinds = {MetricRecord: "metric_records", ArrayRecord: "array_records"}
    called = {kind: Counter(n for reply in replies for n in getattr(reply.content, of)) for kind, of in kinds.items()}
    return {kind: counts.most_common(1)[0][0] for kind, counts in called.items() if counts}


def _bring_into_form(instruction: Message, reply: Message, usual: set[_Part], names: Mapping[type, str]) -> None:
    """Give a good reply the form of most; what most have not is dropped."""
    records = dict(_records_in_form(instruction, reply, usual, names))
    same = len(records) == len(reply.content) and all(reply.content.get(n) is record for n, record in records.items())
    if not same:
        reply.content = RecordDict(records)


def _records_in_form(
    instruction: Message, reply: Message, usual: set[_Part], names: Mapping[type, str]
) -> Iterator[tuple[str, Any]]:
    in_kind = answers_in_kind(instruction, reply)
    for name, record in reply.content.items():
        if isinstance(record, ArrayRecord) and in_kind:
            (sent,) = instruction.content.array_records.values()
            yield names[ArrayRecord], in_form_of(sent, record)
        elif isinstance(record, ArrayRecord) and _Part("record", name) in usual:
            yield name, record
        elif isinstance(record, MetricRecord):
            kept = {key: value for key, value in record.items() if _metric(key, value) in usual}
            yield names[MetricRecord], record if len(kept) == len(record) else MetricRecord(kept)
