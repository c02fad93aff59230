"""The settings of secure aggregation."""

from typing import Annotated

from pydantic import Field

from espalier.app.settings.section import Section, Tag
from espalier.app.settings.sections import LARGEST


class Secure(Section):
    """Secure aggregation: an edge learns the average of its clients ([how](secure-aggregation.md))."""

    name = "secure"
    tags = (Tag.TRAINS_CLIENTS,)

    aggregation: bool = False
    """Clients' updates come to their edge under masks that cancel in the sum: it learns the average, and no single
    update.
    """
    clip: Annotated[float, Field(ge=1e-9, le=LARGEST)] = 8.0
    """The largest number of an update, by amount: a larger one is clipped, and counted. The average is off by about
    `secure.clip` over 2^32, times the number of clients.
    """
    threshold: Annotated[float, Field(gt=0, le=1)] = 0.6
    """Clients hold shares of each other's secrets. So large a share of those who hold one finds the secret, always more
    than half: a smaller one lets more clients drop out, a larger one lets more clients and their edge lie together.
    """
    fewest: Annotated[int, Field(ge=2, le=1024)] = 3
    """No sum of fewer clients is unmasked: an edge round with fewer gives no model."""
    neighbours: Annotated[int, Field(ge=0, le=1024, multiple_of=2)] = 0
    """With so many others, an even number, each client shares masks and secrets: fewer cost less, and withstand fewer
    that drop out or lie together. 0: with all of its edge.
    """
    update_norm: Annotated[float, Field(ge=0, le=LARGEST)] = 0.0
    """The longest L2 norm of an update, to which each client shortens its own: no edge can. 0: any."""
    signed: bool = False
    """`true`: clients sign their keys and whom they saw drop out, so that an edge can't take the place of clients. Each
    node's config then names `secure-key` and `secure-keys` ([how](secure-aggregation.md#known-keys)).
    """
