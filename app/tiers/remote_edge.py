"""An edge that has a host of its own, as the cloud's run sees it."""

from collections.abc import Callable, Mapping, Sequence
from logging import getLogger
from typing import Any, TypeVar

from flwr.app import ArrayRecord, ConfigRecord, Message

from espalier.app.ground.checkpoint import from_bytes, to_bytes
from espalier.app.ground.errors import UserError
from espalier.app.tiers.states import CloudState
from espalier.app.tiers.wire import (
    Counted,
    Wire,
    counted_from_wire,
    evaluation_from_wire,
    heads_from_wire,
    updates_from_wire,
)
from espalier.clients.messages.edge import EVALUATE_EDGE, TRAIN_EDGE, TRAIN_EDGE_HEADS, EdgeRequest, from_payload
from espalier.clients.messages.train import ACCURACY, LOSS
from espalier.clients.shared import text
from espalier.strategies import Edge, Evaluation, Failure, Profile, Update
from espalier.strategies.compression import PlainUplinks, Uplinks
from espalier.strategies.exchange import Exchanges
from espalier.strategies.outcomes import EVERYBODY
from espalier.strategies.replies import one_line, reason_of
from espalier.strategies.split import FineTuning, Personalised
from espalier.strategies.views import MemberGrid

logger = getLogger("espalier")
Result = TypeVar("Result")


class EdgeError(Exception):
    """An edge did not answer, or not as it should; the text says why, in one line."""


class EdgeFailed(EdgeError):
    """An edge answered that it failed."""


