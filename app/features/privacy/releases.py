"""What is released with noise: what the accountant counts."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Release:
    """A sum of clipped parts with Gaussian noise, or a mean, that somebody gets to see.

    Parameters
    ----------
    noise : float
        The noise multiplier: the standard deviation at the sum, over the longest part.
    asked, of : int (default: 1)
        How many are in the sum, and of how many, drawn anew for each release.
    poisson : bool (default: False)
        How they are drawn. True: each by itself, `asked` is the mean number; neighbours differ in one whose part is
        zero in one of them. False: exactly `asked`, each so many equally likely; neighbours differ in one whose part is
        another, which moves the sum by up to twice the longest part.
    """

    noise: float
    asked: int = 1
    of: int = 1
    poisson: bool = False

    @property
    def multiplier(self) -> float:
        """The standard deviation over how far one of them can move the sum."""
        return self.noise if self.poisson else self.noise / 2

    @property
    def share(self) -> float:
        """The share of those who are protected that is in the sum."""
        return self.asked / self.of


Releases = Mapping[Release, int]  # and how often
