"""Simulated time passes from one end to the next, and clients' speeds follow their seed."""

import numpy as np
import pytest

from espalier.sim.clock import ClientSeconds, EventClock, draw_client_seconds, read_client_seconds


def ends(clock: EventClock) -> list[tuple[float, int]]:
    taken = []
    while clock.at_work:
        while (node := clock.taken()) is not None:
            taken.append((clock.now, node))
        if clock.at_work:
            clock.wait()
    return taken


def test_nodes_end_in_the_order_of_time_then_of_their_numbers():
    clock = EventClock()
    for node, seconds in ((3, 2.0), (1, 5.0), (2, 2.0), (0, 0.0)):
        clock.begin(node, seconds)
    assert ends(clock) == [(0.0, 0), (2.0, 2), (2.0, 3), (5.0, 1)]


def test_time_passes_to_a_deadline_and_never_back():
    clock = EventClock()
    clock.begin(0, 4.0)
    clock.wait(3.0)
    assert (clock.now, clock.taken(), clock.at_work) == (3.0, None, [0])
    clock.wait(1.0)
    assert clock.now == 3.0
    clock.wait()
    assert (clock.now, clock.taken(), clock.at_work) == (4.0, 0, [])
    with pytest.raises(ValueError, match="nobody is at work"):
        clock.wait()


def test_time_passes_whoever_ends_meanwhile():
    clock = EventClock()
    for node, seconds in ((0, 4.0), (1, 1.0), (2, 9.0)):
        clock.begin(node, seconds)
    clock.pass_until(5.0)
    assert (clock.now, clock.taken(), clock.taken(), clock.taken()) == (5.0, 1, 0, None)
    clock.pass_until(3.0)
    assert (clock.now, clock.at_work) == (5.0, [2])
    with pytest.raises(ValueError, match="must be a finite number"):
        clock.pass_until(np.inf)


def test_a_node_begins_once_and_for_a_time():
    clock = EventClock()
    clock.begin(0, 1.0)
    with pytest.raises(ValueError, match="node 0 is at work until 1 s"):
        clock.begin(0, 1.0)
    for seconds in (-1.0, np.inf, np.nan):
        with pytest.raises(ValueError, match="must be a finite number"):
            clock.begin(1, seconds)


def test_a_clock_goes_on_from_its_state():
    one, other = EventClock(), EventClock()
    one.begin(0, 4.0)
    one.begin(1, 2.5)
    one.wait()
    other.load_state_dict(one.state_dict())
    assert ends(other) == ends(one) == [(2.5, 1), (4.0, 0)]
    with pytest.raises(ValueError, match="finite"):
        other.load_state_dict({"now": float("nan"), "ends": {}})
    assert other.now == 4.0


def test_speeds_are_lognormal_and_follow_the_seed():
    drawn = draw_client_seconds(20_000, 1, median_seconds=30.0, sigma=1.0)
    logs = np.log([drawn.of(client, 1) / 30.0 for client in range(len(drawn))])
    assert abs(logs.mean()) < 0.02
    assert abs(logs.std() - 1) < 0.02
    few = draw_client_seconds(3, 1, median_seconds=30.0, sigma=1.0)
    assert [few.of(c, 7) for c in range(3)] == [drawn.of(c, 1) for c in range(3)]
    assert few.of(0, 1) != draw_client_seconds(3, 2, median_seconds=30.0, sigma=1.0).of(0, 1)
    equal = draw_client_seconds(3, 1, median_seconds=30.0, sigma=0.0)
    assert [equal.of(c, 1) for c in range(3)] == [30.0] * 3
    with pytest.raises(ValueError, match="sigma = -1"):
        draw_client_seconds(3, 1, median_seconds=30.0, sigma=-1)


def test_a_trace_is_read_and_repeats(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text("\ufeffclient,seconds\n1,7\n0,2.5\n0,3\n", encoding="utf-8")  # as spreadsheets write it
    trace = read_client_seconds(path, 2)
    assert [trace.of(0, number) for number in (1, 2, 3)] == [2.5, 3.0, 2.5]
    assert trace.of(1, 5) == 7.0


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("client,s\n0,1\n", "no column 'seconds'"),
        ("client,seconds\n0,1\n", "no row for client 1"),
        ("client,seconds\n0,1\n2,1\n", "line 3: client 2, 1 s: allowed are 0 to 1"),
        ("client,seconds\n0,inf\n1,1\n", "line 2: client 0, inf s"),
        ("client,seconds\n0,1e308\n1,1\n", "line 2: client 0, 1e.308 s: allowed are .* numbers from 0 to 1e.09"),
        ("client,seconds\n0,soon\n1,1\n", "line 2: client is an integer"),
        ("client,seconds\n0\n", "line 2: client is an integer"),
        ("client,seconds\n0," + 200_000 * "1", "field larger than field limit"),
    ],
)
def test_a_bad_trace_is_said_in_a_line(tmp_path, text, fault):
    path = tmp_path / "trace.csv"
    path.write_text(text)
    with pytest.raises(ValueError, match=fault):
        read_client_seconds(path, 2)


def test_a_trace_that_is_no_text_is_said_in_a_line(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ValueError, match=r"trace\.csv is no CSV file: 'utf-8' codec can't decode byte 0xff"):
        read_client_seconds(path, 2)


def test_times_that_are_none():
    with pytest.raises(ValueError, match="seconds of client 1"):
        ClientSeconds([[1.0], []])
    with pytest.raises(ValueError, match="one client"):
        ClientSeconds([])
