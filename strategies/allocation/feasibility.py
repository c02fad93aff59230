"""Whether a plan keeps the problem's limits, and a table that shows why."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import ArrayLike

from .costs import client_costs
from .plan import Plan, objective
from .problem import Problem
from .selection import choose
from .single_client import eligibility, least_energy

# Relative: times and energies are sums of a few rounded products.
TOLERANCE = 1e-9
COSTS = ("compute_seconds", "upload_seconds", "idle_seconds", "compute_joules", "upload_joules")
KINDS = {
    "selected": ("b", "booleans"),
    "eligible": ("b", "booleans"),
    "option": ("iu", "integers"),
    "reason": ("U", "strings"),
}


def violations(problem: Problem, plan: Plan) -> list[str]:
    """Return the constraints of the problem that a plan breaks, one line each; none for a plan to be trusted.

    Times, energies and the objective are computed afresh from the plan's decisions. Fewer clients than asked for break
    C2 only if more could have been selected.

    Parameters
    ----------
    problem : Problem
        The round's problem.
    plan : Plan
        From any solver.
    """
    malformed = list(_malformed(problem, plan))
    return malformed or [
        *_cell_violations(problem, plan),
        *_client_violations(problem, plan),
        *_untrue_sums(problem, plan),
    ]


def _malformed(problem: Problem, plan: Plan) -> Iterator[str]:
    for name, values in vars(plan).items():
        if name in ("objective", "short_cells", "converged"):
            continue
        kinds, meant = KINDS.get(name, ("iuf", "numbers"))
        if np.shape(values) != (problem.clients,):
            yield f"shape of {name} = {np.shape(values)}: must be ({problem.clients},)"
        elif not isinstance(values, np.ndarray) or values.dtype.kind not in kinds:
            yield f"{name} has the type {getattr(values, 'dtype', type(values).__name__)}: must be an array of {meant}"


def _untrue_sums(problem: Problem, plan: Plan) -> Iterator[str]:
    """Yield what the plan says of itself and is not so."""
    for name in ("local_rounds", "frequency_hz", "power_watts", *COSTS):
        values = getattr(plan, name)
        for client in np.flatnonzero(~plan.selected & (values != 0)):
            yield f"{name}: client {client}: {values[client]:.9g}, must be 0: it is not selected"
    for client in np.flatnonzero(plan.selected & ~plan.eligible):
        yield f"eligible: client {client}: False, must be True: it is selected"
    value = objective(problem, plan)
    if not np.isclose(plan.objective, value, rtol=TOLERANCE, atol=0):
        yield f"objective: {plan.objective:.9g}, must be {value:.9g}"
    cells = np.unique(problem.cell).tolist()
    short = tuple(c for c in cells if plan.selected[problem.cell == c].sum() < problem.clients_per_cell)
    if tuple(plan.short_cells) != short:
        yield f"short_cells: {plan.short_cells}, must be {short}"


def _cell_violations(problem: Problem, plan: Plan) -> Iterator[str]:
    possible = choose(problem, eligibility(problem)[0])[0]
    for cell in np.unique(problem.cell):
        inside = problem.cell == cell
        taken, wanted = int(plan.selected[inside].sum()), int(possible[inside].sum())
        if taken != wanted:
            yield f"C2: cell {cell}: {taken} clients selected, must be {wanted}"
        if problem.previous is not None and problem.max_overlap is not None:
            again = int((plan.selected & problem.previous)[inside].sum())
            if again > problem.max_overlap:
                yield f"C3: cell {cell}: {again} clients selected again, at most {problem.max_overlap}"


def _client_violations(problem: Problem, plan: Plan) -> Iterator[str]:
    who = np.flatnonzero(plan.selected)
    known = (plan.option[who] >= 0) & (plan.option[who] < problem.options)
    for client in who[~known]:
        yield f"option: client {client}: {plan.option[client]}, must be from 0 to {problem.options - 1}"
    who = who[known]
    rounds, frequency, power = plan.local_rounds[who], plan.frequency_hz[who], plan.power_watts[who]
    for client in who[rounds != np.rint(rounds)]:
        yield f"C4: client {client}: local_rounds = {plan.local_rounds[client]}, must be an integer"
    with np.errstate(all="ignore"):
        spent = client_costs(problem, who, plan.option[who], rounds, frequency, power)
    seconds = spent["compute_seconds"] + spent["upload_seconds"] + spent["idle_seconds"]
    joules = spent["compute_joules"] + spent["upload_joules"]
    limits: list[tuple[str, str, np.ndarray, ArrayLike, ArrayLike]] = [
        ("C4", "local_rounds", rounds, 1, problem.max_local_rounds),
        ("C5", "frequency_hz", frequency, problem.min_frequency_hz[who], problem.max_frequency_hz[who]),
        ("C6", "power_watts", power, 0, problem.max_power_watts[who]),
        ("C7", "seconds", seconds, 0, problem.deadline_seconds),
        ("C8", "joules", joules, 0, problem.energy_budget_joules[who]),
        *(("costs", name, getattr(plan, name)[who], values, values) for name, values in spent.items()),
    ]
    for name, what, values, *ends in limits:
        low, high = (np.broadcast_to(end, who.shape) for end in ends)
        kept = (values >= low * (1 - TOLERANCE)) & (values <= high * (1 + TOLERANCE))
        for i in np.flatnonzero(~kept):
            yield f"{name}: client {who[i]}: {what} = {values[i]:.9g}, must be from {low[i]:.9g} to {high[i]:.9g}"


def report(problem: Problem, plan: Plan) -> str:
    """Return the plan as a table for people: a line per client with what it does, or why it does nothing.

    Parameters
    ----------
    problem : Problem
        The round's problem.
    plan : Plan
        From any solver.
    """
    heads = ("client", "cell", "option", "rounds", "MHz", "mW", "compute s", "upload s", "joules", "budget")
    shown = [i for i, head in enumerate(heads) if head != "option" or problem.options > 1]
    lines = ["  ".join(f"{heads[i]:>9}" for i in shown)]
    needs = _needs(problem)
    for client in range(problem.clients):
        cells = [client, problem.cell[client], *["-"] * 7, f"{problem.energy_budget_joules[client]:.4g}"]
        if plan.selected[client]:
            cells[2:9] = [
                plan.option[client],
                plan.local_rounds[client],
                f"{plan.frequency_hz[client] / 1e6:.4g}",
                f"{plan.power_watts[client] * 1e3:.4g}",
                f"{plan.compute_seconds[client]:.4g}",
                f"{plan.upload_seconds[client]:.4g}",
                f"{plan.joules[client]:.4g}",
            ]
        reason = str(plan.reason[client])
        lines.append("  ".join(f"{cells[i]!s:>9}" for i in shown) + f"  {reason}{needs[client].get(reason, '')}")
    lines.append(f"{plan.selected.sum()} of {problem.clients} clients selected, objective {plan.objective:.6g}")
    for cell in plan.short_cells:
        taken = plan.selected[problem.cell == cell].sum()
        lines.append(f"cell {cell} is short: {taken} selected, {problem.clients_per_cell} asked for")
    return "\n".join(lines)


def least_seconds(problem: Problem) -> np.ndarray:
    """Return what one local round takes each client at its highest frequency and power, shape ``(U,)``."""
    client, option = np.indices((problem.clients, problem.options))
    costs = client_costs(
        problem, client, option, np.array(1), problem.max_frequency_hz[client], problem.max_power_watts[client]
    )
    return (costs["compute_seconds"] + costs["upload_seconds"] + costs["idle_seconds"]).min(axis=1)


def _needs(problem: Problem) -> list[dict[str, str]]:
    """Return what one local round takes of each client at least, by the reason for which it may not suffice."""
    client, option = np.indices((problem.clients, problem.options))
    joules = least_energy(problem, client, option, np.array(1)).joules.min(axis=1)
    return [
        {
            "deadline": f": one round takes {s:.4g} s at least",
            "energy": f": one round in time takes {e:.4g} J at least",
        }
        for s, e in zip(least_seconds(problem), joules, strict=True)
    ]
