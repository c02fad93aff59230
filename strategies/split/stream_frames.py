"""The loop of split training over open streams: what clients send comes in frames, and so do the answers."""

import time
from collections.abc import Callable, Mapping

import grpc
import numpy as np

from espalier.clients.messages.frames import Feedback, Format, pack, unpack_activations, unpack_gradient
from espalier.clients.messages.split_names import (
    ACTIVATIONS,
    CUT_GRADIENT,
    FEATURE_GRADIENT,
    FEATURES,
    INDICES,
    KEPT,
    LENGTHS,
)

from ..replies import one_line
from .loop import Answer, SplitLoop, Terms
from .stream import Connection, StreamEnded

# Called with ("downlink" | "uplink", kind, bytes) for what a frame holds, from threads.
OnBytes = Callable[[str, str, int], None]


class BrokenOffError(ValueError):
    """A stream that ended early; the client's own words may say more."""


class StreamFrames:
    """Carries the loop of clients that advance together as frames.

    Parameters
    ----------
    loop : SplitLoop
        What is carried.
    terms : Terms
        What the clients may send.
    form : Format
        How tensors are written.
    connections : Mapping[int, Connection]
        The streams by node id; all are open when frames are carried.
    timeout_seconds : float
        How long a client's next mini-batch is waited for.
    on_bytes : OnBytes
        Told of the tensors and the labels of every frame.

    Attributes
    ----------
    left_at : dict[int, float]
        When clients left, by node id, in monotonic time.
    """

    def __init__(
        self,
        loop: SplitLoop,
        terms: Terms,
        form: Format,
        connections: Mapping[int, Connection],
        timeout_seconds: float,
        on_bytes: OnBytes,
    ) -> None:
        self.left_at: dict[int, float] = {}
        self._loop = loop
        self._terms = terms
        self._form = form
        self._connections = connections
        self._timeout_seconds = timeout_seconds
        self._on_bytes = on_bytes
        self._samples: dict[int, np.ndarray | None] = {}  # of the last mini-batch
        self._feedback = {node_id: Feedback() for node_id in loop.active}

    def run(self) -> None:
        """Carry frames until all clients have trained or left."""
        loop = self._loop
        arrived: dict[int, float] = {}
        while due := loop.due:
            deadline = time.monotonic() + self._timeout_seconds
            for node_id in due:
                try:
                    data, arrived[node_id] = self._connections[node_id].receive(deadline)
                    self._take_in(node_id, data)
                except StreamEnded as ended:
                    loop.leave(node_id, BrokenOffError(f"{ended} (mini-batch {loop.step})"))
                except ValueError as error:
                    loop.leave(node_id, error)
            for node_id, answer in loop.answers().items():
                try:
                    self._send(node_id, answer, arrived[node_id])
                except ValueError as error:
                    loop.leave(node_id, error)
            for node_id in [n for n in loop.left if n not in self.left_at]:
                self._end(node_id, loop.left[node_id])

    def _take_in(self, node_id: int, data: bytes) -> None:
        step = self._loop.step
        if self._loop.awaits_gradients:
            frame = unpack_gradient(self._form, data, step=step, shape=self._loop.feature_shape(node_id))
            self._loop.receive_gradient(node_id, frame.values)
            self._on_bytes("uplink", FEATURE_GRADIENT, frame.tensor_bytes)
            return
        terms, sample_shape = self._terms, self._terms.cut_shapes[node_id]
        policy, has_lengths = terms.label_policy(node_id), terms.has_lengths(node_id)
        telling = 0 if policy == KEPT else terms.labels.numbers_per_sample
        frame = unpack_activations(
            self._form, data, step=step, sample_shape=sample_shape, numbers_per_sample=telling + has_lengths
        )
        rows = frame.labels.reshape(len(frame.values), telling + has_lengths)
        shape = (len(rows),) if policy == INDICES else (len(rows), *terms.labels.shape)
        numbers = rows[:, :telling].reshape(shape) if telling else None
        lengths = rows[:, -1].copy() if has_lengths else None
        self._loop.receive(node_id, frame.values, numbers, frame.num_steps, lengths=lengths, more=frame.more)
        self._samples[node_id] = numbers if policy == INDICES else None
        self._on_bytes("uplink", ACTIVATIONS, frame.tensor_bytes)
        for kind, sent in ((policy, numbers), (LENGTHS, lengths)):
            if sent is not None:
                self._on_bytes("uplink", kind, 4 * sent.size)

    def _send(self, node_id: int, answer: Answer, arrived: float) -> None:
        values = answer.values
        if not answer.are_features:
            values = self._feedback[node_id].added(self._form, values, self._samples[node_id])
        frame = pack(self._form, values, step=answer.step, seconds_held=time.monotonic() - arrived)
        self._connections[node_id].send(frame)
        tensor_bytes = self._form.tensor_bytes(len(values), values[0].numel())
        self._on_bytes("downlink", FEATURES if answer.are_features else CUT_GRADIENT, tensor_bytes)

    def _end(self, node_id: int, reason: Exception) -> None:
        """End the stream of a client that has left."""
        self.left_at[node_id] = time.monotonic()
        connection = self._connections[node_id]
        if isinstance(reason, BrokenOffError):
            connection.cancel()
        else:
            connection.end(grpc.StatusCode.INVALID_ARGUMENT, one_line(reason))
