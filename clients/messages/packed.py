"""Records as bytes, without pickle: a head as JSON, then the bytes of arrays and texts of bytes, one after the other.

What is read may be anybody's: nothing in it is executed. It takes up to 50 times the bytes of its head, which is held
short, and once more those behind it.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from ..shared.tensor_array import record_by_reference

# Of names and numbers; all that is large is behind them. Models of very many arrays have more behind them as well.
MOST_HEAD_BYTES: Final = 2**20
_BEHIND_A_BYTE_MORE: Final = 64
_LENGTH_BYTES = 8
_MOST = 2**63  # of whole numbers, as Flower's own messages have them
_KINDS: dict[str, type[ArrayRecord | MetricRecord | ConfigRecord]] = {
    "arrays": ArrayRecord,
    "metrics": MetricRecord,
    "config": ConfigRecord,
}


def pack_records(about: Mapping[str, Any], records: RecordDict) -> bytes:
    """Return records, and what is said of them in JSON's types, as bytes.

    Raises
    ------
    ValueError
        If there are more names and numbers than `unpack_records` takes.
    """
    blobs: list[bytes] = []
    packed = [[name, *_packed(record, blobs)] for name, record in records.items()]
    head = json.dumps([dict(about), packed]).encode()
    if len(head) > (most := _most_head_bytes(sum(map(len, blobs)))):
        raise ValueError(f"names and numbers of {len(head)} bytes, expected {most} at most")
    return b"".join((len(head).to_bytes(_LENGTH_BYTES, "little"), head, *blobs))


def unpack_records(data: bytes) -> tuple[dict[str, Any], RecordDict]:
    """Return what `pack_records` packed.

    Raises
    ------
    ValueError
        If it is nothing of the kind.
    """
    try:
        start = _LENGTH_BYTES + int.from_bytes(data[:_LENGTH_BYTES], "little")
        if start > _LENGTH_BYTES + _most_head_bytes(len(data) - start):
            raise ValueError("too long a head")
        about, packed = json.loads(data[_LENGTH_BYTES:start])
        blobs = _Blobs(data, start)
        records = RecordDict({name: _unpacked(_KINDS[kind], entries, blobs) for name, kind, entries in packed})
        if not isinstance(about, dict) or not blobs.are_used_up:
            raise ValueError("more than it says")
    except Exception as error:  # all of this only reads foreign data, which can fail in any way
        raise ValueError(f"it holds no records ({type(error).__name__}: {error})") from None
    return about, records


def _most_head_bytes(behind: int) -> int:
    return MOST_HEAD_BYTES + behind // _BEHIND_A_BYTE_MORE


class _Blobs:
    """Cuts one text of bytes after the other off what came."""

    def __init__(self, data: bytes, start: int) -> None:
        self._data, self._start = data, start

    def take(self, size: int) -> bytes:
        """Return the next so many bytes; ValueError where there are fewer."""
        end = self._start + size
        if not (isinstance(size, int) and 0 <= size <= len(self._data) - self._start):
            raise ValueError("fewer bytes than it says")
        taken, self._start = self._data[self._start : end], end
        return taken

    @property
    def are_used_up(self) -> bool:
        """Whether nothing is left."""
        return self._start == len(self._data)


def _packed(record: ArrayRecord | MetricRecord | ConfigRecord, blobs: list[bytes]) -> Iterator[Any]:
    """Return a record's kind and its entries; texts of bytes go to `blobs`."""
    if isinstance(record, ArrayRecord):
        yield "arrays"
        yield [[name, _length(one.data, blobs), one.dtype, one.shape, one.stype] for name, one in record.items()]
        return
    yield "metrics" if isinstance(record, MetricRecord) else "config"
    yield [[name, *_packed_value(value, blobs)] for name, value in record.items()]


def _packed_value(value: Any, blobs: list[bytes]) -> tuple[str, Any]:
    if isinstance(value, bytes):
        return "bytes", _length(value, blobs)
    if isinstance(value, list) and value and isinstance(value[0], bytes):
        return "list of bytes", [_length(one, blobs) for one in value]
    return "json", value


def _length(data: bytes, blobs: list[bytes]) -> int:
    blobs.append(data)
    return len(data)


def _unpacked(kind: type[ArrayRecord | MetricRecord | ConfigRecord], entries: list[Any], blobs: _Blobs) -> Any:
    if kind is ArrayRecord:
        return record_by_reference({name: _array(blobs.take(size), *form) for name, size, *form in entries})
    return kind({name: _unpacked_value(form, value, blobs) for name, form, value in entries})


def _array(data: bytes, dtype: str, shape: list[int], stype: str) -> Array:
    if not (isinstance(dtype, str) and isinstance(stype, str) and all(_is_whole(size) and size >= 0 for size in shape)):
        raise ValueError("an array of no form")
    return Array(dtype, tuple(shape), stype, data)


def _unpacked_value(form: str, value: Any, blobs: _Blobs) -> Any:
    if form == "bytes":
        return blobs.take(value)
    if form == "list of bytes":
        return [blobs.take(size) for size in value]
    for number in value if isinstance(value, list) else [value]:
        if isinstance(number, int) and not _is_whole(number):
            raise ValueError("a number of more than 64 bits")
    return value


def _is_whole(number: Any) -> bool:
    return isinstance(number, int) and -_MOST <= number < _MOST
