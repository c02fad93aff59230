"""Traces of places and gains: what is written is read to the bit, and other files are refused by line."""

import numpy as np
import pytest

from espalier.sim.radio_trace import read_radio_trace, trace_lines, traced
from espalier.sim.world import make_world

SIZES = (2, 3)
PLACE = np.array([2, 0, 3, 1, 4])  # of each client in the world: cells are not blocks of client numbers
ROUNDS = 6
EVERY = {"num_clients": 5, "num_cells": 2, "num_rounds": ROUNDS}


def world_and_file(folder, **settings):
    world = make_world(SIZES, seed=3, **settings)
    path = folder / "trace.csv"
    path.write_text("".join(trace_lines(world, PLACE, ROUNDS)))
    return world, path


def read(path, **changes):
    return read_radio_trace(path, **{**EVERY, **changes}).in_order(np.argsort(PLACE))


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"redraw": False},
        {"carrier_hz": 3.5e9, "shadowing_los_db": 8.0, "planning_error_db": 3.0},
        {"metres_per_step": 150.0, "rounds_per_step": 2, "planning_error_db": 1.0},
    ],
    ids=["redrawn", "static", "planning-error", "walking"],
)
def test_a_trace_that_is_read_back_is_the_world_that_it_was_made_from(settings, tmp_path):
    world, path = world_and_file(tmp_path, **settings)
    again = traced(make_world(SIZES, seed=3, **settings), read(path))
    for edge_round in range(1, ROUNDS + 1):
        np.testing.assert_array_equal(again.gains(edge_round), world.gains(edge_round))
        np.testing.assert_array_equal(again.dependable_gains(edge_round, 0.1), world.dependable_gains(edge_round, 0.1))
        cells, before = again.cells_in(edge_round), world.cells_in(edge_round)
        for name in ("cell", "x_metres", "y_metres", "distance_metres"):
            np.testing.assert_array_equal(getattr(cells, name), getattr(before, name))
    np.testing.assert_array_equal(again.cells.distance_metres, world.cells.distance_metres)
    np.testing.assert_array_equal(again.gains(ROUNDS + 5), world.gains(ROUNDS))
    assert "".join(trace_lines(again, PLACE, ROUNDS)) == path.read_text()
    assert len(np.unique(world.cells_in(ROUNDS).x_metres - world.cells_in(1).x_metres)) == (
        5 if "metres_per_step" in settings else 1
    )


def test_the_order_of_lines_and_columns_does_not_matter(tmp_path):
    world, path = world_and_file(tmp_path)
    lines = [line.split(",") for line in path.read_text().splitlines()]
    turned = [lines[0], *lines[:0:-1]]
    path.write_text("\ufeff" + "\n\n".join(" , ".join(reversed(line)) for line in turned))
    again = traced(make_world(SIZES, seed=8), read(path))
    np.testing.assert_array_equal(again.gains(4), world.gains(4))


def test_what_a_trace_does_not_say_is_drawn(tmp_path):
    drawn = make_world(SIZES, seed=3)
    (path := tmp_path / "places.csv").write_text(
        "cell,client,x_metres,y_metres\n" + "".join(f"{int(c != 1 and c != 3)},{c},{30 * c},40\n" for c in range(5))
    )
    placed = traced(drawn, read(path))
    distance = np.hypot(30 * np.argsort(PLACE), 40)
    np.testing.assert_allclose(placed.cells_in(4).distance_metres, distance, rtol=1e-15)
    assert (placed.gains(4) != placed.gains(5)).all()
    path.write_text("gain,client,cell\n" + "".join(f"{1e-9 * (c + 1)!r},{c},0\n" for c in range(5)))
    told = traced(drawn, read(path))
    np.testing.assert_array_equal(told.gains(4), [1e-9 * (c + 1) for c in np.argsort(PLACE)])
    np.testing.assert_array_equal(told.cells_in(4).distance_metres, drawn.cells.distance_metres)


