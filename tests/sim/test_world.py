from dataclasses import replace

import numpy as np
import pytest

from espalier.sim.devices import compute_joules
from espalier.sim.radio import los_probability, path_loss_los_db, path_loss_nlos_db
from espalier.sim.world import World, make_world, realise

PAPER = (12, 12, 12, 12)
UNSHADOWED = {"shadowing_los_db": 0.0, "shadowing_nlos_db": 0.0}


def test_gains_depend_on_seed_and_round_only():
    world = make_world(PAPER, seed=7)
    forwards = [world.gains(i) for i in range(5)]
    again = make_world(PAPER, seed=7)
    backwards = [again.gains(i) for i in reversed(range(5))][::-1]
    np.testing.assert_array_equal(forwards, backwards)
    assert len(np.unique(forwards)) == 5 * 48
    assert (make_world(PAPER, seed=8).gains(0) != forwards[0]).all()


def test_a_static_channel_stays():
    world = make_world(PAPER, seed=7, redraw=False)
    np.testing.assert_array_equal(world.gains(0), world.gains(1234))
    assert (world.gains(0) > 0).all()


def test_a_clients_channel_has_the_distribution_of_its_distance_over_the_rounds():
    world = make_world(PAPER, seed=3, **UNSHADOWED)
    loss_db = -10 * np.log10([world.gains(i) for i in range(400)])
    distance = world.cells.distance_metres
    los = np.isclose(loss_db, path_loss_los_db(distance, world.radio))
    assert (los | np.isclose(loss_db, path_loss_nlos_db(distance, world.radio))).all()
    probability = los_probability(distance)
    # 48 clients: one of them deviates by 4 standard errors once in 300 seeds.
    assert (np.abs(los.mean(axis=0) - probability) <= 4 * np.sqrt(probability * (1 - probability) / 400)).all()
    shadowed = make_world(PAPER, seed=3)
    shadowing_db = -10 * np.log10([shadowed.gains(i) for i in range(400)]) - loss_db
    normal = shadowing_db / np.where(los, 4.0, 6.0)
    assert normal.std() == pytest.approx(1, abs=0.02)
    assert normal[los].std() == pytest.approx(1, abs=0.05)  # not tied to the draw of the line of sight
    correlations = np.corrcoef(normal.T)[~np.eye(48, dtype=bool)]
    assert np.abs(correlations).max() < 5 / np.sqrt(400)  # clients are independent of each other
    between_rounds = np.mean(normal[1:] * normal[:-1])
    assert abs(between_rounds) < 4 / np.sqrt(399 * 48)  # and so are rounds


def test_one_range_changes_nothing_else():
    world = make_world(PAPER, seed=1)
    assert world.radio.carrier_hz == 2.4e9
    other = make_world(PAPER, seed=1, max_frequency_hz=(1e8, 2e8), planning_error_db=3.0, noise_figure_db=7.0)
    np.testing.assert_array_equal(other.gains(9), world.gains(9))
    np.testing.assert_array_equal(other.cells.x_metres, world.cells.x_metres)
    np.testing.assert_array_equal(other.devices.max_power_watts, world.devices.max_power_watts)
    assert (other.devices.max_frequency_hz < world.devices.max_frequency_hz).all()
    assert other.radio.noise_figure_db == 7.0
    wide = make_world(PAPER, seed=1, radius_metres=800.0)
    np.testing.assert_array_equal(wide.devices.cycles_per_bit, world.devices.cycles_per_bit)
    assert (wide.cells.distance_metres > world.cells.distance_metres).all()


def test_streams_of_one_seed_are_independent():
    world = make_world([10_000], seed=0, planning_error_db=1.0)
    turn = np.arctan2(world.cells.offset_y_metres, world.cells.offset_x_metres) % (2 * np.pi)
    distance = world.cells.distance_metres
    plain = replace(world, radio=replace(world.radio, **UNSHADOWED))
    shadowing_db = np.log10(world.gains(0) / plain.gains(0))
    error_db = np.log10(world.observed_gains(0) / world.gains(0))
    next_error_db = np.log10(world.observed_gains(1) / world.gains(1))
    devices = [world.devices.cycles_per_bit, world.devices.max_frequency_hz, world.devices.energy_budget_joules]
    streams = [turn, distance**2, *devices, np.log(world.devices.max_power_watts)]
    streams += [shadowing_db, error_db, next_error_db]
    correlations = np.corrcoef(streams)[~np.eye(len(streams), dtype=bool)]
    assert np.abs(correlations).max() < 4 / np.sqrt(10_000)


