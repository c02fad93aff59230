"""Which clients train in an edge round, and how hard: the resource-aware part of RawHFL, with NumPy and CVXPY alone.

A `Problem` holds channels, limits and costs; a solver makes a `Plan` of it::

    plan = get_solver("exact")(problem)
"""

from .exact import exact, with_best_choices
from .feasibility import report, violations
from .fedcs import FedCS
from .oort import Oort
from .operating_point import OperatingPoint, best_operating_point
from .plan import Plan, make_plan, objective
from .power_of_choice import PowerOfChoice
from .problem import Problem
from .rules import (
    cheapest_at_full_power,
    eligible_at_full_power,
    full_work_at_full_power,
    h_fedavg_m1,
    h_fedavg_m2,
    h_fedavg_ub,
    random,
)
from .sca import SCA
from .selection import choose, why_not
from .single_client import BestChoice, best_choice
from .solvers import SOLVERS, Solver, SolverKind, get_solver
from .standing import Standing
from .tifl import TiFL

__all__ = [
    "SCA",
    "SOLVERS",
    "BestChoice",
    "FedCS",
    "Oort",
    "OperatingPoint",
    "Plan",
    "PowerOfChoice",
    "Problem",
    "Solver",
    "SolverKind",
    "Standing",
    "TiFL",
    "best_choice",
    "best_operating_point",
    "cheapest_at_full_power",
    "choose",
    "eligible_at_full_power",
    "exact",
    "full_work_at_full_power",
    "get_solver",
    "h_fedavg_m1",
    "h_fedavg_m2",
    "h_fedavg_ub",
    "make_plan",
    "objective",
    "random",
    "report",
    "violations",
    "why_not",
    "with_best_choices",
]
