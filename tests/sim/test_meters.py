import json

import numpy as np
import pytest

from espalier.sim.meters import EnergyMeter, SimulatedClock


def test_a_global_round_lasts_as_long_as_its_slowest_edge():
    clock = SimulatedClock(["a", "b", "c"])
    for edge, seconds in (("a", 2.0), ("b", 1.5), ("a", 3.0), ("b", 6.0)):
        clock.advance(edge, seconds)
    assert [clock.edge_now(edge) for edge in "abc"] == [5.0, 7.5, 0.0]
    assert clock.now == 7.5
    assert clock.end_round() == 7.5
    assert [clock.edge_now(edge) for edge in "abc"] == [7.5] * 3
    clock.advance("c", 1.0)
    assert clock.end_round() == 1.0
    assert clock.end_round() == 0.0
    assert clock.now == 8.5


def test_a_resumed_clock_goes_on_in_the_middle_of_a_round():
    clock = SimulatedClock([0, 1])
    clock.advance(0, 4.0)
    clock.end_round()
    clock.advance(1, 2.5)
    state = json.loads(json.dumps(clock.state_dict()))
    resumed = SimulatedClock([1, 0])
    resumed.advance(0, 99.0)
    resumed.load_state_dict(state)
    clock.advance(1, 50.0)
    assert (resumed.edge_now(0), resumed.edge_now(1)) == (4.0, 6.5)
    resumed.advance(0, 1.0)
    assert resumed.end_round() == 2.5
    assert resumed.now == 6.5


@pytest.mark.parametrize("wrong", [{"seconds": [1.0, "x"]}, {"seconds": [1.0, -1.0]}, {"round_start": float("nan")}])
def test_a_clock_takes_no_state_that_is_no_time(wrong):
    clock = SimulatedClock([0, 1])
    clock.advance(0, 4.0)
    with pytest.raises(ValueError, match="finite numbers >= 0"):
        clock.load_state_dict(clock.state_dict() | wrong)
    assert clock.now == 4.0


def test_clocks_refuse_what_is_not_time_and_not_theirs():
    for edges in ([], ["a", "a"]):
        with pytest.raises(ValueError, match=r"edges = .*: must be one or more names"):
            SimulatedClock(edges)
    clock = SimulatedClock(["a"])
    for seconds in (-1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match=f"seconds = {seconds}: must be"):
            clock.advance("a", seconds)
    with pytest.raises(KeyError):
        clock.advance("b", 1.0)
    with pytest.raises(ValueError, match=r"edges = \['b'\]: must be \['a'\]"):
        clock.load_state_dict(SimulatedClock(["b"]).state_dict())
    assert clock.now == 0.0


def test_energy_adds_up_by_part_and_round():
    meter = EnergyMeter(5)
    meter.add([0, 3], [1.0, 2.0], [0.5, 0.25])
    meter.add([3, 4, 3], 1.0, [2.0, 4.0, 6.0])
    meter.add([], [], [])
    np.testing.assert_array_equal(meter.round_compute_joules, [1, 0, 0, 4, 1])
    np.testing.assert_array_equal(meter.round_upload_joules, [0.5, 0, 0, 8.25, 4])
    meter.end_round()
    np.testing.assert_array_equal(meter.round_compute_joules, np.zeros(5))
    meter.add(np.array([1]), 3.0, 0.125)
    np.testing.assert_array_equal(meter.round_compute_joules, [0, 3, 0, 0, 0])
    np.testing.assert_array_equal(meter.round_upload_joules, [0, 0.125, 0, 0, 0])
    np.testing.assert_array_equal(meter.compute_joules, [1, 3, 0, 4, 1])
    np.testing.assert_array_equal(meter.upload_joules, [0.5, 0.125, 0, 8.25, 4])
    np.testing.assert_array_equal(meter.total_joules, [1.5, 3.125, 0, 12.25, 5])


def test_a_resumed_meter_goes_on_in_the_middle_of_a_round():
    meter = EnergyMeter(2)
    meter.add([0, 1], 1.0, 2.0)
    meter.end_round()
    meter.add([1], 0.5, 0.25)
    state = meter.state_dict()
    meter.add([0, 1], 100.0, 100.0)  # the state is a copy
    resumed = EnergyMeter(2)
    resumed.load_state_dict(state)
    resumed.add([1], 0.5, 0.25)  # and stays one
    np.testing.assert_array_equal(state["compute_joules"], [1.0, 1.5])
    np.testing.assert_array_equal(resumed.total_joules, [3.0, 4.5])
    np.testing.assert_array_equal(resumed.round_compute_joules, [0.0, 1.0])
    np.testing.assert_array_equal(resumed.round_upload_joules, [0.0, 0.5])


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (([2], 1.0, 1.0), r"clients = \[2\]: must be integers from 0 to 1"),
        (([-1], 1.0, 1.0), r"clients = \[-1\]: must be"),
        (([True, False], 1.0, 1.0), r"clients = \[True, False\]: must be"),
        (([0], -1.0, 1.0), r"compute_joules = -1\.0: must be"),
        (([0, 1], 1.0, [0.0, np.nan]), "upload_joules = nan: must be"),
        (([0, 1], 1.0, [0.0, 1.0, 2.0]), r"upload_joules has shape \(3,\): must be \(2,\)"),
    ],
)
def test_meters_book_nothing_of_a_bad_entry(arguments, text):
    meter = EnergyMeter(2)
    with pytest.raises(ValueError, match=rf"^{text}[^\n]*$"):
        meter.add(*arguments)
    np.testing.assert_array_equal(meter.total_joules, [0, 0])


def test_meters_of_other_clients_are_refused():
    with pytest.raises(ValueError, match="num_clients = 0: must be 1 or more"):
        EnergyMeter(0)
    with pytest.raises(ValueError, match=r"must be \(2,\) each"):
        EnergyMeter(2).load_state_dict(EnergyMeter(1).state_dict())
