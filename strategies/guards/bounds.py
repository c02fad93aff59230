"""What a reply may do to a model."""

from dataclasses import dataclass
from typing import Literal

Mode = Literal["leave-out", "clip", "warn", "off"]


@dataclass(frozen=True)
class Guard:
    """What a reply may do.

    Parameters
    ----------
    mode : "leave-out", "clip", "warn" or "off" (default: "leave-out")
        What becomes of a reply beyond a bound: it is left out, made as small as the bound says, or only logged. One of
        infinite length can't be made smaller, and is left out.
    update_norm : float (default: 10.0)
        How many times the median length an update may have.
    activation_norm : float (default: 5.0)
        In split training: how many times the median length the activations of a sample may have.
    """

    mode: Mode = "leave-out"
    update_norm: float = 10.0
    activation_norm: float = 5.0
