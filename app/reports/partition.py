"""Who has how much of which class: ``partition.csv``, and the picture of it."""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from itertools import groupby
from pathlib import Path

import numpy as np

from espalier.app.ground.regular_files import read_text
from espalier.app.reports.folder import ResultsFolder, damaged, unreadable
from espalier.strategies import Profile
from espalier.strategies.profiles import clients_by_node

PARTITION = "partition.csv"
MOST_CLASSES = 1000  # a table, or a picture, of more helps nobody


@dataclass(frozen=True)
class ClassCounts:
    """Training examples of each class, client by client in the order of their edges.

    Attributes
    ----------
    clients : tuple[int, ...]
        Their numbers.
    edges : tuple[str, ...]
        The edge of each.
    classes : tuple[str, ...]
        The classes' names.
    counts : np.ndarray
        ``int64``, shape ``(clients, classes)``.
    """

    clients: tuple[int, ...]
    edges: tuple[str, ...]
    classes: tuple[str, ...]
    counts: np.ndarray


def class_counts(
    profiles: Sequence[Profile], topology: Mapping[str, Sequence[int]], classes: Sequence[str] = ()
) -> ClassCounts | None:
    """Return what the clients said of their classes; None where labels are no classes, or of more than a thousand.

    Parameters
    ----------
    profiles : Sequence[Profile]
        The clients.
    topology : Mapping[str, Sequence[int]]
        Node ids by edge.
    classes : Sequence[str] (default: their numbers)
        The names of the classes, by label.
    """
    counts, client_of = {profile.node_id: profile.class_counts for profile in profiles}, clients_by_node(profiles)
    members = [(edge, node_id) for edge, nodes in topology.items() for node_id in nodes if node_id in counts]
    width = max((len(counts[node_id]) for _, node_id in members), default=0)
    width = max(width, len(classes)) if width else 0  # the last of them may be nobody's
    if not 0 < width <= MOST_CLASSES:
        return None
    names = classes if width == len(classes) else range(width)
    return ClassCounts(
        tuple(client_of[node_id] for _, node_id in members),
        tuple(edge for edge, _ in members),
        tuple(map(str, names)),
        np.array([[*counts[n], *[0] * (width - len(counts[n]))] for _, n in members], dtype=np.int64),
    )


def write_partition(folder: ResultsFolder, found: ClassCounts | None) -> None:
    """Write ``partition.csv``, if there is anything to write."""
    if found is None:
        return
    table = StringIO(newline="")
    writer = csv.writer(table)
    writer.writerow(["client", "edge", *found.classes])
    writer.writerows(
        [client, edge, *row]
        for client, edge, row in zip(found.clients, found.edges, found.counts.tolist(), strict=True)
    )
    folder.write_file(PARTITION, lambda file: file.write(table.getvalue().encode()))


def read_partition(path: Path) -> ClassCounts | None:
    """Return what is in a results folder's ``partition.csv``, None where there is none; UserError for a damaged one."""
    try:
        header, *rows = csv.reader(StringIO(read_text(path / PARTITION), newline=""))
        clients, edges = [int(row[0]) for row in rows], [row[1] for row in rows]
        counts = np.array([[int(count) for count in row[2:]] for row in rows], dtype=np.int64)
        if counts.shape != (len(rows), len(header) - 2) or not counts.size or counts.min() < 0:
            raise ValueError
    except FileNotFoundError:
        return None
    except OSError as error:
        raise unreadable(path / PARTITION, error) from None
    except (ValueError, IndexError, OverflowError, csv.Error):
        raise damaged(path / PARTITION) from None
    return ClassCounts(tuple(clients), tuple(edges), tuple(header[2:]), counts)


def blocks_of(edges: Sequence[str]) -> list[tuple[str, int, int]]:
    """Return each edge with the places of its first client and of the one behind its last."""
    blocks, first = [], 0
    for edge, members in groupby(edges):
        last = first + len(list(members))
        blocks.append((edge, first, last))
        first = last
    return blocks
