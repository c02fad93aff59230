"""How the mini-batches of split training travel: here by Flower messages."""

from collections.abc import Sequence
from typing import Protocol

from flwr.app import Message

from espalier.clients.messages import Instruction
from espalier.clients.messages.split import Activations, FeatureGradient, SplitEnd, SplitResult, SplitStep, SplitTail

from ..exchange import Exchanges
from ..reply_faults import content_of
from .loop import Answer, SplitLoop, SplitOutcome, Terms
from .serving import Serve


class Transport(Protocol):
    """Carries mini-batches between clients and their edge."""

    def train(self, groups: Sequence[Sequence[int]], terms: Terms, serve: Serve) -> Exchanges[SplitOutcome]:
        """Train clients for one round; clients of one group advance one mini-batch of each at a time."""


class MessageTransport:
    """A message per mini-batch, all groups in one lock step."""

    def train(self, groups: Sequence[Sequence[int]], terms: Terms, serve: Serve) -> Exchanges[SplitOutcome]:
        """Train all clients in one lock step."""
        return lock_step([node_id for group in groups for node_id in group], terms, serve)


def lock_step(clients: Sequence[int], terms: Terms, serve: Serve) -> Exchanges[SplitOutcome]:
    """Carry the loop of some clients by messages: S mini-batches are S + 1 exchanges.

    With tails they are 2 S + 1, or S (n + 1) + 1 where n clients have their turns at a shared server block.
    """
    loop = SplitLoop(clients, terms, serve)
    messages = {n: terms.begin(n).to_message(n) for n in clients}
    held: dict[int, Message] = {}  # the last ones of those who wait for others
    while messages:
        replies = yield list(messages.values())
        for node_id, reply in zip(messages, replies, strict=True):
            try:
                if node_id in loop.trained:
                    loop.conclude(node_id, SplitResult.from_content(content_of(reply)))
                elif loop.awaits_gradients:
                    gradient = FeatureGradient.from_content(content_of(reply), step=loop.step)
                    loop.receive_gradient(node_id, gradient.values)
                else:
                    policy = terms.label_policy(node_id)
                    sent = Activations.from_content(content_of(reply), step=loop.step, label_policy=policy)
                    loop.receive(node_id, sent.values, sent.numbers, sent.num_steps, lengths=sent.lengths)
            except (ValueError, KeyError, TypeError) as error:
                loop.leave(node_id, error)
        answers = loop.answers()
        messages = {n: instruction_of(n, answer, terms).to_message(n) for n, answer in answers.items()}
        if terms.ends_together:
            held |= {n: messages.pop(n) for n, answer in answers.items() if answer.is_last}
            messages, held = (messages, held) if messages else (held, {})
    return loop.outcome()


def instruction_of(node_id: int, answer: Answer, terms: Terms) -> Instruction:
    """Return what brings a client its answer."""
    if answer.are_features:
        return SplitTail(terms.server_round, answer.step, answer.values)
    kind = SplitEnd if answer.is_last else SplitStep
    return kind(terms.server_round, answer.step, terms.label_policy(node_id), answer.values)
