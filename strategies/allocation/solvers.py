"""The solvers by name. A solver is any function from a problem to a plan."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from .exact import exact
from .fedcs import FedCS
from .oort import Oort
from .plan import Plan
from .power_of_choice import PowerOfChoice
from .problem import Problem
from .rules import cheapest_at_full_power, h_fedavg_m1, h_fedavg_m2, h_fedavg_ub, random
from .sca import SCA
from .tifl import TiFL

Solver = Callable[[Problem], Plan]
AT_FULL_POWER = ("theta", "min_frequency_hz", "worth")


@dataclass(frozen=True)
class SolverKind:
    """What a name stands for.

    Parameters
    ----------
    make : Callable[..., Solver]
        Makes a solver of the parameters given with the name. Each user has its own, as some keep something between
        calls.
    selects_a_number : bool (default: True)
        It selects Z clients of each cell, where so many are able; False: as many as it likes.
    looks_back : bool (default: False)
        It needs `Problem.standing`.
    ignores : tuple[str, ...] (default: ())
        What of a `Problem` plays no part.
    by_accuracy : bool (default: False)
        It goes by how accurate the model is on clients' test sets.
    is_rule : bool (default: False)
        It belongs to an algorithm: `plan.solver` does not name it.
    """

    make: Callable[..., Solver]
    selects_a_number: bool = True
    looks_back: bool = False
    ignores: tuple[str, ...] = ()
    by_accuracy: bool = False
    is_rule: bool = False


def _always(solver: Solver) -> Callable[[], Solver]:
    def make() -> Solver:
        return solver

    return make


_method = partial(SolverKind, looks_back=True, ignores=(*AT_FULL_POWER, "max_overlap"))
_rule = partial(SolverKind, is_rule=True, selects_a_number=False)
SOLVERS: dict[str, SolverKind] = {
    "exact": SolverKind(_always(exact)),
    "sca": SolverKind(SCA),
    "random": SolverKind(_always(random), ignores=("worth",)),
    "cheapest-at-full-power": SolverKind(_always(cheapest_at_full_power), ignores=AT_FULL_POWER),
    "fedcs": SolverKind(FedCS, selects_a_number=False),
    "power-of-choice": _method(PowerOfChoice),
    "tifl": _method(TiFL, by_accuracy=True),
    "oort": _method(Oort),
    "h-fedavg-m1": _rule(_always(h_fedavg_m1)),
    "h-fedavg-m2": _rule(_always(h_fedavg_m2)),
    "h-fedavg-ub": _rule(_always(h_fedavg_ub)),
}


def get_solver(name: str, **parameters: Any) -> Solver:
    """Return the solver of a name in `SOLVERS`, made of parameters where it takes any.

    Raises
    ------
    ValueError
        If there is none.
    """
    if name not in SOLVERS:
        raise ValueError(f"solver = {name!r}: allowed is one of {', '.join(SOLVERS)}")
    return SOLVERS[name].make(**parameters)
