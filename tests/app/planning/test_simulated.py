"""Over-selection in the simulated radio world: the first results of every cell are enough."""

from itertools import combinations, product
from math import inf

import numpy as np
import pytest

from espalier.app.features.plans.tables import tables
from espalier.app.ground.errors import UserError
from espalier.app.planning.simulated import first_results
from espalier.sim.availability import drops_out
from espalier.strategies.allocation import exact
from tests.app.assembling import config_of, make_world
from tests.app.runs import lines, run_app, summary

CACHING = {
    "dataset": "video-caching",
    "algorithm": "rawhfl",
    "num_clients": 8,
    "num_edges": 2,
    "edge_rounds": 2,
    "selected_per_edge": 2,
    "max_local_rounds": 2,
    "batches_per_epoch": 2,
    "plan_deadline_seconds": 20.0,
    "report_evaluate_every": 0,
}
WITH_ERROR = CACHING | {"planning_error_db": 3.0, "global_rounds": 4}


def by_waiting(cell, finish, missing, wanted, deadline):
    """An edge that looks at every result as it comes."""
    needed = {name: min(wanted, int((cell == name).sum())) for name in cell}
    taken, end = set(), 0.0
    for i in sorted(range(len(cell)), key=lambda i: (finish[i], i)):
        if not missing[i] and needed[cell[i]] > 0:
            needed[cell[i]] -= 1
            taken.add(i)
            end = max(end, finish[i])
    if any(needed.values()) and deadline < inf:
        end = deadline
    return [not missing[i] and i not in taken for i in range(len(cell))], end


def plans(folder):
    """The plans of a run: the number of the edge round, the plan, and who was left out."""
    for line in lines(folder, "edge"):
        for number, plan in enumerate(line["plans"], start=1):
            left_out = {failure["client"] for failure in line["failures"] if failure["edge_round"] == number}
            yield (line["round"] - 1) * CACHING["edge_rounds"] + number, plan, left_out


@pytest.mark.parametrize("deadline", [5.0, inf])
def test_who_is_first_is_as_by_waiting_for_them_one_by_one(deadline):
    rng = np.random.default_rng(0)
    for _ in range(300):
        size = int(rng.integers(0, 9))
        cell, finish = rng.integers(0, 3, size), rng.integers(1, 6, size).astype(float)
        missing, wanted = rng.random(size) < 0.3, int(rng.integers(1, 4))
        spare, seconds = first_results(cell, finish, missing, wanted, deadline)
        assert (spare.tolist(), seconds) == by_waiting(cell, finish, missing, wanted, deadline)


def test_an_edge_goes_on_with_the_first_results_and_late_ones_cost_it_no_wait(tmp_path):
    folder = run_app(tmp_path / "run", **WITH_ERROR, plan_spare=1)
    alone = run_app(tmp_path / "alone", **WITH_ERROR)
    kinds = set()
    for _, plan, left_out in plans(folder):
        late, spare = set(plan["late"]), set(plan["spare"])
        assert len(plan["selected"]) == (2 if plan["short"] else 3)
        in_time = len(plan["selected"]) - len(late)
        assert left_out == late
        assert not late & spare
        assert len(spare) == max(0, in_time - 2)
        assert (plan["seconds"] == 20.0) == (in_time < 2)
        kinds.add(len(late))
    assert {0, 1} < kinds
    assert summary(folder)["spare"] == sum(len(plan["spare"]) for _, plan, _ in plans(folder))
    assert "spare" not in summary(alone)
    assert summary(folder)["simulated_seconds"] < summary(alone)["simulated_seconds"]


def test_a_client_that_drops_out_is_made_up_for(tmp_path):
    settings = CACHING | {"availability_drop_out": 0.2, "global_rounds": 4, "plan_spare": 1}
    folder = run_app(tmp_path / "run", **settings)
    gone_of_rounds = set()
    for edge_round, plan, left_out in plans(folder):
        gone = {client for client in plan["selected"] if drops_out(0, client, edge_round, 0.2)}
        assert left_out == gone
        come = len(plan["selected"]) - len(gone)
        assert len(plan["spare"]) == max(0, come - 2)
        assert (plan["seconds"] == 20.0) == (come < 2)
        gone_of_rounds.add(len(gone))
    assert {0, 1} < gone_of_rounds


def test_more_than_a_cell_has_are_refused():
    with pytest.raises(UserError, match=r"plan\.spare = 3: allowed is 0 to 2, as the smallest cell has 4 clients"):
        config_of(**CACHING, plan_spare=3)
    with pytest.raises(UserError, match=r"plan\.max-overlap = 1: allowed is at least 2 with 3 of 4 clients"):
        config_of(**CACHING, plan_spare=1, max_overlap=1)


@pytest.mark.parametrize(("asked", "given", "most"), [(2, 0, 0), (3, -1, 1), (4, -1, 3)])
def test_with_clients_away_only_as_many_more_come_twice_as_must(asked, given, most):
    config = config_of(**CACHING | {"num_clients": 5, "num_edges": 1, "selected_per_edge": asked}, max_overlap=given)
    world = make_world(config, {"edge-0": range(5)}, {n: n for n in range(5)}, [100] * 5)
    for before in combinations(range(5), asked):
        for there in (np.flatnonzero(who) for who in product([False, True], repeat=5) if any(who)):
            again, wanted = np.isin(there, before), min(asked, len(there))
            least = min(map(sum, combinations(again.tolist(), wanted)))
            problem = world.problem(2, there, again, 0)
            plan = exact(problem)
            assert problem.max_overlap == max(most, least)
            assert plan.selected.sum() == wanted
            assert again[plan.selected].sum() <= problem.max_overlap


def test_nobody_comes_twice_where_another_client_is_away(tmp_path):
    (tmp_path / "trace.csv").write_text("client,from,to\n0,1,2\n")  # away in round 2
    away = {"availability_mode": "trace", "availability_trace": str(tmp_path / "trace.csv"), "fading": "static"}
    one_edge = {"num_clients": 4, "num_edges": 1, "edge_rounds": 1, "global_rounds": 2, "max_overlap": 0}
    folder = run_app(tmp_path / "run", **CACHING | one_edge | away)
    first, second = (set(plan["selected"]) for line in lines(folder, "edge") for plan in line["plans"])
    assert 0 in first
    assert second == {1, 2, 3} - first


def test_plans_tell_their_edge_round_where_all_were_away_in_one(tmp_path):
    (tmp_path / "trace.csv").write_text("client,from,to\n0,2,3\n1,2,3\n0,4,9\n1,4,9\n2,1,4\n3,1,4\n")
    away = {"availability_mode": "trace", "availability_trace": str(tmp_path / "trace.csv")}
    two_edges = {"num_clients": 4, "num_edges": 2, "edge_rounds": 2, "global_rounds": 2, "selected_per_edge": 1}
    folder = run_app(tmp_path / "run", **CACHING | two_edges | away)
    told = {(line["edge"], line["round"]): [p["edge_round"] for p in line["plans"]] for line in lines(folder, "edge")}
    assert told == {("edge-0", 1): [2], ("edge-0", 2): [2], ("edge-1", 1): [1, 2], ("edge-1", 2): [1]}
    shown = next(tables(lines(folder, "edge"), None)).columns
    assert list(zip(shown["edge"], shown["edge_round"], strict=True)) == [("edge-0", 2), ("edge-1", 1)]
