"""What a topology must be: node ids by the names of edges, no node twice, and the same nodes in all rounds."""

from collections.abc import Collection, Iterable, Mapping
from numbers import Integral

from .topology import Topology


def checked_topology(topology: Topology) -> dict[str, tuple[int, ...]]:
    """Return node ids by the names of edges; ValueError for something else."""
    if not isinstance(topology, Mapping):
        raise ValueError(f"the topology is a {type(topology).__name__}: it must be node ids by the names of edges")
    if not topology:
        raise ValueError("the topology has no edges")
    checked = {}
    for name, members in topology.items():
        if not isinstance(name, str) or not name:
            raise ValueError(f"an edge is named {name!r}: names are texts that are not empty")
        if isinstance(members, str | bytes) or not isinstance(members, Iterable):
            raise ValueError(f"the nodes of edge {name!r} are {members!r}: they must be node ids")
        checked[name] = tuple(members)
        if wrong := [n for n in checked[name] if not isinstance(n, Integral) or isinstance(n, bool)]:
            raise ValueError(f"a node of edge {name!r} is {wrong[0]!r}: node ids are integers")
        if not checked[name]:
            raise ValueError(f"edge {name!r} has no nodes")
    _check_disjoint(checked)
    return checked


def _check_disjoint(topology: Topology) -> None:
    seen: dict[int, str] = {}
    for name, members in topology.items():
        for node_id in members:
            if node_id in seen:
                raise ValueError(f"node {node_id} is in edge {seen[node_id]!r} and in edge {name!r}")
            seen[node_id] = name


def check_regrouped(number: int, nodes: Collection[int], edges: Collection[str], topology: Topology) -> None:
    """Raise ValueError if the topology of a round has other edges or nodes than before, or a node twice."""
    if different := sorted(set(topology) ^ set(edges)):
        raise ValueError(f"round {number}: edge {different[0]!r} is not in both this topology and that of the start")
    _check_disjoint(topology)
    if others := sorted({node_id for members in topology.values() for node_id in members} ^ set(nodes)):
        raise ValueError(f"round {number}: node {others[0]} is not in both this topology and that of the start")
