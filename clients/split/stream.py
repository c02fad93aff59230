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
    make_step = partial(_step_in_parts, parts=instruction.parts) if instruction.parts > 1 else _step
    links, asked = list[_Link](), time.perf_counter()
    try:
        with open_stream(instruction.ticket, instruction.timeout_seconds) as stream:
            seconds_to_open = time.perf_counter() - asked
            while not session.is_over:
                links.append(make_step(session, stream, instruction.payload, feedback))
    except Withdrawn as withdrawn:
        return Message(Error(STREAM_WITHDRAWN, str(withdrawn)), reply_to=message)
    if instruction.parts == 1:  # what computes meanwhile hides how long parts are on the way
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
    sent = _packed(form, batch, feedback)
    if session.awaits_features:
        as_features = partial(unpack_features, form, step=batch.step, num_samples=len(batch.values))
        sent = pack(form, session.at_tail(link.exchange(sent, as_features)), step=batch.step)
    as_gradient = partial(unpack_gradient, form, step=batch.step, shape=tuple(batch.values.shape))
    session.backward(link.exchange(sent, as_gradient))
    return link


def _step_in_parts(session: Session, stream: OpenStream, payload: str, feedback: Feedback, *, parts: int) -> "_Link":
    """Make a split step whose parts go without a wait: the edge computes on one, and the link carries another."""
    link, left = _Link(stream), len(session.batches[session.step])
    waiting: list[tuple[Format, int, tuple[int, ...]]] = []
    for part in session.forward_parts(parts):
        left -= len(part.values)
        form = Format(payload, part.values.dtype)
        link.send(_packed(form, part, feedback, more=left > 0))
        waiting.append((form, part.step, tuple(part.values.shape)))
    for form, step, shape in waiting:
        session.backward(link.receive(partial(unpack_gradient, form, step=step, shape=shape)))
    return link


def _packed(form: Format, batch: Activations, feedback: Feedback, *, more: bool = False) -> bytes:
    """Return the frame of a mini-batch, or of a part of one."""
    # Where the labels travel, or are kept, the edge does not know the samples, and neither end feeds back.
    values = feedback.added(form, batch.values, batch.numbers if batch.label_policy == INDICES else None)
    labels = _numbers_of_samples(batch)
    return pack(form, values, step=batch.step, num_steps=batch.num_steps, labels=labels, more=more)


def _numbers_of_samples(batch: Activations) -> Tensor | None:
    """Return what whole numbers go with activations, a row for each sample: labels, or its index, and its length."""
    told = [torch.from_numpy(part) for part in (batch.numbers, batch.lengths) if part is not None]
    return torch.cat([numbers.view(len(numbers), -1) for numbers in told], 1) if told else None


class _Link:
    """Exchanges frames, and adds up their bits, and of the time that it waits how long the edge held them."""

    def __init__(self, stream: OpenStream) -> None:
        self.bits, self.seconds, self.seconds_held = 0, 0.0, 0.0
        self._stream = stream

    def exchange(self, sent: bytes, read: Callable[[bytes], Frame]) -> Tensor:
        """Send a frame and return the tensor of its answer."""
        self.send(sent)
        return self.receive(read)

    def send(self, frame: bytes) -> None:
        """Send a frame; its answer is to be received."""
        self.bits += 8 * len(frame)
        self._stream.send(frame)

    def receive(self, read: Callable[[bytes], Frame]) -> Tensor:
        """Return the tensor that answers the first frame which has no answer yet."""
        started = time.perf_counter()
        received = self._stream.receive()
        seconds = time.perf_counter() - started
        frame = read(received)
        held = min(frame.seconds_held, seconds)  # the edge may have worked on a part before it was waited for
        self.bits += 8 * len(received)
        self.seconds += seconds - held
        self.seconds_held += held
        return frame.values
