"""The columns of a page's table of clients."""

import csv
from collections.abc import Mapping, Sequence
from io import StringIO
from pathlib import Path
from typing import Any

from espalier.app.features.table import FEATURES
from espalier.app.ground.regular_files import read_text
from espalier.app.meters.seconds import PARTS
from espalier.app.page.rounds import Rounds, number_or_none
from espalier.app.reports.folder import damaged, unreadable
from espalier.clients.messages.train import NUM_EXAMPLES, PERSONAL

CLIENTS = "clients.csv"
Columns = dict[str, Sequence[Any]]


def columns_so_far(rounds: Rounds, clients: Sequence[int]) -> Columns:
    """Return what is known of clients while their run goes on, by the names of ``clients.csv``."""
    own = [rounds.evaluated.get("clients", {}).get(str(client), {}) for client in clients]
    columns: Columns = {"test_examples": [number_or_none(one.get(NUM_EXAMPLES)) for one in own]}
    names = dict.fromkeys(name for one in own for name, value in one.items() if number_or_none(value) is not None)
    for name in names:
        if name != NUM_EXAMPLES:
            shown = f"personal_{name.removeprefix(PERSONAL)}" if name.startswith(PERSONAL) else name
            columns[shown] = [number_or_none(one.get(name)) for one in own]
    columns["times_left_out"] = [rounds.left_out[client] for client in clients]
    lines = [*rounds.lines, rounds.seconds_line()]
    for feature in FEATURES:
        columns |= feature.columns(lines, clients)
    return columns


def columns_at_the_end(folder: Path, clients: Sequence[int]) -> Columns:
    """Return what ``clients.csv`` says of clients; nothing without that file.

    Raises
    ------
    UserError
        If it can't be read, or is not what a run writes.
    """
    path = folder / CLIENTS
    try:
        rows = list(csv.DictReader(StringIO(read_text(path), newline=""), strict=True))
        names = [name for name in (rows[0] if rows else ()) if name not in ("client", "edge")]
        by_client = {int(row["client"]): {name: _number(row[name]) for name in names} for row in rows}
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise unreadable(path, error) from None
    except (ValueError, KeyError, TypeError, AttributeError, csv.Error):
        raise damaged(path) from None
    return {name: [by_client.get(client, {}).get(name) for client in clients] for name in names}


def seconds_of_last_round(rounds: Rounds, clients: Sequence[int]) -> Columns:
    """Return the three parts of what each client took in the last round, None where it was not asked."""
    last = [own.as_data() if (own := rounds.last_seconds.get(client)) else {} for client in clients]
    return {f"last_{part}_seconds": [own.get(f"{part}_seconds") for own in last] for part in PARTS}


def _number(text: str) -> float | int | None:
    if text == "":
        return None
    return int(text) if text.removeprefix("-").isdecimal() else float(text)


def as_table(title: str, columns: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
    """Return a table as the page takes it."""
    return {"title": title, "columns": [[name, list(values)] for name, values in columns.items()]}
