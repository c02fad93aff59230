from dataclasses import fields

import numpy as np
import pytest

from espalier.sim.devices import Devices, compute_joules, compute_seconds, draw_devices

# name, low and high of the paper; powers in dBm
PAPER = {
    "cycles_per_bit": (25, 40),
    "max_frequency_hz": (1.2e9, 2.0e9),
    "max_power_watts": (20, 30),
    "energy_budget_joules": (0.8, 1.5),
}


def in_units_of_the_range(devices: Devices) -> np.ndarray:
    """Return where each value lies in its range, 0 to 1, quantities by devices."""
    values = {name: getattr(devices, name) for name in PAPER}
    values["max_power_watts"] = 30 + 10 * np.log10(values["max_power_watts"])
    return np.array([(values[name] - low) / (high - low) for name, (low, high) in PAPER.items()])


def test_profiles_are_uniform_in_the_papers_ranges_and_independent():
    devices = draw_devices(20_000, seed=2)
    shares = in_units_of_the_range(devices)
    assert shares.min() > -1e-9
    assert shares.max() < 1 + 1e-9
    levels = np.linspace(0, 1, 20_000)
    for share in shares:
        assert np.abs(np.sort(share) - levels).max() < 1.63 / np.sqrt(20_000)
    assert np.abs(np.corrcoef(shares) - np.eye(4)).max() < 0.03
    np.testing.assert_array_equal(devices.capacitance, np.full(20_000, 2e-28))


def test_another_range_or_number_leaves_the_other_draws_alone():
    devices = draw_devices(10, seed=5)
    changed = draw_devices(14, seed=5, max_frequency_hz=(1.0e9, 1.0e9), max_power_dbm=(10.0, 20.0), capacitance=1e-27)
    np.testing.assert_array_equal(changed.cycles_per_bit[:10], devices.cycles_per_bit)
    np.testing.assert_array_equal(changed.energy_budget_joules[:10], devices.energy_budget_joules)
    np.testing.assert_array_equal(changed.max_frequency_hz, np.full(14, 1.0e9))
    np.testing.assert_allclose(changed.max_power_watts[:10], devices.max_power_watts / 10)
    assert (draw_devices(10, seed=6).cycles_per_bit != devices.cycles_per_bit).all()


def test_computing_by_hand():
    # 10 mini-batches of 32 samples of 1376 bits, 30 cycles per bit, at 1.5 GHz
    cycles = 10 * 32 * 1376 * 30
    assert cycles == 13_209_600
    assert compute_seconds(cycles, 1.5e9) == pytest.approx(8.8064e-3)
    assert compute_joules(cycles, 1.5e9, 2e-28) == pytest.approx(1e-28 * 13_209_600 * 2.25e18)
    assert compute_joules(cycles, 1.5e9, 2e-28) == pytest.approx(2.97216e-3)
    np.testing.assert_array_equal(compute_seconds([0, 0, 7], [0.0, 1e9, 0.0]), [0, 0, np.inf])
    np.testing.assert_array_equal(compute_joules([0, 7], [1e9, 0.0], 2e-28), [0, 0])


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"num": 0}, "num = 0: must be"),
        ({"seed": -3}, "seed = -3: must be"),
        ({"cycles_per_bit": (0, 40)}, r"cycles_per_bit = \(0, 40\): must be .* 0 < low <= high"),
        ({"max_frequency_hz": (2e9, 1e9)}, r"max_frequency_hz = \(2000000000\.0, 1000000000\.0\): must be"),
        ({"max_power_dbm": (20, float("nan"))}, r"max_power_dbm = \(20, nan\): must be"),
        ({"energy_budget_joules": (0.8, float("inf"))}, r"energy_budget_joules = \(0\.8, inf\): must be"),
        ({"capacitance": 0.0}, r"capacitance = 0\.0: must be"),
    ],
)
def test_bad_ranges_are_named(arguments, text):
    with pytest.raises(ValueError, match=rf"^{text}[^\n]*$"):
        draw_devices(**{"num": 3, "seed": 0} | arguments)


@pytest.mark.parametrize("name", [field.name for field in fields(Devices)][1:])
def test_profiles_of_other_lengths_or_signs_are_refused(name):
    good = {field.name: np.ones(3) for field in fields(Devices)}
    assert len(Devices(**good)) == 3
    with pytest.raises(ValueError, match=rf"{name} has shape \(2,\): must be \(3,\)"):
        Devices(**good | {name: np.ones(2)})
    with pytest.raises(ValueError, match=rf"{name} = -1\.0: must be"):
        Devices(**good | {name: np.array([1.0, -1.0, 1.0])})
