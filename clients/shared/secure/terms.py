"""What an edge and its clients both go by in secure aggregation; each has it from its own settings."""

from dataclasses import dataclass
from typing import Final

from .shares import threshold_of

LEAST: Final = 2  # clients of a sum: that of one is its update


@dataclass(frozen=True)
class SecureTerms:
    """What holds in every edge round.

    Parameters
    ----------
    clip : float (default: 8.0)
        The largest number of an update, by amount; what is beyond is clipped.
    threshold : float (default: 0.6)
        The share of those who hold a secret's shares that finds it; always more than half of them.
    fewest : int (default: 3)
        No sum of fewer clients is unmasked.
    neighbours : int (default: 0)
        With so many others a client shares masks and secrets, an even number; 0: with all.
    signed : bool (default: False)
        Clients sign their keys, and whom they saw drop out, with keys that the others know.
    apart : tuple[str, ...] (default: none)
        Names of records that differ between clients in an instruction to train, so that masks can't depend on them.

    Raises
    ------
    ValueError
        For a number that makes no sense.
    """

    clip: float = 8.0
    threshold: float = 0.6
    fewest: int = 3
    neighbours: int = 0
    signed: bool = False
    apart: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.clip > 0 or not 0 < self.threshold <= 1 or self.fewest < LEAST:
            raise ValueError(f"clip must be above 0, threshold from 0 to 1, fewest {LEAST} or more: {self}")
        if self.neighbours < 0 or self.neighbours % 2:
            raise ValueError(f"neighbours is {self.neighbours}: it must be an even number, or 0 for all")

    def needed(self, holders: int) -> int:
        """Return how many of those who hold a secret's shares find it."""
        return threshold_of(self.threshold, holders)
