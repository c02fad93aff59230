"""The state file."""

import pickle
import zipfile
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord

from espalier.app.ground.checkpoint import from_bytes, load_state, save_state, to_bytes

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
        # Records of text, or of dates, which can't be written again.
        packed(b'[{"dict": [["a", {"arrays": {"dict": [["w", {"array": 0}]]}}]]}, [["<U1", [1]]]]', b"x\x00\x00\x00"),
        packed(b'[{"dict": [["a", {"arrays": {"dict": [["w", {"array": 0}]]}}]]}, [["<M8[s]", [1]]]]', bytes(8)),
        packed(b'[{"dict": [["a", ' + b"[" * 60 + b"]" * 60 + b"]]}, []]"),
    ],
)
def test_other_bytes_are_refused_in_one_way(data):
    with pytest.raises(ValueError, match=r"packed data|named values"):
        from_bytes(data)


def file_of(state):
    """Return the bytes of the file of a state."""
    with TemporaryDirectory() as folder:
        save_state(Path(folder) / "state.npz", state)
        return (Path(folder) / "state.npz").read_bytes()


def load(folder, data):
    (folder / "state.npz").write_bytes(data)
    return load_state(folder / "state.npz")


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
        file_of(STATE)[:-40],
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
        encrypted(file_of({})),
        file_of({}).replace(b"(12,), }", b"(-2,), }"),
    ],
)
def test_another_file_is_refused_in_one_way(tmp_path, data):
    with pytest.raises(ValueError, match=r"packed data|named values"):
        load(tmp_path, data)


def test_a_file_that_would_grow_is_refused(tmp_path):
    buffer = BytesIO()
    np.savez_compressed(buffer, tree=tree(b'{"dict": [["a", {"array": 0}]]}'), **{"0": np.zeros(10**7, np.uint8)})
    assert len(buffer.getvalue()) < 100_000
    with pytest.raises(ValueError, match="packed data"):
        load(tmp_path, buffer.getvalue())
    # Too small a thing to be larger than the whole.
    buffer = BytesIO()
    np.savez_compressed(buffer, tree=tree(b'{"dict": []}'))
    with pytest.raises(ValueError, match="packed data"):
        load(tmp_path, buffer.getvalue())
    # Entries that are one and the same.
    buffer = BytesIO(file_of({"a": np.zeros(1000, np.uint8)}))
    with zipfile.ZipFile(buffer, "a") as archive:
        archive.filelist += archive.filelist * 3
        archive._didModify = True
    with pytest.raises(ValueError, match="packed data"):
        load(tmp_path, buffer.getvalue())
    # An array that says it is larger than what is there.
    data = file_of({"a": np.zeros(1000, np.uint8)})
    for length in ("1000000000000", "3000000000"):
        huge = data.replace(b"(1000,), }".ljust(20), f"({length},), }}".encode().ljust(20))
        assert len(huge) == len(data)
        assert huge != data
        with pytest.raises(ValueError, match="packed data"):
            load(tmp_path, huge)
