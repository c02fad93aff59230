"""How many edges and radio cells an algorithm has, by the setting ``num-edges``."""

from dataclasses import dataclass
from math import inf


@dataclass(frozen=True)
class TierKind:
    """What ``num-edges`` means for an algorithm.

    Parameters
    ----------
    most_flat : float
        The largest one with which clients are under the cloud; infinite: they always are.
    left_open : int
        What 0 stands for.
    unless : str (default: "")
        Behind what an algorithm can't do without edges: what gives it some.
    """

    most_flat: float
    left_open: int
    unless: str = ""


TIERS = {
    "one": TierKind(inf, 2),
    "two": TierKind(-1, 2),
    "one or two": TierKind(1, 1, ", unless num-edges = 2 or more"),
}
