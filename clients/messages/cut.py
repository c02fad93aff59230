"""Where a model is cut."""

from dataclasses import dataclass
from typing import cast

from torch import nn


@dataclass(frozen=True)
class Cut:
    """Where a model, a list of blocks, is cut in three: the blocks between are the server's, the others the client's.

    Today ``last`` has to be the number of blocks: what is behind ``first`` is the server's.

    Parameters
    ----------
    first : int
        Blocks before this one are the client's; what travels is what comes out of them.
    last : int
        Blocks from this one on are the client's, too.
    """

    first: int
    last: int

    @classmethod
    def of(cls, model: nn.Sequential, cut: "Cut | int") -> "Cut":
        """Return a cut of a model; a number k is short for ``Cut(k, len(model))``, the first k blocks at the client.

        Raises
        ------
        ValueError
            If blocks behind the server's would be the client's.
        """
        cut = cut if isinstance(cut, Cut) else cls(cut, len(model))
        if cut.last != len(model):
            raise ValueError(f"cut {cut.first} to {cut.last}: allowed is to {len(model)}, the model's number of blocks")
        return cut

    def client_side(self, model: nn.Sequential) -> nn.Sequential:
        """Return the client's blocks of a model, which share its weights."""
        return as_blocks(model[: self.first])

    def server_side(self, model: nn.Sequential) -> nn.Sequential:
        """Return the server's blocks of a model, which share its weights."""
        return as_blocks(model[self.first : self.last])


def as_blocks(model: nn.Module) -> nn.Sequential:
    """Return a model that is split, or some of its blocks, as the list that it is known to be; nothing is checked."""
    return cast(nn.Sequential, model)
