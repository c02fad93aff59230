"""Methods that look back, in whole runs: they are told losses and accuracies, and go on where they stopped."""

import json

import numpy as np
import pytest

from espalier.app.command_line import main
from espalier.app.config.parse import parse_config
from espalier.app.ground.errors import UserError
from tests.app.assembling import config_of, make_world
from tests.app.runs import lines, run_app, same_weights
from tests.app.tiers.served import run_served
from tests.app.tiers.test_served import same_runs

SMALL = {
    "algorithm": "h-fedavg",
    "selection": "resource-aware",
    "engine": "in-process",
    "num_clients": 8,
    "num_edges": 2,
    "edge_rounds": 2,
    "selected_per_edge": 2,
    "batches_per_epoch": 2,
}


def plans_of(folder):
    return [plan for line in lines(folder, "edge") for plan in line["plans"]]


@pytest.mark.parametrize(
    ("solver", "away"),
    [
        ("oort(window=1)", {}),
        ("tifl(interval=2)", {}),
        ("tifl(interval=1, credits=2)", {"availability_mode": "markov", "availability_leave": 0.3}),
        ("power-of-choice(candidates=3)", {}),
    ],
)
def test_a_run_that_goes_on_selects_whom_the_whole_one_does(tmp_path, solver, away):
    settings = SMALL | {"plan_solver": solver} | away
    whole = run_app(tmp_path / "whole", **settings, global_rounds=3)
    first = run_app(tmp_path / "first", **settings, global_rounds=2)
    assert main([f"resume={first}", "global-rounds=3"]) == 0
    assert same_weights(whole, first)
    assert json.dumps(plans_of(whole)) == json.dumps(plans_of(first))
    assert all(len(plan["selected"]) == 2 for plan in plans_of(whole)) or away


@pytest.mark.parametrize("solver", ["oort", "tifl(interval=1)"])
def test_edges_in_processes_of_their_own_select_the_same(tmp_path, solver):
    settings = SMALL | {"plan_solver": solver}
    assert same_runs(run_app(tmp_path / "here", **settings), run_served(tmp_path / "served", **settings))


@pytest.mark.parametrize("solver", ["oort", "tifl", "power-of-choice"])
def test_an_overlap_that_it_does_not_bound_refuses_no_run_and_is_in_no_problem(solver):
    own = {"plan_solver": solver, "plan_max_overlap": 0, "selected_per_edge": 3}
    world = make_world(config_of(**SMALL | own), {"edge-0": [0, 1, 2, 3]}, {n: n for n in range(4)}, [100] * 4)
    assert world.problem(2, np.arange(4), np.array([True, True, True, False]), 0).max_overlap is None
    with pytest.raises(UserError, match=r"plan\.max-overlap = 0: allowed is at least 2 with 3 of 4 clients"):
        config_of(**SMALL | own | {"plan_solver": "exact"})


@pytest.mark.parametrize("key", ["report.evaluate-every", "report.evaluate-clients"])
def test_tifl_needs_accuracies(key):
    given = {"algorithm": "rawhfl", "plan.solver": "tifl(interval=2)", key: 0 if "every" in key else 0.0}
    with pytest.raises(UserError, match=rf"^{key} = 0.*: allowed is more than 0 for plan\.solver = 'tifl"):
        parse_config(given)
    assert parse_config(given | {"plan.solver": "oort"})


def test_fedcs_takes_as_many_as_fit_and_no_plan_is_short(tmp_path):
    folder = run_app(tmp_path / "run", **SMALL | {"plan_solver": "fedcs", "selected_per_edge": 1})
    assert {len(plan["selected"]) for plan in plans_of(folder)} == {4}
    assert {json.dumps([plan["spare"], plan["short"]]) for plan in plans_of(folder)} == {"[[], false]"}


def test_edges_know_losses_and_accuracies():
    config = config_of(**SMALL | {"plan_solver": "tifl"})
    world = make_world(config, {"edge-0": [0, 1, 2, 3], "edge-1": [4, 5, 6, 7]}, {n: n for n in range(8)}, [100] * 8)
    edge = world.edges["edge-1"]
    edge.learned({5: 0.25})
    edge.evaluated({4: 0.5, 6: 0.75})
    known = edge.problem(3, [4, 5, 6, 7]).known
    assert known.clients.tolist() == [4, 5, 6, 7]
    assert known.edge_round == 3
    np.testing.assert_array_equal(known.loss, [np.nan, 0.25, np.nan, np.nan])
    np.testing.assert_array_equal(known.accuracy, [0.5, np.nan, 0.75, np.nan])


@pytest.mark.parametrize(
    ("solver", "allowed"),
    [
        ("oort(window=0)", r"what oort takes \(ValueError: window = 0: allowed is an integer from 1"),
        ("tifl(rounds=3)", r"what tifl takes \(TypeError: .*unexpected keyword argument 'rounds'\)"),
        ("exact(depth=3)", r"what exact takes \(TypeError: .*unexpected keyword argument 'depth'\)"),
    ],
)
def test_parameters_that_it_does_not_take_are_refused_before_training(solver, allowed):
    with pytest.raises(UserError, match=rf"^plan\.solver = .*: allowed is {allowed}"):
        parse_config({"algorithm": "rawhfl", "plan.solver": solver})
