"""What is reported of clients that come and go."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from espalier.app.features.availability.comings import ComingAndGoing, coming_and_going
from espalier.app.features.feature import Did, Line, Part, RoundOver, Scene, State


@dataclass(frozen=True)
class Attendances(Part):
    """Counts who was away, and who dropped out.

    Parameters
    ----------
    availability : ComingAndGoing
        Says so of clients, by their numbers.
    edges_in : Callable[[int], Mapping[str, Sequence[int]]]
        Client numbers by edge in a global round.
    edge_rounds : int
        Of a global round.
    client_of : Mapping[int, int]
        Client number by node id.
    """

    availability: ComingAndGoing
    edges_in: Callable[[int], Mapping[str, Sequence[int]]]
    edge_rounds: int
    client_of: Mapping[int, int]

    def of_edge(self, name: str, over: RoundOver) -> Line:
        """Return ``num_clients``, and who of them was ``away`` and who ``dropped_out``, for each edge round."""
        outcome = over.outcome
        first, clients = (outcome.number - 1) * self.edge_rounds + 1, self.edges_in(outcome.number)[name]
        away, gone = [], []
        for edge_round, update in enumerate(outcome.edges[name].updates, start=first):
            away.append([n for n in clients if not self.availability.is_there(n, edge_round)])
            failed = sorted({self.client_of[f.node_id] for f in update.failures if f.node_id in self.client_of})
            gone.append([n for n in failed if self.availability.drops_out(n, edge_round)])
        return {"num_clients": len(clients), "away": away, "dropped_out": gone}


def attendances_of(scene: Scene) -> Attendances | None:
    """Return what counts them; None where all are always there."""
    case, comings = scene.case, coming_and_going(scene.case)
    return Attendances(comings, scene.edges_in, case.edge_rounds, scene.client_of) if comings else None


def availability_summary(lines: Sequence[Line]) -> Line:
    """Return what ``summary.json`` says of it; nothing for a run whose clients are always there.

    Returns
    -------
    dict
        ``availability``: the ``away_share``, of the edge rounds of all clients those in which they were away; how many
        results ``dropped_out``; and the ``edge_rounds_without_anybody``, in which all clients of an edge were away.
    """
    own = [line for line in lines if line["scope"] == "edge" and "away" in line]
    if not own:
        return {}
    counts = [(len(away), line["num_clients"]) for line in own for away in line["away"]]
    return {
        "availability": {
            "away_share": sum(away for away, _ in counts) / sum(size for _, size in counts),
            "dropped_out": sum(len(gone) for line in own for gone in line["dropped_out"]),
            "edge_rounds_without_anybody": sum(away == size > 0 for away, size in counts),
        }
    }


def words(summary: Mapping[str, Any]) -> Iterator[str]:
    """Yield what the table at the end of a run says of it."""
    if own := summary.get("availability"):
        share, gone = f"{own['away_share']:.1%} of the edge rounds of all clients", own["dropped_out"]
        nobody = own["edge_rounds_without_anybody"]
        yield f"away in {share}; {gone} dropped out, {nobody} edge rounds with all away"


def states(line: Line) -> Iterator[Did]:
    """Yield who was away, and who dropped out."""
    for field, state in (("away", State.AWAY), ("dropped_out", State.DROPPED_OUT)):
        for clients in line.get(field, ()):
            yield from (Did(client, state) for client in clients)
