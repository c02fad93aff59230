"""3GPP's formulas against values worked out by hand, and what an upload costs."""

import numpy as np
import pytest

from espalier.sim.radio import (
    Radio,
    draw_gains,
    los_probability,
    noise_watts,
    path_loss_los_db,
    path_loss_nlos_db,
    rate_bits_per_second,
    upload_joules,
    upload_seconds,
    watts_from_dbm,
)

PAPER = Radio()


# With d3D^2 = d2D^2 + 23.5^2 and 20 log10(2.4) = 7.604225 dB. The breakpoint is at 4 * 24 * 0.5 * 8 = 384 m.
@pytest.mark.parametrize(
    ("distance", "los_db", "nlos_db"),
    [
        (10, 66.562780, 76.137876),  # d3D = 25.5392 m: 28 + 22 * 1.407208 + 7.6042; 13.54 + 39.08 * 1.407208 + 7.6042
        (100, 79.861021, 99.760389),  # d3D = 102.7241 m
        (384, 92.477370, 122.171612),
        (390, 92.745716, 122.433786),  # 28 + 40 * 2.591851 + 7.6042 - 9 * log10(384^2 + 23.5^2) = 9 * 5.170285
        (400, 93.183979, 122.861969),
        (1000, 109.076447, 138.388910),
    ],
)
def test_path_loss_by_hand(distance, los_db, nlos_db):
    assert pytest.approx(384) == PAPER.breakpoint_metres
    assert path_loss_los_db(distance, PAPER) == pytest.approx(los_db, abs=2e-6)
    assert path_loss_nlos_db(distance, PAPER) == pytest.approx(nlos_db, abs=2e-6)


def test_path_loss_with_another_carrier_and_higher_antennas():
    # d3D = sqrt(100^2 + 32^2) = 104.9952 m, log10 = 2.021170; 20 log10(30) = 29.542425
    radio = Radio(carrier_hz=30e9, station_height_metres=35.0, client_height_metres=3.0)
    assert radio.breakpoint_metres == pytest.approx(4 * 34 * 2 * 100)
    assert path_loss_los_db(100, radio) == pytest.approx(28 + 22 * 2.0211695 + 29.542425, abs=2e-5)
    assert path_loss_nlos_db(100, radio) == pytest.approx(13.54 + 39.08 * 2.0211695 + 29.542425 - 0.9, abs=2e-5)


def test_path_loss_grows_with_distance_without_a_jump_and_is_least_in_line_of_sight():
    distance = np.linspace(10, 5000, 50_000)
    los, nlos = path_loss_los_db(distance, PAPER), path_loss_nlos_db(distance, PAPER)
    assert (np.diff(los) > 0).all()
    assert (np.diff(nlos) > 0).all()
    assert np.diff(los).max() < 0.05
    assert (nlos > los).all()
    # Within 7 m of the antenna the blocked formula alone would fall below the line of sight.
    low = Radio(carrier_hz=0.5e9, station_height_metres=1.2, client_height_metres=1.5)
    assert path_loss_nlos_db(2.0, low) == path_loss_los_db(2.0, low)


@pytest.mark.parametrize(
    ("distance", "probability"),
    [(1, 1), (18, 1), (36, 0.5 + 0.5 * 0.564718), (100, 0.347671), (400, 0.046669), (1000, 0.018)],
)
def test_line_of_sight_probability_by_hand(distance, probability):
    # 0.5 + 0.5 exp(-36/63); 0.18 + 0.82 exp(-100/63); 0.045 + 0.955 exp(-400/63)
    assert los_probability(distance) == pytest.approx(probability, abs=1e-6)


def test_noise_power_by_hand():
    assert noise_watts(540e3) == pytest.approx(540e3 * 10**-20.4, rel=1e-9, abs=0)
    assert pytest.approx(2.1498e-15, rel=1e-4, abs=0) == PAPER.noise_watts
    assert noise_watts(1e6, noise_figure_db=10) == pytest.approx(10**-13.4, rel=1e-9, abs=0)
    assert Radio(noise_figure_db=10, bandwidth_hz=1e6).noise_watts == noise_watts(1e6, 10)
    np.testing.assert_allclose(watts_from_dbm([0, 20, 30]), [1e-3, 0.1, 1.0])


