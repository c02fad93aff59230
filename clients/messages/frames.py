"""Frames: what travels in a stream between a client and its edge, one per mini-batch and direction.

Where the client has the model's last blocks too, it is two: activations and features, then the gradients of both.

A frame is a fixed header, the dimensions of a tensor, int32 labels or sample indices, and the tensor's values: nothing
in it can be anything but numbers, and its length follows from its first bytes. Images travel channels last, as in
messages.
"""

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

import numpy as np
import torch
from flwr.app import ConfigRecordValues
from torch import Tensor

from ..shared.arrays import as_computed, as_travels
from ..shared.rounding import check_finite, from_int8, largest_places, place_dtype, to_half, to_int8

# The RPC that carries frames, and the key of its metadata that holds the client's ticket.
METHOD: Final = "/espalier.CutLayer/Stream"
TOKEN_KEY: Final = "espalier-token"

# Keys of the config record that tell a client where its stream goes.
STREAM_ADDRESS: Final = "stream-address"
STREAM_CERTIFICATE: Final = "stream-certificate"
STREAM_TOKEN: Final = "stream-token"
STREAM_MAX_BYTES: Final = "stream-max-bytes"

# Both ends send a ping after so long a silence.
KEEPALIVE_SECONDS: Final = 10

# Of each sample's values the share that travels, the largest ones.
TOP_SHARES: Final = {"top-25%": 0.25, "top-10%": 0.1}
PAYLOADS: Final = ("float32", "float16", "bfloat16", "int8", *TOP_SHARES)
PROBE_BYTES: Final = 2**20
MOST_FRAME_BYTES: Final = 2**31 - 1  # gRPC's

# Step, number of steps, kind of numbers, dimensions, whether more parts follow, seconds held, labels.
_HEADER = struct.Struct("<IIBBBfI")
_MOST_DIMENSIONS = 8
_CODES = {torch.float32: 0, torch.float64: 1, "float16": 2, "int8": 3, "bfloat16": 4, "top-25%": 5, "top-10%": 6}
_HALVES = {"float16": torch.float16, "bfloat16": torch.bfloat16}


@dataclass(frozen=True)
class StreamTicket:
    """The right to open one stream, once, as it is told to a client in a config record.

    Parameters
    ----------
    address : str
        Host and port of the edge.
    certificate : bytes
        PEM; the one to trust.
    token : str
        Shown when the stream is opened.
    max_bytes : int
        The largest frame.
    """

    address: str
    certificate: bytes
    token: str
    max_bytes: int

    def to_config(self) -> dict[str, ConfigRecordValues]:
        """Return the keys of a config record."""
        return {
            STREAM_ADDRESS: self.address,
            STREAM_CERTIFICATE: self.certificate,
            STREAM_TOKEN: self.token,
            STREAM_MAX_BYTES: self.max_bytes,
        }

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self | None:
        """Read what `to_config` wrote; None where there is no ticket."""
        if STREAM_TOKEN not in config:
            return None
        address, token = str(config[STREAM_ADDRESS]), str(config[STREAM_TOKEN])
        return cls(address, bytes(config[STREAM_CERTIFICATE]), token, int(config[STREAM_MAX_BYTES]))


