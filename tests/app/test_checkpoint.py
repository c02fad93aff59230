"""The state file."""

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord

from app.checkpoint import load_state, save_state

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
