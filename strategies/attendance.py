"""Who has left, and who is back: a log line for each, and none while nothing changes."""

from collections.abc import Callable, Sequence
from logging import INFO, WARNING, getLogger

from .topology import MOST_LINES, Topology

logger = getLogger("espalier")


class Attendance:
    """Knows which nodes of each edge were away at the last look.

    Parameters
    ----------
    topology : Mapping[str, Sequence[int]]
        Node ids by edge, in client order.
    node_name : Callable[[int], str]
        Name of a node in log lines.
    """

    def __init__(self, topology: Topology, node_name: Callable[[int], str]) -> None:
        self._topology = topology
        self._node_name = node_name
        self._away: dict[str, frozenset[int]] = dict.fromkeys(topology, frozenset())

    def regroup(self, topology: Topology) -> None:
        """Take the edges' nodes from now on; who was away stays so, under whatever edge."""
        away = frozenset().union(*self._away.values())
        self._topology = topology
        self._away = {edge: away.intersection(members) for edge, members in topology.items()}

    def note(self, edge: str, connected: Sequence[int]) -> None:
        """Log who has left an edge, or is back, since the last look.

        Parameters
        ----------
        edge : str
            The edge.
        connected : Sequence[int]
            Those of its nodes that are connected now.
        """
        members, before = self._topology[edge], self._away[edge]
        if len(connected) == len(members) and not before:
            return
        away = frozenset(members).difference(connected)
        if away == before:
            return
        self._away[edge] = away
        self._log(WARNING, edge, [n for n in members if n in away and n not in before], "left")
        back = [n for n in members if n in before and n not in away]
        self._log(INFO, edge, back, "is back" if len(back) <= MOST_LINES else "are back")

    def _log(self, level: int, edge: str, nodes: Sequence[int], what: str) -> None:
        if len(nodes) > MOST_LINES:
            logger.log(level, "%d clients of %s %s", len(nodes), edge, what)
            return
        for node_id in nodes:
            logger.log(level, "%s of %s %s", self._node_name(node_id), edge, what)
