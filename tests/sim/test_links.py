"""Clients that talk to any base station: from where they are, over links of their own."""

import numpy as np
import pytest

from espalier.sim.cells import draw_cells
from espalier.sim.links import lasting_gains, link_gains, linked
from espalier.sim.world import make_world

SIZES = [5, 3, 4, 4]


def test_in_other_cells_clients_are_where_they_were_on_the_map():
    cells = draw_cells(SIZES, 1)
    other = (cells.cell + 1) % 4
    seen = cells.seen_from(other)
    np.testing.assert_allclose([seen.x_metres, seen.y_metres], [cells.x_metres, cells.y_metres], atol=1e-9)
    stations = cells.station_x_metres[other], cells.station_y_metres[other]
    far = np.hypot(cells.x_metres - stations[0], cells.y_metres - stations[1])
    np.testing.assert_allclose(seen.distance_metres, far)
    assert (seen.distance_metres > 400).all()


@pytest.mark.parametrize("redraw", [True, False])
def test_a_link_has_the_same_gain_whoever_else_is_where(redraw):
    world = make_world(SIZES, 2, redraw=redraw, planning_error_db=1.0)
    home, everybody = world.cells.cell, np.arange(16)
    for edge_round in (1, 2):
        links = link_gains(world, edge_round)
        np.testing.assert_array_equal(links[everybody, home], world.gains(edge_round))
        np.testing.assert_array_equal(linked(world, home).gains(edge_round), world.gains(edge_round))
        np.testing.assert_array_equal(linked(world, home).observed_gains(edge_round), world.observed_gains(edge_round))
        some = np.where(everybody % 3, home, (home + 1) % 4)
        np.testing.assert_array_equal(linked(world, some).gains(edge_round), links[everybody, some])
    assert (link_gains(world, 1) == link_gains(world, 2)).all() == (not redraw)


def test_links_to_different_base_stations_fade_for_themselves():
    world = make_world([3000, 3000], 3, redraw=False)
    faded = np.log(link_gains(world, 1) / lasting_gains(make_world([3000, 3000], 3)))
    assert abs(np.corrcoef(faded.T)[0, 1]) < 0.05


def test_what_lasts_of_redrawn_links_is_their_mean_in_db_and_of_static_ones_all():
    redrawn, static = make_world(SIZES, 4), make_world(SIZES, 4, redraw=False)
    np.testing.assert_array_equal(lasting_gains(static), link_gains(static, 7))
    seen = np.array([10 * np.log10(link_gains(redrawn, edge_round)) for edge_round in range(1, 201)])
    wrong = seen.mean(axis=0) - 10 * np.log10(lasting_gains(redrawn))
    assert (abs(wrong) < 5 * seen.std(axis=0) / np.sqrt(200)).all()
    assert (lasting_gains(redrawn).argmax(axis=1) == redrawn.cells.cell).all()