@dataclass(frozen=True)
class Format:
    """How the two ends of a stream agreed to write tensors.

    Parameters
    ----------
    payload : one of `PAYLOADS` (default: "float32")
        ``"float32"``: as the model computes. ``"float16"``, ``"bfloat16"``: numbers beyond the range become the nearest
        in it. ``"int8"``: with a float32 scale per sample; a value is off by no more than 1/254 of the sample's
        largest. ``"top-25%"``, ``"top-10%"``: of each sample that share of the values, the largest by amount, at least
        one, as the model computes, with their places; the others are 0. See `Feedback` for what is left out.
    dtype : torch.dtype (default: torch.float32)
        What the model computes in: float32 or float64.

    Raises
    ------
    ValueError
        For another payload or dtype.
    """

    payload: str = "float32"
    dtype: torch.dtype = torch.float32

    def __post_init__(self) -> None:
        if self.payload not in PAYLOADS:
            raise ValueError(f"payload = {self.payload!r}: allowed are {', '.join(PAYLOADS)}")
        if self.dtype not in (torch.float32, torch.float64):
            raise ValueError(f"a model of {self.dtype} can't be streamed: allowed are float32 and float64")

    @property
    def code(self) -> int:
        """What stands for this format in a frame."""
        return _CODES.get(self.payload, _CODES[self.dtype])

    def tensor_bytes(self, num_samples: int, values_per_sample: int) -> int:
        """Return the bytes of a tensor's values, and scales where they have any."""
        if self.payload == "int8":
            return num_samples * (4 + values_per_sample)
        if self.payload in TOP_SHARES:
            place = place_dtype(values_per_sample).itemsize
            return num_samples * self.num_kept(values_per_sample) * (place + self.dtype.itemsize)
        return num_samples * values_per_sample * (2 if self.payload in _HALVES else self.dtype.itemsize)

    def num_kept(self, values_per_sample: int) -> int:
        """Return how many of a sample's values travel."""
        share = TOP_SHARES.get(self.payload, 1.0)
        return max(1, math.ceil(share * values_per_sample)) if values_per_sample else 0

    def frame_bytes(self, num_samples: int, sample_shape: tuple[int, ...], numbers_per_sample: int = 1) -> int:
        """Return the bytes of the frame that carries the activations of so many samples and their labels."""
        head = _HEADER.size + 4 * (1 + len(sample_shape)) + 4 * num_samples * numbers_per_sample
        return head + self.tensor_bytes(num_samples, math.prod(sample_shape))


@dataclass(frozen=True)
class Frame:
    """A frame, read and checked.

    Parameters
    ----------
    values : Tensor
        Activations or a cut gradient, in the dtype that the model computes in.
    labels : np.ndarray
        Labels or sample indices, and lengths, int64: all of a sample's, then those of the next; none in a frame with a
        gradient.
    num_steps : int
        The sender's number of mini-batches, 0 in a frame with a gradient.
    seconds_held : float
        How long the sender had the frame that this one answers.
    tensor_bytes : int
        What the values took.
    more : bool
        Another part of the same mini-batch follows.
    """

    values: Tensor
    labels: np.ndarray
    num_steps: int
    seconds_held: float
    tensor_bytes: int
    more: bool


def pack(
    form: Format,
    values: Tensor,
    *,
    step: int,
    num_steps: int = 0,
    labels: Tensor | None = None,
    seconds_held: float = 0.0,
    more: bool = False,
) -> bytes:
    """Return the frame that carries activations with their labels, or a cut gradient.

    Parameters
    ----------
    form : Format
        How to write the values.
    values : Tensor
        Shape (N, ...).
    step : int
        Number of the mini-batch, from 0.
    num_steps : int (default: 0)
        Mini-batches of the round.
    labels : Tensor, optional (default: None)
        Labels or sample indices, and lengths: int32, of shape (N, ...).
    seconds_held : float (default: 0.0)
        How long the frame that this one answers was held.
    more : bool (default: False)
        Another part of the same mini-batch follows.

    Raises
    ------
    ValueError
        If another payload than float32 would hide that a value is NaN or Inf.
    """
    values = as_travels(values.cpu())
    labels = torch.empty(0, dtype=torch.int32) if labels is None else labels
    header = _HEADER.pack(step, num_steps, form.code, values.dim(), more, seconds_held, labels.numel())
    dimensions = struct.pack(f"<{values.dim()}I", *values.shape)
    return b"".join((header, dimensions, _bytes(labels), *map(_bytes, _written(form, values))))


