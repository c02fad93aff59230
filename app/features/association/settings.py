"""The settings of which client goes to which edge."""

from typing import Annotated, Literal

from pydantic import Field

from espalier.app.settings.section import Section, Tag


class Hfel(Section):
    """Which client goes to which edge, by HFEL's cost of a global round ([association](association.md))."""

    name = "hfel"
    tags = (Tag.TRAINS_CLIENTS,)

    association: Annotated[Literal["given", "nearest", "balanced", "cheapest"], Tag.COMMON] = "given"
    """Which client goes to which edge in the simulated radio world, once for the run: `"given"`: as its number, or its
    node's `edge-name`, says; `"nearest"`, `"balanced"` or `"cheapest"`: [by what uploads take, or HFEL's
    cost](association.md).
    """
    energy_weight: Annotated[float, Field(gt=0, le=1e9)] = 0.5
    """Cost of a joule, HFEL's lambda_e."""
    delay_weight: Annotated[float, Field(gt=0, le=1e9)] = 0.5
    """Cost of a second, HFEL's lambda_t."""
    bandwidth_hz: Annotated[float, Field(ge=1, le=1e12)] = 10e6
    """Bandwidth of an edge, which HFEL's cost divides among all of its clients."""
