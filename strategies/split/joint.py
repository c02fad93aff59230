"""Server blocks of several clients that compute together, for SFL-V1."""

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

from .server_block import Served
from .serving import MiniBatch


class JointBlocks(Protocol):
    """The server's blocks of several clients in a round, computed as one; they agree with `ServerBlock` to rounding."""

    def step(
        self, batches: Sequence[MiniBatch], generators: Mapping[int, torch.Generator]
    ) -> Mapping[int, Served | ValueError]:
        """Make a step for each client; what its dropout draws comes from its generator."""

    def state_dict(self, node_id: int) -> dict[str, Tensor]:
        """Return the weights of a client's blocks under the names that they have in the whole model."""


class ClientOfJoint:
    """The server's blocks of one client, which `JointBlocks` compute together with those of others.

    `make_joint_steps` makes the step; `serve` returns what it gave.

    Parameters
    ----------
    together : JointBlocks
        Of all of them.
    node_id : int
        The client.
    device : torch.device
        Where they compute.
    """

    def __init__(self, together: JointBlocks, node_id: int, device: torch.device) -> None:
        self.together = together
        self.node_id = node_id
        self.device = device
        self.made: Served | ValueError | None = None

    def serve(self, batch: MiniBatch) -> Generator[Tensor, Tensor, Served]:
        """Return what the step gave; ValueError if it was not made."""
        yield from ()
        assert self.made is not None
        if isinstance(self.made, ValueError):
            raise self.made
        return self.made

    def state_dict(self) -> dict[str, Tensor]:
        """Return the weights under the names that they have in the whole model."""
        return self.together.state_dict(self.node_id)


# Makes the blocks of one cut for a round, from those that every client starts from.
MakeJointBlocks = Callable[[nn.Module, int], JointBlocks]


def make_joint_steps(
    servers: Iterable[ClientOfJoint], batches: Sequence[MiniBatch], generator_of: Callable[[int], torch.Generator]
) -> None:
    """Make the steps of those mini-batches whose clients' blocks compute together."""
    own = {server.node_id: server for server in servers}
    groups: dict[JointBlocks, list[MiniBatch]] = {}
    for batch in batches:
        if batch.node_id in own:
            groups.setdefault(own[batch.node_id].together, []).append(batch)
    for together, those in groups.items():
        made = together.step(those, {batch.node_id: generator_of(batch.node_id) for batch in those})
        for node_id, answer in made.items():
            own[node_id].made = answer
