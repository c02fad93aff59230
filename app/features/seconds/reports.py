"""What is reported of the seconds of clients and edges, from the lines of ``seconds.jsonl``."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from espalier.app.features.feature import Line
from espalier.app.meters.seconds import PARTS, Seconds


@dataclass(frozen=True)
class Totals:
    """Seconds over all rounds.

    Parameters
    ----------
    clients : dict[int, Seconds]
        By client number, of those who were asked, in client order.
    edges : dict[str, Seconds]
        By edge.
    edge_of : dict[int, str]
        The edge that each client was under last.
    """

    clients: dict[int, Seconds]
    edges: dict[str, Seconds]
    edge_of: dict[int, str]


def totals_of(lines: Sequence[Line]) -> Totals:
    """Return what the lines of ``seconds.jsonl`` come to; lines of other kinds are passed over."""
    clients, edges, edge_of = dict[int, Seconds](), dict[str, Seconds](), dict[int, str]()
    for line in lines:
        if line["scope"] == "seconds":
            for text, own in line["clients"].items():
                client = int(text)
                clients[client] = clients.get(client, Seconds()) + Seconds.from_data(own)
                edge_of[client] = own["edge"]
            for name, own in line["edges"].items():
                edges[name] = edges.get(name, Seconds()) + Seconds.from_data(own)
    return Totals(dict(sorted(clients.items())), edges, edge_of)


def slowest_summary(lines: Sequence[Line]) -> Line:
    """Return what ``summary.json`` says of it: ``seconds``; nothing for a run of an edition that did not tell.

    Returns
    -------
    dict
        ``seconds.slowest``: the ``client`` and, of several, the ``edge`` whose training and transfer took longest, as
        a mean over its edge rounds.
    """
    totals = totals_of(lines)
    slowest: Line = {}
    if totals.clients:
        client = max(totals.clients, key=lambda number: totals.clients[number].mean.own)
        slowest["client"] = {"client": client, "edge": totals.edge_of[client], **_mean(totals.clients[client])}
    if len(totals.edges) > 1:
        edge = max(totals.edges, key=lambda name: totals.edges[name].mean.own)
        if totals.edges[edge].mean.own:  # else nobody has trained
            slowest["edge"] = {"edge": edge, **_mean(totals.edges[edge])}
    return {"seconds": {"slowest": slowest}} if slowest else {}


def words(summary: Mapping[str, Any]) -> Iterator[str]:
    """Yield what the table at the end of a run says of it."""
    slowest = summary.get("seconds", {}).get("slowest", {})
    for name in ("client", "edge"):
        if own := slowest.get(name):
            training, transfer = own["training_seconds"], own["transfer_seconds"]
            yield f"slowest {name}: {own[name]}, {training:.3g} s training and {transfer:.3g} s transfer an edge round"


def columns(lines: Sequence[Line], clients: Sequence[int]) -> dict[str, list[float]]:
    """Return columns of ``clients.csv``: the seconds of all rounds; nothing for a run of an edition without them."""
    if not any(line["scope"] == "seconds" for line in lines):
        return {}
    totals = totals_of(lines)
    data = [totals.clients.get(client, Seconds()).as_data() for client in clients]
    return {key: [own[key] for own in data] for key in (f"{part}_seconds" for part in PARTS)}


def _mean(seconds: Seconds) -> Line:
    return {**seconds.mean.as_data(), "edge_rounds": seconds.edge_rounds}
