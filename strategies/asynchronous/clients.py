"""An edge, or a cloud without edges, that does not wait for its slowest client."""

from collections.abc import Mapping, Sequence
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp.strategy import Strategy

from espalier.clients.messages.train import CONFIG, SERVER_ROUND
from espalier.clients.shared import text
from espalier.clients.shared.records import records_in

from ..exchange import Exchanges
from ..flower_strategies import needed_metrics
from ..outcomes import Update
from ..reply_faults import reply_fault
from ..strategy_edge import StrategyEdge
from ..views import MemberGrid
from .aggregation import Nodes, asynchronous_round
from .clocks import check_pace
from .flights import Arrival, FlightPart, Pace, Taken
from .tier import AsynchronousTier


class AsynchronousEdge(StrategyEdge):
    """A Flower strategy over clients that it does not wait for: a round is an aggregation.

    Parameters
    ----------
    strategy : Strategy
        Aggregates. What it samples is who may begin in a round.
    nodes : Sequence[int]
        Node ids of all clients, in client order.
    tier : AsynchronousTier
        When to aggregate, and the clock.
    pace : Callable[[int, int], float], optional (default: None)
        The seconds that a client takes, by its node id and the number of its own round; None: the clock shows them.

    Raises
    ------
    ValueError
        If time is simulated and there is no pace.

    Notes
    -----
    Clients count rounds of their own, from 1, which their instructions have as ``server-round``.
    """

    def __init__(
        self, strategy: Strategy, nodes: Sequence[int], tier: AsynchronousTier, pace: Pace | None = None
    ) -> None:
        check_pace(tier.clock, pace)
        super().__init__(strategy)
        self.tier = tier
        self._nodes = tuple(nodes)
        self._pace = pace

    def train_round(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: MemberGrid
    ) -> Exchanges[Update]:
        """Let clients train until it is time to aggregate, then do so."""

        def begin(instructions: Mapping[int, tuple[Message, int]]) -> Exchanges[Mapping[int, FlightPart]]:
            replies = yield [_numbered(message, number) for message, number in instructions.values()]
            parts, needed = {}, needed_metrics(self.strategy)
            for (node, (message, number)), reply in zip(instructions.items(), replies, strict=True):
                taken = Taken(self._pace(self._nodes[node], number)) if self._pace else None
                # Judged as soon as it is there: until its turn it is in the run's state, and saved with it.
                fault = text.one_line(reply_fault(message, reply, self.weight_key, needed))
                parts[node] = FlightPart(None if fault else _averaged_part(reply.content), fault, taken)
            return parts

        name_of = self.guard.node_name if self.guard is not None else str
        nodes = Nodes(self._nodes, begin, _contents, name_of)
        update, _ = yield from asynchronous_round(self, self.tier, nodes, server_round, arrays, config, grid)
        return update

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the strategy and of the clients at work."""
        return {"strategy": super().state_dict(), "tier": self.tier.state_dict({})}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what `state_dict` returned."""
        super().load_state_dict(state["strategy"])
        self.tier.load_state_dict(state["tier"], ())


def _averaged_part(content: RecordDict) -> RecordDict:
    """Return what averages take of a reply: arrays and metrics."""
    return RecordDict({name: record for name, record in content.items() if not isinstance(record, ConfigRecord)})


def _contents(arrivals: Sequence[Arrival]) -> list[RecordDict]:
    """Return what clients replied."""
    return [arrival.flight.known.content or RecordDict() for arrival in arrivals]


def _numbered(message: Message, number: int) -> Message:
    """Return a new message with the content of one, and the number of the client's own round."""
    name, config = next(iter(records_in(message.content, ConfigRecord).items()), (CONFIG, ConfigRecord()))
    content = RecordDict({**message.content, name: ConfigRecord({**config, SERVER_ROUND: number})})
    return Message(content, dst_node_id=message.metadata.dst_node_id, message_type=message.metadata.message_type)
