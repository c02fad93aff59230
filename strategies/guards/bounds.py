"""What a reply may do to a model."""

from dataclasses import dataclass
from typing import Final, Literal

Mode = Literal["leave-out", "clip", "warn", "off"]

# So many times as long as the model, or as what others send, is no reply that training makes: a float32 has 7 digits,
# and an average with such a reply keeps none of the others'.
ABSURD: Final = 1e9


@dataclass(frozen=True)
class Guard:
    """What a reply may do.

    Without a bound of one's own nothing is refused that an honest client can send, however uneven the data are: only
    what is more than `ABSURD` times as long as the model and as the others' median.

    Parameters
    ----------
    mode : "leave-out", "clip", "warn" or "off" (default: "leave-out")
        What becomes of a reply beyond a bound: it is left out, made as small as the bound says, or only logged. One of
        infinite length can't be made smaller, and is left out.
    update_norm : float (default: 0.0)
        How many times the median length an update may have; 0: any that is not absurd.
    activation_norm : float (default: 0.0)
        In split training: how many times the median length the activations of a sample may have; 0: any that is not
        absurd.
    """

    mode: Mode = "leave-out"
    update_norm: float = 0.0
    activation_norm: float = 0.0
