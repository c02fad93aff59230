"""Clients that walk: straight on, within the map, and under the nearest base station."""

import numpy as np
import pytest

from espalier.sim.cells import draw_cells
from espalier.sim.walks import draw_walk, reflected
from espalier.sim.world import make_world

SIZES = [5, 3, 4, 4]


def test_before_the_first_step_all_are_where_they_began():
    cells = draw_cells(SIZES, 1)
    assert draw_walk(cells, 1).after(0) is cells
    standing, walking = make_world(SIZES, 1), make_world(SIZES, 1, metres_per_step=30.0, rounds_per_step=4)
    for edge_round in range(5):
        np.testing.assert_array_equal(standing.gains(edge_round), walking.gains(edge_round))
    assert (standing.gains(5) != walking.gains(5)).any()


def test_away_from_the_edge_of_the_map_everybody_walks_straight_on():
    cells = draw_cells(SIZES, 2, radius_metres=400.0)
    walk = draw_walk(cells, 2)
    there = walk.after(10.0)
    moved = np.hypot(there.x_metres - cells.x_metres, there.y_metres - cells.y_metres)
    assert np.sum(np.isclose(moved, 10.0, rtol=1e-9)) >= len(moved) - 1
    np.testing.assert_allclose(
        (there.x_metres - cells.x_metres)[:3], 10.0 * np.cos(walk.direction[:3]), rtol=1e-6, atol=1e-9
    )


@pytest.mark.parametrize("metres", [50.0, 700.0, 1e5])
def test_all_stay_on_the_map_under_their_nearest_station(metres):
    cells = draw_cells(SIZES, 3, radius_metres=400.0)
    there = draw_walk(cells, 3).after(metres)
    for axis in ("x", "y"):
        stations, places = getattr(cells, f"station_{axis}_metres"), getattr(there, f"{axis}_metres")
        assert (places >= stations.min() - 400 - 1e-9).all()
        assert (places <= stations.max() + 400 + 1e-9).all()
    for i, own in enumerate(there.cell):
        distances = [
            np.hypot(there.x_metres[i] - x, there.y_metres[i] - y)
            for x, y in zip(cells.station_x_metres, cells.station_y_metres, strict=True)
        ]
        assert int(np.argmin(distances)) == own
        assert there.distance_metres[i] == pytest.approx(min(distances), rel=1e-9)


def test_a_path_is_folded_back_as_by_walking_it():
    low, high = -3.0, 4.0
    for start, velocity in ((0.0, 1.0), (3.5, -0.7), (-3.0, 2.3)):
        position, step = start, velocity * 1e-3
        for _ in range(30_000):
            if not low <= position + step <= high:
                step = -step
            position += step
        assert reflected(np.array([start + velocity * 30.0]), low, high)[0] == pytest.approx(position, abs=5e-2)


def test_who_walks_where_follows_the_seed():
    cells = draw_cells(SIZES, 4)
    np.testing.assert_array_equal(draw_walk(cells, 4).direction, draw_walk(cells, 4).direction)
    assert (draw_walk(cells, 4).direction != draw_walk(cells, 5).direction).all()
