"""What a feature is: a frozen value that says what it adds to the settings, to a run and to its reports."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy
from torch import nn

from espalier.app.features.case import Case
from espalier.app.planning.world import PlannedWorld
from espalier.app.settings.section import Section
from espalier.clients.half import ClientHalf, Outgoing
from espalier.strategies import EdgeRounds, Hierarchical, Observer, Profile, Round
from espalier.strategies.compression import Uplinks
from espalier.strategies.profiles import clients_by_node
from espalier.strategies.topology import Topology, TopologyOf

Line = dict[str, Any]
# Makes the edge of a name and a number of nodes.
MakeEdge = Callable[[str, int], Strategy | EdgeRounds]
MakeHierarchical = Callable[..., Hierarchical]
# Keys, and why a run has no use for them.
Unused = Iterable[tuple[Iterable[str], str]]


@dataclass(frozen=True)
class Scene:
    """What the parts of a run are made for.

    Parameters
    ----------
    case : Case
        What is asked for.
    profiles : Sequence[Profile]
        The clients, in client order.
    topology : Mapping[str, Sequence[int]]
        Node ids by edge, at the start.
    world : PlannedWorld, optional
        What rounds are planned for.
    model : nn.Module
        What is trained.
    topology_of : Callable[[int], Mapping[str, Sequence[int]]], optional (default: None)
        Says who is under each edge in a global round; None: nobody moves.
    """

    case: Case
    profiles: Sequence[Profile]
    topology: Topology
    world: PlannedWorld | None
    model: nn.Module
    topology_of: TopologyOf | None = None

    @cached_property
    def client_of(self) -> Mapping[int, int]:
        """Client number by node id, in client order."""
        return clients_by_node(self.profiles)

    def edges_in(self, number: int) -> dict[str, list[int]]:
        """Return the numbers of the clients of each edge in a global round."""
        client_of, topology = self.client_of, self.topology_of(number) if self.topology_of else self.topology
        return {name: [client_of[node_id] for node_id in members] for name, members in topology.items()}


class Presence(Protocol):
    """Says of clients, by their numbers, whether they are there in an edge round, counted from 1 over global rounds."""

    def is_there(self, client: int, edge_round: int) -> bool:
        """Return whether a client is there when an edge round begins."""

    def drops_out(self, client: int, edge_round: int) -> bool:
        """Return whether a client that is there is gone before it answers."""


@dataclass(frozen=True)
class RoundOver:
    """A global round that is over.

    Parameters
    ----------
    outcome : Round
        What it gave.
    is_last : bool
        It was the run's last one.
    at_work : Mapping[str, Collection[int]]
        The numbers of the edge rounds that are under way, by edge.
    """

    outcome: Round
    is_last: bool
    at_work: Mapping[str, Collection[int]]


class State(StrEnum):
    """What a client did in a global round, the first that is true of it."""

    DROPPED_OUT = "d"
    LATE = "l"
    LEFT_OUT = "x"
    TRAINED = "t"
    SPARE = "s"  # it trained, and nobody waited for its result
    AWAY = "a"
    WAITED = "w"  # its edge did not ask it


class Did(NamedTuple):
    """What a client, by its number, did in a round of its edge, and why."""

    client: int
    state: State
    why: str = ""


@dataclass(frozen=True)
class Table:
    """A table on the page of a run.

    Parameters
    ----------
    title : str
        What it shows.
    columns : Mapping[str, Sequence[Any]]
        Equally long, by names that end with the unit, as those in ``clients.csv``.
    """

    title: str
    columns: Mapping[str, Sequence[Any]]


class Watcher(Protocol):
    """Is told of the lines of ``metrics.jsonl`` while a run, or an edge host, lasts."""

    def lines_over(self, lines: Sequence[Line]) -> None:
        """Notice lines that were written together: those of a round, or of an edge host's answer."""

    def go_on_from(self, lines: Sequence[Line]) -> None:
        """Notice the lines of the rounds before, where a run goes on."""


