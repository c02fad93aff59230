"""From updates that began with different models to one aggregation of any Flower strategy."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MessageType, MetricRecord, RecordDict

from espalier.clients.messages.train import ARRAYS, CONFIG
from espalier.clients.shared.arrays import values_of
from espalier.clients.shared.records import records_in

from ..exchange import UNUSABLE, Exchanges
from ..outcomes import Failure, Update
from ..replies import weight_of
from ..strategy_edge import StrategyEdge
from ..views import MemberGrid
from .flights import Arrival, FlightPart
from .tier import AsynchronousTier

# Lets nodes begin, given the strategy's instruction and the number of their own rounds for each.
BeginNodes = Callable[[Mapping[int, tuple[Message, int]]], Exchanges[Mapping[int, FlightPart]]]


@dataclass(frozen=True)
class Nodes:
    """What trains in a tier: edges or clients.

    Parameters
    ----------
    ids : Sequence[int]
        Node ids, in the order of their numbers in the tier.
    begin : callable
        Lets nodes, by their numbers in the tier, train.
    contents : Callable[[Sequence[Arrival]], Sequence[RecordDict]]
        Returns what the replies hold of those that can be used.
    name_of : Callable[[int], str]
        Name of a node, by its id, in log lines.
    """

    ids: Sequence[int]
    begin: BeginNodes
    contents: Callable[[Sequence[Arrival]], Sequence[RecordDict]]
    name_of: Callable[[int], str]


def asynchronous_round(
    edge: StrategyEdge,
    tier: AsynchronousTier,
    nodes: Nodes,
    server_round: int,
    arrays: ArrayRecord,
    config: ConfigRecord,
    grid: MemberGrid,
) -> Exchanges[tuple[Update, list[Arrival]]]:
    """Run a round of a tier: nodes begin and end as its clock says, then its strategy aggregates.

    Parameters
    ----------
    edge : StrategyEdge
        The strategy.
    tier : AsynchronousTier
        Who is at work.
    nodes : Nodes
        What trains.
    server_round, arrays, config, grid
        As for `StrategyEdge.train_round`.

    Returns
    -------
    tuple[Update, list[Arrival]]
        What the strategy made, and all that came in.
    """
    messages, too_few = edge.instructions(server_round, arrays, config, grid)
    if too_few:
        return Update(failures=too_few), []
    place = {node_id: i for i, node_id in enumerate(nodes.ids)}
    instructions = {place[message.metadata.dst_node_id]: message for message in messages}

    def begin_all(numbers: Mapping[int, int]) -> Exchanges[Mapping[int, FlightPart]]:
        return nodes.begin({node: (instructions[node], number) for node, number in numbers.items()})

    arrivals = yield from tier.collected(
        server_round - 1,
        arrays,
        sorted(instructions),
        begin_all,
        f"{edge.seed}/begin",
        lambda node: nodes.name_of(nodes.ids[node]),
    )
    # Whoever comes first: averages are taken in the nodes' order.
    arrivals.sort(key=lambda arrival: arrival.flight.node)
    asked = [_instruction(nodes.ids[arrival.flight.node], arrays, config) for arrival in arrivals]
    replies, failures = _replies_by_mode(edge, tier, arrays, arrivals, asked, nodes.contents)
    first: dict[int, Message] = {}
    by_node: dict[int, list[Message]] = {}
    for arrival, message, reply in zip(arrivals, asked, replies, strict=True):
        if not reply.has_error():
            first.setdefault(arrival.flight.node, message)
            by_node.setdefault(arrival.flight.node, []).append(reply)
    merged = [as_one(first[node], own, edge.weight_key) for node, own in by_node.items()]
    return edge.aggregated(server_round, arrays, list(first.values()), merged, failures), arrivals


def _replies_by_mode(
    edge: StrategyEdge,
    tier: AsynchronousTier,
    arrays: ArrayRecord,
    arrivals: Sequence[Arrival],
    asked: Sequence[Message],
    contents: Callable[[Sequence[Arrival]], Sequence[RecordDict]],
) -> tuple[list[Message], list[Failure]]:
    """Return a reply for each arrival, its model placed by the mode, and a failure for each that can not be used."""
    held = iter(contents([arrival for arrival in arrivals if not arrival.fault]))
    replies = [
        Message(Error(UNUSABLE, arrival.fault), reply_to=message)
        if arrival.fault
        else Message(next(held), reply_to=message)
        for arrival, message in zip(arrivals, asked, strict=True)
    ]
    screened, failures = edge.screened(asked, replies)
    began_with = [tier.model_of(arrival.flight) for arrival in arrivals]
    kept, beyond = _within_bounds(edge, asked, began_with, screened)
    for arrival, origin, reply in zip(arrivals, began_with, kept, strict=True):
        if not reply.has_error():
            name, record = next(iter(records_in(reply.content, ArrayRecord).items()))
            placed = tier.mode.applied(arrays, origin, record, arrival.staleness)
            if placed is not record:
                reply.content = RecordDict({**reply.content, name: placed})
    return kept, [*failures, *beyond]


def _within_bounds(
    edge: StrategyEdge, asked: Sequence[Message], began_with: Sequence[ArrayRecord], screened: Sequence[Message]
) -> tuple[list[Message], list[Failure]]:
    """Let the edge's guard judge updates from the models that they began with, whatever they weigh by their staleness.

    Of nodes that come several times, the first updates of all are judged together, then the second ones, and so on: a
    node has one vote on what length is usual, however fast it is.
    """
    kept, failures = list(screened), list[Failure]()
    times: Counter[int] = Counter()
    turns: dict[int, list[int]] = {}
    for place, message in enumerate(asked):
        node_id = message.metadata.dst_node_id
        times[node_id] += 1
        turns.setdefault(times[node_id], []).append(place)
    for places in turns.values():
        sent = [_instruction(asked[i].metadata.dst_node_id, began_with[i], ConfigRecord()) for i in places]
        judged, beyond = edge.within_bounds(sent, [screened[i] for i in places])
        failures += beyond
        for place, reply in zip(places, judged, strict=True):
            kept[place] = reply
    return kept, failures


def _instruction(node_id: int, arrays: ArrayRecord, config: ConfigRecord) -> Message:
    """Return a message that a node's update is taken for the answer of."""
    content = RecordDict({ARRAYS: arrays, CONFIG: ConfigRecord({**config})})
    return Message(content, dst_node_id=node_id, message_type=MessageType.TRAIN)


