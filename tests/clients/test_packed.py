"""Records as bytes: what is packed comes back, and what is anything else is refused."""

import json
import random
import tracemalloc

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from espalier.clients.messages.packed import MOST_HEAD_BYTES, pack_records, unpack_records
from espalier.clients.shared.arrays import to_record

WEIGHTS = to_record({"a.weight": torch.arange(6.0).reshape(2, 3), "b": torch.tensor(7), "c": torch.zeros(0, 4)})
RECORDS = RecordDict(
    {
        "arrays": WEIGHTS,
        "plain": ArrayRecord({"x": Array(np.array([[1, 2], [3, 4]], np.int8))}),
        "metrics": MetricRecord({"loss": float("nan"), "n": 2**63 - 1, "many": [1.5, float("-inf")], "none": []}),
        "config": ConfigRecord(
            {
                "is": True,
                "text": "ü\n",
                "bytes": b"\0\xff",
                "of bytes": [b"", b"ab"],
                "flags": [True, False],
                "tiny": 5e-324,
            }
        ),
        "empty": ConfigRecord(),
    }
)


def test_what_is_packed_comes_back():
    about, records = unpack_records(pack_records({"kind": "train", "number": 3}, RECORDS))
    assert about == {"kind": "train", "number": 3}
    assert [(name, type(record)) for name, record in records.items()] == [(n, type(r)) for n, r in RECORDS.items()]
    for name, record in RECORDS.array_records.items():
        assert list(records[name]) == list(record)
        for key, array in record.items():
            found = records[name][key]
            assert (found.dtype, found.shape, found.stype, found.data) == (
                array.dtype,
                array.shape,
                array.stype,
                array.data,
            )
    assert repr(dict(records["metrics"])) == repr(dict(RECORDS["metrics"]))
    assert {k: (type(v), v) for k, v in records["config"].items()} == {
        k: (type(v), v) for k, v in RECORDS["config"].items()
    }


def test_whatever_is_cut_off_or_changed_is_other_records_or_none():
    packed, generator = pack_records({}, RECORDS), random.Random(0)
    for length in range(0, len(packed), 7):
        with pytest.raises(ValueError, match="it holds no records"):
            unpack_records(packed[:length])
    with pytest.raises(ValueError, match="more than it says"):
        unpack_records(packed + b"\0")
    refused = 0
    for _ in range(500):
        changed = bytearray(packed)
        changed[generator.randrange(len(packed))] ^= 1 << generator.randrange(8)
        try:
            unpack_records(bytes(changed))
        except ValueError:
            refused += 1
    assert refused > 100


@pytest.mark.parametrize(
    "entry",
    [
        ["m", "metrics", [["n", "json", 2**63]]],
        ["m", "metrics", [["n", "json", {"a": 1}]]],
        ["m", "metrics", [["n", "json", "text"]]],
        ["m", "pickle", []],
        ["m", "arrays", [["x", -1, "float32", [1], "numpy.ndarray"]]],
        ["m", "arrays", [["x", 0, "float32", [-1], "numpy.ndarray"]]],
        ["m", "arrays", [["x", 2**70, "float32", [1], "numpy.ndarray"]]],
        ["m", "arrays", [["x", 0, ["float32"], [1], "numpy.ndarray"]]],
        ["m", "config", [["x", "bytes", 5]]],
        "[" * 100_000,
    ],
)
def test_what_is_no_record_is_refused(entry):
    head = json.dumps([{}, [entry]]).encode()
    with pytest.raises(ValueError, match="it holds no records"):
        unpack_records(len(head).to_bytes(8, "little") + head)


def test_a_head_is_no_larger_than_names_and_numbers_need():
    with pytest.raises(ValueError, match="too long a head"):
        unpack_records((MOST_HEAD_BYTES + 1).to_bytes(8, "little"))
    with pytest.raises(ValueError, match=f"expected {MOST_HEAD_BYTES} at most"):
        pack_records({}, RecordDict({"long": ConfigRecord({"text": "x" * MOST_HEAD_BYTES})}))


def test_a_head_may_be_longer_where_more_is_behind_it():
    text = "x" * MOST_HEAD_BYTES
    packed = pack_records({}, RecordDict({"long": ConfigRecord({"text": text, "bytes": bytes(2**13)})}))
    assert unpack_records(packed)[1]["long"]["text"] == text
    with pytest.raises(ValueError, match="too long a head"):
        unpack_records(packed[: -(2**12)])


def peak_bytes(data):
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match="it holds no records"):
            unpack_records(data)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("entries", ["{},", '{"":0},', "[" * 500 + "]" * 500 + ","])
def test_a_head_takes_no_more_memory_than_it_is_said_to(entries):
    head = "[{},[" + entries * ((MOST_HEAD_BYTES - 8) // len(entries)) + "0]]"
    assert 0.99 * MOST_HEAD_BYTES < len(head) <= MOST_HEAD_BYTES
    assert peak_bytes(len(head).to_bytes(8, "little") + head.encode()) < 50 * len(head)


def test_a_head_that_is_too_long_takes_no_memory():
    head = b"[{}," + b"{}," * (3 * MOST_HEAD_BYTES) + b"0]"
    assert peak_bytes(len(head).to_bytes(8, "little") + head) < MOST_HEAD_BYTES
