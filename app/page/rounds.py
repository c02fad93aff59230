"""What the lines of a run come to, line by line, without what single clients had in rounds before the last."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

from espalier.app.features.feature import Did, State
from espalier.app.features.table import FEATURES
from espalier.app.ground.figures import is_number
from espalier.app.meters.seconds import Seconds
from espalier.app.reports.metrics import failures_of
from espalier.app.reports.trackers.figures import figures_of
from espalier.strategies.exchange import is_late

Line = dict[str, Any]
MOST_CLIENTS = 50_000  # whose parts are on a page; figures over clients are of all
LONGEST_REASON = 300  # characters
GRAVITY = {state.value: place for place, state in enumerate(State)}
UNKNOWN = "."  # no line of its edge says anything of it
# What edge lines hold and nobody asks for once it has been counted.
COUNTED = ("participants", "failures", "away", "dropped_out")


class Rounds:
    """The rounds of a run so far.

    Attributes
    ----------
    num_added : int
        Lines that were added and count.
    numbers : list[int]
        Of the global rounds that are over.
    figures : list[dict[str, float]]
        Of each of them, by names like ``accuracy/mean``.
    of_edges : dict[str, dict[int, dict[str, float]]]
        By edge and round.
    states : list[str]
        What each client did in each round, a letter of `State` at the place of its number, or `UNKNOWN`.
    reasons : dict[int, tuple[int, str]]
        The round in which a client was left out last, and why.
    failures : int
        All of them, those of fine-tuning too.
    left_out : Counter[int]
        How often replies of a client were.
    edge_of : dict[int, str]
        The edge that each client was under last.
    evaluated : dict[str, Any]
        The last line with figures of single clients, and nothing before there is one.
    cloud_failures : list[tuple[int, str]]
        Rounds, and why the cloud kept its model.
    lines : list[dict]
        All lines, without what is above.
    last_seconds, all_seconds : dict[int, Seconds]
        Of each client in the last round, and in all.
    edge_seconds : dict[str, Seconds]
        Of each edge, in the last round that it took part in.
    """

    def __init__(self) -> None:
        self.num_added = 0
        self.numbers: list[int] = []
        self.figures: list[dict[str, float]] = []
        self.of_edges: dict[str, dict[int, dict[str, float]]] = defaultdict(dict)
        self.states: list[str] = []
        self.reasons: dict[int, tuple[int, str]] = {}
        self.failures = 0
        self.left_out: Counter[int] = Counter()
        self.edge_of: dict[int, str] = {}
        self.evaluated: Line = {}
        self.cloud_failures: list[tuple[int, str]] = []
        self.lines: list[Line] = []
        self.last_seconds: dict[int, Seconds] = {}
        self.all_seconds: dict[int, Seconds] = {}
        self.edge_seconds: dict[str, Seconds] = {}
        self._round = bytearray()  # the letters of the round whose edge lines are read
        self._members: dict[str, set[int]] = defaultdict(set)
        self._begun: list[Line] = []  # lines of a round that is not over
        self._waiting: list[Line] = []  # seconds of rounds whose other lines are not there yet

    @property
    def last(self) -> int:
        """The number of the last global round that is over, 0 before the first."""
        return self.numbers[-1] if self.numbers else 0

    def add(self, lines: Iterable[Line], seconds: Iterable[Line] = ()) -> None:
        """Add lines of ``metrics.jsonl`` that are new, and of ``seconds.jsonl``; no more than a round's are kept."""
        waiting: Iterator[Line] = chain(self._waiting, seconds)
        self._waiting = []
        for line in lines:
            self._begun.append(line)
            if line["scope"] != "edge":
                # Seconds first: they say who is under which edge.
                waiting = self._seconds_until(line["round"], waiting)
                self._end_round()
        waiting = self._seconds_until(self.last, waiting)
        self._waiting = list(waiting)

    def _seconds_until(self, number: int, waiting: Iterator[Line]) -> Iterator[Line]:
        """Add the seconds up to a round, and return those behind them."""
        for line in waiting:
            if line["round"] > number:
                return chain([line], waiting)
            self._seconds(line)
        return iter(())

    def _end_round(self) -> None:
        take = {"edge": self._edge, "global": self._global, "personalised": self._personalised}
        self.num_added += len(self._begun)
        for line in self._begun:
            if (how := take.get(line["scope"])) is not None:
                how(line)
        self._begun = []

    def seconds_line(self) -> Line:
        """Return one line of ``seconds.jsonl`` that stands for all."""
        clients = {
            str(client): {"edge": self.edge_of.get(client, ""), **own.as_data()}
            for client, own in sorted(self.all_seconds.items())
        }
        return {"round": self.last, "scope": "seconds", "clients": clients, "edges": {}}

    def _edge(self, line: Line) -> None:
        name = line["edge"]
        members = self._members[name]
        did = list(_did(line))
        for client, _, _ in did:
            if client not in members:
                self._moves(client, name)
        for client in members:
            _put(self._round, client, State.WAITED)
        for client, state, why in did:
            _put(self._round, client, state)
            if why:
                self.reasons[client] = (line["round"], why[:LONGEST_REASON])
        self._count(line)
        self.of_edges[name][line["round"]] = figures_of(line)
        self.lines.append({key: value for key, value in line.items() if key not in COUNTED})

    def _global(self, line: Line) -> None:
        self.numbers.append(line["round"])
        self.figures.append(figures_of(line))
        self.states.append(self._round.decode())
        self._round = bytearray()
        self.failures += line["failures"]
        self._count(line)
        self.cloud_failures += [(line["round"], reason) for reason in line.get("cloud_failures", ())]
        if "clients" in line:
            self.evaluated = line
        self.lines.append({key: value for key, value in line.items() if key != "clients"})

    def _personalised(self, line: Line) -> None:
        self.failures += len(line["failures"])
        self._count(line, "fine-tuning: ")

    def _count(self, line: Line, otherwise: str = "evaluation: ") -> None:
        for one in failures_of(line):
            if (client := one["client"]) is not None:
                when = "" if "edge_round" in one else otherwise
                self.left_out[client] += 1
                self.reasons[client] = (line["round"], (when + one["reason"])[:LONGEST_REASON])

    def _seconds(self, line: Line) -> None:
        self.last_seconds = {}
        for text, own in line["clients"].items():
            client, seconds = int(text), Seconds.from_data(own)
            self.last_seconds[client] = seconds
            self.all_seconds[client] = self.all_seconds.get(client, Seconds()) + seconds
            self._moves(client, own["edge"])
        for name, own in line["edges"].items():
            self.edge_seconds[name] = Seconds.from_data(own)

    def _moves(self, client: int, edge: str) -> None:
        before = self.edge_of.get(client)
        if before != edge:
            self._members[before or ""].discard(client)
            self._members[edge].add(client)
            self.edge_of[client] = edge


def _did(line: Line) -> Iterator[Did]:
    """Yield what an edge's line says that clients did, each as often as it says so."""
    for clients in line["participants"]:
        yield from (Did(client, State.TRAINED) for client in clients)
    for one in line["failures"]:
        if one["client"] is not None and not one.get("evaluation"):
            state = State.LATE if is_late(one["reason"]) else State.LEFT_OUT
            yield Did(one["client"], state, one["reason"])
    for feature in FEATURES:
        yield from feature.states(line)


def _put(letters: bytearray, client: int, state: State) -> None:
    """Write what a client did, unless something that weighs more is there."""
    if not 0 <= client < MOST_CLIENTS:
        return
    if client >= len(letters):
        letters += UNKNOWN.encode() * (client + 1 - len(letters))
    there = chr(letters[client])
    if there == UNKNOWN or GRAVITY[state.value] < GRAVITY[there]:
        letters[client] = ord(state.value)


def number_or_none(value: Any) -> Any:
    """Return a number as it is in the file, None for what is none."""
    return value if is_number(value) and not isinstance(value, bool) else None
