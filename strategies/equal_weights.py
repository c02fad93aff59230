"""Every client of an edge counts the same, and every edge the same at the cloud, whatever data they have."""

from dataclasses import replace
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import Strategy

from espalier.clients.shared.records import records_in

from .edge_base import EdgeRounds
from .edges import EdgeDecorator, answered_messages
from .exchange import Exchanges
from .outcomes import Update
from .replies import number_of
from .views import MemberGrid


class EqualWeights(EdgeDecorator):
    """An edge, of whatever kind, whose clients weigh 1 in its averages, and which weighs 1 at the cloud itself.

    Averages are else weighted by examples: alpha_u = ``|D_u|`` over their sum, and alpha_b likewise over edges. Here
    alpha_u = 1/U over those who took part, and alpha_b = 1/B. Evaluations stay weighted by examples.

    Parameters
    ----------
    edge : Strategy | EdgeRounds
        Trains. It reads each reply's weight as 1; a client that has nothing to train on weighs 0 as before. Of a
        `Hierarchical` the weight at the tier above is 1; what its own edges weigh is for one in front of each of them.
    """

    def __init__(self, edge: Strategy | EdgeRounds) -> None:
        super().__init__(edge)
        self._weight_key = self.edge.inner.weight_key

    def train_round(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: MemberGrid
    ) -> Exchanges[Update]:
        """Run the edge's round, its clients' weights replaced."""
        training = self.edge.train_round(server_round, arrays, config, grid)
        update = yield from answered_messages(training, self._weighing_one)
        return update if update.arrays is None else replace(update, weight=1.0)

    def _weighing_one(self, messages: list[Message]) -> Exchanges[list[Message]]:
        """Pass messages on; their replies weigh 1."""
        return [self._with_weight_one(reply) for reply in (yield messages)]

    def _with_weight_one(self, reply: Message) -> Message:
        """Return a reply with weight 1 in place of a positive one; what is wrong with others is the edge's to say."""
        if reply.has_error():
            return reply
        records = {
            name: MetricRecord({**record, self._weight_key: 1})
            for name, record in records_in(reply.content, MetricRecord).items()
            if _is_positive(record.get(self._weight_key))
        }
        reply.content = RecordDict({**reply.content, **records})
        return reply


def _is_positive(weight: Any) -> bool:
    return (number_of(weight) or 0.0) > 0