def unpack_activations(
    form: Format, frame: bytes, *, step: int, sample_shape: tuple[int, ...], numbers_per_sample: int = 1
) -> Frame:
    """Read the frame that carries the activations of a step.

    Nothing is allocated before the whole header is known to fit the frame's length.

    Parameters
    ----------
    form : Format
        As agreed.
    frame : bytes
        What came in.
    step : int
        The mini-batch expected.
    sample_shape : tuple[int, ...]
        Shape of one sample's activations.
    numbers_per_sample : int (default: 1)
        How many whole numbers go with each sample: labels, or its index, and its length.

    Raises
    ------
    ValueError
        For any other frame, in one line.
    """
    head = _read_header(form, frame, step)
    expected = _travelling_shape(sample_shape)
    if head.shape[1:] != expected or head.shape[0] < 1:
        raise ValueError(f"activations have shape {head.shape}, expected (N, {', '.join(map(str, expected))})")
    if head.num_labels != head.shape[0] * numbers_per_sample:
        raise ValueError(f"{head.num_labels} labels for {head.shape[0]} activations")
    return _read(form, frame, head)


def unpack_features(form: Format, frame: bytes, *, step: int, num_samples: int) -> Frame:
    """Read the frame that carries the edge's features of a step.

    Raises
    ------
    ValueError
        For any other frame, in one line.
    """
    head = _read_header(form, frame, step)
    if head.shape[0] != num_samples or head.num_labels:
        raise ValueError(
            f"features have shape {head.shape} with {head.num_labels} labels, expected ({num_samples}, ...)"
        )
    return _read(form, frame, head)


def unpack_gradient(form: Format, frame: bytes, *, step: int, shape: tuple[int, ...]) -> Frame:
    """Read the frame that carries a gradient of a step; `shape` is that of the activations, or features.

    Raises
    ------
    ValueError
        For any other frame, in one line.
    """
    head = _read_header(form, frame, step)
    expected = (shape[0], *_travelling_shape(shape[1:]))
    if head.shape != expected or head.num_labels:
        raise ValueError(f"gradient of shape {head.shape} with {head.num_labels} labels, expected {expected}")
    return _read(form, frame, head)


def as_received(form: Format, values: Tensor) -> Tensor:
    """Return values, of shape (N, ...), as the other end of a stream reads them; raises what `pack` does."""
    return unpack_gradient(form, pack(form, values, step=0), step=0, shape=tuple(values.shape)).values


class Feedback:
    """What a sender left out of samples' values, to be added to what it sends of them next (error feedback).

    A value that is always among the smaller ones would never arrive. So what ``"top-..."`` leaves out of a sample is
    kept, and added when the sample comes again (Seide et al., Interspeech 2014; by sample as in AQ-SGD,
    arXiv:2206.01299). There is one for each client, direction and round: both ends forget all with the round, since the
    next may begin in other processes. Other payloads leave nothing out.
    """

    def __init__(self) -> None:
        self._left: dict[int, Tensor] = {}

    def added(self, form: Format, values: Tensor, samples: np.ndarray | None) -> Tensor:
        """Return what to send of some samples; what `form` leaves out of it is noted.

        Parameters
        ----------
        form : Format
            How it will be written.
        values : Tensor
            Shape (N, ...).
        samples : np.ndarray, optional
            Shape (N,): their numbers. None where the edge is not told them, as with labels or a tail: nothing is added
            then.

        Raises
        ------
        ValueError
            What `pack` raises.
        """
        if form.payload not in TOP_SHARES or samples is None:
            return values
        values = values.detach().cpu()
        numbers = [int(sample) for sample in samples]
        nothing = torch.zeros_like(values[0])
        whole = values + torch.stack([self._left.get(number, nothing) for number in numbers])
        self._left |= zip(numbers, whole - as_received(form, whole), strict=True)
        return whole


@dataclass(frozen=True)
class _Head:
    """What a frame says of itself; `end` is where its labels begin."""

    shape: tuple[int, ...]
    num_steps: int
    num_labels: int
    seconds_held: float
    end: int
    more: bool


