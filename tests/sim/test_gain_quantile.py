"""Gains that the true ones fall short of as often as asked for: against integrals, closed forms and many draws."""

from dataclasses import replace
from statistics import NormalDist

import numpy as np
import pytest

from espalier.sim.gain_quantile import gain_quantile
from espalier.sim.radio import Radio, los_probability, path_loss_los_db, path_loss_nlos_db
from espalier.sim.world import make_world

RADIO = Radio()


def db(gains):
    return 10 * np.log10(gains)


def density(x, mean, deviation):
    return np.exp(-(((x - mean) / deviation) ** 2) / 2) / deviation


@pytest.mark.parametrize("error_db", [0.1, 1.0, 3.0, 20.0])
@pytest.mark.parametrize("share", [0.01, 0.05, 0.5, 0.9])
def test_the_share_of_the_posterior_below_it_is_the_one_asked_for(error_db, share):
    distance = np.array([10.0, 60.0, 150.0, 400.0])
    seen = np.array([-80.0, -90.0, -112.0, -105.0])
    found = db(gain_quantile(10 ** (seen / 10), distance, RADIO, error_db=error_db, share=share))
    for d, of_this, quantile in zip(distance, seen, found, strict=True):
        # Around what was seen and what is likely; an odd number of points, so that the sum is Simpson's.
        x = np.linspace(min(of_this, -140.0) - 10 * error_db, quantile, 400_001)
        above = np.linspace(quantile, max(of_this, -40.0) + 10 * error_db, 400_001)

        def mass(x, d=d, of_this=of_this):
            los = los_probability(d)
            prior = los * density(x, -path_loss_los_db(d, RADIO), 4) + (1 - los) * density(
                x, -path_loss_nlos_db(d, RADIO), 6
            )
            return float(np.trapezoid(prior * density(of_this, x, error_db), x))

        assert mass(x) / (mass(x) + mass(above)) == pytest.approx(share, abs=1e-6)


def test_one_normal_has_a_closed_form():
    distance, seen, error_db, share = np.array([15.0]), np.array([-75.0]), 2.0, 0.05  # a line of sight for certain
    mean = (seen * 4**2 - path_loss_los_db(distance, RADIO) * error_db**2) / (4**2 + error_db**2)
    expected = mean + NormalDist().inv_cdf(share) * 4 * error_db / np.hypot(4, error_db)
    found = db(gain_quantile(10 ** (seen / 10), distance, RADIO, error_db=error_db, share=share))
    np.testing.assert_allclose(found, expected, atol=1e-10)


def test_a_small_error_leaves_what_is_seen_but_for_its_own_quantile():
    distance, seen = np.array([100.0, 300.0]), np.array([-95.0, -118.0])
    found = db(gain_quantile(10 ** (seen / 10), distance, RADIO, error_db=1e-3, share=0.05))
    np.testing.assert_allclose(found, seen + NormalDist().inv_cdf(0.05) * 1e-3, atol=2e-6)


def test_without_shadowing_the_gain_is_known_and_without_an_error_it_is_seen():
    still = replace(RADIO, shadowing_los_db=0.0)
    found = gain_quantile(np.array([1e-7]), np.array([15.0]), still, error_db=3.0, share=0.05)
    np.testing.assert_allclose(db(found), -path_loss_los_db(15.0, RADIO), atol=1e-7)
    seen = np.array([1e-9, 3e-12])
    np.testing.assert_array_equal(gain_quantile(seen, np.array([50.0, 90.0]), RADIO, error_db=0.0, share=0.05), seen)


@pytest.mark.filterwarnings("error")
def test_a_density_that_is_next_to_nothing_is_divided_by_without_a_warning():
    world = make_world([2000], seed=5, planning_error_db=3.0, shadowing_los_db=0.0, shadowing_nlos_db=0.0)
    short = db(world.gains(1)) < db(world.dependable_gains(1, 0.05)) - 1e-7
    assert short.mean() < 0.05


@pytest.mark.parametrize("error_db", [0.1, 1.0, 3.0, 10.0])
def test_whoever_is_selected_by_what_is_seen_the_share_is_the_one_asked_for(error_db):
    world = make_world([40_000], seed=3, planning_error_db=error_db)
    short = world.gains(1) < world.dependable_gains(1, 0.05)
    seen = world.observed_gains(1)
    best = np.argsort(-seen)[:1000]
    strange = np.argsort(-seen * 10 ** (path_loss_nlos_db(world.cells.distance_metres, RADIO) / 10))[:1000]
    for who in (slice(None), best, strange):
        count = short[who].size
        assert short[who].mean() == pytest.approx(0.05, abs=4 * np.sqrt(0.05 * 0.95 / count))
    # What leaves out where clients are takes those who look better than they are.
    plain = seen * 10 ** (NormalDist().inv_cdf(0.05) * error_db / 10)
    assert error_db < 1 or (world.gains(1) < plain)[strange].mean() > 0.065


@pytest.mark.parametrize("share", [0.0, 1.0, -0.1])
def test_a_share_that_is_none_is_refused(share):
    with pytest.raises(ValueError, match="share = "):
        gain_quantile(np.array([1e-9]), np.array([50.0]), RADIO, error_db=1.0, share=share)
