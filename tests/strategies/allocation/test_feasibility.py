"""Every broken limit is found in a plan that is tampered with, and the report says what happens."""

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.allocation import paper_problem
from espalier.strategies.allocation import Plan, Problem, exact, make_plan, report, violations
from espalier.strategies.allocation.feasibility import least_seconds
from espalier.strategies.allocation.single_client import least_energy

FIRST = 0


@pytest.fixture
def problem() -> Problem:
    return paper_problem(
        seed=1, cells=2, clients_in_cell=6, clients_per_cell=2, deadline_seconds=2.0, min_frequency_hz=1e8,
        max_overlap=0, previous=np.arange(12) % 6 == 5,
    )  # fmt: skip


def changed(problem: Problem, plan: Plan, **decisions: object) -> Plan:
    """Return the plan with other decisions of its first selected client, and the costs that these mean."""
    client = int(np.flatnonzero(plan.selected)[FIRST])
    names = ("selected", "local_rounds", "frequency_hz", "power_watts", "eligible", "reason", "option")
    arrays = {name: getattr(plan, name).copy() for name in names}
    for name, value in decisions.items():
        arrays[name][client] = value
    return make_plan(problem, **arrays)


def found(problem: Problem, plan: Plan) -> set[str]:
    return {line.split(":")[0] for line in violations(problem, plan)}


def test_the_optimum_breaks_nothing(problem):
    assert violations(problem, exact(problem)) == []


@pytest.mark.parametrize(
    ("decisions", "constraints"),
    [
        ({"selected": False}, {"C2"}),
        ({"local_rounds": 51}, {"C4", "C7"}),
        ({"local_rounds": 0}, {"C4"}),
        ({"frequency_hz": 2.1e9}, {"C5"}),
        ({"frequency_hz": 9e7}, {"C5", "C7"}),
        ({"power_watts": 1.01}, {"C6", "C8"}),
        ({"power_watts": 1e-6}, {"C7"}),
    ],
)
def test_a_broken_limit_is_found(problem, decisions, constraints):
    assert found(problem, changed(problem, exact(problem), **decisions)) == constraints


def test_too_much_energy_is_found(problem):
    plan = exact(problem)
    tight = Problem(**vars(problem) | {"energy_budget_joules": np.where(plan.selected, plan.joules * 0.999, 1.0)})
    lines = violations(tight, plan)
    assert [line[:3] for line in lines] == ["C8:"] * 4
    assert "joules = " in lines[0]
    assert violations(Problem(**vars(problem) | {"energy_budget_joules": plan.joules + 1e-9}), plan) == []


def test_too_many_of_the_previous_round_are_found(problem):
    plan = exact(Problem(**vars(problem) | {"previous": None}))
    lines = violations(Problem(**vars(problem) | {"previous": plan.selected}), plan)
    assert [line for line in lines if line.startswith("C3")] == [
        f"C3: cell {cell}: 2 clients selected again, at most 0" for cell in (0, 1)
    ]


def test_nonsense_is_found_and_named(problem):
    plan = exact(problem)
    client = np.flatnonzero(plan.selected)[FIRST]

    def with_(name, value, kind=np.float64):
        array = getattr(plan, name).astype(kind)
        array[client] = value
        return replace(plan, **{name: array})

    assert violations(problem, with_("local_rounds", 2.5))[0] == (
        f"C4: client {client}: local_rounds = 2.5, must be an integer"
    )
    for name in ("frequency_hz", "power_watts"):
        for value in (np.nan, 0.0, -1.0):
            assert {"C7"} <= found(problem, with_(name, value))
    assert found(problem, with_("upload_joules", 0.0)) == {"costs", "objective"}
    assert violations(problem, with_("option", 3, np.int64)) == [f"option: client {client}: 3, must be from 0 to 0"]
    assert violations(problem, replace(plan, option=plan.option[:5])) == ["shape of option = (5,): must be (12,)"]
    assert violations(problem, with_("selected", 1)) == ["selected has the type float64: must be an array of booleans"]
    assert violations(problem, with_("option", 0)) == ["option has the type float64: must be an array of integers"]
    assert violations(problem, replace(plan, frequency_hz=plan.frequency_hz.tolist())) == [
        "frequency_hz has the type list: must be an array of numbers"
    ]
    assert found(problem, replace(plan, power_watts=plan.power_watts * (1 + 0j))) == {
        "power_watts has the type complex128"
    }


