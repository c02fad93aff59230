"""Clients that move to another edge: the run is the library's with the same moves, on every engine, resumed too."""

import json

import numpy as np
import pytest
from flwr.app import ArrayRecord

from espalier.app.client import app
from espalier.app.command_line import main
from espalier.app.ground.errors import UserError
from espalier.app.run.resume import check_edges_for_moves
from espalier.app.wiring.one_server import checked_task
from espalier.app.wiring.planning import planned_world
from espalier.app.wiring.task_of_run import build_task
from espalier.sim.cells import draw_cells
from espalier.sim.walks import draw_walk
from espalier.strategies import Profile
from tests.app.assembling import config_of, engine_of, federation_of
from tests.app.runs import lines, run_app, same_weights, summary
from tests.app.tiers.test_served import same_runs

SMALL = {"num_clients": 6, "num_edges": 2, "batches_per_epoch": 2, "batch_size": 8, "local_epochs": 1}
CASES = {
    "h-fedavg": {"edge_strategy": "FedAvgM(server_momentum=0.5, server_learning_rate=0.9)", "participation": 0.7},
    "phsfl": {"fine_tune_steps": 2, "optimizer": "adam"},
    "rawhfl": {"selected_per_edge": 1, "max_local_rounds": 2},
}
# Client 4 comes to edge-0 in round 2 and client 0 goes to edge-1 in round 3.
MOVES = ((4, 2, "edge-0"), (0, 3, "edge-1"))


def moves(folder, *rows):
    path = folder / "moves.csv"
    path.write_text("client,from,edge\n" + "".join(f"{client},{start},{edge}\n" for client, start, edge in rows))
    return {"availability_moves": str(path)}


def under(folder):
    """Return whose results, or failures, each edge had, by global round."""
    return {
        (line["round"], line["edge"]): sorted({client for own in line["participants"] for client in own})
        for line in lines(folder, "edge")
    }


@pytest.mark.parametrize("algorithm", CASES)
def test_who_moves_to_its_own_edge_moves_nothing(tmp_path, algorithm):
    settings = SMALL | CASES[algorithm] | {"algorithm": algorithm}
    plain = run_app(tmp_path / "plain", **settings)
    assert same_runs(
        plain, run_app(tmp_path / "moved", **settings, **moves(tmp_path, (1, 2, "edge-0"), (5, 1, "edge-1")))
    )


def test_clients_train_under_the_edges_that_the_file_says(tmp_path, caplog):
    folder = run_app(tmp_path / "run", **SMALL, **moves(tmp_path, *MOVES), algorithm="h-fedavg", global_rounds=3)
    assert under(folder) == {
        (1, "edge-0"): [0, 1, 2],
        (1, "edge-1"): [3, 4, 5],
        (2, "edge-0"): [0, 1, 2, 4],
        (2, "edge-1"): [3, 5],
        (3, "edge-0"): [1, 2, 4],
        (3, "edge-1"): [0, 3, 5],
    }
    assert summary(folder)["failures"] == 0
    said = [record.getMessage() for record in caplog.records if " moves " in record.getMessage()]
    assert said == [
        "round 2: client 4 moves from edge-1 to edge-0",
        "round 3: client 0 moves from edge-0 to edge-1",
    ]


def test_with_fedavg_everywhere_and_one_edge_round_edges_do_not_matter(tmp_path):
    # Averages of averages, each by its examples, are the average of all: to rounding, wherever clients are.
    settings = SMALL | {"algorithm": "h-fedavg", "edge_rounds": 1, "global_rounds": 3}
    plain = run_app(tmp_path / "plain", **settings)
    moved = run_app(tmp_path / "moved", **settings, **moves(tmp_path, *MOVES))
    for one, other in zip(lines(plain, "global"), lines(moved, "global"), strict=True):
        assert one["loss"]["mean"] == pytest.approx(other["loss"]["mean"], rel=1e-4)
    assert not same_weights(plain, moved)


@pytest.mark.parametrize("algorithm", CASES)
def test_a_resumed_run_has_the_same_bits(tmp_path, algorithm):
    settings = SMALL | CASES[algorithm] | {"algorithm": algorithm} | moves(tmp_path, *MOVES)
    whole = run_app(tmp_path / "whole", **settings, global_rounds=4)
    for rounds in (1, 3):
        part = run_app(tmp_path / f"after-{rounds}", **settings, global_rounds=rounds)
        assert main([f"resume={part}", "global-rounds=4"]) == 0
        assert same_weights(whole, part)
        assert under(whole) == under(part)