def test_positions_and_devices_share_no_draw():
    world = make_world([100], seed=0)
    turn = np.arctan2(world.cells.offset_y_metres, world.cells.offset_x_metres) / (2 * np.pi) % 1
    share = (world.cells.distance_metres**2 - 10**2) / (400**2 - 10**2)
    cycles = (world.devices.cycles_per_bit - 25) / 15
    budget = (world.devices.energy_budget_joules - 0.8) / 0.7
    gaps = np.concatenate([turn, share])[:, None] - np.concatenate([cycles, budget])
    assert np.abs(gaps).min() > 1e-9  # 40,000 pairs: about 1e-5 by chance


def test_the_planners_error_follows_the_seed():
    worlds = [make_world([50], seed=seed, planning_error_db=1.0) for seed in (1, 2)]
    one, other = (np.log(world.observed_gains(0) / world.gains(0)) for world in worlds)
    assert abs(np.corrcoef(one, other)[0, 1]) < 0.5


def test_the_planner_sees_the_gains_with_an_error_of_its_own():
    world = make_world([20_000], seed=4)
    np.testing.assert_array_equal(world.observed_gains(2), world.gains(2))
    erring = make_world([20_000], seed=4, planning_error_db=2.5)
    np.testing.assert_array_equal(erring.gains(2), world.gains(2))
    error_db = 10 * np.log10(erring.observed_gains(2) / erring.gains(2))
    assert error_db.mean() == pytest.approx(0, abs=3.3 * 2.5 / np.sqrt(20_000))
    assert error_db.std() == pytest.approx(2.5, rel=0.02)
    np.testing.assert_array_equal(erring.observed_gains(2), erring.observed_gains(2))
    static = make_world([50], seed=4, redraw=False, planning_error_db=2.5)
    assert (static.observed_gains(0) != static.observed_gains(1)).all()


# 1 + g P / N = 4 at 1 W: 2 bits per second and hertz; a capacitance for 1 J per cycle at 1 Hz
LINK = {"bandwidth_hz": 100.0, "noise_watts": 1.0, "gains": 3.0, "capacitance": 2.0}


@pytest.mark.parametrize(
    ("plan", "compute_joules", "upload_joules", "compute_seconds", "upload_seconds", "finish_seconds", "late"),
    [
        # 8 cycles at 2 Hz: 4 s, 8 * 2^2 J. 600 bits at 200 bit/s: 3 s at 1 W.
        ({}, 32, 3, 4, 3, 7, False),
        ({"deadline_seconds": 7.0}, 32, 3, 4, 3, 7, False),  # on the deadline
        ({"deadline_seconds": 7 * (1 - 1e-10)}, 32, 3, 4, 3, 7, False),  # but for rounding
        ({"deadline_seconds": 6.5}, 32, 2.5, 4, 2.5, 7, True),  # 6.5 - 4 = 2.5 s of transmitting
        ({"idle_seconds": 3.0}, 32, 3, 4, 3, 10, False),
        ({"idle_seconds": 4.0}, 32, 2, 4, 2, 11, True),  # 10 - 4 - 4 = 2 s of transmitting
        ({"idle_seconds": 6.5}, 32, 0, 4, 0, 13.5, True),  # idle beyond the deadline: not -0.5 s
        ({"deadline_seconds": 3.0}, 24, 0, 3, 0, 7, True),  # 3 of 4 s of computing
        ({"deadline_seconds": 4.0}, 32, 0, 4, 0, 7, True),
        ({"upload_bits": 0}, 32, 0, 4, 0, 4, False),
        ({"upload_bits": 0, "deadline_seconds": 2.0}, 16, 0, 2, 0, 4, True),
        ({"power_watts": 0.0}, 32, 0, 4, 6, np.inf, True),
        ({"frequency_hz": 0.0}, 0, 0, 10, 0, np.inf, True),
        ({"cycles": 0, "frequency_hz": 0.0}, 0, 3, 0, 3, 3, False),
        ({"cycles": 0, "frequency_hz": 0.0, "upload_bits": 0, "power_watts": 0.0}, 0, 0, 0, 0, 0, False),  # idle client
        ({"deadline_seconds": np.inf, "cycles": 0, "frequency_hz": 0.0}, 0, 3, 0, 3, 3, False),
        ({"gains": 15.0, "power_watts": 0.2}, 32, 0.6, 4, 3, 7, False),
        ({"gains": 15.0, "deadline_seconds": 5.0}, 32, 1, 4, 1, 5.5, True),  # 400 bit/s: 1.5 s
    ],
)
def test_realised_plans_by_hand(
    plan, compute_joules, upload_joules, compute_seconds, upload_seconds, finish_seconds, late
):
    usual = {"cycles": 8, "upload_bits": 600, "frequency_hz": 2.0, "power_watts": 1.0, "deadline_seconds": 10.0}
    realised = realise(**LINK | usual | plan)
    assert realised.compute_joules == pytest.approx(compute_joules)
    assert realised.upload_joules == pytest.approx(upload_joules)
    assert realised.compute_seconds == pytest.approx(compute_seconds)
    assert realised.upload_seconds == pytest.approx(upload_seconds)
    assert realised.finish_seconds == pytest.approx(finish_seconds)
    assert realised.late == late


