"""Where clients and edges of one process meet, so that a mini-batch need not be a message."""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from torch import Tensor

from ..messages.split import Activations, FeatureGradient

Sent = Activations | FeatureGradient


class Lane(Protocol):
    """Takes the mini-batches of some clients in a round of split training, for their edge."""

    def exchange(self, sent: Mapping[int, Sent]) -> Mapping[int, Tensor]:
        """Return the edge's answers, by node ids, to what each client sends in a step.

        Activations are answered by their gradient. Where the client has the model's last blocks, they are answered by
        features, and the features' gradient by that of the activations. Without those who get no answer the edge goes
        on.
        """


class Lanes:
    """The edges of a process that wait for clients, by the node ids of these."""

    def __init__(self) -> None:
        self._waiting: dict[int, Callable[[Sequence[int]], Lane]] = {}

    def open(self, node_ids: Sequence[int], enter: Callable[[Sequence[int]], Lane]) -> None:
        """Wait for clients; `enter` makes a lane for those that come together."""
        self._waiting |= dict.fromkeys(node_ids, enter)

    def close(self, node_ids: Sequence[int]) -> None:
        """Wait for clients no longer."""
        for node_id in node_ids:
            self._waiting.pop(node_id, None)

    def enter(self, node_ids: Sequence[int]) -> list[tuple[list[int], Lane]]:
        """Return a lane for the clients of each edge among those given, each of whom comes once.

        Raises
        ------
        ValueError
            If no edge waits for one of them.
        """
        edges: dict[Callable[[Sequence[int]], Lane], list[int]] = {}
        for node_id in node_ids:
            if node_id not in self._waiting:
                raise ValueError("no edge in this process waits for its mini-batches")
            edges.setdefault(self._waiting[node_id], []).append(node_id)
        self.close(node_ids)
        return [(own, enter(own)) for enter, own in edges.items()]
