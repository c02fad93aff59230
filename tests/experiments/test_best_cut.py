"""The study of cut layers plans what real runs plan, and its guarantee is one that could be broken."""

from dataclasses import replace
from math import prod
from pathlib import Path

import numpy as np
import pytest

from espalier.app.planning.rule import PlanRule
from espalier.app.planning.simulated import WirelessWorld
from espalier.app.settings.sections import Plans, RadioWorld
from espalier.strategies.allocation import exact
from experiments.best_cut import (
    BEST,
    CLIENTS_PER_CELL,
    IMAGE,
    Case,
    check,
    draw_worlds,
    print_works,
    problem_of,
    solve,
    work_of,
)

CASE = Case("cnn", 10, 20e6, 3.0, 100e6)


def test_the_problem_is_the_one_of_a_split_run():
    clients = np.arange(sum(CLIENTS_PER_CELL))
    cells = np.split(clients, np.cumsum(CLIENTS_PER_CELL)[:-1])
    plan = Plans(selected_per_edge=4, max_local_rounds=5, downlink_bits_per_second=1e7, deadline_seconds=10.0)
    topology = {f"edge-{i}": members.tolist() for i, members in enumerate(cells)}
    same, counts = {n: n for n in clients.tolist()}, [10 * 32] * clients.size
    cell_of = {n: cell for cell, members in enumerate(cells) for n in members.tolist()}
    sections = plan, RadioWorld(), PlanRule(), 3
    run = WirelessWorld(*sections, topology, same, cell_of, work_of("cnn"), prod(IMAGE), counts)
    expected = vars(run.problem(7, clients, None, 0))
    found = vars(problem_of(Case("cnn", 10, 540e3, 10.0, 1e7), work_of("cnn"), draw_worlds(540e3, [3]), 7))
    for name in expected.keys() - {"previous", "max_overlap", "seed", "standing"}:
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-12, err_msg=name)


def test_the_page_has_what_the_cuts_of_the_models_mean(capsys):
    print_works()
    page = (Path(__file__).parents[2] / "docs/best-cut.md").read_text(encoding="utf-8")
    assert capsys.readouterr().out in page


def test_the_best_cut_is_never_worse_and_at_times_better():
    plans = solve(CASE, draw_worlds(CASE.bandwidth_hz, range(2)), rounds=3)
    assert {BEST, 1, 2, 3} == plans.keys()
    assert {1, 3} <= {int(cut) + 1 for plan in plans[BEST] for cut in plan.option[plan.selected]}
    fixed = min(np.mean([plan.objective for plan in plans[cut]]) for cut in (1, 2, 3))
    assert np.mean([plan.objective for plan in plans[BEST]]) < fixed - 0.02


@pytest.fixture(scope="module")
def solved():
    problem = problem_of(CASE, work_of("cnn"), draw_worlds(CASE.bandwidth_hz, [0]), 1)
    return problem, exact(problem)


def fewer_eligible(plan):
    return {"eligible": plan.eligible & (np.arange(plan.eligible.size) > 0)}


def fewer_selected(plan):
    return {"selected": plan.selected & (np.arange(plan.selected.size) > np.flatnonzero(plan.selected)[0])}


def more_joules(plan):
    return {"compute_joules": 1.01 * plan.compute_joules}


@pytest.mark.parametrize("change", [fewer_eligible, fewer_selected, more_joules])
def test_the_check_notices_what_is_worse(solved, change):
    problem, plan = solved
    worse = replace(plan, **change(plan))
    check(problem, plan, worse)
    with pytest.raises(AssertionError):
        check(problem, worse, plan)
