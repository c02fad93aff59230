"""Nested plain data with arrays as bytes, without pickle: the state of a run in a file, or what two runs exchange."""

import json
import os
import sys
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any, BinaryIO
from zipfile import ZIP_STORED, ZipFile

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord

from espalier.app.ground.durable import replace_file
from espalier.app.ground.regular_files import open_to_read
from espalier.clients.shared.arrays import values_of

_HEAD_BYTES = 8  # the length of what precedes the arrays
_MOST_LEVELS = 50  # of what another program sends: what is nested more deeply may be read and not be written again
_PLAIN = {type(None), bool, int, float, str}  # nearly all that there is: looked up, not asked of each class in turn
_RECORDS = {"arrays": ArrayRecord, "config": ConfigRecord, "metrics": MetricRecord}


def save_state(path: Path, state: dict[str, Any]) -> None:
    """Write `state` to `path`; an interruption leaves the file as it was.

    Parameters
    ----------
    path : Path
        An ``.npz`` file: every array under a number, and the tree that holds them as JSON.
    state : dict[str, Any]
        Numbers, strings, bytes, arrays, Flower records, and lists, tuples and dicts of these.
    """
    replace_file(path, lambda file: _write(file, state))


def load_state(path: Path) -> dict[str, Any]:
    """Return what `save_state` wrote; nothing in the file is executed, and its arrays take no more memory than it.

    Raises
    ------
    OSError
        If the file can't be opened, or is no regular one.
    ValueError
        If it is not such a file.
    """
    with open_to_read(path) as file:
        num_bytes = os.fstat(file.fileno()).st_size
        return _named_values(lambda: _read(file, num_bytes))


def to_bytes(state: dict[str, Any]) -> bytes:
    """Return `state`, anything that `save_state` takes, as bytes: a tree and forms of arrays as JSON, then the arrays.

    Making and reading such a file would take two to ten times as long.
    """
    arrays: list[np.ndarray] = []
    tree = _pack(state, arrays)
    head = json.dumps([tree, [(array.dtype.str, array.shape) for array in arrays]]).encode()
    values = [np.ascontiguousarray(array).reshape(-1).view(np.uint8).data for array in arrays]
    return b"".join((len(head).to_bytes(_HEAD_BYTES, "little"), head, *values))


def from_bytes(data: bytes) -> dict[str, Any]:
    """Return what `to_bytes` packed; nothing in it is executed, and its arrays take no more memory than it has bytes.

    Raises
    ------
    ValueError
        If `data` are not such bytes.
    """
    return _named_values(lambda: _from_bytes(data))


def _named_values(read: Callable[[], Any]) -> dict[str, Any]:
    """Return what was read; ValueError, in one way, for all that can be wrong with it."""
    try:
        state = read()
    except Exception as error:  # all of this only reads foreign data, which can fail in any way
        raise ValueError(f"it is not packed data ({type(error).__name__})") from None
    if not isinstance(state, dict):
        raise ValueError(f"it holds a {type(state).__name__}, not named values")
    return state


def _from_bytes(data: bytes) -> Any:
    start = _HEAD_BYTES + int.from_bytes(data[:_HEAD_BYTES], "little")
    tree, forms = json.loads(data[_HEAD_BYTES:start])
    arrays = {}
    for number, (name, shape) in enumerate(forms):
        dtype = np.dtype(name)
        if any(size < 0 for size in shape):
            raise ValueError("a negative shape")
        arrays[number] = np.frombuffer(data, dtype, prod(shape), start).reshape(shape)
        start += arrays[number].nbytes
    if start != len(data):
        raise ValueError("more or fewer bytes than the arrays have")
    # `to_bytes` refers to each array once; every time is a copy.
    return _unpack(tree, arrays.pop, _MOST_LEVELS)


