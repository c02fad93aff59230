"""Clients that have corners of some weights, such as adapters of a lower rank, under an edge that has all of them."""

from collections.abc import Callable, Mapping
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp.strategy import Strategy

from espalier.clients.shared.corners import Shape, with_corners, with_whole

from .edge_base import EdgeRounds
from .edges import EdgeDecorator, answered_messages
from .exchange import Exchanges
from .outcomes import Evaluation, Update
from .views import MemberGrid


class EdgeOverCorners(EdgeDecorator):
    """An edge, of whatever kind, whose clients get corners of weights, and send corners back.

    The edge gets whole weights: what a client has not is 0, and so it counts in averages, as in HetLoRA
    (arXiv:2401.06432), "naive" zero-padding.

    Parameters
    ----------
    edge : Strategy | EdgeRounds
        Trains and evaluates.
    corners_of : Callable[[int], Mapping[str, Shape]]
        By node id: the shapes of the corners, by the names of the weights; all others are whole.
    whole : Mapping[str, Shape]
        The shapes of the model's weights.
    """

    def __init__(
        self,
        edge: Strategy | EdgeRounds,
        corners_of: Callable[[int], Mapping[str, Shape]],
        whole: Mapping[str, Shape],
    ) -> None:
        super().__init__(edge)
        self._corners_of = corners_of
        self._whole = whole

    @property
    def fills_up(self) -> bool:
        """True: what clients lack counts as 0."""
        return True

    def train_round(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: MemberGrid
    ) -> Exchanges[Update]:
        """Run the edge's round."""
        return answered_messages(self.edge.train_round(server_round, arrays, config, grid), self._exchange)

    def evaluate_round(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: MemberGrid
    ) -> Exchanges[Evaluation]:
        """Evaluate on clients, each with its corners alone."""
        return answered_messages(self.edge.evaluate_round(server_round, arrays, config, grid), self._exchange)

    def personalise(self, arrays: ArrayRecord, fine_tuning: Any, grid: MemberGrid) -> Any:
        """Let the edge fine-tune heads."""
        return answered_messages(self.edge.personalise(arrays, fine_tuning, grid), self._exchange)

    def _exchange(self, messages: list[Message]) -> Exchanges[list[Message]]:
        """Send messages with corners, and return replies with whole weights."""
        whole = [message.content for message in messages]
        for message in messages:
            message.content = self._changed(with_corners, message.metadata.dst_node_id, message.content)
        try:
            replies = yield messages
        finally:
            for message, content in zip(messages, whole, strict=True):  # replies are held against what the edge knows
                message.content = content
        for message, reply in zip(messages, replies, strict=True):
            if reply.has_content():
                reply.content = self._changed(with_whole, message.metadata.dst_node_id, reply.content)
        return replies

    def _changed(self, change: Callable[..., RecordDict], node_id: int, content: RecordDict) -> RecordDict:
        return change(content, self._corners_of(node_id), self._whole)