HEAD = "edge_round,cell,client,gain"
LINE = "1,0,0,1e-9"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"line 1: its columns are '': allowed are cell,client, with x_metres,y_metres or gain or both"),
        ("client,gain\n", "line 1: its columns are 'client,gain'"),
        ("cell,client\n", "line 1: its columns are 'cell,client'"),
        ("cell,client,x_metres,gain\n", "line 1: its columns are 'cell,client,x_metres,gain'"),
        ("cell,client,gain,gain\n", "line 1: its columns are"),
        ("cell,client,gain,speed\n", "line 1: its columns are"),
        ("cell,client,gain\n", "client 0 has no line$"),
        (f"{HEAD}\n{LINE}\n", "its last edge_round is 1: the run has 2"),
        (f"{HEAD}\n{LINE}\n1,0,1,1\n\n2,0,0,1\n", "client 1 has no line in edge_round 2"),
        (f"{HEAD}\n{LINE}\n1,0,1,1\n1000000000,0,0,1\n", "client 0 has no line in edge_round 2"),
        (f"{HEAD}\n{LINE}\n{LINE}\n", "line 3: client 0 has a line before it in edge_round 1"),
        (f"{HEAD}\n{LINE},7\n", "line 2: 5 values: allowed are 4, edge_round,cell,client,gain"),
        (f"{HEAD}\n0,0,0,1\n", "line 2: edge_round is '0': allowed is a whole number from 1 to 1000000000"),
        (f"{HEAD}\n1,0,2,1\n", "line 2: client is '2': allowed is a whole number from 0 to 1"),
        (f"{HEAD}\n1,3,0,1\n", "line 2: cell is '3': allowed is a whole number from 0 to 1"),
        (f"{HEAD}\n1,0.5,0,1\n", "line 2: cell is '0.5': allowed is a whole number"),
        (f"{HEAD}\n1,0,0,nan\n", "line 2: gain is 'nan': allowed is a finite number > 0"),
        (f"{HEAD}\n\n1,0,0,-1e-9\n", "line 3: gain is '-1e-9': allowed is a finite number > 0"),
        (f"{HEAD}\n1,0,0,0\n", "line 2: gain is '0'"),
        (f"{HEAD}\n1,0,0,inf\n", "line 2: gain is 'inf'"),
        (f"{HEAD}\n1,0,0,\n", "line 2: gain is ''"),
        ("cell,client,x_metres,y_metres\n0,0,nan,1\n", "line 2: x_metres is 'nan': allowed is a number of at most 1e"),
        ("cell,client,x_metres,y_metres\n0,0,1,-2e6\n", "line 2: y_metres is '-2e6'"),
        (f"{HEAD}\n1,1,0,1\n", "line 2: cell is 1: allowed is 0, that of client 0"),
        (f"{HEAD}\n1,0,0,1\n1,0,1,1\n2,1,0,1\n", "line 4: cell is 1: allowed is 0, that of client 0"),
    ],
)
def test_a_file_that_is_no_trace_is_refused_with_its_line(text, message, tmp_path):
    (path := tmp_path / "trace.csv").write_text(text)
    with pytest.raises(ValueError, match=message) as error:
        read_radio_trace(path, num_clients=2, num_cells=2, num_rounds=2, first_cells=[0, 0], may_move=False)
    assert str(error.value).startswith(str(path))
    assert "\n" not in str(error.value)


def test_clients_may_change_their_cells_after_the_first_edge_round(tmp_path):
    (path := tmp_path / "trace.csv").write_text(f"{HEAD}\n{LINE}\n2,1,0,1e-9\n")
    moving = read_radio_trace(path, num_clients=1, num_cells=2, num_rounds=2, first_cells=[0])
    assert moving.cell.tolist() == [[0], [1]]


def test_bytes_that_are_no_text_are_refused(tmp_path):
    (path := tmp_path / "trace.csv").write_bytes(b"\xff\xfe,")
    with pytest.raises(ValueError, match="is no CSV file"):
        read_radio_trace(path, num_clients=1, num_cells=1, num_rounds=1)