def _write(file: BinaryIO, state: dict[str, Any]) -> None:
    arrays: list[np.ndarray] = []
    tree = json.dumps(_pack(state, arrays)).encode()
    named: dict[str, Any] = {str(i): array for i, array in enumerate(arrays)}
    np.savez(file, tree=np.frombuffer(tree, np.uint8), **named)


def _read(file: BinaryIO, num_bytes: int) -> Any:
    with np.load(file, allow_pickle=False) as stored:
        return _read_stored(stored, num_bytes)


def _read_stored(stored: Any, num_bytes: int) -> Any:
    entries = stored.zip.infolist()
    # `_write` compresses nothing, so that all of it can't be larger than the whole.
    if any(entry.compress_type != ZIP_STORED for entry in entries) or sum(e.file_size for e in entries) > num_bytes:
        raise ValueError("compressed data")
    unused = set(stored.files)

    def read_once(name: str) -> np.ndarray:
        unused.remove(name)  # `_write` refers to each array once; every time would be a copy
        _check_size(stored.zip, f"{name}.npy")
        return stored[name]

    return _unpack(json.loads(read_once("tree").tobytes()), lambda number: read_once(str(number)), sys.maxsize)


def _check_size(archive: ZipFile, name: str) -> None:
    """Raise ValueError for an array that says it is larger, or smaller, than what is there."""
    headers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    with archive.open(name) as file:
        shape, _, dtype = headers[np.lib.format.read_magic(file)](file)
        if prod(shape) * dtype.itemsize != archive.getinfo(name).file_size - file.tell():
            raise ValueError("an array of another size")


def _pack(value: Any, arrays: list[np.ndarray]) -> Any:
    """Return a JSON tree in which everything but numbers, strings and lists is ``{kind: content}``."""
    if type(value) in _PLAIN or (isinstance(value, bool | int | float | str) and not isinstance(value, np.generic)):
        return value
    if isinstance(value, np.ndarray | np.generic):
        arrays.append(np.asarray(value))
        return {"array" if isinstance(value, np.ndarray) else "scalar": len(arrays) - 1}
    if isinstance(value, bytes):
        return {"bytes": value.hex()}
    if isinstance(value, ArrayRecord):
        return {"arrays": _pack({name: values_of(array) for name, array in value.items()}, arrays)}
    if isinstance(value, ConfigRecord | MetricRecord):
        return {"config" if isinstance(value, ConfigRecord) else "metrics": _pack(dict(value), arrays)}
    if isinstance(value, list):
        return [_pack(item, arrays) for item in value]
    if isinstance(value, tuple):
        return {"tuple": [_pack(item, arrays) for item in value]}
    if isinstance(value, dict):
        return {"dict": [[_pack(key, arrays), _pack(item, arrays)] for key, item in value.items()]}
    raise TypeError(f"a {type(value).__name__} can't be saved")


def _unpack(tree: Any, take: Callable[[int], np.ndarray], levels: int) -> Any:
    """Return what `_pack` made a JSON tree of; ValueError where it is nested in more levels than these."""
    if not levels:
        raise ValueError("it is nested too deeply")
    levels -= 1
    if isinstance(tree, list):
        return [_unpack(item, take, levels) for item in tree]
    if not isinstance(tree, dict):
        return tree
    ((kind, content),) = tree.items()
    if kind == "array":
        return take(content).copy()
    if kind == "scalar":
        return take(content)[()]
    if kind == "bytes":
        return bytes.fromhex(content)
    if kind == "tuple":
        return tuple(_unpack(item, take, levels) for item in content)
    if kind == "dict":
        return {_unpack(key, take, levels): _unpack(item, take, levels) for key, item in content}
    values = _unpack(content, take, levels)
    if kind == "arrays":
        if any(array.dtype.kind not in "biufc" for array in values.values()):
            raise ValueError("a record's array holds no numbers")  # which `_pack` could not read
        return ArrayRecord({name: Array(array) for name, array in values.items()})
    return _RECORDS[kind](values)
