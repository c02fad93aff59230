"""Solvers by name, the user's own, and the page about them."""

import re
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import numpy as np
import pytest

from benchmarks.allocation import paper_problem
from espalier.strategies.allocation import (
    SCA,
    SOLVERS,
    FedCS,
    Oort,
    Plan,
    PowerOfChoice,
    Problem,
    SolverKind,
    TiFL,
    cheapest_at_full_power,
    exact,
    get_solver,
    h_fedavg_m1,
    h_fedavg_m2,
    h_fedavg_ub,
    make_plan,
    random,
    violations,
)

PAGE = Path(__file__).parents[3] / "docs/allocation.md"


@pytest.mark.parametrize("name", SOLVERS)
def test_every_solver_makes_a_plan_of_one_entry_per_client(name):
    problem = paper_problem(seed=0, cells=2, clients_in_cell=5)
    plan = get_solver(name)(problem)
    assert isinstance(plan, Plan)
    for field, value in vars(plan).items():
        assert field in ("objective", "short_cells", "converged") or value.shape == (10,), field
    assert plan.objective >= exact(problem).objective or not SOLVERS[name].selects_a_number


def test_a_name_is_that_solvers():
    rules = {
        "cheapest-at-full-power": cheapest_at_full_power,
        "h-fedavg-m1": h_fedavg_m1,
        "h-fedavg-m2": h_fedavg_m2,
        "h-fedavg-ub": h_fedavg_ub,
    }
    classes = {"sca": SCA, "fedcs": FedCS, "power-of-choice": PowerOfChoice, "tifl": TiFL, "oort": Oort}
    functions = {name: get_solver(name) for name in SOLVERS if name not in classes}
    assert functions == {"exact": exact, "random": random, **rules}
    assert {name: type(get_solver(name)) for name in classes} == classes


def test_an_unknown_solver_is_one_line():
    with pytest.raises(ValueError) as error:  # noqa: PT011
        get_solver("cplex")
    assert str(error.value) == (
        "solver = 'cplex': allowed is one of exact, sca, random, cheapest-at-full-power, "
        "fedcs, power-of-choice, tifl, oort, h-fedavg-m1, h-fedavg-m2, h-fedavg-ub"
    )


def test_a_solver_of_ones_own_is_a_function_that_ends_with_make_plan(monkeypatch):
    def first(problem: Problem) -> Plan:
        place = np.arange(problem.clients)
        selected = place % 5 < problem.clients_per_cell
        everybody = np.ones(problem.clients)
        return make_plan(
            problem, selected=selected, local_rounds=everybody, frequency_hz=problem.max_frequency_hz,
            power_watts=problem.max_power_watts, eligible=everybody > 0,
            reason=np.full(problem.clients, "not among the first"),
        )  # fmt: skip

    monkeypatch.setitem(SOLVERS, "first", SolverKind(lambda: first))
    problem = paper_problem(seed=0, cells=2, clients_in_cell=5, clients_per_cell=1, energy_budget_joules=2.0)
    plan = get_solver("first")(problem)
    assert violations(problem, plan) == []
    assert np.flatnonzero(plan.selected).tolist() == [0, 5]
    assert plan.objective > exact(problem).objective


def test_each_user_of_sca_has_its_own():
    assert get_solver("sca") is not get_solver("sca")


def test_the_page_names_all_solvers_and_its_example_prints_what_it_says():
    text = PAGE.read_text()
    assert [name for name in SOLVERS if f"| `{name}` |" not in text] == []
    code, printed = re.search(r"```python\n(.*?)```.*?```\n(.*?)```", text, re.DOTALL).groups()
    with redirect_stdout(StringIO()) as out:
        exec(code, {})
    assert out.getvalue() == printed
