"""The solvers by name. A solver is any function from a problem to a plan."""

from collections.abc import Callable

from .exact import exact
from .plan import Plan
from .problem import Problem
from .rules import cheapest_at_full_power, h_fedavg_m1, h_fedavg_m2, h_fedavg_ub, random
from .sca import SCA

Solver = Callable[[Problem], Plan]

# Makers of solvers and not solvers, since `sca` keeps a compiled program between calls: each user has its own.
SOLVERS: dict[str, Callable[[], Solver]] = {
    "exact": lambda: exact,
    "sca": SCA,
    "random": lambda: random,
    "cheapest-at-full-power": lambda: cheapest_at_full_power,
    "h-fedavg-m1": lambda: h_fedavg_m1,
    "h-fedavg-m2": lambda: h_fedavg_m2,
    "h-fedavg-ub": lambda: h_fedavg_ub,
}


def get_solver(name: str) -> Solver:
    """Return the solver of a name in `SOLVERS`.

    Raises
    ------
    ValueError
        If there is none.
    """
    if name not in SOLVERS:
        raise ValueError(f"solver = {name!r}: allowed is one of {', '.join(SOLVERS)}")
    return SOLVERS[name]()
