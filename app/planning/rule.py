"""How the plans of an algorithm are made."""

from dataclasses import dataclass, replace
from math import inf

from espalier.app.ground.object_spec import ObjectSpec
from espalier.strategies.allocation.solvers import SOLVERS, SolverKind


@dataclass(frozen=True)
class PlanRule:
    """How the plans of an algorithm's edge rounds are made.

    Parameters
    ----------
    solver : str (default: "")
        One of `espalier.strategies.allocation.SOLVERS`, which selects as many clients as it likes; empty: the one that
        ``plan.solver`` names.
    over_all_cells : bool (default: False)
        The plan is made for the clients of all cells at once.
    has_limits : bool (default: True)
        False: no deadline is kept.
    any_number : bool (default: False)
        The solver that ``plan.solver`` names selects as many clients as it likes, not ``plan.selected-per-edge``.
    """

    solver: str = ""
    over_all_cells: bool = False
    has_limits: bool = True
    any_number: bool = False

    @property
    def selects_a_number(self) -> bool:
        """Whether ``plan.selected-per-edge`` clients are selected."""
        return not (self.solver or self.any_number)

    def most_of_a_cell(self, selected_per_edge: int) -> float:
        """Return how many results of a cell count: as many as ``plan.selected-per-edge``, or all."""
        return selected_per_edge if self.selects_a_number else inf

    def with_solver(self, spec: ObjectSpec) -> "PlanRule":
        """Return the rule for the solver that ``plan.solver`` names."""
        kind = kind_of(spec)
        return self if self.solver or kind is None else replace(self, any_number=not kind.selects_a_number)


def kind_of(spec: ObjectSpec) -> SolverKind | None:
    """Return what is known of the solver that ``plan.solver`` names; None for one of the user's own."""
    return None if spec.module else SOLVERS[spec.name]