def draw(distance, radio, seed=0):
    los_rng, shadowing_rng = np.random.default_rng((seed, 1)), np.random.default_rng((seed, 2))
    return draw_gains(distance, radio, los_rng=los_rng, shadowing_rng=shadowing_rng)


def test_line_of_sight_is_drawn_with_its_probability():
    radio = Radio(shadowing_los_db=0.0, shadowing_nlos_db=0.0)
    for distance in (15, 36, 100, 390):
        loss_db = -10 * np.log10(draw(np.full(20_000, float(distance)), radio))
        los = np.isclose(loss_db, path_loss_los_db(distance, radio))
        assert (los | np.isclose(loss_db, path_loss_nlos_db(distance, radio))).all()
        probability = los_probability(distance)
        assert abs(los.mean() - probability) <= 3.3 * np.sqrt(probability * (1 - probability) / 20_000)


def test_shadowing_has_the_deviation_of_its_link():
    distance = np.full(40_000, 100.0)
    plain_db = -10 * np.log10(draw(distance, Radio(shadowing_los_db=0.0, shadowing_nlos_db=0.0)))
    # The same draws: who has a line of sight does not depend on the deviations.
    shadowing_db = -10 * np.log10(draw(distance, PAPER)) - plain_db
    los = np.isclose(plain_db, path_loss_los_db(100.0, PAPER))
    for mine, sigma_db in ((los, 4.0), (~los, 6.0)):
        values, limit = shadowing_db[mine] / sigma_db, 3.3 / np.sqrt(mine.sum())
        assert abs(values.mean()) < limit
        assert abs(values.std() - 1) < limit
        assert np.mean(np.abs(values) < 1) == pytest.approx(0.6827, abs=limit)  # normal, not only of that deviation


def test_links_do_not_depend_on_how_many_follow():
    np.testing.assert_array_equal(draw(np.full(9, 200.0), PAPER)[:4], draw(np.full(4, 200.0), PAPER))


def test_rate_and_upload_by_hand():
    link = {"bandwidth_hz": 1e6, "noise_watts": 1e-14}
    # 1 + g P / N = 1 + 3e-13 * 0.5 / 1e-14 = 16: 4 bits per second and hertz
    assert rate_bits_per_second(0.5, 3e-13, **link) == pytest.approx(4e6)
    assert upload_seconds(8e6, 0.5, 3e-13, **link) == pytest.approx(2.0)
    assert upload_joules(0.5, 2.0) == 1.0
    # Far below the noise the rate is w g P / (N ln 2); 1 + 1e-17 would be 1.
    assert rate_bits_per_second(1e-18, 1e-13, **link) == pytest.approx(1e6 * 1e-17 / np.log(2), rel=1e-9, abs=0)


def test_uploads_of_nothing_and_without_power():
    link = {"bandwidth_hz": 1e6, "noise_watts": 1e-14}
    seconds = upload_seconds([0, 0, 5], [1.0, 0.0, 0.0], 1e-12, **link)
    np.testing.assert_array_equal(seconds, [0, 0, np.inf])
    np.testing.assert_array_equal(upload_joules([1.0, 0.0, 0.0], seconds), [0, 0, 0])


def test_more_power_is_faster_and_costs_more_energy_per_bit():
    power = np.geomspace(1e-4, 1, 200)
    seconds = upload_seconds(7_248_384, power, 1e-11, bandwidth_hz=540e3, noise_watts=PAPER.noise_watts)
    assert (np.diff(seconds) < 0).all()
    assert (np.diff(upload_joules(power, seconds)) > 0).all()
    better = upload_seconds(7_248_384, power, 2e-11, bandwidth_hz=540e3, noise_watts=PAPER.noise_watts)
    assert (better < seconds).all()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("carrier_hz", 2.4),
        ("station_height_metres", 1.0),
        ("client_height_metres", 1.0),
        ("client_height_metres", 20.0),
        ("bandwidth_hz", 0.0),
        ("noise_figure_db", float("inf")),
        ("shadowing_los_db", -1.0),
        ("shadowing_nlos_db", float("nan")),
    ],
)
def test_bad_values_are_named(name, value):
    with pytest.raises(ValueError, match=rf"^{name} = {value}: must be [^\n]*$"):
        Radio(**{name: value})