def as_one(message: Message, replies: Sequence[Message], weight_key: str) -> Message:
    """Return a node's replies as one: their mean by weight, with the sum of their weights, and the last one's configs.

    So a node has one vote, however fast it is, where a strategy takes a median, say.
    """
    if len(replies) == 1:
        return replies[0]
    weights = np.array([weight_of(reply, weight_key) for reply in replies])
    if not weights.sum() > 0:
        return replies[0]
    shares = weights / weights.sum()
    records: dict[str, Any] = {}
    for name, record in replies[0].content.items():
        own = [reply.content[name] for reply in replies]
        if isinstance(record, ArrayRecord):
            records[name] = ArrayRecord({key: _mean([r[key] for r in own], shares) for key in record})  # type: ignore[misc]
        elif isinstance(record, MetricRecord):
            mean = {key: np.average([r[key] for r in own], axis=0, weights=shares).tolist() for key in record}
            records[name] = MetricRecord({**mean, weight_key: float(weights.sum())})
        else:
            records[name] = own[-1]
    return Message(RecordDict(records), reply_to=message)


def _mean(arrays: Sequence[Array], shares: np.ndarray) -> Array:
    values = [values_of(array) for array in arrays]
    mean = sum(share * value for share, value in zip(shares.tolist(), values, strict=True))
    dtype = values[0].dtype
    return Array(np.asarray(mean if dtype.kind in "fc" else np.rint(mean), dtype))
