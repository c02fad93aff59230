"""What outlives a request to an edge, and travels with it: each brings it, each answer returns it."""

from collections.abc import Mapping, MutableMapping, Sequence
from secrets import token_hex
from typing import Any, Protocol

from flwr.app import ConfigRecord

from espalier.app.planning.world import PlannedWorld
from espalier.app.tiers.wire import Wire
from espalier.clients.memory import RUN
from espalier.sim.in_process_grid import InProcessGrid
from espalier.strategies import Edge


class EdgeState(Protocol):
    """The state of an edge where it runs."""

    @property
    def told(self) -> ConfigRecord:
        """What clients are to be told of it in each instruction."""

    def from_request(self, state: Wire) -> None:
        """Take what came with a request."""

    def before_training(self) -> None:
        """Learn that the request is one to train, after its state was taken: what clients keep moves on."""

    def to_answer(self) -> Wire:
        """Return what goes with the answer."""


class CloudState(Protocol):
    """The same, as whoever asks the edge keeps it between requests."""

    @property
    def is_untried(self) -> bool:
        """Whether it came from a file, and the edge has not worked with it yet: if it fails, the file is no good."""

    def to_request(self) -> Wire:
        """Return what goes with a request."""

    def from_answer(self, state: Wire) -> None:
        """Take what came with an answer; raises whatever it can't be taken for."""

    def state_dict(self) -> dict[str, Any]:
        """Return what must survive an interruption."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what `state_dict` returned."""


class OwnState:
    """The state of an edge on a host of its own; what its clients keep, they keep themselves.

    A host serves one run of the cloud after the other, and clients keep a state for as long as it does. So each run has
    a name, which comes with its state; where another comes, nothing goes by what clients keep any more, and they are
    told to forget it.

    Each request to train moves clients on from the state that it brings to that of its answer, which has a mark of its
    own. Where the next one brings another mark, the answer is lost, or the cloud has gone back to an earlier round:
    clients are ahead of the state, and begin anew with it.

    Parameters
    ----------
    edge : Edge
        The edge.
    world : PlannedWorld, optional
        What its plans are made for; counts the joules of its clients.
    """

    def __init__(self, edge: Edge, world: PlannedWorld | None) -> None:
        self._edge = edge
        self._world = world
        self._run = ""
        self._has_other = False  # whether clients may keep something of another run
        self._mark = ""  # of the state here
        self._clients_mark = ""  # of the state that goes with what clients keep

    def from_request(self, state: Wire) -> None:
        """Take what came with a request."""
        self._edge.load_state_dict(state["edge"])
        if self._world:
            self._world.load_state_dict(state["world"])
        self._mark = state.get("mark", "")
        if not self._run or state.get("run") != self._run:
            self._begin_anew()

    def before_training(self) -> None:
        """Have clients begin anew if they are ahead of the state, and mark that of the answer."""
        if self._mark != self._clients_mark:
            self._begin_anew()
        self._mark = self._clients_mark = token_hex(8)

    def to_answer(self) -> Wire:
        """Return what goes with the answer."""
        world = self._world.state_dict() if self._world else None
        return {"edge": self._edge.state_dict(), "world": world, "run": self._run, "mark": self._mark}

    @property
    def told(self) -> ConfigRecord:
        """The run's name, where clients may keep something of another."""
        return ConfigRecord({RUN: self._run} if self._has_other else {})

    def _begin_anew(self) -> None:
        self._has_other = bool(self._run)
        self._run = token_hex(8)
        self._mark = self._clients_mark
        self._edge.inner.clients_begin_anew()


class WholeState:
    """The state of an edge that any worker can serve: with labels that are registered, and what its clients keep.

    Parameters
    ----------
    edge : Edge
        The edge.
    world : PlannedWorld, optional
        What its plans are made for; joules and time are counted by whoever asks, from the plans that come back.
    grid : InProcessGrid
        Has the edge's clients, and no others.
    clients : Sequence[int]
        Their numbers, in the order of the grid's nodes.
    """

    def __init__(self, edge: Edge, world: PlannedWorld | None, grid: InProcessGrid, clients: Sequence[int]) -> None:
        self._edge = edge
        self._world = world
        self._grid = grid
        self._clients = clients
        self._labels = edge.inner.labels

    def from_request(self, state: Wire) -> None:
        """Take what came with a request."""
        self._edge.load_state_dict(state["edge"])
        if self._world:
            self._world.options = dict(state["options"])
        if self._labels:
            self._labels.load_state_dict(state["labels"])
        kept = state["clients"]
        if not kept:  # they have lost it, or never had any
            self._edge.inner.clients_begin_anew()
        self._grid.load_state_dict({str(i): kept[client] for i, client in enumerate(self._clients) if client in kept})

    def before_training(self) -> None:
        """Do nothing: what clients keep came with the request."""

    def to_answer(self) -> Wire:
        """Return what goes with the answer."""
        kept = {self._clients[int(i)]: state for i, state in self._grid.state_dict().items()}
        labels = self._labels.state_dict() if self._labels else {}
        return {"edge": self._edge.state_dict(), "labels": labels, "clients": kept}

    @property
    def told(self) -> ConfigRecord:
        """Nothing: what they keep comes with each request."""
        return ConfigRecord()


class AtCloud:
    """The state of an edge on a host of its own, as the cloud keeps it: as it came.

    Parameters
    ----------
    state : dict
        The edge's state at the start.
    """

    is_untried = False  # an edge's host can fail for reasons of its own

    def __init__(self, state: Wire) -> None:
        self._state = state

    def to_request(self) -> Wire:
        """Return what goes with a request."""
        return self._state

    def from_answer(self, state: Wire) -> None:
        """Take what came with an answer."""
        if not isinstance(state, dict):
            raise TypeError(f"its state is a {type(state).__name__}")
        self._state = state

    def state_dict(self) -> dict[str, Any]:
        """Return what must survive an interruption."""
        return self._state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what `state_dict` returned."""
        self._state = dict(state)


class AtDriver:
    """The state of an edge that workers serve, as the run that asks them keeps it: as where all is in one process.

    What must survive an interruption is the edge's alone; clients' and the world's states are the run's, and labels are
    registered anew.

    Parameters
    ----------
    clients : Sequence[int]
        Numbers of the edge's clients.
    kept : MutableMapping[str, bytes]
        What all clients of the run keep from round to round, by their numbers.
    world : PlannedWorld, optional
        Of the whole run; knows the plans.
    """

    def __init__(self, clients: Sequence[int], kept: MutableMapping[str, bytes], world: PlannedWorld | None) -> None:
        self.is_untried = False
        self.clients = clients
        self._kept = kept
        self._world = world
        self._edge: dict[str, Any] = {}
        self._labels: dict[int, Any] = {}

    def to_request(self) -> Wire:
        """Return what goes with a request."""
        kept = {client: self._kept[str(client)] for client in self.clients if str(client) in self._kept}
        options = self._world.options if self._world else {}
        chosen = {client: options[client] for client in self.clients if client in options}
        return {"edge": self._edge, "labels": self._labels, "clients": kept, "options": chosen}

    def from_answer(self, state: Wire) -> None:
        """Take what came with an answer."""
        self._edge, self._labels, kept = state["edge"], state["labels"], state["clients"]
        self.is_untried = False
        for client in self.clients:
            if client in kept:
                self._kept[str(client)] = kept[client]
            else:
                self._kept.pop(str(client), None)

    def state_dict(self) -> dict[str, Any]:
        """Return what must survive an interruption."""
        return self._edge

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what `state_dict` returned."""
        self._edge, self._labels = dict(state), {}
        self.is_untried = True
