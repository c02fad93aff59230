"""Top-Popular: predict what was asked for most, whoever asks (RawHFL, Sec. V-C)."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord
from torch import Tensor

from espalier.app.algorithms.algorithm import Algorithm, Site
from espalier.app.tasks.caching import CachingTask
from espalier.app.tasks.caching_data import CachingData, top_popular
from espalier.clients.messages.train import ACCURACY, LOSS, NUM_EXAMPLES, TOP, TRAIN_LOSS
from espalier.clients.whole.evaluation import top_m_accuracies
from espalier.strategies import Edge, Evaluation, Update
from espalier.strategies.exchange import Exchanges
from espalier.strategies.views import MemberGrid


class TopPopularEdge(Edge):
    """An edge that trains nothing and predicts for its clients from the requests of all of them so far.

    Parameters
    ----------
    clients : Sequence[CachingData]
        All clients' data, in client order.
    examples_at : Callable[[int], Sequence[int]]
        Number of training examples of each client after a round.
    client_of : Mapping[int, int]
        Client number by node id.
    """

    def __init__(
        self,
        clients: Sequence[CachingData],
        examples_at: Callable[[int], Sequence[int]],
        client_of: Mapping[int, int],
    ) -> None:
        self._clients = clients
        self._examples_at = examples_at
        self._client_of = client_of

    def train_round(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: MemberGrid
    ) -> Exchanges[Update]:
        """Keep the model: nothing is learned but counts, which the evaluation takes from the requests."""
        yield from ()
        return Update(arrays, MetricRecord({TRAIN_LOSS: 0.0}), 1.0)

    def evaluate_round(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: MemberGrid
    ) -> Exchanges[Evaluation]:
        """Predict every client's test requests by the requests up to this round."""
        yield from ()
        scores = self.scores(server_round)
        replies = {n: _metrics(scores, self._clients[self._client_of[n]]) for n in grid.get_node_ids()}
        return Evaluation(None, float(len(replies)), replies)

    def scores(self, server_round: int) -> Tensor:
        """Return a score per content, by what all clients have asked for up to a round."""
        counts = self._examples_at(server_round + 1)
        return top_popular([c.train.labels[:n] for c, n in zip(self._clients, counts, strict=True)])

    def state_dict(self) -> dict[str, Any]:
        """Return nothing: there is no state."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what `state_dict` returned."""


def _metrics(scores: Tensor, client: CachingData) -> MetricRecord:
    shares = top_m_accuracies(scores, client.test.labels).tolist()
    tops = {f"{TOP}{m}": share for m, share in enumerate(shares, start=1)}
    # A ranking has no likelihood: it says nothing of how sure it is.
    return MetricRecord({LOSS: float(torch.nan), ACCURACY: shares[0], NUM_EXAMPLES: len(client.test), **tops})


def no_training(site: Site) -> TopPopularEdge:
    """Return the edge that counts requests."""
    task = cast(CachingTask, site.task)
    counts = [task.available(data.train_slots, site.federation.edge_rounds) for data in task.clients]
    return TopPopularEdge(task.clients, lambda server_round: [count(server_round) for count in counts], site.client_of)


TOP_POPULAR = Algorithm(
    name="top-popular",
    summary="Predicts the videos that were asked for most; no training.",
    make_edge=no_training,
    tiers="one",
    trains_clients=False,
    has_model=False,
    averages=False,
    ranks_requests=True,
)
