"""The settings of clients that come and go, or move."""

from typing import Annotated, Literal

from pydantic import Field

from espalier.app.settings.section import Section, Tag


class Availability(Section):
    """Clients that come and go, or move to another edge, in a simulation of them."""

    name = "availability"
    tags = (Tag.TRAINS_CLIENTS,)

    mode: Literal["always", "markov", "trace"] = "always"
    """Which clients are there when an edge round begins. `"markov"`: each client leaves and comes back at random, by
    the seed; `"trace"`: as a file says.
    """
    leave: Annotated[float, Field(ge=0, le=1)] = 0.1
    """With `"markov"`: probability per edge round that a client that is there leaves."""
    back: Annotated[float, Field(gt=0, le=1)] = 0.4
    """With `"markov"`: probability per edge round that a client that is away comes back."""
    trace: Annotated[str, Tag.PATH, Tag.CONTENT] = ""
    """With `"trace"`: CSV file with the columns `client`, `from` and `to`. The client is there in the edge rounds from
    `from` to before `to`; one without a row always is.
    """
    drop_out: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Probability that a client that began an edge round is gone before it answers."""
    moves: Annotated[str, Tag.PATH, Tag.CONTENT] = ""
    """Path of a CSV file `client,from,edge`: in the global round `from` the client moves to that edge ([clients that
    move](availability.md#clients-that-move-to-another-edge)).
    """

    @property
    def comes_and_goes(self) -> bool:
        """True where not all clients are always there."""
        return self.mode != "always" or self.drop_out > 0
