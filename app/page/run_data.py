"""What a page says of a run, as plain data: read from the files of its results folder, and from nothing else."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from espalier.app.config.keys import keys_tagged
from espalier.app.features.table import FEATURES
from espalier.app.ground.errors import UserError
from espalier.app.meters.seconds import Seconds
from espalier.app.page.clients import as_table, columns_at_the_end, columns_so_far, seconds_of_last_round
from espalier.app.page.rounds import MOST_CLIENTS, Rounds
from espalier.app.page.tail import Tail
from espalier.app.reports.folder import ResultsFolder, saved_values
from espalier.app.reports.made_by import makers_of
from espalier.app.reports.owner import is_owned
from espalier.app.reports.partition import ClassCounts, read_partition
from espalier.app.reports.stopping import SoFar
from espalier.app.settings.engine_kinds import engine_unimported
from espalier.app.settings.here import HERE
from espalier.app.settings.section import Tag
from espalier.app.settings.sections import Stop

Data = dict[str, Any]
MOST_LETTERS = 5_000_000  # of all rounds' states: of earlier rounds there are none beyond
MOST_COUNTS = 1_000_000  # cells of the partition
RUNNING, OVER, INTERRUPTED, NOT_OVER = "running", "over", "interrupted", "not over"
NO_DEVICES = "Which devices are connected is in no file of the folder; the table of clients says who took part."
COUNT_THEM = " With deploy.metrics-port, espalier watch counts them while the run lasts."


@dataclass
class RunReader:
    """Reads a results folder, and what is new there when it reads again.

    Parameters
    ----------
    path : Path
        The folder.
    label : str
        What the page calls the run.
    """

    path: Path
    label: str
    _rounds: Rounds = field(default_factory=Rounds, init=False)
    _seen: tuple[Any, ...] = field(default=(), init=False)

    def __post_init__(self) -> None:
        self._metrics = Tail(self.path / "metrics.jsonl")
        self._seconds = Tail(self.path / "seconds.jsonl")
        self._folder = ResultsFolder(self.path)

    def refresh(self) -> bool:
        """Read on, and return whether anything is new.

        Raises
        ------
        UserError
            If a file can't be read, or is not what a run writes.
        """
        are_new = [tail.begins_anew() for tail in (self._metrics, self._seconds)]
        if any(are_new):
            self._rounds = Rounds()
            self._metrics.rewind()
            self._seconds.rewind()
        try:
            self._rounds.add(self._metrics.new_lines(), self._seconds.new_lines())
        except (KeyError, TypeError, ValueError, AttributeError):  # a line of something else
            raise UserError(f"{self._metrics.path}: has lines that no run writes; allowed is the run's file") from None
        stamps = (_stamp(self.path / name) for name in ("summary.json", "config.json"))
        before, self._seen = self._seen, (self._rounds.num_added, state_of(self.path, is_ended=False), *stamps)
        return self._seen != before

    def data(self, *, with_clients: bool = True) -> Data:
        """Return what the page says of the run, by what `refresh` has read.

        Parameters
        ----------
        with_clients : bool (default: True)
            Also of single clients, and the partition.

        Raises
        ------
        UserError
            If a file can't be read, or is not what a run writes.
        """
        try:
            return self._data(with_clients=with_clients)
        except (KeyError, TypeError, ValueError, AttributeError, IndexError):
            allowed = "allowed is the folder as its run left it"
            raise UserError(f"{self.path}: holds what no run writes; {allowed}") from None

    def _data(self, *, with_clients: bool) -> Data:
        rounds, settings = self._rounds, saved_values(self.path)
        summary = self._folder.read_json("summary.json")
        summary = summary if isinstance(summary, dict) and _is_of_the_end(summary, rounds, settings) else {}
        state = state_of(self.path, is_ended=bool(summary))
        count = _num_clients(rounds, settings)
        clients = range(min(count, MOST_CLIENTS) if with_clients else 0)
        notes = [
            f"{tail.path.name}: a line is damaged; what is behind it is not shown"
            for tail in (self._metrics, self._seconds)
            if tail.damaged
        ]
        if count > len(clients) and with_clients:
            notes.append(f"Single clients are shown up to number {len(clients) - 1:,}, of {count:,}.")
        if not with_clients:
            notes.append("Single clients are left out, as the page has many runs: espalier page FOLDER shows them.")
        if not HERE[settings["deploy.role"]].has_cloud:
            notes.append("This is the folder of an edge host, which has no global rounds: the cloud's has all.")
        world = self._folder.read_json("world.json") if with_clients else None
        ended = columns_at_the_end(self.path, clients) if state == OVER else {}
        columns = (ended or columns_so_far(rounds, clients)) | seconds_of_last_round(rounds, clients)
        partition = read_partition(self.path) if with_clients else None
        # Of clients that no edge has asked yet, too.
        edges = {own["client"]: own["edge"] for own in (world or {}).get("clients", ())}
        edges |= dict(zip(partition.clients, partition.edges, strict=True)) if partition else {}
        edges |= rounds.edge_of
        names = list(dict.fromkeys([*rounds.of_edges, *edges.values()]))
        place = {name: i for i, name in enumerate(names)}
        first, states = _states(rounds, len(clients))
        return {
            "label": self.label,
            "title": f"{settings['algorithm']} on {settings['task'] or settings['dataset']}, seed {settings['seed']}",
            "state": state,
            "stopped": str(summary.get("stopped", "")),
            "rounds": settings["global-rounds"],
            "notes": notes,
            "settings": [[key, _text(value)] for key, value in settings.items()],
            "made_by": [[key, value] for maker in makers_of(self._folder)[-1:] for key, value in maker.items()],
            "numbers": rounds.numbers,
            "series": _aligned(rounds.figures),
            "edges": [_edge(rounds, name) for name in names],
            "num_clients": count,
            "clients": as_table("Clients", columns),
            "edge_of": [place.get(edges.get(client, ""), -1) for client in clients],
            "first_state": first,
            "states": states,
            "reasons": [[client, *rounds.reasons[client]] for client in sorted(rounds.reasons) if client in clients],
            "failures": rounds.failures,
            "cloud_failures": [[number, reason] for number, reason in rounds.cloud_failures],
            "partition": _partition(partition, is_over=bool(summary)),
            "tables": [
                as_table(table.title, table.columns)
                for feature in FEATURES
                for table in feature.tables(rounds.lines, world)
            ],
            "world": _map_of(world),
            "devices": _devices(settings),
        }


def state_of(path: Path, *, is_ended: bool) -> str:
    """Return whether a run goes on, is over, or was interrupted; who may not write there can't tell."""
    try:
        is_running = is_owned(path)
    except OSError:
        return OVER if is_ended else NOT_OVER
    return RUNNING if is_running else OVER if is_ended else INTERRUPTED


