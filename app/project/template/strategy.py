"""A strategy: what an edge makes of its clients' models. It is one of Flower's, and knows nothing of edges."""

from collections.abc import Iterable
from typing import Any

from flwr.app import ArrayRecord, Message, MetricRecord
from flwr.serverapp.strategy import FedAvg

POWER = 0.5  # 1 is FedAvg; 0 weighs all clients alike


class RootFedAvg(FedAvg):
    """FedAvg in which a client with four times the examples of another has only twice its weight."""

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Change the clients' weights, then average as ever."""
        replies = list(replies)
        for reply in replies:
            if reply.has_content():  # else it says what went wrong
                metrics = reply.content.metric_records["metrics"]
                examples: Any = metrics["num-examples"]
                metrics["num-examples"] = examples**POWER
        return super().aggregate_train(server_round, replies)
