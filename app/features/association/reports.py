"""What is reported of which client goes to which edge: HFEL's cost of it, beside that of who was there before."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from espalier.app.features.association.placing import problem_of
from espalier.app.features.association.settings import Hfel
from espalier.app.features.feature import Line, Part, RoundOver, Scene
from espalier.app.planning.simulated import WirelessWorld
from espalier.strategies.allocation.association import Association, optimum


@dataclass(frozen=True)
class Costs(Part):
    """Reports HFEL's costs after the first global round.

    Parameters
    ----------
    line : Mapping[str, Any]
        What the global line says.
    """

    line: Line

    def end_round(self, over: RoundOver) -> Line:
        """Return ``association``, after the first global round."""
        return {"association": self.line} if over.outcome.number == 1 else {}


def costs_of(scene: Scene) -> Costs | None:
    """Return what reports them; None where clients are where they were before."""
    name, world = scene.case[Hfel].association, scene.world
    if name == "given" or not isinstance(world, WirelessWorld):
        return None
    problem, given = problem_of(scene.case, world), world.cells_at_first
    names = list(world.edges)
    edge_of = {client: names.index(edge) for edge, members in scene.edges_in(1).items() for client in members}
    chosen = np.array([edge_of[client] for client in range(problem.clients)])
    moved = int((chosen != given).sum())
    return Costs(
        {"name": name, "chosen": cost_of(problem, chosen), "given": cost_of(problem, given), "clients_moved": moved}
    )


def cost_of(problem: Association, edges: np.ndarray) -> dict[str, float]:
    """Return the ``cost`` of a global round, its ``joules`` and its ``seconds``, for the edge of each client, (N,)."""
    best = optimum(problem, edges[np.newaxis])
    cost, seconds = float(best.cost[0]), float(best.seconds[0])
    joules = (cost - problem.delay_weight * seconds) / problem.energy_weight
    return {"cost": cost, "joules": joules, "seconds": seconds}


def association_summary(lines: Sequence[Line]) -> Line:
    """Return what ``summary.json`` says of it; nothing for a run whose clients are where they were before.

    Returns
    -------
    dict
        ``association``: its ``name``; of what is ``chosen``, and was ``given``, HFEL's ``cost`` of a global round, and
        the ``joules`` and ``seconds`` in it; and how many ``clients_moved`` from the one to the other.
    """
    return next(({"association": line["association"]} for line in lines if "association" in line), {})


def words(summary: Mapping[str, Any]) -> Iterator[str]:
    """Yield what the table at the end of a run says of it."""
    if own := summary.get("association"):
        chosen, given = (
            f"{of['cost']:.4g} ({of['joules']:.4g} J, {of['seconds']:.4g} s)" for of in (own["chosen"], own["given"])
        )
        yield f"HFEL's cost of a global round: {chosen}, association {own['name']}"
        yield f"as given: {given}; clients at another edge: {own['clients_moved']}"