def _is_of_the_end(summary: Data, rounds: Rounds, settings: Mapping[str, Any]) -> bool:
    """Return whether a run has ended as a summary says; one that goes on has that of its earlier end."""
    if summary.get("rounds") != rounds.last:
        return False
    stop = Stop(**{key.removeprefix("stop."): value for key, value in settings.items() if key.startswith("stop.")})
    return bool(rounds.last >= settings["global-rounds"] or SoFar.of(rounds.lines).reason(stop))


def differing(settings: Sequence[Mapping[str, str]]) -> list[list[list[str]]]:
    """Return for each of several runs the settings, in words, in which they differ, with their keys."""
    hidden = keys_tagged(Tag.HOW, Tag.BESIDE) - {"seed"}
    keys = [key for own in settings for key in own if key not in hidden]
    told = [key for key in dict.fromkeys(keys) if len({own.get(key) for own in settings}) > 1]
    return [[[key, own.get(key, "")] for key in told] for own in settings]


def _num_clients(rounds: Rounds, settings: Mapping[str, Any]) -> int:
    seen = {*rounds.edge_of, *map(int, rounds.evaluated.get("clients", {}))}
    return max([int(settings.get("num-clients", 0)), *(client + 1 for client in seen)])


def _states(rounds: Rounds, width: int) -> tuple[int, list[str]]:
    """Return the place of the first round of which clients' states are told, and the states from there on."""
    most = MOST_LETTERS // max(width, 1)
    first = max(0, len(rounds.states) - most) if width else len(rounds.states)
    return first, [states[:width].ljust(width, ".") for states in rounds.states[first:]]


def _aligned(rounds: Sequence[Mapping[str, float] | None]) -> list[list[Any]]:
    """Return names and, for each, its figure in every round, None where there is none."""
    names = dict.fromkeys(name for own in rounds if own for name in own)
    return [[name, [_short((own or {}).get(name)) for own in rounds]] for name in names]


def _short(value: float | None) -> float | int | None:
    """Return a figure, a whole number without its decimals."""
    return int(value) if value is not None and value.is_integer() and abs(value) < 2**53 else value


def _edge(rounds: Rounds, name: str) -> Data:
    own = rounds.of_edges[name]
    figures = [_without_kinds(own[number]) if number in own else None for number in rounds.numbers]
    return {
        "name": name,
        "series": _aligned(figures),
        "seconds": rounds.edge_seconds.get(name, Seconds()).as_data(),
    }


def _without_kinds(figures: Mapping[str, float]) -> dict[str, float]:
    """Return an edge's figures, with one for all its bytes."""
    kept = {name: value for name, value in figures.items() if not name.startswith("bytes/")}
    return kept | {"bytes": sum((value for name, value in figures.items() if name.startswith("bytes/")), 0.0)}


def _partition(found: ClassCounts | None, *, is_over: bool) -> Data:
    """Return who has how much of which class, or a note where that is not told."""
    if found is None:
        end = "partition.csv is written at the end of a run, where labels are classes."
        return {"note": "There is no partition.csv: labels are no classes." if is_over else end}
    if found.counts.size > MOST_COUNTS:
        rows, classes = found.counts.shape
        return {"note": f"partition.csv has {rows:,} clients and {classes:,} classes, too many for this page."}
    return {
        "classes": list(found.classes),
        "clients": list(found.clients),
        "edges": list(found.edges),
        "counts": found.counts.tolist(),
    }


def _map_of(world: Mapping[str, Any] | None) -> Data | None:
    """Return where base stations and clients are, None where they have no places."""
    if not world or "base_stations" not in world:
        return None
    stations: Iterable[Mapping[str, Any]] = world["base_stations"]
    return {
        "radius": world["radius_metres"],
        "stations": [[own["cell"], own["x_metres"], own["y_metres"]] for own in stations],
        "clients": [[own["client"], own["cell"], own["x_metres"], own["y_metres"]] for own in world["clients"]],
    }


def _devices(settings: Mapping[str, Any]) -> Data | None:
    """Return what is known of connected devices; None in a simulation of this project's own."""
    if not engine_unimported(settings["engine"]).is_flowers:
        return None
    port = settings.get("deploy.metrics-port") or 0
    return {"port": port, "count": None, "note": NO_DEVICES + ("" if port else COUNT_THEM)}


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
