"""With whom a client shares masks: a graph in which all have equally many neighbours."""

import random
from collections.abc import Collection, Mapping, Sequence

Graph = Mapping[int, frozenset[int]]


def graph_of(places: Sequence[int], neighbours: int, seed: int) -> dict[int, frozenset[int]]:
    """Return the neighbours of each client: the next ones to both sides in a circle of random order.

    Parameters
    ----------
    places : Sequence[int]
        The clients.
    neighbours : int
        How many each has, an even number; 0, or as many as there are others: all.
    seed : int
        Of the order.
    """
    if not neighbours or neighbours >= len(places) - 1:
        return {place: frozenset(places) - {place} for place in places}
    order = random.Random(seed).sample(sorted(places), len(places))
    reach = [step for step in range(-neighbours // 2, neighbours // 2 + 1) if step]
    return {place: frozenset(order[(i + step) % len(order)] for step in reach) for i, place in enumerate(order)}


def is_connected(graph: Graph, places: Collection[int]) -> bool:
    """Return whether these clients hang together by the masks that they share: else parts of the sum would show."""
    left = set(places)
    reached = {left.pop()} if left else set[int]()
    while reached:
        near = {n for place in reached for n in graph[place]} & left
        left -= near
        reached = near
    return not left
