"""How the plans of an algorithm are made."""

from dataclasses import dataclass


@dataclass(frozen=True)
class PlanRule:
    """How the plans of an algorithm's edge rounds are made.

    Parameters
    ----------
    solver : str (default: "")
        One of `espalier.strategies.allocation.SOLVERS`, which selects as many clients as it likes; empty: the one that
        ``plan.solver`` names, for ``plan.selected-per-edge`` clients.
    over_all_cells : bool (default: False)
        The plan is made for the clients of all cells at once.
    has_limits : bool (default: True)
        False: no deadline is kept.
    """

    solver: str = ""
    over_all_cells: bool = False
    has_limits: bool = True

    @property
    def selects_a_number(self) -> bool:
        """Whether ``plan.selected-per-edge`` clients are selected."""
        return not self.solver
