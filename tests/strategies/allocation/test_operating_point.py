"""The least energy of one client: against grids that zoom in, and by the conditions of optimality."""

from decimal import Decimal, localcontext

import numpy as np
import pytest

from espalier.strategies.allocation import best_operating_point, costs
from espalier.strategies.allocation.operating_point import _h_ratio
from tests.strategies.allocation.reference import least_joules

CHANNEL = {"noise_watts": 2.15e-15, "bandwidth_hz": 540e3, "capacitance": 2e-28}


def drawn(count: int, seed: int) -> dict[str, np.ndarray]:
    """Return clients of the paper's setting with 1 to 50 local rounds and deadlines of 1 to 150 s."""
    rng = np.random.default_rng(seed)
    return {
        "cycles": rng.integers(1, 51, count) * rng.uniform(1.1e7, 1.8e7, count),
        "bits": np.full(count, 7_248_384.0),
        "seconds": rng.choice([1.0, 2.0, 5.0, 150.0], count),
        "gain": 10 ** rng.uniform(-14, -7, count),
        "max_frequency_hz": rng.uniform(1.2e9, 2e9, count),
        "max_power_watts": rng.uniform(0.1, 1.0, count),
    }


@pytest.mark.parametrize("min_frequency_hz", [0.0, 5e8])
def test_equals_the_minimum_over_a_grid_that_zooms_in(min_frequency_hz):
    clients = drawn(120, seed=0)
    point = best_operating_point(**clients, **CHANNEL, min_frequency_hz=min_frequency_hz)
    expected = [
        least_joules(**{k: v[i] for k, v in clients.items()}, **CHANNEL, min_frequency_hz=min_frequency_hz)
        for i in range(120)
    ]
    assert 20 < np.isinf(expected).sum() < 80
    np.testing.assert_allclose(point.joules, expected, rtol=1e-12)


@pytest.mark.parametrize("min_frequency_hz", [0.0, 5e8])
def test_the_point_is_within_the_limits_and_costs_what_it_says(min_frequency_hz):
    clients = drawn(5000, seed=1)
    point = best_operating_point(**clients, **CHANNEL, min_frequency_hz=min_frequency_hz)
    able = np.isfinite(point.joules)
    assert (point.frequency_hz[able] >= min_frequency_hz).all()
    assert (point.frequency_hz[able] <= clients["max_frequency_hz"][able]).all()
    assert (point.power_watts[able] > 0).all()
    assert (point.power_watts[able] <= clients["max_power_watts"][able]).all()
    for values in (point.frequency_hz, point.power_watts, point.compute_seconds, point.upload_seconds):
        assert not values[~able].any()
    with np.errstate(divide="ignore", invalid="ignore"):
        computing = costs.compute_seconds(cycles=clients["cycles"], frequency_hz=point.frequency_hz)
        uploading = costs.upload_seconds(
            bits=clients["bits"], power_watts=point.power_watts, gain=clients["gain"], noise_watts=2.15e-15,
            bandwidth_hz=540e3,
        )  # fmt: skip
        joules = costs.upload_joules(power_watts=point.power_watts, upload_seconds=uploading)
        joules += costs.compute_joules(cycles=clients["cycles"], frequency_hz=point.frequency_hz, capacitance=2e-28)
    np.testing.assert_allclose((computing + uploading)[able], clients["seconds"][able], rtol=1e-13)
    np.testing.assert_allclose(uploading[able], point.upload_seconds[able], rtol=1e-12)
    np.testing.assert_allclose(joules[able], point.joules[able], rtol=1e-12)


def test_a_second_is_worth_the_same_to_both_unless_a_limit_binds():
    clients = drawn(5000, seed=2)
    point = best_operating_point(**clients, **CHANNEL)
    able = np.isfinite(point.joules)
    t, tau = point.compute_seconds[able], point.upload_seconds[able]
    y = 7_248_384 * np.log(2) / 540e3 / tau
    computing = 2e-28 * (clients["cycles"][able] / t) ** 3
    uploading = 2.15e-15 / clients["gain"][able] * (y * np.exp(y) - np.expm1(y))
    fastest = point.frequency_hz[able] >= clients["max_frequency_hz"][able] * (1 - 1e-12)
    loudest = point.power_watts[able] >= clients["max_power_watts"][able] * (1 - 1e-12)
    inside = ~fastest & ~loudest
    assert fastest.any()
    assert loudest.any()
    assert inside.sum() > 2000
    np.testing.assert_allclose(computing[inside], uploading[inside], rtol=1e-9)
    assert (computing[fastest] <= uploading[fastest] * (1 + 1e-9)).all()
    assert (computing[loudest] >= uploading[loudest] * (1 - 1e-9)).all()


