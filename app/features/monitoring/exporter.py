"""Counts what the lines of a run say, and serves it in Prometheus's format."""

import math
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, Counter, Gauge, start_http_server

from espalier.app.features.feature import Line
from espalier.app.ground.addresses import lacks_address
from espalier.app.ground.errors import FAULTS, bad_value

NUMBER = re.compile(r"\d[\d.]*(e[+-]?\d+)?")
# Prometheus keeps a series for each reason, and clients' own errors are among them.
MOST_REASONS, LONGEST_REASON, OTHER = 30, 100, "other"


class Exporter:
    """Counts what lines of ``metrics.jsonl`` say.

    Parameters
    ----------
    count_nodes : Callable[[], int]
        Returns how many nodes are connected; asked whenever somebody reads.
    """

    def __init__(self, count_nodes: Callable[[], int]) -> None:
        self.registry = registry = CollectorRegistry()
        self._reasons: set[str] = set()
        nodes = Gauge("espalier_connected_nodes", "Nodes connected to this host", registry=registry)
        nodes.set_function(lambda: _number_or_nan(count_nodes))
        self._rounds = Gauge("espalier_rounds", "Global rounds that are over", registry=registry)
        self._seconds = Gauge("espalier_last_round_seconds", "Seconds of the last global round", registry=registry)
        names = ("tier", "direction")
        self._bytes = Counter("espalier_bytes", "Payload bytes, evaluations too", names, registry=registry)
        self._late = Counter("espalier_late", "Results that came after their deadline, or not", registry=registry)
        self._left_out = Counter("espalier_left_out", "Replies left out", ("reason",), registry=registry)

    def lines_over(self, lines: Sequence[Line]) -> None:
        """Count what lines say that were written together; a global line has the bytes of those of its edges."""
        for line in [line for line in lines if line["scope"] == "global"] or lines:
            if line["scope"] in ("global", "edge"):
                self._round_over(line)
            for tier, directions in line["bytes"].items():
                for direction, kinds in directions.items():
                    self._bytes.labels(tier, direction).inc(sum(kinds.values()))
        for line in lines:
            failures = line.get("evaluation_failures", line.get("failures"))
            failures = [one for one in failures if one["client"] is not None] if isinstance(failures, list) else []
            for one in failures:
                self._left_out.labels(self._kind_of(one["reason"])).inc()
            late = {(plan["edge_round"], client) for plan in line.get("plans", ()) for client in plan["late"]}
            late |= {(one.get("edge_round", 0), one["client"]) for one in failures if "deadline" in one["reason"]}
            self._late.inc(len(late))

    def go_on_from(self, lines: Sequence[Line]) -> None:
        """Begin where a run was; counters begin at 0 with every process, as Prometheus expects."""
        for line in [line for line in lines if line["scope"] == "global"][-1:]:
            self._round_over(line)

    def _round_over(self, line: Line) -> None:
        self._rounds.set(line["round"])
        self._seconds.set(line.get("seconds", 0.0))  # earlier editions wrote none

    def _kind_of(self, reason: str) -> str:
        """Return a reason without its numbers; of too many different ones only that they are others."""
        kind = NUMBER.sub("N", reason)[:LONGEST_REASON]
        if kind not in self._reasons and len(self._reasons) == MOST_REASONS:
            return OTHER
        self._reasons.add(kind)
        return kind


@contextmanager
def served(address: str, port: int, count_nodes: Callable[[], int]) -> Iterator[Exporter]:
    """Serve what an exporter counts at ``http://ADDRESS:PORT/metrics``.

    Raises
    ------
    UserError
        If the port can't be opened there, or there is no such address.
    """
    exporter = Exporter(count_nodes)
    try:
        server, thread = start_http_server(port, address, exporter.registry)
    except (OSError, UnicodeError) as error:
        why = getattr(error, "strerror", None) or error
        if lacks_address(error):
            raise bad_value("deploy.metrics-address", address, f"an address of this machine ({why})") from None
        allowed = f"a port that is free at deploy.metrics-address = {address!r} ({why})"
        raise bad_value("deploy.metrics-port", port, allowed) from None
    try:
        yield exporter
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _number_or_nan(count: Callable[[], int]) -> float:
    try:
        return float(count())
    except FAULTS:  # the runtime may be gone, and the other figures are still good
        return math.nan
