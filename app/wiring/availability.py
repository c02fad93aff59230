"""Clients of a run that come and go, as its config says."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from espalier.app.features.feature import MakeEdge
from espalier.app.ground.errors import bad_value
from espalier.app.settings.sections import Availability as Section
from espalier.app.settings.values import path_of
from espalier.sim.availability import Availability, Markov, Trace, drops_out, read_moves, read_trace
from espalier.strategies import Available, Profile, moving
from espalier.strategies.edges import EdgeRounds
from espalier.strategies.topology import Topology, TopologyOf

T = TypeVar("T")


@dataclass(frozen=True)
class ComingAndGoing:
    """Says of clients, by their numbers, whether they are there in an edge round, counted from 1 over global rounds.

    Parameters
    ----------
    model : Availability
        Who is there when an edge round begins.
    seed : int
        Decides who drops out.
    drop_out : float
        Probability that a client is gone before it answers.
    """

    model: Availability
    seed: int
    drop_out: float

    def is_there(self, client: int, edge_round: int) -> bool:
        """Return whether a client is there when an edge round begins."""
        return self.model.is_there(client, edge_round)

    def drops_out(self, client: int, edge_round: int) -> bool:
        """Return whether a client that is there is gone before it answers."""
        return self.drop_out > 0 and drops_out(self.seed, client, edge_round, self.drop_out)

    def in_front_of(self, make_edge: MakeEdge, client_of: Mapping[int, int]) -> MakeEdge:
        """Return what makes edges whose clients come and go; client numbers are by node id."""

        def make(name: str, size: int) -> EdgeRounds:
            return Available(
                make_edge(name, size),
                lambda node_id, edge_round: self.is_there(client_of[node_id], edge_round),
                lambda node_id, edge_round: self.drops_out(client_of[node_id], edge_round),
            )

        return make


def coming_and_going(section: Section, seed: int, num_clients: int) -> ComingAndGoing | None:
    """Return how the clients of a run come and go; None where all are always there.

    Parameters
    ----------
    section : Availability
        Section of the run config.
    seed : int
        The run's.
    num_clients : int
        Clients are 0 to ``num_clients - 1``.

    Raises
    ------
    UserError
        For a trace that is none.
    """
    if not section.comes_and_goes:
        return None
    model: Availability = Trace({})
    if section.mode == "markov":
        model = Markov(seed, section.leave, section.back)
    if section.mode == "trace":
        model = _read("availability.trace", section.trace, "client,from,to", read_trace, num_clients)
    return ComingAndGoing(model, seed, section.drop_out)


def moves_of(section: Section, profiles: Sequence[Profile], topology: Topology) -> TopologyOf | None:
    """Return who is under each edge in a global round; None where nobody moves.

    Parameters
    ----------
    section : Availability
        Section of the run config.
    profiles : Sequence[Profile]
        The clients, in client order.
    topology : Mapping[str, Sequence[int]]
        Node ids by edge, at the start.

    Raises
    ------
    UserError
        For a file that has no moves of these clients between these edges.
    """
    if not section.moves:
        return None
    moves = _read("availability.moves", section.moves, "client,from,edge", read_moves, len(profiles), list(topology))
    node_of = {profile.partition_id: profile.node_id for profile in profiles}
    by_node = [(number, node_of[client], edge) for number, client, edge in moves]
    return moving(topology, [profile.node_id for profile in profiles], by_node)


def _read(key: str, given: str, columns: str, read: Callable[..., T], *arguments: Any) -> T:
    path: Path = path_of(key, given)
    try:
        return read(path, *arguments)
    except OSError as error:
        reason = error.strerror or "it can't be read"
        raise bad_value(key, given, f"a CSV file that can be read: {reason}") from None
    except ValueError as error:
        raise bad_value(key, given, f"a CSV file {columns}: {error}") from None