def test_energy_never_rises_when_a_limit_is_relaxed():
    clients = drawn(2000, seed=3)
    before = best_operating_point(**clients, **CHANNEL, min_frequency_hz=5e8).joules
    for name, factor in (("seconds", 1.1), ("gain", 1.5), ("max_frequency_hz", 1.2), ("max_power_watts", 1.3)):
        relaxed = clients | {name: clients[name] * factor}
        after = best_operating_point(**relaxed, **CHANNEL, min_frequency_hz=5e8).joules
        assert (after[np.isfinite(before)] <= before[np.isfinite(before)] * (1 + 1e-12)).all(), name
        assert (after < before * (1 - 1e-9)).any(), name
    lower = best_operating_point(**clients, **CHANNEL, min_frequency_hz=4e8).joules
    assert (lower[np.isfinite(before)] <= before[np.isfinite(before)] * (1 + 1e-12)).all()


def test_extreme_gains_and_payloads_give_finite_points_or_none():
    gain = 10.0 ** np.arange(-300, 301, 10)
    for bits in (1.0, 1e6, 1e12):
        point = best_operating_point(
            cycles=1e8, bits=bits, seconds=150.0, gain=gain, max_frequency_hz=1e9, max_power_watts=1.0, **CHANNEL
        )
        able = np.isfinite(point.joules)
        assert (able == np.sort(able)).all()
        for values in vars(point).values():
            assert not np.isnan(values).any()
        assert (np.diff(point.joules[able]) <= 1e-12 * point.joules[able][:-1]).all()
        np.testing.assert_allclose((point.compute_seconds + point.upload_seconds)[able], 150, rtol=1e-13)
    assert not able.any()


def test_with_almost_no_slack_both_run_at_full_speed():
    upload = 7_248_384 / (540e3 * np.log2(1 + 1e-11 * 0.5 / 2.15e-15))
    needed = 1e9 / 1.5e9 + upload
    given = {"cycles": 1e9, "bits": 7_248_384, "gain": 1e-11, "max_frequency_hz": 1.5e9, "max_power_watts": 0.5}
    point = best_operating_point(**given, **CHANNEL, seconds=np.array([needed * (1 - 1e-9), needed * (1 + 1e-9), -1.0]))
    assert np.isinf(point.joules).tolist() == [True, False, True]
    assert point.frequency_hz[1] == pytest.approx(1.5e9, rel=1e-7)
    assert point.power_watts[1] == pytest.approx(0.5, rel=1e-7)


def test_where_the_lowest_frequency_binds_the_upload_has_the_rest_of_the_time():
    given = {"cycles": 5e8, "bits": 7_248_384, "gain": 1e-11, "max_frequency_hz": 1.5e9, "max_power_watts": 0.5}
    free = best_operating_point(**given, **CHANNEL, seconds=150.0)
    bound = best_operating_point(**given, **CHANNEL, seconds=150.0, min_frequency_hz=2e8)
    assert free.frequency_hz < 2e7
    assert bound.frequency_hz == pytest.approx(2e8)
    assert bound.compute_seconds == pytest.approx(2.5)
    assert bound.upload_seconds == pytest.approx(147.5)
    assert bound.joules > free.joules


def test_any_shapes_broadcast():
    clients = drawn(6, seed=4) | {"seconds": np.array([5.0, 150.0])[:, np.newaxis]}
    point = best_operating_point(**clients, **CHANNEL)
    assert point.joules.shape == (2, 6)
    alone = best_operating_point(**{k: v[4] for k, v in drawn(6, seed=4).items()} | {"seconds": 150.0}, **CHANNEL)
    assert alone.joules.shape == ()
    assert point.joules[1, 4] == pytest.approx(float(alone.joules), rel=1e-12)


def test_the_derivative_keeps_its_digits_where_the_closed_form_cancels():
    y = 10.0 ** np.arange(-12, 2.9, 0.07)
    with localcontext(prec=60):
        exact = [float((v - 1 + (-v).exp()) / v**2) for v in map(Decimal, y.tolist())]
    np.testing.assert_allclose(_h_ratio(y), exact, rtol=2e-14)
    # Alone, without small neighbours, the same.
    assert [float(_h_ratio(v)) for v in y] == pytest.approx(exact, rel=2e-14)