@pytest.mark.parametrize("algorithm", ["h-fedavg", "phsfl"])
def test_workers_of_ray_give_the_same_bits(ray_here, tmp_path, algorithm):
    settings = SMALL | CASES[algorithm] | {"algorithm": algorithm, "global_rounds": 3} | moves(tmp_path, *MOVES)
    here = run_app(tmp_path / "here", **settings)
    assert same_runs(here, run_app(tmp_path / "there", **settings, engine="ray", ray_workers=2))


def test_an_edge_that_all_leave_is_left_out_until_somebody_comes(tmp_path):
    rows = [(client, 2, "edge-0") for client in (3, 4, 5)] + [(1, 3, "edge-1")]
    settings = SMALL | {"algorithm": "phsfl", "fine_tune_steps": 2, "global_rounds": 3}
    folder = run_app(tmp_path / "run", **settings, **moves(tmp_path, *rows))
    assert [own for (_, edge), own in under(folder).items() if edge == "edge-1"] == [[3, 4, 5], [], [1]]
    empty = run_app(tmp_path / "empty", **settings, **moves(tmp_path, *rows[:3]))
    assert summary(empty)["personalised"]["accuracy"]["mean"] > 0


def test_a_client_in_the_radio_world_is_planned_for_in_its_new_cell(tmp_path):
    settings = SMALL | CASES["rawhfl"] | {"algorithm": "rawhfl", "global_rounds": 2, "selected_per_edge": 2}
    folder = run_app(tmp_path / "run", **settings, **moves(tmp_path, (4, 2, "edge-0")))
    second = [line for line in lines(folder, "edge") if line["round"] == 2]
    assert [line["edge"] for line in second] == ["edge-0", "edge-1"]
    for line, members in zip(second, ([0, 1, 2, 4], [3, 5]), strict=True):
        for plan in line["plans"]:
            assert set(plan["eligible"]) <= set(members)
            assert len(plan["selected"]) == 2
    assert np.isclose(summary(folder)["energy_joules"]["total"], lines(folder, "global")[-1]["energy_joules"]["so_far"])


def test_clients_keep_their_devices_and_places_when_a_run_goes_on_with_moved_nodes():
    config = config_of(**SMALL | CASES["rawhfl"] | {"algorithm": "rawhfl", "num_clients": 4, "engine": "in-process"})
    task = build_task(config)
    profiles = [Profile(100 + i, i, "", 100, 20, ()) for i in range(4)]
    first = {"edge-0": [100, 101], "edge-1": [102, 103]}
    for now in ({"edge-0": [100], "edge-1": [101, 102, 103]}, {"edge-0": [100, 102], "edge-1": [101, 103]}):
        going_on, resumed = (planned_world(config, own, profiles, task, task.new_model()) for own in (first, now))
        going_on.regroup(now)
        assert resumed.describe() != going_on.describe()
        resumed.load_state_dict(going_on.state_dict())
        assert resumed.describe() == going_on.describe()
        ours, theirs = (world.problem(5, np.arange(4), None, 0) for world in (resumed, going_on))
        for name in ("gain", "max_frequency_hz", "cycles_per_local_round", "cell", "payload_bits"):
            np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name))
    for wrong in ([0, 1], [0, 0, 1, 7]):
        with pytest.raises(ValueError, match=r"^cells: they are not those of this run's clients$"):
            resumed.load_state_dict(going_on.state_dict() | {"cells": wrong})


WALKING = SMALL | CASES["rawhfl"] | {"algorithm": "rawhfl", "speed_metres_per_second": 2.0, "global_rounds": 4}


def test_clients_that_walk_are_under_the_edge_of_the_nearest_base_station(tmp_path):
    whole = run_app(tmp_path / "whole", **WALKING)
    described = json.loads((whole / "world.json").read_text())
    start = draw_cells([3, 3], 0)
    walk, moved = draw_walk(start, 0), set()
    np.testing.assert_allclose([c["x_metres"] for c in described["clients"]], start.x_metres)
    for line in lines(whole, "edge"):
        there = walk.after(2.0 * 150.0 * 2 * (line["round"] - 1))
        own = {client for client in range(6) if there.cell[client] == int(line["edge"][-1])}
        moved |= {client for client in own if start.cell[client] != int(line["edge"][-1])}
        for plan in line["plans"]:
            assert set(plan["eligible"]) <= own
            assert plan["selected"] or not own or not plan["eligible"]
    assert moved
    half = run_app(tmp_path / "half", **WALKING | {"global_rounds": 2})
    assert main([f"resume={half}", "global-rounds=4"]) == 0
    assert same_weights(whole, half)
    assert [line["plans"] for line in lines(whole, "edge")] == [line["plans"] for line in lines(half, "edge")]


