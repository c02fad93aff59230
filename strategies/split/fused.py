"""Split training where clients and edge are in one process: no message per mini-batch."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from torch import Tensor

from espalier.clients.messages import Instruction
from espalier.clients.messages.split import Activations, FeatureGradient, SplitFused, SplitResult
from espalier.clients.shared.arrays import as_computed, as_travels
from espalier.clients.shared.lanes import Lanes, Sent

from ..exchange import Exchanges
from ..reply_faults import content_of
from .loop import SplitLoop, SplitOutcome, Terms
from .serving import Serve
from .transports import instruction_of, lock_step

# Called with the direction and what a message would have held.
OnPassed = Callable[[str, Sent | Instruction], None]


class FusedTransport:
    """One message per client and round; inside of it both halves of the model train in turns, without any more.

    What is computed is what messages would have computed. Clients that advance together, as in interleaved SFL-V2, need
    each other's mini-batches: they train by messages.

    Parameters
    ----------
    lanes : Lanes
        Where the clients look for their edge.
    on_passed : callable, optional (default: None)
        Called with (direction, content) for what a message would have held.
    """

    def __init__(self, lanes: Lanes, *, on_passed: OnPassed | None = None) -> None:
        self.lanes = lanes
        self.on_passed = on_passed or (lambda *what: None)

    def train(self, groups: Sequence[Sequence[int]], terms: Terms, serve: Serve) -> Exchanges[SplitOutcome]:
        """Train those who advance alone in one exchange, the others in lock step."""
        alone = [group[0] for group in groups if len(group) == 1]
        lanes: dict[int, _Lane] = {}

        def enter(clients: Sequence[int]) -> _Lane:
            lane = _Lane(clients, terms, serve, self.on_passed)
            lanes.update(dict.fromkeys(clients, lane))
            return lane

        self.lanes.open(alone, enter)
        try:
            replies = yield [SplitFused(**vars(terms.begin(n))).to_message(n) for n in alone]
        finally:
            self.lanes.close(alone)
        for node_id, reply in zip(alone, replies, strict=True):
            lane = lanes.get(node_id) or enter([node_id])
            try:
                lane.conclude(node_id, SplitResult.from_content(content_of(reply)))
            except (ValueError, KeyError, TypeError) as error:
                lane.leave(node_id, error)
        outcome = SplitOutcome()
        for lane in dict.fromkeys(lanes[node_id] for node_id in alone):  # in no order of arrival
            outcome.add(lane.loop.outcome())
        if together := [node_id for group in groups if len(group) > 1 for node_id in group]:
            outcome.add((yield from lock_step(together, terms, serve)))
        outcome.sort([node_id for group in groups for node_id in group])
        return outcome


class _Silent(ValueError):
    """A client that sends nothing more; its own words may say why."""


class _Lane:
    """Carries the loop of some clients, called by the clients themselves."""

    def __init__(self, clients: Sequence[int], terms: Terms, serve: Serve, on_passed: OnPassed) -> None:
        self.loop = SplitLoop(clients, terms, serve)
        self._terms = terms
        self._on_passed = on_passed

    def exchange(self, sent: Mapping[int, Sent]) -> dict[int, Tensor]:
        """Serve what each client sends; see `espalier.clients.shared.lanes.Lane`."""
        loop = self.loop
        received = {node_id: _as_received(one.values) for node_id, one in sent.items()}
        on_gpu = {n: v for n, v in received.items() if isinstance(sent[n], Activations) and v.device.type != "cpu"}
        magnitudes = self._terms.magnitudes(on_gpu) if len(on_gpu) > 1 else {}  # one wait for all
        for node_id in loop.due.copy():
            try:
                self._take_in(node_id, sent.get(node_id), received.get(node_id), magnitudes.get(node_id))
            except ValueError as error:
                loop.leave(node_id, error)
        answers = loop.answers()
        for node_id, answer in answers.items():
            self._on_passed("downlink", instruction_of(node_id, answer, self._terms))
        return {node_id: _as_received(answer.values) for node_id, answer in answers.items()}

    def _take_in(self, node_id: int, sent: Sent | None, received: Tensor | None, magnitude: float | None) -> None:
        if sent is None or received is None:
            raise _Silent("it did not go on")
        self._on_passed("uplink", sent)
        if isinstance(sent, FeatureGradient):
            self.loop.receive_gradient(node_id, received)
            return
        numbers, lengths = (None if n is None else n.astype(np.int64) for n in (sent.numbers, sent.lengths))
        self.loop.receive(node_id, received, numbers, sent.num_steps, magnitude, lengths)

    def leave(self, node_id: int, reason: Exception) -> None:
        """Go on without a client; what was wrong with a mini-batch of its own counts first."""
        if isinstance(self.loop.left.get(node_id, _Silent()), _Silent):
            self.loop.leave(node_id, reason)
        if self.loop.awaits_gradients and not self.loop.due:
            self.loop.answers()  # ends the step of a client that left in the middle of it

    def conclude(self, node_id: int, result: SplitResult) -> None:
        """Take in a client's result.

        Raises
        ------
        ValueError
            If it has not trained, or does not hold the block that was trained.
        """
        if node_id not in self.loop.trained:
            raise ValueError("it did not train against the edge in its process")
        self.loop.conclude(node_id, result)


def _as_received(tensor: Tensor) -> Tensor:
    """Return a tensor as if it had come in a message."""
    return as_computed(as_travels(tensor))