def test_what_a_plan_says_of_itself_must_be_so(problem):
    plan = exact(problem)
    (taken, *_), (idle, *_) = np.flatnonzero(plan.selected), np.flatnonzero(~plan.selected)
    assert violations(problem, replace(plan, objective=np.nan)) == [f"objective: nan, must be {plan.objective:.9g}"]
    assert violations(problem, replace(plan, objective=plan.objective - 1e-6))[0].startswith("objective: ")
    assert violations(problem, replace(plan, short_cells=(0,))) == ["short_cells: (0,), must be ()"]
    for name in ("local_rounds", "upload_joules"):
        values = getattr(plan, name).copy()
        values[idle] = 2
        assert violations(problem, replace(plan, **{name: values})) == [
            f"{name}: client {idle}: 2, must be 0: it is not selected"
        ]
    eligible = plan.eligible.copy()
    eligible[taken] = False
    assert violations(problem, replace(plan, eligible=eligible)) == [
        f"eligible: client {taken}: False, must be True: it is selected"
    ]


def test_a_short_cell_is_no_violation_but_leaving_a_seat_empty_is(problem):
    short = Problem(**vars(problem) | {"energy_budget_joules": np.where(np.arange(12) == 2, 1.0, 1e-9)})
    plan = exact(short)
    assert plan.selected.sum() == 1
    assert violations(short, plan) == []
    assert report(short, plan).splitlines()[-2:] == [
        "cell 0 is short: 1 selected, 2 asked for",
        "cell 1 is short: 0 selected, 2 asked for",
    ]
    assert violations(short, changed(short, plan, selected=False)) == ["C2: cell 0: 0 clients selected, must be 1"]


def test_the_report_has_a_line_per_client_and_its_reason(problem):
    budget = np.where(np.arange(12) >= 9, 1e-6, 1.0)
    problem = Problem(**vars(problem) | {"energy_budget_joules": budget, "deadline_seconds": 1.2})
    plan = exact(problem)
    lines = report(problem, plan).splitlines()
    assert lines[0].split() == [
        "client",
        "cell",
        "rounds",
        "MHz",
        "mW",
        "compute",
        "s",
        "upload",
        "s",
        "joules",
        "budget",
    ]
    for client, line in enumerate(lines[1:13]):
        assert line.split()[:2] == [str(client), str(problem.cell[client])]
        assert plan.reason[client] in line
    client = np.flatnonzero(plan.selected)[FIRST]
    shown = lines[1 + client].split()
    assert shown[2] == str(plan.local_rounds[client])
    assert float(shown[3]) == pytest.approx(plan.frequency_hz[client] / 1e6, rel=1e-3)
    assert float(shown[4]) == pytest.approx(plan.power_watts[client] * 1e3, rel=1e-3)
    assert float(shown[5]) + float(shown[6]) == pytest.approx(1.2, rel=1e-3)
    assert float(shown[7]) == pytest.approx(plan.joules[client], rel=1e-3)
    late = int(np.flatnonzero(plan.reason == "deadline")[0])
    assert "deadline: one round takes " in lines[1 + late]
    assert float(lines[1 + late].split(" takes ")[1].split()[0]) > 1.2
    assert any("energy: one round in time takes " in line for line in lines)
    assert lines[13] == f"{plan.selected.sum()} of 12 clients selected, objective {plan.objective:.6g}"
    assert plan.short_cells
    assert lines[14].startswith(f"cell {plan.short_cells[0]} is short: ")
    assert lines[14].endswith(" selected, 2 asked for")


def test_the_report_shows_options_where_there_are_some():
    problem = paper_problem(seed=0, cells=1, payload_bits=[[7e6, 1e6]])
    assert "option" in report(problem, exact(problem)).splitlines()[0]


def test_more_than_rounding_beyond_a_limit_is_found(problem):
    plan = exact(problem)
    for excess, constraints in ((1e-6, {"C7"}), (1e-10, set())):
        tight = Problem(**vars(problem) | {"deadline_seconds": float(plan.seconds.max()) * (1 - excess)})
        assert found(tight, plan) == constraints


def test_the_least_time_and_energy_are_those_of_the_best_option_idle_time_included():
    problem = paper_problem(
        seed=0, cells=1, clients_in_cell=2, clients_per_cell=1, deadline_seconds=1.5, max_frequency_hz=1e9,
        cycles_per_local_round=[[3e9, 1e9]], payload_bits=1.0, idle_seconds=0.25, idle_seconds_per_local_round=[0.5, 0],
    )  # fmt: skip
    assert least_seconds(problem) == pytest.approx([1.75, 1.25], rel=1e-4)
    lines = report(problem, exact(problem)).splitlines()
    assert lines[1].endswith("deadline: one round takes 1.75 s at least")
    poor = Problem(**vars(problem) | {"energy_budget_joules": 1e-9, "deadline_seconds": 10.0})
    joules = least_energy(poor, np.array([[0], [1]]), np.array([0, 1]), np.int64(1)).joules
    assert (joules[:, 1] < joules[:, 0]).all()
    lines = report(poor, exact(poor)).splitlines()
    for client in (0, 1):
        assert lines[1 + client].endswith(f"energy: one round in time takes {joules[client, 1]:.4g} J at least")