class Part:
    """What a feature puts into a run; each method that a feature does without does nothing."""

    def edges(self, make_edge: MakeEdge) -> MakeEdge:
        """Return what makes the run's edges, of what makes those of the features before."""
        return make_edge

    def over_edges(self, make: MakeHierarchical) -> MakeHierarchical:
        """Return what makes the cloud over them; parameters as of `Hierarchical`."""
        return make

    def edge_rounds_at_work(self) -> Mapping[str, Collection[int]]:
        """Return the numbers of the edge rounds that are under way between global rounds, by edge."""
        return {}

    def go_on_from(self, lines: Sequence[Line]) -> None:
        """Take back what follows from the lines of ``metrics.jsonl`` of the rounds before, where a run goes on."""

    def is_over(self) -> str:
        """Return why no round can follow those before, where a run goes on; nothing if one can."""
        return ""

    def ends(self, outcome: Round) -> str:
        """Return why the run ends with a round, of which no line is written yet; nothing if it goes on."""
        return ""

    def observers(self) -> Sequence[Observer]:
        """Return who watches messages and rounds of the cloud."""
        return ()

    def of_edge(self, name: str, over: RoundOver) -> Line:
        """Return what an edge's line says of a round that is over."""
        return {}

    def end_round(self, over: RoundOver) -> Line:
        """Return what the global line says of a round that is over; told after all edges."""
        return {}


