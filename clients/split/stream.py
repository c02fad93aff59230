"""A whole split round inside of one message: mini-batches go through a stream, which tells how fast the link is."""

import statistics
import time
from collections.abc import Callable
from functools import partial

import torch
from flwr.app import Context, Error, Message, MetricRecord
from torch import Tensor

from ..memory import kept
from ..messages.frames import Feedback, Format, Frame, pack, unpack_features, unpack_gradient
from ..messages.profile import key_of
from ..messages.seconds import ToldSeconds
from ..messages.split import Activations, SplitStream
from ..messages.split_names import INDICES, STREAM_WITHDRAWN
from ..streams import SHORTEST_SECONDS, OpenStream, Withdrawn, open_stream
from ..task import ClientTask
from .registered_labels import check_registered
from .session import Session, result_reply
from .sessions import Sessions

# Record of a node's state, and its key: what the node knows of its link.
LINK = "link"
LINK_BITS_PER_SECOND = key_of("link_bits_per_second")


def split_stream(message: Message, context: Context, task: ClientTask, sessions: Sessions) -> Message:
    """Answer ``train.split_stream``: train the client block over a stream to the edge, and send it back.

    How fast the link was, both ways together, stays in the node's state: the median over the round's mini-batches.

    Raises
    ------
    ConnectionError, TimeoutError
        If the stream breaks.
    ValueError
        If the edge sends what does not fit.
    """
    instruction = SplitStream.from_content(message.content)
    sessions.drop(context)  # of a round by messages that was broken off
    check_registered(context, task, instruction.begin.labels)
    session, feedback = Session.begin(task, instruction.begin, kept(context)), Feedback()
    links, asked = list[_Link](), time.perf_counter()
    try:
        with open_stream(instruction.ticket, instruction.timeout_seconds) as stream:
            seconds_to_open = time.perf_counter() - asked
            while not session.is_over:
                links.append(_step(session, stream, instruction.payload, feedback))
    except Withdrawn as withdrawn:
        return Message(Error(STREAM_WITHDRAWN, str(withdrawn)), reply_to=message)
    rate = statistics.median(link.bits / max(link.seconds, SHORTEST_SECONDS) for link in links)
    context.state[LINK] = MetricRecord({LINK_BITS_PER_SECOND: rate})
    reply = result_reply(message, context, session)
    held, moving = sum(link.seconds_held for link in links), sum(link.seconds for link in links)
    ToldSeconds(waiting=held, moving=max(moving, 0.0) + seconds_to_open).add_to(reply)
    return reply


def _step(session: Session, stream: OpenStream, payload: str, feedback: Feedback) -> "_Link":
    """Make a split step and return what carried its frames."""
    batch = session.forward()
    form, link = Format(payload, batch.values.dtype), _Link(stream)
    labels = _numbers_of_samples(batch)
    # Where the labels travel, or are kept, the edge does not know the samples, and neither end feeds back.
    values = feedback.added(form, batch.values, batch.numbers if batch.label_policy == INDICES else None)
    sent = pack(form, values, step=batch.step, num_steps=batch.num_steps, labels=labels)
    if session.awaits_features:
        as_features = partial(unpack_features, form, step=batch.step, num_samples=len(batch.values))
        sent = pack(form, session.at_tail(link.exchange(sent, as_features)), step=batch.step)
    as_gradient = partial(unpack_gradient, form, step=batch.step, shape=tuple(batch.values.shape))
    session.backward(link.exchange(sent, as_gradient))
    return link


def _numbers_of_samples(batch: Activations) -> Tensor | None:
    """Return what whole numbers go with activations, a row for each sample: labels, or its index, and its length."""
    told = [torch.from_numpy(part) for part in (batch.numbers, batch.lengths) if part is not None]
    return torch.cat([numbers.view(len(numbers), -1) for numbers in told], 1) if told else None


class _Link:
    """Exchanges frames, and adds up their bits, how long they were on the way, and how long the edge held them."""

    def __init__(self, stream: OpenStream) -> None:
        self.bits, self.seconds, self.seconds_held = 0, 0.0, 0.0
        self._stream = stream

    def exchange(self, sent: bytes, read: Callable[[bytes], Frame]) -> Tensor:
        """Send a frame and return the tensor of its answer."""
        started = time.perf_counter()
        received = self._stream.exchange(sent)
        seconds = time.perf_counter() - started
        frame = read(received)
        self.bits += 8 * (len(sent) + len(received))
        self.seconds += seconds - frame.seconds_held
        self.seconds_held += frame.seconds_held
        return frame.values