def test_clients_that_stand_still_change_no_bit(tmp_path):
    still = run_app(tmp_path / "still", **WALKING | {"speed_metres_per_second": 0.0, "global_rounds": 1})
    assert same_weights(still, run_app(tmp_path / "first", **WALKING | {"global_rounds": 1}))


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        ([(6, 1, "edge-0")], "line 2: client is 6: allowed is 0 to 5"),
        ([(1, 1, "edge-0"), (1, 0, "edge-1")], "line 3: from is 0: it must be 1 or more"),
        ([(1, 1, "edge-2")], "line 2: edge is 'edge-2': allowed are edge-0, edge-1"),
        ([(1, 2, "edge-0"), (1, 2, "edge-1")], "line 3: client 1 is at two edges from round 2 on"),
        ([(1, "soon", "edge-1")], "line 2: '1,soon,edge-1' is not two whole numbers and an edge"),
    ],
)
def test_a_file_of_no_moves_is_refused_with_its_line(tmp_path, capsys, rows, why):
    given = moves(tmp_path, *rows)["availability_moves"]
    assert main(["num-clients=6", "num-edges=2", f"availability.moves={given}"])
    said = " ".join(capsys.readouterr().err.split())
    assert "availability.moves = " in said
    assert why in said


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"algorithm": "fedavg"}, "'' for fedavg without edges"),
        ({"async_mode": "fedbuff"}, "'' for async.mode = 'fedbuff', where edges are in different rounds"),
        ({"algorithm": "rawhfl", "plan_solver": "oort"}, "'' for plan.solver = 'oort': an edge knows what it has seen"),
        ({"algorithm": "rawhfl", "plan_value": "age"}, "'' for plan.value = 'age': an edge knows what it has seen"),
        ({"algorithm": "rawhfl", "speed_metres_per_second": 1.0}, "'' for radio.speed-metres-per-second = 1.0, by"),
        ({"role": "cloud", "engine": "flower"}, "'' for deploy.role = 'cloud': each host has its own clients"),
    ],
)
def test_where_nobody_can_move_it_is_refused(settings, why):
    with pytest.raises(UserError) as refused:
        config_of(**SMALL | settings, availability_moves="moves.csv")
    assert str(refused.value).startswith(f"availability.moves = 'moves.csv': allowed is {why}")


def test_on_machines_clients_move_to_the_edge_that_their_nodes_name_to_the_bit(tmp_path):
    named = {}

    def naming(message, context):
        context.node_config["edge-name"] = named.get(context.node_config["partition-id"], "")
        return app(message, context)

    settings = SMALL | {"algorithm": "h-fedavg", "engine": "flower", "edge_rounds": 2}
    models = []
    for own in ({"nodes_move": True}, moves(tmp_path, *MOVES)):
        named.clear()
        config = config_of(**settings | own)
        engine = engine_of(config, client_app=naming)
        federation = federation_of(config, engine.grid)
        _, model = checked_task(config)
        rounds = federation.hierarchical.rounds(engine.grid, ArrayRecord(model.state_dict()), 3)
        models.append([])
        for number in range(1, 4):
            named |= {client: edge for client, start, edge in MOVES if start == number}
            models[-1].append(next(rounds).arrays)
        assert federation.edges == {"edge-0": [1, 2, 4], "edge-1": [0, 3, 5]}
    for ours, other in zip(*models, strict=True):
        assert all(np.array_equal(ours[key].numpy(), other[key].numpy()) for key in other)


@pytest.mark.parametrize(
    ("now", "why"),
    [
        ({"west": [1], "east": [0, 2]}, None),
        ({"west": [1], "east": [2], "south": [0]}, "client 0 is at edge 'south': allowed is one of west, east"),
        ({"west": [0, 1, 2]}, "no client names the edge 'east': allowed is one or more at each of west, east"),
    ],
)
def test_a_run_whose_nodes_have_moved_is_resumed_if_it_has_the_same_edges(now, why):
    before = {"west": [0, 1], "east": [2]}
    if why is None:
        check_edges_for_moves(before, now)
        return
    with pytest.raises(UserError, match=why):
        check_edges_for_moves(before, now)


def test_where_nodes_can_not_move_their_key_is_refused():
    with pytest.raises(UserError, match=r"deploy.nodes-move = True: allowed is false for fedavg without edges"):
        config_of(**SMALL, algorithm="fedavg", nodes_move=True, engine="flower")