class RemoteEdge(Edge):
    """An edge's rounds, run by a host of its own.

    All edge rounds of a global round are one exchange with the edge's gateway, made when the first is due; the others
    give what came back then. The edge's run keeps no state: each request brings it, each answer returns it.

    Parameters
    ----------
    name : str
        The edge.
    gateway : int
        Node id of its gateway.
    clients : Sequence[Profile]
        Its clients; no average weighs more than all of their examples.
    edge_rounds : int
        Edge rounds in a global round.
    state : CloudState
        The edge's.
    wait_seconds : float
        How long the gateway waits where the edge's run is not there.
    reply_seconds : float
        How long it waits for an answer; 0 waits for ever.
    figures : Sequence[str] (default: accuracy and loss)
        What an evaluation of each client has to hold.
    head : ArrayRecord, optional (default: None)
        What fine-tuned heads have to be like; None where they stay with their clients.
    uplinks : Uplinks, optional (default: None)
        Reads the edge's models. None: they come as they are.
    is_planned : bool (default: False)
        Whether its edge rounds are planned.
    is_own : bool (default: False)
        Whether it runs in a process of this run. Then what fails there ends the run, as in one process; else an edge
        that says that it failed is left out.
    check_config : Callable[[str, Any], None] (default: nothing)
        Given the edge's name and the settings that an answer tells of, raises UserError if they do not fit this run's:
        the edge's run may have been started again with others. ValueError if they are none.
    on_counted : Callable[[str, Counted], None] (default: nothing)
        Told the edge's name and what it counted, once for every answer that could be used.
    """

    def __init__(
        self,
        name: str,
        gateway: int,
        clients: Sequence[Profile],
        edge_rounds: int,
        state: CloudState,
        *,
        wait_seconds: float,
        reply_seconds: float,
        figures: Sequence[str] = (ACCURACY, LOSS),
        head: ArrayRecord | None = None,
        uplinks: Uplinks | None = None,
        is_planned: bool = False,
        is_own: bool = False,
        check_config: Callable[[str, Any], None] = lambda name, config: None,
        on_counted: Callable[[str, Counted], None] = lambda name, counted: None,
    ) -> None:
        self.name = name
        self.gateway = gateway
        self.clients = frozenset(profile.partition_id for profile in clients)
        self._most = sum(profile.num_train_examples for profile in clients)
        self._most_tested = sum(profile.num_test_examples for profile in clients)
        self.edge_rounds = edge_rounds
        self.wait_seconds = wait_seconds
        self.reply_seconds = reply_seconds
        self.figures = figures
        self._head = head
        self._uplinks = uplinks or PlainUplinks()
        self._is_planned = is_planned
        self._is_own = is_own
        self._check_config = check_config
        self._on_counted = on_counted
        self._state = state
        self._updates: list[Update] = []
        self._is_there = True
        self._num_taken = 0  # states that came with answers

    def train_round(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: MemberGrid
    ) -> Exchanges[Update]:
        """Return an edge round; the first of a global round asks the edge for all of them."""
        before, edge_round = divmod(server_round - 1, self.edge_rounds)
        if edge_round == 0:
            self._updates = yield from self._train(before + 1, arrays, config)
        return self._updates[edge_round]

    def evaluate_round(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: MemberGrid
    ) -> Exchanges[Evaluation]:
        """Let the edge evaluate `arrays` on its clients."""

        def read(reply: Wire) -> Evaluation:
            evaluation = evaluation_from_wire(reply, self.clients, self.figures)
            _check_weight(evaluation.weight, self._most_tested)
            return evaluation

        try:
            request = {"round": server_round // self.edge_rounds, "arrays": arrays, "config": config}
            return (yield from self._ask(EVALUATE_EDGE, request, read))
        except EdgeError as error:
            self._raise_if_own(error)
            return Evaluation(failures=[Failure(EVERYBODY, str(error))])

    def personalise(self, arrays: ArrayRecord, fine_tuning: FineTuning, grid: MemberGrid) -> Exchanges[Personalised]:
        """Let the edge fine-tune a head for every client, from a trained model."""
        request = {"arrays": arrays, "num_steps": fine_tuning.num_steps, "learning_rate": fine_tuning.learning_rate}

        def read(reply: Wire) -> Personalised:
            return heads_from_wire(reply, self.clients, self.figures, self._head)

        try:
            return (yield from self._ask(TRAIN_EDGE_HEADS, request, read))
        except EdgeError as error:
            self._raise_if_own(error)
            return Personalised({}, {}, [Failure(EVERYBODY, str(error))])

    def state_dict(self) -> dict[str, Any]:
        """Return the edge's state as it last came back."""
        return self._state.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what `state_dict` returned."""
        self._state.load_state_dict(state)

    def _train(self, number: int, arrays: ArrayRecord, config: ConfigRecord) -> Exchanges[list[Update]]:
        def read(reply: Wire) -> list[Update]:
            updates = updates_from_wire(reply, arrays, self.edge_rounds, self.clients, self._uplinks)
            for update in updates:
                _check_weight(update.weight, self._most)
            return updates

        try:
            request = {"round": number, "arrays": arrays, "config": config}
            first = (number - 1) * self.edge_rounds + 1
            planned = range(first, first + self.edge_rounds * self._is_planned)
            return (yield from self._ask(TRAIN_EDGE, request, read, planned))
        except EdgeError as error:
            self._raise_if_own(error)
            # Said once; the other edge rounds did not take place either.
            return [Update(failures=[Failure(EVERYBODY, str(error))]), *[Update() for _ in range(self.edge_rounds - 1)]]

    def _raise_if_own(self, error: EdgeError) -> None:
        """Raise what ends the run where its own code failed: EdgeFailed where a state from a file may be to blame."""
        if not (self._is_own and isinstance(error, EdgeFailed)):
            return
        if self._state.is_untried:
            raise error
        raise UserError(f"edge {self.name!r} failed: {error}") from None

    def _ask(
        self, message_type: str, request: Wire, read: Callable[[Wire], Result], planned: range = range(0)
    ) -> Exchanges[Result]:
        """Hand a request to the edge; return what `read` makes of the answer, and keep what else came with it.

        Raises
        ------
        EdgeError
            If there is no answer, or none that can be used.
        """
        data, asked_after = to_bytes({**request, "state": self._state.to_request()}), self._num_taken
        message = EdgeRequest(data, self.wait_seconds, self.reply_seconds).to_message(self.gateway, message_type)
        (reply,) = yield [message]
        try:
            # A part that came in since then has moved the state on; an evaluation has only what it was sent.
            has_moved_on = message_type != TRAIN_EDGE and self._num_taken > asked_after
            result, counted = self._read(reply_of(reply), read, planned, keeps_state=has_moved_on)
        except EdgeError:
            self._is_there = False
            raise
        if not self._is_there:
            logger.info("edge %r is back", self.name)
        self._is_there = True
        self._on_counted(self.name, counted)
        return result

    def _read(
        self, reply: Wire, read: Callable[[Wire], Result], planned: range, *, keeps_state: bool
    ) -> tuple[Result, Counted]:
        try:
            if "config" in reply:  # not by an older version
                self._check_config(self.name, reply["config"])
            result, counted = read(reply), counted_from_wire(reply["counted"], self.clients, planned)
            if not keeps_state:
                self._state.from_answer(reply["state"])
                self._num_taken += 1
        except UserError as error:
            raise EdgeError(str(error)) from None
        except Exception as error:  # all of this only reads foreign data, which can fail in any way
            raise EdgeError(f"its answer does not fit: {type(error).__name__}: {one_line(error)}") from None
        return result, counted


def _check_weight(weight: float, most: int) -> None:
    """Raise ValueError for a weight beyond that of all examples; where edges weigh the same it is 1."""
    if weight > max(most, 1):
        raise ValueError(f"its weight is {weight:g}, its clients have {most} examples")


def reply_of(reply: Message) -> Wire:
    """Return what an edge answered; EdgeError if there is no answer, or the edge says that it failed."""
    if reply.has_error():
        raise EdgeError(reason_of(reply.error))
    try:
        answer = from_bytes(from_payload(reply.content))
        failure = text.one_line(str(answer["error"])) if "error" in answer else None
    except Exception as error:  # all of this only reads foreign data, which can fail in any way
        raise EdgeError(f"its answer can't be read: {one_line(error)}") from None
    if failure is not None:
        raise EdgeFailed(failure)
    return answer
