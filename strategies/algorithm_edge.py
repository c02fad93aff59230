"""The base of edges of algorithms with a half at the clients: any Flower strategy averages the models."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Error, Message, RecordDict
from flwr.serverapp.strategy import Strategy

from espalier.clients.messages.train import CLIENT_HALF, EDGE_HALF, only_arrays
from espalier.clients.shared.arrays import to_record, to_weights
from espalier.clients.shared.correction import Weights
from espalier.clients.shared.records import records_in
from espalier.clients.shared.tensor_array import record_by_reference

from .edge_half import EdgeHalf, Gathered, GuardOfTold, averaged_within, checked_half, moved, sent_beside, told_fault
from .exchange import REJECTED, Exchanges
from .guards.updates import UpdateGuard
from .outcomes import Evaluation, Failure, Update
from .replies import weight_of
from .strategy_edge import StrategyEdge
from .views import MemberGrid


class AlgorithmEdge(StrategyEdge):
    """A Flower strategy as an edge whose clients do what another algorithm says.

    It sends what the algorithm's edge half sends beside the model, takes what clients tell out of their replies before
    the strategy gets these, checks and bounds it as it does models, and hands it to the edge half, which may put other
    models into the strategy's average. Weights that stay with the clients are part of no message; in the edge's own
    model they are as they were.

    Parameters
    ----------
    strategy : Strategy
        Any Flower strategy: it selects clients and averages their models.
    half : EdgeHalf, optional (default: None)
        The edge's half of the algorithm. None: it has none.
    stays : Collection[str] (default: none)
        Names of weights that never leave the clients, see `espalier.clients.half.ClientHalf.stays`.
    seed, name, guard
        As for `StrategyEdge`.
    """

    def __init__(
        self,
        strategy: Strategy,
        half: EdgeHalf | None = None,
        stays: Collection[str] = (),
        seed: int | str | None = None,
        name: str | None = None,
        guard: UpdateGuard | None = None,
    ) -> None:
        super().__init__(strategy, seed, name, guard)
        self.half = EdgeHalf() if half is None else checked_half(half)
        self.stays = frozenset(stays)
        self._told = GuardOfTold(lambda: self.guard)
        self._averaged = GuardOfTold(lambda: self.guard)

    def train_round(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: MemberGrid
    ) -> Exchanges[Update]:
        """Run one round of the strategy, with what the halves of the algorithm have to say to each other."""
        if self.guard is not None:
            self.guard.begin_round(grid.terms.local_rounds)
        travelling = self._travelling(arrays)
        start = moved(to_weights(travelling))
        self.half.begin(server_round, start)
        messages, too_few = self.instructions(server_round, travelling, config, grid)
        if too_few:
            return Update(failures=too_few)
        replies, told = self._take_out(messages, (yield self._with_beside(messages)), travelling)
        screened, failures = self.screened(messages, replies)
        kept, beyond = self.within_bounds(messages, screened)
        kept, told, too_long = self._told_within_bounds(messages, kept, told, start)
        kept, useless = self._as_averaged(messages, kept, told, travelling, grid)
        update = self.aggregated(server_round, travelling, messages, kept, [*failures, *beyond, *too_long, *useless])
        if update.arrays is None:
            return update
        model = moved(to_weights(update.arrays))
        self.half.learn(model, {n: told.get(n, {}) for n in update.participants}, grid.num_clients)
        return replace(update, arrays=record_by_reference({**arrays, **update.arrays}))

    def evaluate_round(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: MemberGrid
    ) -> Exchanges[Evaluation]:
        """Run one evaluation of the strategy, without the weights that stay with the clients."""
        return super().evaluate_round(server_round, self._travelling(arrays), config, grid)

    def state_dict(self) -> dict[str, Any]:
        """Return the strategy's state, and that of the edge's half."""
        guards = {"told": self._told.state_dict(), "averaged": self._averaged.state_dict()}
        return {"strategy": super().state_dict(), "half": self.half.state_dict(), **guards}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what `state_dict` returned."""
        super().load_state_dict(state["strategy"])
        self.half.load_state_dict(state["half"])
        self._told.load_state_dict(state["told"])
        self._averaged.load_state_dict(state["averaged"])

    def clients_begin_anew(self) -> None:
        """Let the edge's half forget what goes by what clients keep."""
        self.half.clients_begin_anew()

    def _travelling(self, arrays: ArrayRecord) -> ArrayRecord:
        if not self.stays:
            return arrays
        return record_by_reference({name: array for name, array in arrays.items() if name not in self.stays})

    def _with_beside(self, messages: list[Message]) -> list[Message]:
        """Put what the edge's half sends into messages; a strategy may have given several the same records."""
        for message in messages:
            if beside := sent_beside(self.half, message.metadata.dst_node_id):
                message.content = RecordDict({**message.content, EDGE_HALF: to_record(beside)})
        return messages

    def _take_out(
        self, messages: Sequence[Message], replies: Sequence[Message], model: ArrayRecord
    ) -> tuple[list[Message], dict[int, Weights]]:
        """Return replies, and messages as they were, without what is beside the model, and what clients told in it."""
        left, told = list[Message](), dict[int, Weights]()
        for message, reply in zip(messages, replies, strict=True):
            if EDGE_HALF in message.content:
                message.content = RecordDict({n: r for n, r in message.content.items() if n != EDGE_HALF})
            if not reply.has_error() and isinstance(own := reply.content.get(CLIENT_HALF), ArrayRecord):
                if fault := told_fault(own, model):
                    reply = Message(Error(REJECTED, fault), reply_to=message)
                else:
                    told[message.metadata.dst_node_id] = to_weights(own)
                    reply.content = RecordDict({n: r for n, r in reply.content.items() if n != CLIENT_HALF})
            left.append(reply)
        return left, told

    def _told_within_bounds(
        self, messages: Sequence[Message], replies: Sequence[Message], told: Mapping[int, Weights], start: Weights
    ) -> tuple[list[Message], dict[int, Weights], list[Failure]]:
        """Leave out those whose replies are good, and what they told beside the model is too long."""
        pairs = list(zip(messages, replies, strict=True))
        good = [m.metadata.dst_node_id for m, reply in pairs if not reply.has_error()]
        kept, faults = self._told.within_bounds({n: told[n] for n in good if n in told}, start)
        left = [
            Message(Error(REJECTED, fault), reply_to=m) if (fault := faults.get(m.metadata.dst_node_id)) else reply
            for m, reply in pairs
        ]
        return left, kept, [Failure(node_id, fault) for node_id, fault in faults.items()]

    def _as_averaged(
        self,
        messages: Sequence[Message],
        replies: Sequence[Message],
        told: Mapping[int, Weights],
        start: ArrayRecord,
        grid: MemberGrid,
    ) -> tuple[list[Message], list[Failure]]:
        """Return replies with the weights that the edge's half has averaged."""
        if type(self.half).averaged is EdgeHalf.averaged:  # the models as they are, which nobody has to read
            return list(replies), []
        good = {m.metadata.dst_node_id: r for m, r in zip(messages, replies, strict=True) if not r.has_error()}
        models = {n: to_weights(only_arrays(reply.content)) for n, reply in good.items()}
        examples = {n: weight_of(reply, self.weight_key) for n, reply in good.items()}
        gathered = Gathered.of(to_weights(start), models, told, examples, grid.num_clients)
        averaged, faults = averaged_within(self.half, gathered, self._averaged)
        left = list[Message]()
        for message, reply in zip(messages, replies, strict=True):
            node_id = message.metadata.dst_node_id
            if node_id in faults:
                reply = Message(Error(REJECTED, faults[node_id]), reply_to=message)
            elif node_id in good and averaged[node_id] is not gathered.models[node_id]:
                _put(reply, averaged[node_id])
            left.append(reply)
        return left, [Failure(node_id, fault) for node_id, fault in faults.items()]


def _put(reply: Message, weights: Weights) -> None:
    """Put weights into the model that a reply holds."""
    ((name, model),) = records_in(reply.content, ArrayRecord).items()
    whole = record_by_reference({**model, **to_record(weights)})
    reply.content = RecordDict({**reply.content, name: whole})
