"""Replies are brought into the one form that Flower's averages need."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

from espalier.clients.shared.arrays import values_of
from espalier.clients.shared.records import records_in
from espalier.clients.shared.tensor_array import record_by_reference

from .replies import record_of_metrics, weight_of

MOST_RARE_FIGURES = 100  # that half of the evaluations or fewer have


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
            ((name, record),) = records_in(reply.content, MetricRecord).items()
            reply.content = RecordDict({**reply.content, name: MetricRecord({**record, **missing})})


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


class _Part(NamedTuple):
    """A part of a reply that others may have as well."""

    kind: Literal["record", "config record", "metric"]
    name: str
    length: int = -1  # of a list of numbers

    def __str__(self) -> str:
        return f"{self.kind} {self.name!r}" + (f" of {self.length}" if self.length >= 0 else "")


def rare_figures(counts: Counter[_Part], usual: set[_Part]) -> set[_Part]:
    """Return numbers that only some evaluations have, the most frequent ones: a figure need not be there for all."""
    names = {part.name for part in usual}
    rare = [part for part in counts if part.kind == "metric" and part.length < 0 and part.name not in names]
    return set(sorted(rare, key=lambda part: (-counts[part], part))[:MOST_RARE_FIGURES])


def form_of(sent: ArrayRecord | None, reply: Message) -> frozenset[_Part]:
    """Return what Flower's averages need to be alike, beside the names of single records and their arrays.

    `sent` is a model, like which the reply holds one (`espalier.strategies.replies.model_sent`); None: there is none.
    """
    kinds = ConfigRecord if sent is not None else ArrayRecord | ConfigRecord
    records = (_record(name, record) for name, record in reply.content.items() if isinstance(record, kinds))
    return frozenset((*records, *_metrics_of(reply)))


def _record(name: str, record: ArrayRecord | ConfigRecord) -> _Part:
    return _Part("record" if isinstance(record, ArrayRecord) else "config record", name)


def _metrics_of(reply: Message) -> dict[_Part, Any]:
    return {_metric(name, value): value for name, value in record_of_metrics(reply).items()}


def _metric(name: str, value: Any) -> _Part:
    return _Part("metric", name, len(value)) if isinstance(value, list) else _Part("metric", name)


def usual_names(replies: Sequence[Message]) -> dict[type, str]:
    """Return what most call the record of metrics, and that of arrays where there is one."""
    kinds: tuple[Any, ...] = MetricRecord, ArrayRecord
    called = {kind: Counter(n for reply in replies for n in records_in(reply.content, kind)) for kind in kinds}
    return {kind: counts.most_common(1)[0][0] for kind, counts in called.items() if counts}


def bring_into_form(sent: ArrayRecord | None, reply: Message, usual: set[_Part], names: Mapping[type, str]) -> None:
    """Give a good reply the form of most, `sent` as of `form_of`; what most have not is dropped."""
    content = reply.content
    records = dict(_records_in_form(sent, content, usual, names))
    if len(records) != len(content) or any(content.get(name) is not record for name, record in records.items()):
        reply.content = RecordDict(records)


def _records_in_form(
    sent: ArrayRecord | None, content: RecordDict, usual: set[_Part], names: Mapping[type, str]
) -> Iterator[tuple[str, Any]]:
    for name, record in content.items():
        if isinstance(record, ArrayRecord) and sent is not None:
            yield names[ArrayRecord], in_form_of(sent, record)
        elif isinstance(record, ArrayRecord | ConfigRecord):
            if _record(name, record) in usual:
                yield name, record
        elif isinstance(record, MetricRecord):
            kept = {key: value for key, value in record.items() if _metric(key, value) in usual}
            yield names[MetricRecord], record if len(kept) == len(record) else MetricRecord(kept)
