"""The solver that makes the plans of a run: a built-in one, or the user's own."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from espalier.app.ground.checkpoint import from_bytes, to_bytes
from espalier.app.ground.errors import FAULTS, UserError, bad_value
from espalier.app.ground.object_spec import ObjectSpec, error_line
from espalier.app.planning.edge_resources import EdgeResources
from espalier.app.planning.rule import PlanRule
from espalier.strategies.allocation import Plan, Problem, Solver, get_solver, violations
from espalier.strategies.state import built_attributes, restore_strategy_state, strategy_state


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
        If it names one that can't be imported or made of its parameters, or that is no function.
    """
    return own_solver(spec) if spec.module else spec.call(partial(get_solver, spec.name))


def own_solver(spec: ObjectSpec) -> "OwnSolver":
    """Return a solver of the user's own; see `solver_of`."""
    found = spec.load()
    solve = spec.call(found) if isinstance(found, type) else found
    if not callable(solve):
        raise bad_value(spec.key, spec.text, f"a function from a Problem to a Plan, not a {type(solve).__name__}")
    return OwnSolver(spec, solve if isinstance(found, type) else partial(solve, **dict(spec.parameters)))


def _is_frozen(one: Any) -> bool:
    return bool(getattr(getattr(type(one), "__dataclass_params__", None), "frozen", False))


class OwnSolver:
    """A solver of the user's own; what it keeps from call to call is saved as a strategy's attributes are.

    Parameters
    ----------
    spec : ObjectSpec
        How the run config names it.
    solve : Solver
        The solver: a function, or an object that is called.

    Raises
    ------
    UserError
        When it is called, if it fails, or makes a plan that keeps not all limits.
    """

    def __init__(self, spec: ObjectSpec, solve: Solver) -> None:
        self._spec = spec
        self._solve: Any = solve
        self._keeps = hasattr(solve, "state_dict") or (hasattr(solve, "__dict__") and not _is_frozen(solve))
        self._built = built_attributes(solve) if self._keeps and hasattr(solve, "__dict__") else {}

    def __call__(self, problem: Problem) -> Plan:
        """Return a plan that keeps all limits."""
        try:
            plan = self._solve(problem)
        except UserError:
            raise
        except FAULTS as error:  # foreign code
            raise self._refused(f"a function that does not fail ({error_line(error)})") from None
        if not isinstance(plan, Plan):
            raise self._refused(f"a function that returns a Plan, not a {type(plan).__name__}")
        if broken := violations(problem, plan):
            raise self._refused(f"a function whose plans keep all limits ({broken[0]})")
        return plan

    def state_dict(self) -> dict[str, Any]:
        """Return what must survive an interruption."""
        try:
            return strategy_state(self._solve) if self._keeps else {}
        except FAULTS as error:  # foreign code
            raise self._refused(f"one that can be saved ({error_line(error)})") from None

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what `state_dict` returned."""
        if self._keeps:
            restore_strategy_state(self._solve, state, self._built)

    def try_on(self, problem: Problem) -> None:
        """Raise UserError unless it makes a plan, can be saved then, and takes back what is."""
        self(problem)
        try:
            self.load_state_dict(from_bytes(to_bytes(self.state_dict())))
        except UserError:
            raise
        except FAULTS as error:  # foreign code
            raise self._refused(f"one that can be saved ({error_line(error)})") from None

    def _refused(self, allowed: str) -> UserError:
        return bad_value(self._spec.key, self._spec.text, allowed)
