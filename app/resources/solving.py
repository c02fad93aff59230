"""The solver that makes the plans of a run: a built-in one, or the user's own."""

from functools import partial

from espalier.app.algorithms.algorithm import PlanRule
from espalier.app.errors import UserError, bad_value
from espalier.app.object_spec import ObjectSpec, error_line
from espalier.app.resources.edge_resources import EdgeResources
from espalier.strategies.allocation import Plan, Problem, Solver, get_solver, violations


def solver_for(rule: PlanRule, solver: ObjectSpec, resources: EdgeResources) -> Solver:
    """Return the solver of an edge: the rule's own, or the one that ``plan.solver`` names."""
    solve = get_solver(rule.solver) if rule.solver else solver_of(solver)
    if rule.over_all_cells:
        return lambda problem: resources.plan_of_all_cells(solve)
    return solve


def solver_of(spec: ObjectSpec) -> Solver:
    """Return the solver that ``plan.solver`` names, a new one where it keeps a state between its calls.

    Raises
    ------
    UserError
        If it names one that can't be imported or made, or that is no function.
    """
    if not spec.module:
        return get_solver(spec.name)
    found = spec.load()
    solve = spec.call(found) if isinstance(found, type) else found
    if not callable(solve):
        raise bad_value(spec.key, spec.text, f"a function from a Problem to a Plan, not a {type(solve).__name__}")
    return _checked(spec, solve if isinstance(found, type) else partial(solve, **dict(spec.parameters)))


def _checked(spec: ObjectSpec, solve: Solver) -> Solver:
    """Return a solver that raises UserError where the one given fails, or makes a plan that keeps not all limits."""

    def plan_of(problem: Problem) -> Plan:
        try:
            plan = solve(problem)
        except UserError:
            raise
        except Exception as error:  # foreign code
            raise bad_value(spec.key, spec.text, f"a function that does not fail ({error_line(error)})") from None
        if not isinstance(plan, Plan):
            raise bad_value(spec.key, spec.text, f"a function that returns a Plan, not a {type(plan).__name__}")
        if broken := violations(problem, plan):
            raise bad_value(spec.key, spec.text, f"a function whose plans keep all limits ({broken[0]})")
        return plan

    return plan_of