@dataclass(frozen=True)
class Feature:
    """A feature of runs.

    Parameters
    ----------
    name : str
        Of its folder.
    section : type[Section], optional (default: None)
        Its settings.
    check : Callable[[Case], None], optional
        Refuses values that are fine alone and impossible together, see `espalier.app.config.together`.
    check_strategies : Callable[[Case], None], optional
        Refuses strategies; servers call it, as it imports those of other packages.
    check_files : Callable[[Case], None], optional
        Refuses files that its settings name.
    check_model : Callable[[Case, nn.Module], None], optional
        Refuses models that its settings do not suit.
    check_node : Callable[[Case, Mapping[str, object]], None], optional
        Refuses, on a client, runs in which it takes no part by its node's config.
    falls_short : Callable[[Case], Mapping[str, str]], optional
        Says which strategies can do less in a run than they say, by their keys, and why; for servers alone, too.
    without_use : Callable[[Case], Iterable[tuple[Iterable[str], str]]], optional
        Says which of its settings a run has no use for, and why.
    out_of_step : Callable[[Case], str], optional
        Says why edges, or clients, are in rounds of their own; nothing where a round is everybody's.
    single_updates : Callable[[Case], str], optional
        Says what of it needs the single updates of clients at their edge; nothing where averages are enough.
    as_sent : Callable[[Case], str], optional
        Says why the models of edges have to arrive as they were sent; nothing where they need not.
    splits_edges : Callable[[Case], bool], optional
        Whether an edge's clients are not its own affair in a round, or it is not known at first whose they are.
    associate : Callable[[Scene], Topology | None], optional
        Puts clients under other edges before the run begins, in its world too; None: they stay where they are.
    mover : Callable[[Case], tuple[str, str] | None], optional
        The key by which clients move from one edge to another, and its value without moves; None: by none of its own.
    check_moves : Callable[[Case], str], optional
        Says why clients can't move between edges; nothing if they can.
    topology_of : Callable[[Scene, Grid], TopologyOf | None], optional
        Says who is under each edge in a global round, where its mover has them move.
    may_leave_nobody : Callable[[Case], bool], optional
        Whether a run in which nobody trained is over: that nobody can take part is what it has to say.
    presence : Callable[[Case], Presence | None], optional
        Says which clients are there; None: all.
    half : Callable[[Case, ClientHalf], ClientHalf], optional
        What the algorithm's clients do, of what they do without it.
    outgoing : Callable[[Case], Iterable[Outgoing]], optional
        What the replies of clients pass on their way out, wherever they run.
    withheld : Callable[[Case], Collection[str]], optional
        The metrics of training that clients do not tell.
    in_front : Callable[[Scene, MakeEdge], MakeEdge], optional
        What it puts in front of edges, wherever they run.
    uplinks : Callable[[Case], Uplinks | None], optional
        What carries models up from edges that have hosts of their own, one at either end; None: they come as they are.
    part : Callable[[Scene], Part | None], optional
        What it puts into a run, where the cloud is.
    watch : Callable[[Case, Callable[[], int]], AbstractContextManager[Watcher | None]], optional
        Opens what watches a run, or an edge host, while it lasts; gets what counts the nodes that are connected.
    summary : Callable[[Sequence[Line]], Line], optional
        What ``summary.json`` says of it, by the lines of ``metrics.jsonl``.
    words : Callable[[Mapping[str, Any]], Iterable[str]], optional
        What the table at the end of a run says of it, by ``summary.json``.
    columns : Callable[[Sequence[Line], Sequence[int]], Mapping[str, Sequence[Any]]], optional
        What ``clients.csv`` says of it, by name, with a value for each of some clients.
    states : Callable[[Line], Iterable[Did]], optional
        What an edge's line says that clients did in its round.
    tables : Callable[[Sequence[Line], Mapping[str, Any] | None], Iterable[Table]], optional
        What the page of a run shows of it, by the lines of edges and rounds and what ``world.json`` holds.
    draw : Callable[[Path, str, Sequence[Line], Mapping[str, Any] | None], object], optional
        Draws its plots into a folder, with a title, by the same lines and what ``world.json`` holds.
    """

    name: str
    section: type[Section] | None = None
    check: Callable[[Case], None] = lambda case: None
    check_strategies: Callable[[Case], None] = lambda case: None
    check_files: Callable[[Case], None] = lambda case: None
    check_model: Callable[[Case, nn.Module], None] = lambda case, model: None
    check_node: Callable[[Case, Mapping[str, object]], None] = lambda case, node_config: None
    falls_short: Callable[[Case], Mapping[str, str]] = lambda case: {}
    without_use: Callable[[Case], Unused] = lambda case: ()
    out_of_step: Callable[[Case], str] = lambda case: ""
    single_updates: Callable[[Case], str] = lambda case: ""
    as_sent: Callable[[Case], str] = lambda case: ""
    splits_edges: Callable[[Case], bool] = lambda case: False
    associate: Callable[[Scene], Topology | None] = lambda scene: None
    mover: Callable[[Case], tuple[str, str] | None] = lambda case: None
    check_moves: Callable[[Case], str] = lambda case: ""
    topology_of: Callable[[Scene, Grid], TopologyOf | None] = lambda scene, grid: None
    may_leave_nobody: Callable[[Case], bool] = lambda case: False
    presence: Callable[[Case], Presence | None] = lambda case: None
    half: Callable[[Case, ClientHalf], ClientHalf] = lambda case, half: half
    outgoing: Callable[[Case], Iterable[Outgoing]] = lambda case: ()
    withheld: Callable[[Case], Collection[str]] = lambda case: ()
    in_front: Callable[[Scene, MakeEdge], MakeEdge] = lambda scene, make_edge: make_edge
    uplinks: Callable[[Case], Uplinks | None] = lambda case: None
    part: Callable[[Scene], Part | None] = lambda scene: None
    watch: Callable[[Case, Callable[[], int]], AbstractContextManager[Watcher | None]] = lambda case, count: (
        nullcontext()
    )
    summary: Callable[[Sequence[Line]], Line] = lambda lines: {}
    words: Callable[[Mapping[str, Any]], Iterable[str]] = lambda summary: ()
    columns: Callable[[Sequence[Line], Sequence[int]], Mapping[str, Sequence[Any]]] = lambda lines, clients: {}
    states: Callable[[Line], Iterable[Did]] = lambda line: ()
    tables: Callable[[Sequence[Line], Mapping[str, Any] | None], Iterable[Table]] = lambda lines, world: ()
    draw: Callable[[Path, str, Sequence[Line], Mapping[str, Any] | None], object] = lambda *what: None
