"""Models that come up compressed: from clients, and from edges to the tier above."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from flwr.app import ArrayRecord, ConfigRecord, Error, Message, RecordDict
from flwr.serverapp.strategy import Strategy

from espalier.clients.messages import ends_round
from espalier.clients.messages.learned import begins_with_model, learned_in, start_in
from espalier.clients.messages.train import ARRAYS
from espalier.clients.shared import text
from espalier.clients.shared.arrays import record_of, to_record, to_weights
from espalier.clients.shared.compression import Codec, compressed, decompressed
from espalier.clients.shared.compression.updates import COMPRESSED, form_of_update

from .edge_base import EdgeRounds
from .edges import EdgeDecorator, answered_messages
from .exchange import REJECTED, Exchanges
from .outcomes import Update
from .randomness import derived_seed
from .views import MemberGrid


class CompressedReplies(EdgeDecorator):
    """An edge, of whatever kind, whose clients send compressed updates: it gets the models that these make.

    A reply that is no update of the model which was sent is left out. All that judges models comes after.

    Parameters
    ----------
    edge : Strategy | EdgeRounds
        Trains. What judges or bounds models, such as its guard, belongs inside.
    codec : Codec
        Reads updates; the clients have the same one.
    """

    def __init__(self, edge: Strategy | EdgeRounds, codec: Codec) -> None:
        super().__init__(edge)
        self._codec = codec

    def train_round(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: MemberGrid
    ) -> Exchanges[Update]:
        """Run the edge's round with the models that its clients' updates make."""
        begun: dict[int, RecordDict] = {}  # what each node's round began with

        def read(messages: list[Message]) -> Exchanges[list[Message]]:
            """Pass messages on; replies that end a client's round hold models, or blocks."""
            # What is inside may have put parts of weights into the messages, for this exchange alone.
            begun.update({m.metadata.dst_node_id: m.content for m in messages if begins_with_model(m)})
            replies = yield messages
            return [self._with_model(begun, *pair) for pair in zip(messages, replies, strict=True)]

        return answered_messages(self.edge.train_round(server_round, arrays, config, grid), read)

    def _with_model(self, begun: Mapping[int, RecordDict], message: Message, reply: Message) -> Message:
        first = begun.get(message.metadata.dst_node_id)
        if first is None or not ends_round(message.metadata.message_type) or reply.has_error():
            return reply
        try:
            content = reply.content
            update = record_of(content, COMPRESSED)
            name, beside = learned_in(RecordDict({n: record for n, record in content.items() if n != COMPRESSED}))
            model = decompressed(self._codec, beside, update, start_in(first))
        except ValueError as error:
            return Message(Error(REJECTED, text.one_line(str(error))), reply_to=message)
        reply.content = RecordDict(
            {n: model if n == name else record for n, record in content.items() if n != COMPRESSED}
        )
        return reply


@dataclass(frozen=True)
class Carried:
    """An edge's model on its way up.

    Parameters
    ----------
    sent : Mapping[str, ArrayRecord]
        What travels, by the names of the records.
    arrived : ArrayRecord
        The model that the tier above makes of it.
    """

    sent: Mapping[str, ArrayRecord]
    arrived: ArrayRecord


class Uplinks(Protocol):
    """How the models of a tier's edges come up."""

    def carried(self, edge: str, number: int, start: ArrayRecord, model: ArrayRecord) -> Carried:
        """Carry a model up; ValueError if it can't be.

        Parameters
        ----------
        edge : str
            Path of the edge.
        number : int
            The round of the tier above.
        start : ArrayRecord
            The model that the edge was sent.
        model : ArrayRecord
            What it has made of it.
        """

    def read(self, sent: Mapping[str, ArrayRecord], start: ArrayRecord) -> ArrayRecord:
        """Return the model that what travelled makes of `start`; ValueError if it is of another form."""

    def state_dict(self) -> dict[str, Any]:
        """Return what must survive an interruption."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what `state_dict` returned."""


class PlainUplinks:
    """Models come up as they are."""

    def carried(self, edge: str, number: int, start: ArrayRecord, model: ArrayRecord) -> Carried:
        """Return the model as what travels and what arrives."""
        arrived = model.copy()
        return Carried({ARRAYS: arrived}, arrived)

    def read(self, sent: Mapping[str, ArrayRecord], start: ArrayRecord) -> ArrayRecord:
        """Return the model."""
        return sent[ARRAYS]

    def state_dict(self) -> dict[str, Any]:
        """Return nothing."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take nothing back."""


class CompressedUplinks:
    """Edges' updates come up compressed; what is left out of one is kept for the edge's next.

    Both ends are of one class: an edge's host makes what travels, and the cloud reads it, by one of its own each.

    Parameters
    ----------
    codec : Codec
        Writes and reads updates.
    seed : int
        What the codec draws follows it, the edge and the round.
    """

    def __init__(self, codec: Codec, seed: int) -> None:
        self._codec = codec
        self._seed = seed
        self._errors: dict[str, ArrayRecord] = {}

    def carried(self, edge: str, number: int, start: ArrayRecord, model: ArrayRecord) -> Carried:
        """Compress an edge's update."""
        errors = to_weights(self._errors[edge]) if edge in self._errors else {}
        draws = torch.Generator().manual_seed(derived_seed(self._seed, "compression", edge, number))
        made = compressed(self._codec, model, start, errors, draws)
        if self._codec.keeps_errors:
            self._errors[edge] = to_record(made.errors)
        # What the tier above has is read from what travelled, not from what was written.
        sent = {ARRAYS: made.beside, COMPRESSED: made.update}
        return Carried(sent, self.read(sent, start))

    def read(self, sent: Mapping[str, ArrayRecord], start: ArrayRecord) -> ArrayRecord:
        """Return the model that an update makes."""
        return decompressed(self._codec, sent[ARRAYS], sent[COMPRESSED], start)

    def state_dict(self) -> dict[str, Any]:
        """Return what was left out, by edge."""
        return dict(self._errors)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what `state_dict` returned."""
        self._errors = dict(state)


class CountedUplinks(PlainUplinks):
    """Edges' models have come up compressed, from hosts of their own, and were read: what travelled is counted.

    Parameters
    ----------
    codec : Codec
        Has written them; all updates of a model are of one length.
    """

    def __init__(self, codec: Codec) -> None:
        self._codec = codec

    def carried(self, edge: str, number: int, start: ArrayRecord, model: ArrayRecord) -> Carried:
        """Return the model, and records as long as those that it came in."""
        form = form_of_update(self._codec, model)
        return Carried({ARRAYS: form.beside, COMPRESSED: form.update}, model.copy())