def plan_on_the_deadline(world: World, gains: np.ndarray, deadline: float):
    """Return cycles, bits, frequencies and powers that fill the deadline in different shares."""
    num, bits = len(world.devices), 7_248_384
    cycles = 50 * 320 * 1376 * world.devices.cycles_per_bit
    computing = np.linspace(0.1, 0.9, num) * deadline
    spectral = bits / world.radio.bandwidth_hz / (deadline - computing)
    return {
        "cycles": cycles,
        "upload_bits": bits,
        "frequency_hz": cycles / computing,
        "power_watts": np.expm1(np.log(2) * spectral) * world.radio.noise_watts / gains,
    }


def realised_in(world: World, plan, edge_round: int, deadline: float):
    return realise(
        **plan,
        gains=world.gains(edge_round),
        capacitance=world.devices.capacitance,
        deadline_seconds=deadline,
        bandwidth_hz=world.radio.bandwidth_hz,
        noise_watts=world.radio.noise_watts,
    )


def test_plans_are_kept_when_the_channel_is_as_planned():
    world = make_world([4000] * 2, seed=2)
    plan = plan_on_the_deadline(world, world.observed_gains(3), 150.0)
    realised = realised_in(world, plan, 3, 150.0)
    assert not realised.late.any()
    np.testing.assert_allclose(realised.finish_seconds, 150.0, rtol=1e-11)
    planned = compute_joules(plan["cycles"], plan["frequency_hz"], world.devices.capacitance)
    np.testing.assert_array_equal(realised.compute_joules, planned)
    planned = plan["power_watts"] * (150 - plan["cycles"] / plan["frequency_hz"])
    np.testing.assert_allclose(realised.upload_joules, planned, rtol=1e-9)


def test_plans_on_the_deadline_are_late_where_the_channel_is_worse_than_seen():
    world = make_world([4000] * 2, seed=2, planning_error_db=1.0)
    plan = plan_on_the_deadline(world, world.observed_gains(3), 150.0)
    realised = realised_in(world, plan, 3, 150.0)
    np.testing.assert_array_equal(realised.late, world.gains(3) < world.observed_gains(3))
    assert 0.45 < realised.late.mean() < 0.55
    longest = realised.compute_seconds + realised.upload_seconds
    np.testing.assert_allclose(longest[realised.late], 150.0)
    assert (longest[~realised.late] < 150.0).all()


def test_a_later_deadline_never_costs_less():
    world = make_world([200], seed=2)
    plan = plan_on_the_deadline(world, world.gains(0) * 1.3, 10.0)
    costs = [realised_in(world, plan, 0, deadline) for deadline in np.linspace(0.5, 15, 60)]
    for part in ("compute_joules", "upload_joules", "compute_seconds", "upload_seconds"):
        spent = np.array([getattr(cost, part) for cost in costs])
        assert (np.diff(spent, axis=0) >= -1e-9 * spent.max()).all()
    assert (np.diff([cost.late.sum() for cost in costs]) <= 0).all()
    assert costs[0].late.all()
    assert not costs[-1].late.any()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"cycles": [1.0, -2.0]}, r"cycles = -2\.0: must be a finite number >= 0"),
        ({"power_watts": np.nan}, "power_watts = nan: must be a finite number >= 0"),
        ({"gains": [0.0, 1.0]}, r"gains = 0\.0: must be a finite number > 0"),
        ({"idle_seconds": np.inf}, "idle_seconds = inf: must be a finite number >= 0"),
        ({"deadline_seconds": 0.0}, r"deadline_seconds = 0\.0: must be a number > 0"),
        ({"deadline_seconds": np.inf, "power_watts": [1.0, 0.0]}, "deadline_seconds = inf: must be finite where"),
    ],
)
def test_realise_names_bad_values(arguments, text):
    usual = {"cycles": 8, "upload_bits": 600, "frequency_hz": 2.0, "power_watts": 1.0, "deadline_seconds": 10.0}
    with pytest.raises(ValueError, match=rf"^{text}[^\n]*$"):
        realise(**LINK | usual | arguments)


def test_a_world_names_bad_values():
    world = make_world([2, 3], seed=0)
    for gains in (world.gains, world.observed_gains, replace(world, redraw=False).gains):
        with pytest.raises(ValueError, match="edge_round = -1: must be"):
            gains(-1)
    with pytest.raises(ValueError, match="devices are 5: must be 4"):
        replace(world, cells=make_world([4], seed=0).cells)
    with pytest.raises(ValueError, match="seed = -1: must be"):
        replace(world, seed=-1)
    with pytest.raises(ValueError, match=r"planning_error_db = -0\.5: must be"):
        make_world([2], seed=0, planning_error_db=-0.5)
    with pytest.raises(TypeError, match="wavelength"):
        make_world([2], seed=0, wavelength=3)