def _read_header(form: Format, frame: bytes, step: int) -> _Head:
    if len(frame) < _HEADER.size:
        raise ValueError(f"a frame of {len(frame)} bytes has no header")
    answered, num_steps, code, num_dimensions, more, seconds_held, num_labels = _HEADER.unpack_from(frame)
    if code != form.code:
        raise ValueError(f"a frame with numbers of kind {code}, expected {form.code} ({form.payload})")
    if answered != step:
        raise ValueError(f"it answered step {answered}, not step {step}")
    end = _HEADER.size + 4 * num_dimensions
    if not 1 <= num_dimensions <= _MOST_DIMENSIONS or len(frame) < end:
        raise ValueError(f"a frame of {len(frame)} bytes for {num_dimensions} dimensions")
    shape = struct.unpack_from(f"<{num_dimensions}I", frame, _HEADER.size)
    if more > 1:
        raise ValueError(f"a frame that {more} more parts follow, expected 0 or 1")
    return _Head(shape, num_steps, num_labels, seconds_held, end, bool(more))


def _read(form: Format, frame: bytes, head: _Head) -> Frame:
    num_samples, per_sample = head.shape[0], math.prod(head.shape[1:])
    tensor_bytes = form.tensor_bytes(num_samples, per_sample)
    start = head.end + 4 * head.num_labels
    if len(frame) != start + tensor_bytes:
        raise ValueError(f"a frame of {len(frame)} bytes, expected {start + tensor_bytes} for shape {head.shape}")
    if not 0 <= head.seconds_held < math.inf:
        raise ValueError(f"a frame held for {head.seconds_held} s")
    labels = np.frombuffer(frame, "<i4", head.num_labels, head.end).astype(np.int64)
    # A copy, since torch shares no memory that can't be written to.
    data = np.frombuffer(bytearray(memoryview(frame)[start:]), np.uint8)
    if form.payload == "int8":
        scales, data = torch.from_numpy(data[: 4 * num_samples].view("<f4")), data[4 * num_samples :]
        whole = torch.from_numpy(data.view(np.int8)).view(num_samples, per_sample)
        values = from_int8(scales, whole, form.dtype)
    elif form.payload in TOP_SHARES:
        values = _scattered(form, data, num_samples, per_sample)
    else:
        kind = _HALVES.get(form.payload, form.dtype)
        values = torch.from_numpy(data).view(kind).to(form.dtype)
    computed = as_computed(values.view(head.shape))
    return Frame(computed, labels, head.num_steps, head.seconds_held, tensor_bytes, head.more)


def _written(form: Format, values: Tensor) -> tuple[Tensor, ...]:
    """Return what a frame holds of some values."""
    if form.payload == "float32":
        return (values,)
    check_finite(values, form.payload)
    if (half := _HALVES.get(form.payload)) is not None:
        return (to_half(values, half),)
    rows = values.reshape(len(values), -1)
    if form.payload in TOP_SHARES:
        # In the order of their places: so none is named twice.
        places = largest_places(rows, form.num_kept(rows.shape[1]))
        written = places.numpy().astype(place_dtype(rows.shape[1]))
        return torch.from_numpy(written.view(np.uint8)), rows.gather(1, places)
    return to_int8(rows)


def _scattered(form: Format, data: np.ndarray, num_samples: int, per_sample: int) -> Tensor:
    """Return samples of which the largest values came, with their places."""
    shape, kind = (num_samples, form.num_kept(per_sample)), place_dtype(per_sample)
    end = math.prod(shape) * kind.itemsize
    places = torch.from_numpy(data[:end].view(kind).astype(np.int64)).view(shape)
    if (places >= per_sample).any() or (places.diff() <= 0).any():
        raise ValueError(f"places of values are not in order, or not below {per_sample}")
    # A copy, since the values need not begin where a number may.
    values = torch.from_numpy(data[end:].copy()).view(form.dtype).view(shape)
    return torch.zeros(num_samples, per_sample, dtype=form.dtype).scatter_(1, places, values)


def _bytes(tensor: Tensor) -> memoryview:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data


def _travelling_shape(sample_shape: tuple[int, ...]) -> tuple[int, ...]:
    return (*sample_shape[1:], sample_shape[0]) if len(sample_shape) == 3 else tuple(sample_shape)
