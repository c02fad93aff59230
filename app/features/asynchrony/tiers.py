"""An asynchronous tier of a run: when it aggregates, its clock, and how long edges and clients take."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from flwr.serverapp.strategy import Strategy

from espalier.app.features.asynchrony.settings import Asynchrony
from espalier.app.features.case import Case
from espalier.app.features.feature import Line, MakeEdge, MakeHierarchical, Part, RoundOver, Scene
from espalier.app.ground.errors import bad_value
from espalier.app.planning.world import PlannedWorld
from espalier.app.settings.values import read_csv
from espalier.sim.clock import ClientSeconds, EventClock, draw_client_seconds, read_client_seconds
from espalier.strategies import EdgeOutcome, EdgeRounds
from espalier.strategies.asynchronous import (
    AsynchronousEdge,
    AsynchronousHierarchical,
    AsynchronousTier,
    Clock,
    EdgePace,
    FedAsync,
    FedBuff,
    Mode,
    Pace,
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
from espalier.strategies.topology import Topology


@dataclass(frozen=True)
class KnownPaces:
    """How long clients and edges take, where it was drawn or read from a trace.

    Parameters
    ----------
    clients : Mapping[int, int]
        Client number by node id, in client order.
    seconds : ClientSeconds
        What clients take for an edge round.
    edge_rounds : int
        Edge rounds of an edge's part.
    in_turn : bool (default: False)
        An edge's clients train one after the other.
    """

    clients: Mapping[int, int]
    seconds: ClientSeconds
    edge_rounds: int
    in_turn: bool = False

    def of_client(self, node_id: int, number: int) -> float:
        """Return what a client takes for its round of a number."""
        return self.seconds.of(self.clients[node_id], number)

    def of_edge(self, name: str, number: int, outcome: EdgeOutcome) -> Taken:
        """Return what an edge took: in each edge round it waits for the slowest of those it asked, or for each."""
        seconds = client_seconds = 0.0
        for edge_round, update in zip(rounds_of_part(number, self.edge_rounds), outcome.updates, strict=True):
            asked = {*update.participants, *(f.node_id for f in update.failures if f.node_id != EVERYBODY)}
            own = [self.of_client(node_id, edge_round) for node_id in sorted(asked)]
            seconds += sum(own) if self.in_turn else max(own, default=0.0)
            client_seconds += sum(own)
        return Taken(seconds, client_seconds)


def planned_pace(world: PlannedWorld, edge_rounds: int) -> EdgePace:
    """Return how long edges take, whose parts have so many edge rounds, by their plans."""
    return lambda name, number, outcome: Taken(world.edges[name].seconds_of(rounds_of_part(number, edge_rounds)))


def rounds_of_part(number: int, edge_rounds: int) -> range:
    """Return the edge rounds of an edge's part of a number, from 1."""
    return range((number - 1) * edge_rounds + 1, number * edge_rounds + 1)


def without_evaluations(make: MakeHierarchical) -> MakeHierarchical:
    """Return what makes a cloud that evaluates on no clients: they may be at work."""
    return lambda *arguments, evaluate_every, **options: make(*arguments, **options, evaluate_every=0)


def by_wall_clock(case: Case) -> bool:
    """Return whether a tier that waits for nobody goes by the clock on the wall."""
    own = case[Asynchrony]
    on_the_wall = own.clock == "wall" or (own.clock == "auto" and not case.here.reaches_clients)
    return own.mode != "off" and on_the_wall


@dataclass(frozen=True)
class AsynchronousCloud(Part):
    """A cloud that does not wait for its edges.

    Parameters
    ----------
    tier : AsynchronousTier
        Over the edges.
    names : Sequence[str]
        Their names, in their order.
    edge_rounds : int
        Edge rounds of an edge's part.
    pace : Callable[[str, int, EdgeOutcome], Taken], optional
        How long they take; None: the clock shows it.
    is_timed : bool
        The clock is the one on the wall.
    """

    tier: AsynchronousTier
    names: Sequence[str]
    edge_rounds: int
    pace: EdgePace | None
    is_timed: bool

    def over_edges(self, make: MakeHierarchical) -> MakeHierarchical:
        """Return what makes the cloud over them."""
        make = partial(AsynchronousHierarchical, tier=self.tier, pace=self.pace)
        return without_evaluations(make) if self.is_timed else make

    def edge_rounds_at_work(self) -> Mapping[str, Collection[int]]:
        """Return those of the parts that have begun and not come in."""
        numbers = self.tier.numbers_at_work()
        return {self.names[node]: rounds_of_part(number, self.edge_rounds) for node, number in numbers.items()}

    def end_round(self, over: RoundOver) -> Line:
        """Return the time and the tier's figures."""
        return {**self.tier.clock.figures(), "async": self.tier.take_report()}


