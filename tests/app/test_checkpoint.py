"""The state file."""

import pickle
import zipfile
from io import BytesIO

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord

from espalier.app.checkpoint import from_bytes, load_state, save_state, to_bytes

STATE = {
    "none": None,
    "numbers": [1, 2.5, True, 10**20, float("inf")],
    "text": "ä\n",
    "bytes": b"\x00\xff",
    "tuple": (1, (2, "x")),
    "keys": {1: "a", "b": 2, (3, 4): 5},
    "array": np.arange(6, dtype=np.float32).reshape(2, 3),
    "scalar": np.float64(0.1),
    "counter": np.array(7, np.int64),
    "empty": {},
    "arrays": ArrayRecord({"w": Array(np.ones((2, 2), np.float16)), "n": Array(np.array(3))}),
    "config": ConfigRecord({"a": 1, "b": [1.5], "c": b"x"}),
    "metrics": MetricRecord({"loss": 0.5}),
}


def test_everything_comes_back_as_it_was(tmp_path):
    save_state(tmp_path / "state.npz", STATE)
    loaded = load_state(tmp_path / "state.npz")
    assert loaded.keys() == STATE.keys()
    for name, value in STATE.items():
        assert type(loaded[name]) is type(value), name
        if isinstance(value, np.ndarray):
            assert loaded[name].dtype == value.dtype
            np.testing.assert_array_equal(loaded[name], value)
        else:
            assert loaded[name] == value, name


def test_what_cannot_be_saved_is_refused_and_the_old_state_stays(tmp_path):
    path = tmp_path / "state.npz"
    save_state(path, {"round": 1})
    with pytest.raises(TypeError, match="a set can't be saved"):
        save_state(path, {"round": {1, 2}})
    assert load_state(path) == {"round": 1}


def test_bytes_are_those_of_the_file_and_come_back(tmp_path):
    save_state(tmp_path / "state.npz", STATE)
    data = to_bytes(STATE)
    assert len(data) == (tmp_path / "state.npz").stat().st_size
    loaded = from_bytes(data)
    assert loaded.keys() == STATE.keys()
    np.testing.assert_array_equal(loaded["array"], STATE["array"])
    assert loaded["arrays"]["w"].dtype == "float16"
    assert loaded["keys"] == STATE["keys"]


def npz(**arrays):
    buffer = BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


def tree(text):
    return np.frombuffer(text, np.uint8)


def encrypted(data):
    """Say of the first entry that it is encrypted."""
    flagged = bytearray(data)
    flagged[6] |= 1
    flagged[data.index(b"PK\x01\x02") + 8] |= 1
    return bytes(flagged)


class Evil:
    """Something that would run code where it is unpickled."""

    def __reduce__(self):
        return (pytest.fail, ("it was unpickled",))


def test_a_file_with_pickles_is_refused(tmp_path):
    np.savez(tmp_path / "state.npz", tree=np.array([Evil()], dtype=object))
    with pytest.raises(ValueError, match="packed data"):
        load_state(tmp_path / "state.npz")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"PK\x03\x04",
        pickle.dumps(Evil()),
        b"\x93NUMPY\x01\x00",
        to_bytes(STATE)[:-40],
        npz(a=np.zeros(3)),
        npz(tree=tree(b"no json")),
        npz(tree=tree(b"[1]")),
        npz(tree=tree(b'{"dict": [["a", {"array": 7}]]}')),
        npz(tree=tree(b'{"strange": 1}')),
        npz(tree=tree(b'{"dict": 3}')),
        npz(tree=tree(b'{"dict": [["a", {"metrics": {"dict": [["b", "text"]]}}]]}')),
        npz(tree=tree(b"[" * 100_000)),
        # It would be as many copies.
        npz(**{"tree": tree(b'{"dict": [["a", {"array": 0}], ["b", {"array": 0}]]}'), "0": np.zeros(3)}),
        encrypted(to_bytes({})),
        to_bytes({}).replace(b"(12,), }", b"(-2,), }"),
    ],
)
def test_other_bytes_are_refused_in_one_way(data):
    with pytest.raises(ValueError, match=r"packed data|named values"):
        from_bytes(data)


def test_bytes_that_would_grow_are_refused():
    buffer = BytesIO()
    np.savez_compressed(buffer, tree=tree(b'{"dict": [["a", {"array": 0}]]}'), **{"0": np.zeros(10**7, np.uint8)})
    assert len(buffer.getvalue()) < 100_000
    with pytest.raises(ValueError, match="packed data"):
        from_bytes(buffer.getvalue())
    # Too small a thing to be larger than the whole.
    buffer = BytesIO()
    np.savez_compressed(buffer, tree=tree(b'{"dict": []}'))
    with pytest.raises(ValueError, match="packed data"):
        from_bytes(buffer.getvalue())
    # Entries that are one and the same.
    buffer = BytesIO(to_bytes({"a": np.zeros(1000, np.uint8)}))
    with zipfile.ZipFile(buffer, "a") as archive:
        archive.filelist += archive.filelist * 3
        archive._didModify = True
    with pytest.raises(ValueError, match="packed data"):
        from_bytes(buffer.getvalue())
    # An array that says it is larger than what is there.
    data = to_bytes({"a": np.zeros(1000, np.uint8)})
    for length in ("1000000000000", "3000000000"):
        huge = data.replace(b"(1000,), }".ljust(20), f"({length},), }}".encode().ljust(20))
        assert len(huge) == len(data)
        assert huge != data
        with pytest.raises(ValueError, match="packed data"):
            from_bytes(huge)
