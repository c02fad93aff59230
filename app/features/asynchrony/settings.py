"""The settings of tiers that wait for nobody."""

import re
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from espalier.app.settings.section import Section, Tag
from espalier.app.settings.sections import NotNegative

STALENESS_ALLOWED = "'constant', 'polynomial(EXPONENT)' or 'hinge(SLOPE, DELAY)', with numbers from 0 to 1000"


@dataclass(frozen=True)
class StalenessWeight:
    """What an update weighs by its staleness, like ``"polynomial(0.5)"``.

    Parameters
    ----------
    name : str
        Of the function in `espalier.strategies.asynchronous`.
    numbers : tuple[float, ...]
        Its parameters.
    text : str
        As it was written.
    """

    name: str
    numbers: tuple[float, ...]
    text: str


def _parse_staleness(given: Any) -> StalenessWeight:
    if isinstance(given, StalenessWeight):
        return given
    match = re.fullmatch(r"([a-z]+)(?:\(([^()]*)\))?", given) if isinstance(given, str) else None
    try:
        numbers = tuple(float(part) for part in match[2].split(",")) if match and match[2] else ()
    except ValueError:
        raise ValueError(STALENESS_ALLOWED) from None
    parameters = {"constant": 0, "polynomial": 1, "hinge": 2}
    if not match or parameters.get(match[1]) != len(numbers) or not all(0 <= number <= 1000 for number in numbers):
        raise ValueError(STALENESS_ALLOWED)
    return StalenessWeight(match[1], numbers, given)


StalenessSetting = Annotated[StalenessWeight, BeforeValidator(_parse_staleness)]


class Asynchrony(Section):
    """Tiers that do not wait for their slowest."""

    name = "async"
    tags = (Tag.OWN_AT_EDGES,)

    mode: Literal["off", "fedbuff", "fedasync", "semi-synchronous"] = "off"
    """`"fedbuff"`: the cloud aggregates as soon as `async.buffer-size` updates are in, and an edge or client that is
    done begins again at once; `"fedasync"`: it mixes every update into its model. `"semi-synchronous"`: it
    aggregates at a deadline what is in, and late updates join the next aggregation; `"off"`: all wait for all.
    """
    tier: Literal["cloud", "edges"] = "cloud"
    """The tier that does not wait: `"cloud"`: the cloud, for edges or, in a flat algorithm, clients. `"edges"`: each
    edge, for its clients, under a cloud that waits for the edges (`h-fedavg`); an edge round is then an aggregation.
    """
    clock: Literal["auto", "simulated", "wall"] = "auto"
    """`"simulated"`: what the keys below or plans say is the time; `"wall"`: real time, for SuperNodes, with
    `engine="flower"`. `"auto"`: `"wall"` with `deploy.role="cloud"`, else `"simulated"`.
    """
    buffer_size: NotNegative = 0
    """With `"fedbuff"`: updates in an aggregation (the paper's K). 0 is half of the edges, or clients; with
    `async.tier="edges"` of an edge's clients.
    """
    staleness: StalenessSetting = StalenessWeight("polynomial", (0.5,), "polynomial(0.5)")
    """What an update weighs by its staleness t, the aggregations since its edge or client got its model: `"constant"`:
    1; `"polynomial(A)"`: (1 + t)^-A; `"hinge(A, B)"`: 1 up to B, then 1 / (1 + A (t - B)).
    """
    max_staleness: NotNegative = 0
    """An update with a higher staleness is left out, logged and counted. 0: none is."""
    concurrency: NotNegative = 0
    """The most edges, or clients, that train at a time, drawn by the seed from those that do not; with
    `async.tier="edges"` of each edge. 0: all.
    """
    mixing: Annotated[float, Field(gt=0, le=1)] = 0.6
    """With `"fedasync"`: an update's share of the new model, times its weight by staleness (the paper's alpha)."""
    deadline_seconds: Annotated[float, Field(ge=0, le=1e9)] = 0.0
    """With `"semi-synchronous"`: seconds by the clock from the begin of a round to its aggregation. 0 waits for all."""
    median_seconds: Annotated[float, Field(gt=0, le=1e9)] = 60.0
    """Median over clients of the simulated time of an edge round. In a planned run the plans say the time instead."""
    sigma: Annotated[float, Field(ge=0, le=10)] = 1.0
    """Standard deviation, over clients, of the logarithm of that time; 0: all are equally fast. The seed decides how
    fast each client is.
    """
    trace: Annotated[str, Tag.PATH, Tag.CONTENT] = ""
    """CSV file with such times instead: columns `client` and `seconds`, a row for each edge round of a client in turn,
    from the start again after its last; 1e9 s at most.
    """

    def buffer_size_of(self, num_nodes: int) -> int:
        """Return the K of fedbuff over so many edges, or clients."""
        return self.buffer_size or max(num_nodes // 2, 1)
