"""An asynchronous tier of a run: when it aggregates, its clock, and how long edges and clients take."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flwr.serverapp.strategy import Strategy

from espalier.app.algorithms.build import MakeEdge
from espalier.app.config.sections import Asynchrony
from espalier.app.config.values import path_of
from espalier.app.errors import bad_value
from espalier.app.resources.planner import World
from espalier.sim.clock import ClientSeconds, EventClock, draw_client_seconds, read_client_seconds
from espalier.strategies import EdgeOutcome, EdgeRounds, Hierarchical
from espalier.strategies.asynchronous import (
    AsynchronousEdge,
    AsynchronousHierarchical,
    AsynchronousTier,
    FedAsync,
    FedBuff,
    Mode,
    SemiSynchronous,
    SimulatedClock,
    Staleness,
    Taken,
    WallClock,
    constant,
    hinge,
    polynomial,
)
from espalier.strategies.outcomes import EVERYBODY


@dataclass(frozen=True)
class AsynchronousRun:
    """The tier of a run that waits for nobody.

    Parameters
    ----------
    tier : AsynchronousTier
        Over edges, or over the clients of a flat algorithm.
    clients : Mapping[int, int]
        Client number by node id, in client order.
    seconds : ClientSeconds, optional
        What clients take for an edge round; None: their plans say it, or the clock shows it.
    world : World, optional
        Has the plans.
    edge_rounds : int
        Edge rounds of an edge's part.
    is_timed : bool
        Whether the clock shows how long somebody takes.
    """

    tier: AsynchronousTier
    clients: Mapping[int, int]
    seconds: ClientSeconds | None
    world: World | None
    edge_rounds: int
    is_timed: bool = False

    def evaluate_every(self, given: int) -> int:
        """Return in how many rounds clients evaluate the model: where they may be at work, after the last alone."""
        return 0 if self.is_timed else given

    def over_clients(self, make_edge: MakeEdge) -> MakeEdge:
        """Return what makes the one group of a flat algorithm."""

        def make(name: str, size: int) -> Strategy | EdgeRounds:
            edge = make_edge(name, size)
            assert isinstance(edge, Strategy)
            pace = None if self.is_timed else self.seconds_of_client
            return AsynchronousEdge(edge, tuple(self.clients), self.tier, pace)

        return make

    def over_edges(self, *arguments: Any, **options: Any) -> Hierarchical:
        """Return edges under a cloud that does not wait for them; parameters as of `Hierarchical`."""
        pace = None if self.is_timed else self.seconds_of_edge
        return AsynchronousHierarchical(*arguments, tier=self.tier, pace=pace, **options)

    def seconds_of_client(self, node_id: int, number: int) -> float:
        """Return what a client takes for its round of a number."""
        assert self.seconds is not None
        return self.seconds.of(self.clients[node_id], number)

    def seconds_of_edge(self, name: str, number: int, outcome: EdgeOutcome) -> Taken:
        """Return what an edge took: in each edge round it waits for the slowest of those it asked."""
        rounds = range((number - 1) * self.edge_rounds + 1, number * self.edge_rounds + 1)
        if self.seconds is None:
            assert self.world is not None
            return Taken(self.world.edges[name].seconds_of(rounds))
        seconds = client_seconds = 0.0
        for edge_round, update in zip(rounds, outcome.updates, strict=True):
            asked = {*update.participants, *(f.node_id for f in update.failures if f.node_id != EVERYBODY)}
            own = [self.seconds.of(self.clients[node_id], edge_round) for node_id in sorted(asked)]
            seconds += max(own, default=0.0)
            client_seconds += sum(own)
        return Taken(seconds, client_seconds)


def asynchronous_run(
    section: Asynchrony,
    seed: int,
    topology: Mapping[str, Sequence[int]],
    client_of: Mapping[int, int],
    world: World | None,
    *,
    is_flat: bool,
    edge_rounds: int,
    is_timed: bool = False,
) -> AsynchronousRun | None:
    """Return the asynchronous tier of a run; None for a run that waits for all.

    Parameters
    ----------
    section : Asynchrony
        Section of the run config.
    seed : int
        Decides how fast clients are.
    topology : Mapping[str, Sequence[int]]
        Node ids by edge.
    client_of : Mapping[int, int]
        Client number by node id, in client order.
    world : World, optional
        Says how long planned rounds take.
    is_flat : bool
        The clients are under the cloud.
    edge_rounds : int
        Edge rounds of an edge's part.
    is_timed : bool (default: False)
        Whether the clock is the one on the wall.

    Raises
    ------
    UserError
        For a trace that is none.
    """
    if section.mode == "off":
        return None
    num_clients = len(client_of)
    num_nodes = num_clients if is_flat else len(topology)
    tier = AsynchronousTier(
        mode_of(section, num_nodes),
        WallClock() if is_timed else SimulatedClock(EventClock()),
        num_nodes,
        "clients" if is_flat else "edges",
        clients=0 if is_flat else num_clients,
        concurrency=section.concurrency,
        max_staleness=section.max_staleness,
    )
    seconds = None if world or is_timed else client_seconds(section, seed, num_clients)
    return AsynchronousRun(tier, client_of, seconds, world, 1 if is_flat else edge_rounds, is_timed)


def mode_of(section: Asynchrony, num_nodes: int) -> Mode:
    """Return when a tier of so many nodes aggregates."""
    staleness = staleness_of(section)
    if section.mode == "fedbuff":
        return FedBuff(section.buffer_size_of(num_nodes), staleness)
    if section.mode == "fedasync":
        return FedAsync(section.mixing, staleness)
    return SemiSynchronous(section.deadline_seconds or float("inf"), staleness)


def staleness_of(section: Asynchrony) -> Staleness:
    """Return what updates weigh by their staleness."""
    name, numbers = section.staleness.name, section.staleness.numbers
    if name == "constant":
        return constant
    return polynomial(*numbers) if name == "polynomial" else hinge(*numbers)


def client_seconds(section: Asynchrony, seed: int, num_clients: int) -> ClientSeconds:
    """Return how long clients take, drawn or from a trace; UserError for a trace that is none."""
    if not section.trace:
        return draw_client_seconds(num_clients, seed, median_seconds=section.median_seconds, sigma=section.sigma)
    path: Path = path_of("async.trace", section.trace)
    try:
        return read_client_seconds(path, num_clients)
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not a text file"
        raise bad_value("async.trace", section.trace, f"a CSV file that can be read: {reason}") from None
    except ValueError as error:
        raise bad_value("async.trace", section.trace, f"a CSV file with a time for each client: {error}") from None
