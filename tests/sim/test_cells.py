import numpy as np
import pytest

from espalier.sim.cells import draw_cells


def kolmogorov_distance(values: np.ndarray) -> float:
    """Return the largest gap between the values' distribution and the uniform one on [0, 1]."""
    steps = np.arange(len(values) + 1) / len(values)
    values = np.sort(values)
    return max(np.abs(values - steps[:-1]).max(), np.abs(values - steps[1:]).max())


def test_positions_are_uniform_in_the_disk():
    cells = draw_cells([20_000], seed=1)
    inner, outer = 10.0, 400.0
    assert cells.distance_metres.min() >= inner
    assert cells.distance_metres.max() <= outer
    share = (cells.distance_metres**2 - inner**2) / (outer**2 - inner**2)
    turn = np.arctan2(cells.offset_y_metres, cells.offset_x_metres) / (2 * np.pi) % 1
    limit = 1.63 / np.sqrt(20_000)  # exceeded by one uniform sample in a hundred
    assert kolmogorov_distance(share) < limit
    assert kolmogorov_distance(turn) < limit
    assert abs(np.corrcoef(share, turn)[0, 1]) < 0.02
    # Half of the clients are beyond 283 m, where half of the area is: not beyond 200 m.
    assert np.median(cells.distance_metres) == pytest.approx(np.sqrt((inner**2 + outer**2) / 2), rel=0.01)


@pytest.mark.parametrize("sizes", [[1], [3, 1, 2], [12] * 4, [1] * 11])
def test_clients_are_around_their_own_station_and_cells_do_not_overlap(sizes):
    cells = draw_cells(sizes, seed=0, radius_metres=50.0, min_distance_metres=20.0)
    np.testing.assert_array_equal(np.bincount(cells.cell), sizes)
    assert (np.diff(cells.cell) >= 0).all()
    stations = cells.station_x_metres + 1j * cells.station_y_metres
    away = np.abs((cells.x_metres + 1j * cells.y_metres)[:, None] - stations)
    np.testing.assert_allclose(away[np.arange(len(cells.cell)), cells.cell], cells.distance_metres)
    assert ((cells.distance_metres >= 20) & (cells.distance_metres <= 50)).all()
    between = np.abs(stations[:, None] - stations)[~np.eye(len(sizes), dtype=bool)]
    assert (between > 100 - 1e-9).all()


def test_positions_follow_the_seed_and_only_scale_with_the_radius():
    cells = draw_cells([5, 7], seed=3)
    np.testing.assert_array_equal(cells.x_metres, draw_cells([5, 7], seed=3).x_metres)
    assert (cells.x_metres != draw_cells([5, 7], seed=4).x_metres).all()
    wide = draw_cells([5, 7], seed=3, radius_metres=800.0, min_distance_metres=20.0)
    np.testing.assert_allclose(wide.offset_x_metres, 2 * cells.offset_x_metres)
    more = draw_cells([5, 9], seed=3)
    np.testing.assert_array_equal(more.offset_y_metres[:12], cells.offset_y_metres)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"clients_per_cell": []}, r"clients_per_cell = \[\]: must be"),
        ({"clients_per_cell": [3, 0]}, r"clients_per_cell = \[3, 0\]: must be"),
        ({"clients_per_cell": [2.5]}, r"clients_per_cell = \[2\.5\]: must be"),
        ({"seed": -1}, "seed = -1: must be"),
        ({"radius_metres": 0}, "radius_metres = 0: must be"),
        ({"radius_metres": float("nan")}, "radius_metres = nan: must be"),
        ({"min_distance_metres": 400.0}, "min_distance_metres = 400.0: must be .* < radius = 400.0"),
        ({"min_distance_metres": -1.0}, "min_distance_metres = -1.0: must be"),
    ],
)
def test_bad_values_are_named(arguments, text):
    with pytest.raises(ValueError, match=text) as error:
        draw_cells(**{"clients_per_cell": [2], "seed": 0} | arguments)
    assert "\n" not in str(error.value)
