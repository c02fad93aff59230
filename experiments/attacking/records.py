"""What attacks find, as rows of a CSV file."""

from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor

COLUMNS = {
    "part": str,
    "attack": str,
    "setting": str,
    "defence": str,
    "seed": int,
    "measure": str,
    "value": float,
    "nothing": float,
    "samples": int,
    "commit": str,
    "machine": str,
}

Row = dict[str, Any]


@dataclass(frozen=True)
class Measured:
    """A figure.

    Parameters
    ----------
    attack, setting, defence : str
        What is tried, on what, and against what.
    measure : str
        What the value is of.
    value : float
        The figure.
    nothing : float
        What somebody gets who saw nothing: the mean image, or chance.
    samples : int
        Images, or mini-batches, that it is the mean of.
    """

    attack: str
    setting: str
    defence: str
    measure: str
    value: float
    nothing: float
    samples: int

    def row(self, seed: int, made_by: dict[str, str]) -> Row:
        """Return the row of a seed."""
        own = asdict(self)
        return own | {"value": round(self.value, 6), "nothing": round(self.nothing, 6), "seed": seed, **made_by}


@dataclass(frozen=True)
class Pictures:
    """Images and what was made of them, in the same order; shape (N, 1, H, W), values from 0 to 1."""

    attack: str
    setting: str
    defence: str
    true: Tensor
    rebuilt: Tensor
