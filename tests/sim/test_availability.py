from pathlib import Path

import numpy as np
import pytest

from espalier.sim.availability import Markov, Trace, drops_out, read_trace


def _states(model: Markov, clients: int, rounds: int) -> np.ndarray:
    return np.array([[model.is_there(client, e) for e in range(1, rounds + 1)] for client in range(clients)])


def test_markov_begins_and_stays_in_its_stationary_distribution() -> None:
    states = _states(Markov(seed=3, leave=0.2, back=0.6), clients=4000, rounds=8)
    # 5 standard errors of a mean of 4000 independent clients.
    assert np.abs(states.mean(axis=0) - 0.75).max() < 5 * np.sqrt(0.75 * 0.25 / 4000)


def test_markov_leaves_and_comes_back_with_its_probabilities() -> None:
    states = _states(Markov(seed=4, leave=0.2, back=0.6), clients=400, rounds=100)
    before, after = states[:, :-1], states[:, 1:]
    assert abs((~after)[before].mean() - 0.2) < 0.02
    assert abs(after[~before].mean() - 0.6) < 0.03


def test_an_answer_does_not_depend_on_what_was_asked_before() -> None:
    in_order = _states(Markov(seed=5, leave=0.3, back=0.3), clients=4, rounds=200)
    resumed = Markov(seed=5, leave=0.3, back=0.3)
    asked = [(c, e) for e in range(200, 0, -7) for c in (3, 1, 0, 2)]
    assert [resumed.is_there(c, e) for c, e in asked] == [bool(in_order[c, e - 1]) for c, e in asked]


def test_nobody_leaves_with_probability_zero_and_clients_differ() -> None:
    assert _states(Markov(seed=0, leave=0.0, back=0.1), clients=50, rounds=20).all()
    states = _states(Markov(seed=0, leave=0.5, back=0.5), clients=2, rounds=64)
    assert (states[0] != states[1]).any()


@pytest.mark.parametrize(
    ("leave", "back", "message"),
    [
        (1.5, 0.5, "leave is 1.5: it must be within 0 and 1"),
        (float("nan"), 0.5, "leave is nan: it must be within 0 and 1"),
        (0.5, 0.0, "back is 0.0: it must be more than 0, and at most 1"),
    ],
)
def test_bad_probabilities(leave: float, back: float, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Markov(seed=0, leave=leave, back=back)


def test_dropouts_have_their_probability_and_grow_with_it() -> None:
    drawn = [(client, e) for client in range(40) for e in range(1, 51)]
    few = {one for one in drawn if drops_out(7, *one, 0.1)}
    many = {one for one in drawn if drops_out(7, *one, 0.4)}
    assert few < many
    assert abs(len(few) / len(drawn) - 0.1) < 5 * np.sqrt(0.1 * 0.9 / len(drawn))
    assert not any(drops_out(7, *one, 0.0) for one in drawn)
    assert all(drops_out(7, *one, 1.0) for one in drawn)


def test_trace(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("client,from,to\n0,1,3\n0,5,6\n2,2,4\n\n")
    trace = read_trace(path, num_clients=4)
    assert trace == Trace({0: ((1, 3), (5, 6)), 2: ((2, 4),)})
    there = [[client for client in (3, 0, 2, 1) if trace.is_there(client, e)] for e in range(1, 7)]
    assert there == [[3, 0, 1], [3, 0, 2, 1], [3, 2, 1], [3, 1], [3, 0, 1], [3, 1]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1: its columns must be client,from,to"),
        ("client,start,end\n", "line 1: its columns must be client,from,to"),
        ("client,from,to\n0,1\n", "line 2: '0,1' is not three whole numbers"),
        ("client,from,to\n0,1,2.5\n", "line 2: '0,1,2.5' is not three whole numbers"),
        ("client,from,to\n0,1,2\n4,1,2\n", "line 3: client is 4: allowed is 0 to 3"),
        ("client,from,to\n0,0,2\n", "line 2: from is 0 and to is 2: from must be 1 or more, and to more than from"),
        ("client,from,to\n0,2,2\n", "line 2: from is 2 and to is 2: from must be 1 or more, and to more than from"),
    ],
)
def test_bad_traces(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(text)
    with pytest.raises(ValueError, match="line") as raised:
        read_trace(path, num_clients=4)
    assert str(raised.value) == f"{path}, {message}"


def test_a_file_that_is_no_text(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match="is no CSV file"):
        read_trace(path, num_clients=4)
