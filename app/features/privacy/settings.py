"""The settings of differential privacy."""

from typing import Annotated, Literal

from pydantic import Field

from espalier.app.settings.section import Section, Tag
from espalier.app.settings.sections import LARGEST

Level = Literal["none", "client-at-edge", "client-at-cloud", "client-at-client", "edge-at-cloud", "example-at-client"]


class Privacy(Section):
    """Who is protected by clipping and noise, where, and how much ([differential privacy](differential-privacy.md))."""

    name = "privacy"
    tags = (Tag.TRAINS_CLIENTS,)

    level: Level = "none"
    """Who is protected, and where noise is added: a client in the average of its edge, `"client-at-edge"`, or of the
    cloud, `"client-at-cloud"`; a client by itself, `"client-at-client"`; a whole edge at the cloud, `"edge-at-cloud"`;
    each example of a client, `"example-at-client"` (DP-SGD).
    """
    clip: Annotated[float, Field(ge=0, le=LARGEST)] = 1.0
    """The longest L2 norm of an update, or of an example's gradient; 0: any, which protects nobody."""
    noise: Annotated[float, Field(ge=0, le=1e6)] = 0.0
    """The noise multiplier: the standard deviation of the noise at the sum of what was clipped, over `privacy.clip`. 0:
    none, or with `privacy.epsilon` the least that keeps within it.
    """
    epsilon: Annotated[float, Field(ge=0, le=1e6)] = 0.0
    """The budget: the run ends before a round that would spend more; 0: none."""
    delta: Annotated[float, Field(gt=0, lt=1)] = 1e-5
    """At which epsilon is told: less than one over the number of those who are protected."""
    secret_noise: Annotated[bool, Tag.OWN_AT_EDGES] = False
    """`true`: noise follows the system's entropy, as it must wherever the guarantee is meant: who knows `seed` can take
    the noise off. `false`: it follows `seed`, for experiments that can be repeated.
    """
