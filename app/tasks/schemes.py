"""How a training pool is shared out: for each partition a function that draws the clients' shares of each class."""

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

import numpy as np

from espalier.app.ground.errors import bad_value

ALPHA, EDGE_ALPHA, SHARDS, MIN_SAMPLES = "alpha", "edge-alpha", "data.shards-per-client", "data.min-samples"
EVEN = "iid"
# The tiny addition stands in for a class that nobody wants.
TINY = 1e-12


@dataclass(frozen=True)
class Terms:
    """What shares are drawn for.

    Attributes
    ----------
    labels : np.ndarray
        Those of the training pool, sorted.
    num_classes : int
        Labels are below it.
    edges : Sequence[range]
        The clients of each edge, in order.
    alpha, edge_alpha : float
        Concentration over clients, and over edges.
    shards_per_client : int
        Shards of each client.
    rng : np.random.Generator
        The only source of chance.
    """

    labels: np.ndarray
    num_classes: int
    edges: Sequence[range]
    alpha: float
    edge_alpha: float
    shards_per_client: int
    rng: np.random.Generator

    @property
    def num_clients(self) -> int:
        """Number of clients."""
        return sum(map(len, self.edges))


@dataclass(frozen=True)
class Shares:
    """Who gets how much of each class; of any scale, not negative, more than 0 in all for each class.

    Attributes
    ----------
    clients : np.ndarray
        Shape ``(clients, classes)``: of what the client's edge has.
    edges : np.ndarray, optional
        Shape ``(edges, classes)``: of the pool. None: all clients share the pool, whatever their edge.
    """

    clients: np.ndarray
    edges: np.ndarray | None = None


@dataclass(frozen=True)
class Scheme:
    """A partition by name.

    Attributes
    ----------
    name : str
        As the settings have it.
    draw : Callable[[Terms], Shares]
        Draws the shares.
    uses : Set[str]
        Keys of the settings that it goes by, beside ``num-clients`` and ``data.min-samples``.
    words : str
        What titles call it, with the keys that it goes by in braces; empty: its name.
    by_edges : bool
        It shares out to edges first, and so goes by ``num-edges``.
    """

    name: str
    draw: Callable[[Terms], Shares]
    uses: Set[str] = frozenset()
    words: str = ""
    by_edges: bool = False


def _even(terms: Terms) -> np.ndarray:
    return np.ones((terms.num_clients, terms.num_classes))


def _even_over_edges(terms: Terms) -> np.ndarray:
    sizes = np.array([len(members) for members in terms.edges], dtype=np.float64)
    return np.repeat(sizes[:, None], terms.num_classes, axis=1)


def _dirichlet(terms: Terms) -> np.ndarray:
    return terms.rng.dirichlet(np.full(terms.num_classes, terms.alpha), size=terms.num_clients) + TINY


def _dirichlet_over_edges(terms: Terms) -> np.ndarray:
    drawn = terms.rng.dirichlet(np.full(terms.num_classes, terms.edge_alpha), size=len(terms.edges)) + TINY
    return drawn * _even_over_edges(terms)


def _dirichlet_per_class(terms: Terms) -> Shares:
    return Shares(terms.rng.dirichlet(np.full(terms.num_clients, terms.alpha), size=terms.num_classes).T + TINY)


def _shards(terms: Terms) -> Shares:
    """Return the counts when each client gets as many runs of the sorted labels."""
    clients, each = terms.num_clients, terms.shards_per_client
    most = len(terms.labels) // clients
    if not 1 <= each <= most:
        raise bad_value(SHARDS, each, f"an integer from 1 to {most}, or shards would be empty")
    shards = np.array_split(terms.labels, clients * each)
    counts = np.array([np.bincount(shard, minlength=terms.num_classes) for shard in shards])
    return Shares(counts[terms.rng.permutation(len(shards))].reshape(clients, each, terms.num_classes).sum(axis=1))


def _edge_dirichlet(terms: Terms) -> Shares:
    edges = _dirichlet_over_edges(terms)  # drawn first
    return Shares(_dirichlet(terms), edges)


def _edge_iid(terms: Terms) -> Shares:
    return Shares(_dirichlet(terms), _even_over_edges(terms))


def _iid_in_edges(terms: Terms) -> Shares:
    return Shares(_even(terms), _dirichlet_over_edges(terms))


OVER_EDGES = "Dir({edge-alpha:g}) over edges"
SCHEMES = {
    scheme.name: scheme
    for scheme in (
        Scheme(EVEN, lambda terms: Shares(_even(terms))),
        Scheme("dirichlet", lambda terms: Shares(_dirichlet(terms)), {ALPHA}, "Dir({alpha:g})"),
        Scheme("dirichlet-per-class", _dirichlet_per_class, {ALPHA}, "Dir({alpha:g}) per class"),
        Scheme("shards", _shards, {SHARDS}),
        Scheme("edge-dirichlet", _edge_dirichlet, {ALPHA, EDGE_ALPHA}, f"{OVER_EDGES}, Dir({{alpha:g}}) within", True),
        Scheme("edge-iid", _edge_iid, {ALPHA}, by_edges=True),
        Scheme("iid-in-edges", _iid_in_edges, {EDGE_ALPHA}, f"{OVER_EDGES}, iid within", True),
    )
}


def in_words(name: str, settings: Mapping[str, Any]) -> str:
    """Return what titles call a partition, by settings and their keys; nothing where these lack what it goes by."""
    scheme = SCHEMES.get(name)
    if scheme is None or not scheme.words:
        return name
    return scheme.words.format(**settings) if scheme.uses <= settings.keys() else ""