@dataclass(frozen=True)
class AsynchronousClients(Part):
    """Edges that do not wait for their clients, or a flat algorithm's one group of clients.

    Parameters
    ----------
    mode : str
        The run's ``async.mode``.
    topology : Mapping[str, Sequence[int]]
        Node ids by edge.
    is_flat : bool
        There are no edges to name.
    tiers : Mapping[str, AsynchronousTier]
        Over the clients of each edge.
    clocks : Sequence[SimulatedClock]
        Those of the tiers; none where time is real.
    pace : Callable[[int, int], float], optional
        How long clients take; None: the clock shows it.
    """

    mode: str
    topology: Topology
    is_flat: bool
    tiers: Mapping[str, AsynchronousTier]
    clocks: Sequence[SimulatedClock]
    pace: Pace | None

    def edges(self, make_edge: MakeEdge) -> MakeEdge:
        """Return what makes edges that do not wait, of what makes their strategies."""

        def make(name: str, size: int) -> Strategy | EdgeRounds:
            strategy = make_edge(name, size)
            if not isinstance(strategy, Strategy):
                kind = type(strategy).__name__
                why = f"an algorithm whose edges are of {kind}, which runs its rounds by itself"
                raise bad_value("async.mode", self.mode, f"'off' for {why}")
            return AsynchronousEdge(strategy, self.topology[name], self.tiers[name], self.pace)

        return make

    def over_edges(self, make: MakeHierarchical) -> MakeHierarchical:
        """Return what makes the cloud over them."""
        return make if self.clocks else without_evaluations(make)

    def end_round(self, over: RoundOver) -> Line:
        """Let the clients of those edges that were done first work until the last one is; return the time and figures.

        So all edges' clocks show the same time when a global round begins.
        """
        end = max((clock.now for clock in self.clocks), default=None)
        for clock in self.clocks:
            assert end is not None
            clock.pass_until(end)
        reports = {name: tier.take_report(end) for name, tier in self.tiers.items()}
        sizes = {name: len(self.topology[name]) for name, report in reports.items() if report["idle_share"]}
        staleness: Counter[int] = Counter()
        for report in reports.values():
            staleness.update({int(each): count for each, count in report["staleness"].items()})
        where: dict[str, Any] = {name: {} if self.is_flat else {"edge": name} for name in reports}
        arrivals = [{**where[name], **line} for name, report in reports.items() for line in report["arrivals"]]
        idle = sum(reports[name]["idle_share"]["clients"] * size for name, size in sizes.items())
        return {
            **({} if end is None else {"simulated_seconds": end}),
            "async": {
                "staleness": {str(each): staleness[each] for each in sorted(staleness)},
                "too_old": sum(report["too_old"] for report in reports.values()),
                "arrivals": sorted(arrivals, key=lambda line: float(line["seconds"])),
                "at_work": sum(report["at_work"] for report in reports.values()),
                "idle_share": {"clients": round(idle / sum(sizes.values()), 6)} if sizes else {},
            },
        }


def asynchronous_run(scene: Scene) -> Part | None:
    """Return the asynchronous tier of a run; None for a run that waits for all.

    Raises
    ------
    UserError
        For a trace that is none.
    """
    case, topology, world = scene.case, scene.topology, scene.world
    section, is_timed, edge_rounds = case[Asynchrony], by_wall_clock(case), case.federation.edge_rounds
    if section.mode == "off":
        return None
    num_clients, known = len(scene.profiles), None
    if not (world or is_timed):
        drawn, in_turn = client_seconds(section, case.seed, num_clients), case.algorithm.in_turn(case.split)
        known = KnownPaces(scene.client_of, drawn, edge_rounds, in_turn)
    if case.is_flat or section.tier == "edges":
        clocks = {} if is_timed else {name: SimulatedClock(EventClock()) for name in topology}
        tiers = {
            name: tier_of(section, len(members), "clients", clocks.get(name) or WallClock())
            for name, members in topology.items()
        }
        of_clients = known.of_client if known else None
        return AsynchronousClients(section.mode, topology, case.is_flat, tiers, list(clocks.values()), of_clients)
    clock = WallClock() if is_timed else SimulatedClock(EventClock())
    tier = tier_of(section, len(topology), "edges", clock, num_clients)
    of_edges = planned_pace(world, edge_rounds) if world else known.of_edge if known else None
    return AsynchronousCloud(tier, tuple(topology), edge_rounds, of_edges, is_timed)


def tier_of(section: Asynchrony, num_nodes: int, unit: str, clock: Clock, clients: int = 0) -> AsynchronousTier:
    """Return a tier of so many nodes, and of so many clients under them where they are edges."""
    return AsynchronousTier(
        mode_of(section, num_nodes),
        clock,
        num_nodes,
        unit,
        clients=clients,
        concurrency=section.concurrency,
        max_staleness=section.max_staleness,
    )


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
    return read_csv("async.trace", section.trace, "with a time for each client", read_client_seconds, num_clients)
