"""The state file."""

import pickle

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


def test_a_file_with_pickles_is_refused(tmp_path):
    np.savez(tmp_path / "state.npz", tree=np.array([{"a": 1}], dtype=object))
    with pytest.raises(ValueError, match="allow_pickle"):
        load_state(tmp_path / "state.npz")


def test_bytes_come_back_as_they_were():
    loaded = from_bytes(to_bytes(STATE))
    assert loaded.keys() == STATE.keys()
    for name, value in STATE.items():
        assert type(loaded[name]) is type(value), name
        if isinstance(value, np.ndarray):
            assert loaded[name].dtype == value.dtype
            np.testing.assert_array_equal(loaded[name], value)
        else:
            assert loaded[name] == value, name
    loaded["array"][0, 0] = 9.0  # it is not the message's memory
    forms = {
        "empty": np.zeros((0, 3)),
        "fortran": np.asfortranarray(np.arange(6).reshape(2, 3)),
        "flag": np.array(True),
    }
    for name, value in from_bytes(to_bytes(forms)).items():
        np.testing.assert_array_equal(value, forms[name], strict=True)


def packed(head, values=b""):
    return len(head).to_bytes(8, "little") + head + values


class Evil:
    """Something that would run code where it is unpickled."""

    def __reduce__(self):
        return (pytest.fail, ("it was unpickled",))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"PK\x03\x04",
        pickle.dumps(Evil()),
        b"\x93NUMPY\x01\x00",
        to_bytes(STATE)[:-4],
        to_bytes(STATE) + b"more",
        b"\xff" * 8 + to_bytes({})[8:],
        packed(b"no json"),
        packed(b"[]"),
        packed(b"[[1], []]"),
        packed(b'[{"dict": [["a", {"array": 7}]]}, []]'),
        packed(b'[{"strange": 1}, []]'),
        packed(b'[{"dict": 3}, []]'),
        packed(b'[{"dict": [["a", {"metrics": {"dict": [["b", "text"]]}}]]}, []]'),
        packed(b"[" * 100_000),
        packed(b'[{"dict": []}, [["|O", [1]]]]', b"\x00" * 8),
        packed(b'[{"dict": []}, [["strange", [1]]]]', b"\x00" * 8),
        packed(b'[{"dict": []}, [["|u1", [-1, -1]]]]', b"\x00"),
        packed(b'[{"dict": []}, [["|u1", [1.5]]]]', b"\x00"),
        # It would be as many copies.
        packed(b'[{"dict": [["a", {"array": 0}], ["b", {"array": 0}]]}, [["|u1", [1]]]]', b"\x00"),
        # An array that says it is larger than what is there.
        packed(b'[{"dict": [["a", {"array": 0}]]}, [["|u1", [1000000000000]]]]', b"\x00"),
        packed(b'[{"dict": [["a", {"array": 0}]]}, [["|V0", [1000000000000]]]]', b""),
    ],
)
def test_other_bytes_are_refused_in_one_way(data):
    with pytest.raises(ValueError, match=r"packed data|named values"):
        from_bytes(data)
