"""Clients of a run that come and go, as its config says."""

from dataclasses import dataclass

from flwr.serverapp import Grid

from espalier.app.features.availability.settings import Availability
from espalier.app.features.case import Case
from espalier.app.features.feature import MakeEdge, Scene
from espalier.app.settings.values import read_csv
from espalier.sim.availability import AvailabilityModel, Markov, Trace, drops_out, read_moves, read_trace
from espalier.strategies import Available, EdgeRounds, moving
from espalier.strategies.topology import TopologyOf


@dataclass(frozen=True)
class ComingAndGoing:
    """Says of clients, by their numbers, whether they are there in an edge round, counted from 1 over global rounds.

    Parameters
    ----------
    model : AvailabilityModel
        Who is there when an edge round begins.
    seed : int
        Decides who drops out.
    drop_out : float
        Probability that a client is gone before it answers.
    """

    model: AvailabilityModel
    seed: int
    drop_out: float

    def is_there(self, client: int, edge_round: int) -> bool:
        """Return whether a client is there when an edge round begins."""
        return self.model.is_there(client, edge_round)

    def drops_out(self, client: int, edge_round: int) -> bool:
        """Return whether a client that is there is gone before it answers."""
        return self.drop_out > 0 and drops_out(self.seed, client, edge_round, self.drop_out)


def coming_and_going(case: Case) -> ComingAndGoing | None:
    """Return how the clients of a run come and go; None where all are always there, or none trains.

    Raises
    ------
    UserError
        For a trace that is none.
    """
    section, seed = case[Availability], case.seed
    if not (section.comes_and_goes and case.algorithm.trains_clients):
        return None
    model: AvailabilityModel = Trace({})
    if section.mode == "markov":
        model = Markov(seed, section.leave, section.back)
    if section.mode == "trace":
        model = read_csv("availability.trace", section.trace, "client,from,to", read_trace, case.federation.num_clients)
    return ComingAndGoing(model, seed, section.drop_out)


def in_front(scene: Scene, make_edge: MakeEdge) -> MakeEdge:
    """Return what makes edges whose clients come and go."""
    comings, client_of = coming_and_going(scene.case), scene.client_of
    if not comings:
        return make_edge

    def make(name: str, size: int) -> EdgeRounds:
        return Available(
            make_edge(name, size),
            lambda node_id, edge_round: comings.is_there(client_of[node_id], edge_round),
            lambda node_id, edge_round: comings.drops_out(client_of[node_id], edge_round),
        )

    return make


def moves_of(scene: Scene, grid: Grid) -> TopologyOf | None:
    """Return who is under each edge in a global round; None where nobody moves.

    Raises
    ------
    UserError
        For a file that has no moves of these clients between these edges.
    """
    section, profiles, topology = scene.case[Availability], scene.profiles, scene.topology
    if not section.moves:
        return None
    moves = read_csv("availability.moves", section.moves, "client,from,edge", read_moves, len(profiles), list(topology))
    node_of = {profile.partition_id: profile.node_id for profile in profiles}
    by_node = [(number, node_of[client], edge) for number, client, edge in moves]
    return moving(topology, [profile.node_id for profile in profiles], by_node)
