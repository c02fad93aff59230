"""The training losses of a round's clients."""

from collections import Counter
from collections.abc import Mapping, Sequence

from .serving import MiniBatch


class Losses:
    """Training losses of a round, by client.

    Parameters
    ----------
    clients : Sequence[int]
        Those who train, in client order.
    """

    def __init__(self, clients: Sequence[int]) -> None:
        self._places = {node_id: i for i, node_id in enumerate(clients)}
        self._steps: Counter[int] = Counter()
        self._sums: dict[int, float] = {}
        self._counts: dict[int, int] = {}

    def add(self, batch: MiniBatch, loss: float | None) -> None:
        """Note a mini-batch, and its mean loss where that is known."""
        n = len(batch.activations)
        self._steps[batch.node_id] += 1
        if loss is None:
            return
        self._sums[batch.node_id] = self._sums.get(batch.node_id, 0.0) + loss * n
        self._counts[batch.node_id] = self._counts.get(batch.node_id, 0) + n

    def report(self, means: Mapping[int, float]) -> None:
        """Note the means over examples of clients that computed their losses themselves."""
        self._sums |= means
        self._counts |= dict.fromkeys(means, 1)

    def forget(self) -> None:
        """Forget all mini-batches, for a round that is made again."""
        self._steps.clear()
        self._sums.clear()
        self._counts.clear()

    def place_and_step(self, node_id: int) -> tuple[int, int]:
        """Return a client's place among those who train, and how many of its mini-batches have been noted."""
        return self._places[node_id], self._steps[node_id]

    def of(self, node_id: int) -> float:
        """Return a client's mean over examples."""
        return self._sums[node_id] / self._counts[node_id]

    def mean(self, weights: Mapping[int, int]) -> float:
        """Return the mean over clients, each with its mean over examples and its weight."""
        total = sum(weights.values())
        return sum(self.of(n) * (weight / total) for n, weight in weights.items())
