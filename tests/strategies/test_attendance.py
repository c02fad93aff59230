"""Who has left an edge and who is back: one line each, at the start of the next edge round."""

import logging

import pytest
from flwr.serverapp.strategy import FedAvg

from espalier.strategies import Hierarchical
from espalier.strategies.attendance import MOST_LINES
from espalier.strategies.views import MemberGrid
from tests.strategies.toys import initial, to_record, toy_grid, toy_topology

ANY = {"min_train_nodes": 1, "min_evaluate_nodes": 1, "min_available_nodes": 1}


def build(grid, num_edges=2, **options):
    topology = dict(zip(("east", "west", "north"), toy_topology(grid, num_edges).values(), strict=False))
    place = {n: i for i, n in enumerate(n for members in topology.values() for n in members)}
    return Hierarchical(
        FedAvg(**ANY), lambda name, size: FedAvg(**ANY), topology, node_name=lambda n: f"client {place[n]}", **options
    )


@pytest.fixture
def logged(caplog):
    """Return a function that gives the lines since it was last called, with their levels."""
    caplog.set_level(logging.INFO, "espalier")

    def since():
        found = [(r.levelname, r.getMessage()) for r in caplog.records if r.name == "espalier"]
        caplog.clear()
        return found

    return since


def test_a_node_that_leaves_and_comes_back_gets_a_line_each(logged):
    grid = toy_grid(6)
    strategy = build(grid, edge_rounds=3)
    third, fifth = strategy.topology["east"][2], strategy.topology["west"][2]
    rounds = strategy.rounds(grid, to_record(initial()), 6)
    next(rounds)
    assert logged() == []
    grid.disconnect(fifth)
    next(rounds)
    assert logged() == [("WARNING", "client 5 of west left")]
    grid.disconnect(third)
    next(rounds)
    assert logged() == [("WARNING", "client 2 of east left")]
    next(rounds)
    assert logged() == []
    grid.connect(fifth)
    outcome = next(rounds)
    assert logged() == [("INFO", "client 5 of west is back")]
    assert [len(update.participants) for update in outcome.edges["west"].updates] == [3, 3, 3]
    grid.connect(third)
    grid.disconnect(fifth)
    next(rounds)
    assert sorted(logged()) == [("INFO", "client 2 of east is back"), ("WARNING", "client 5 of west left")]


def test_a_node_that_is_away_from_the_start_has_left(logged):
    grid = toy_grid(4)
    strategy = build(grid)
    grid.disconnect(strategy.topology["east"][1])
    next(strategy.rounds(grid, to_record(initial()), 1))
    assert logged() == [("WARNING", "client 1 of east left")]


def test_many_nodes_that_leave_at_once_are_one_line(logged):
    grid = toy_grid(MOST_LINES + 3)
    strategy = build(grid, num_edges=1)
    members = strategy.topology["east"]
    rounds = strategy.rounds(grid, to_record(initial()), 3)
    for node_id in members[: MOST_LINES + 1]:
        grid.disconnect(node_id)
    next(rounds)
    assert logged() == [("WARNING", f"{MOST_LINES + 1} clients of east left")]
    grid.connect(members[0])
    next(rounds)
    assert logged() == [("INFO", "client 0 of east is back")]
    for node_id in members[1:]:
        grid.connect(node_id)
    next(rounds)
    assert [line for _, line in logged()] == [f"client {i} of east is back" for i in range(1, MOST_LINES + 1)]


def test_the_grid_is_asked_no_more_than_without_it(monkeypatch):
    grid = toy_grid(6)
    strategy, looks = build(grid, edge_rounds=4, evaluate_every=0), []
    ask = grid.connected_of
    monkeypatch.setattr(grid, "connected_of", lambda members: looks.append(1) or ask(members))
    rounds = strategy.rounds(grid, to_record(initial()), 2)
    next(rounds)
    assert len(looks) == 2 * 4


def test_a_view_tells_who_is_there():
    grid, seen = toy_grid(3), []
    members = grid.get_node_ids()[::-1]
    view = MemberGrid(grid, members, on_look=seen.append)
    grid.disconnect(members[1])
    assert view.get_node_ids() == view.as_of_now().get_node_ids() == [members[0], members[2]]
    assert seen == [[members[0], members[2]]] * 2
