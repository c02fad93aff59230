"""What a client's part of the training takes: CPU cycles, and bits to and from its edge."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from math import inf, prod
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from espalier.clients.half import PLAIN, ClientHalf
from espalier.clients.messages.frames import TOP_SHARES, Format
from espalier.clients.shared.cut import Cut, part_of
from espalier.clients.shared.rounding import place_dtype
from espalier.strategies.split.shapes import cut_shapes, example_input

BITS_PER_VALUE = 33  # phi = 32 and a sign bit, as the RawHFL and PHSFL papers count
# Of activations and their gradients, and of the scale that goes with each example's.
STREAM_PAYLOAD_BITS = {
    "float32": (BITS_PER_VALUE, 0),
    "float16": (17, 0),
    "bfloat16": (17, 0),
    "int8": (9, BITS_PER_VALUE),
}


@dataclass(frozen=True)
class Work:
    """What one example, one local round and one edge round take, for each of the ways (cuts) to share the work.

    Parameters
    ----------
    share : np.ndarray
        Shape (K,): the part of the model's arithmetic that the client does; above 1 where it trains several times on a
        mini-batch.
    once_bits : np.ndarray
        Shape (K,): what goes up in every edge round: the client's part of the model, as far as it trains.
    example_bits : np.ndarray
        Shape (K,): what goes up for every training example, and down as much: activations and their gradient, and with
        a tail the features and theirs.
    once_down_bits : np.ndarray
        Shape (K,): what comes down in every edge round: the client's part of the model, a frozen head too.
    """

    share: np.ndarray
    once_bits: np.ndarray
    example_bits: np.ndarray
    once_down_bits: np.ndarray


def num_values(model: nn.Module, without: Collection[str] = ()) -> int:
    """Return how many values travel where a model does: its parameters, and the statistics of BatchNorm.

    Those `without`, by their names, stay.
    """
    return sum(tensor.numel() for name, tensor in model.state_dict().items() if name not in without)


def num_told(model: nn.Module) -> int:
    """Return how many values a client tells beside a model if it tells one for each that trains."""
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)


def whole_model_work(model: nn.Module, half: ClientHalf = PLAIN, passes: int = 1) -> Work:
    """Return the work of a client that trains the whole model, as `half` does: weights may stay, or have company.

    It trains on each mini-batch as many times as `passes` says.
    """
    count = num_values(model, half.stays(model)) + half.tells_weights * num_told(model)
    bits = np.array([BITS_PER_VALUE * float(max(count, 1))])  # what sends no weights sends something: costs are above 0
    return Work(np.full(1, float(passes)), bits, np.zeros(1), bits)


def split_work(
    model: nn.Sequential,
    example: Any,
    cuts: Sequence[Cut | int],
    payload: str = "float32",
    frozen: Collection[str] = (),
    half: ClientHalf = PLAIN,
) -> Work:
    """Return the work of a client that has the first blocks of a model, and maybe the last ones, for each of the cuts.

    The arithmetic of the forward pass is counted, since that of the backward pass is in proportion. Activations and
    their gradients travel as `payload` says, see `espalier.clients.messages.frames.Format`. `example` is a batch of one
    on the CPU, or its shape. Weights whose names are `frozen` come down and do not go up. What clients tell beside the
    weights is as `half` says.
    """
    parts, shapes, whole = [Cut.of(model, cut) for cut in cuts], cut_shapes(model, example), len(model)
    ends = {whole, *(k for cut in parts for k in (cut.first, cut.last))}
    flops = {k: forward_flops(part_of(model, 0, k), example) for k in ends}
    own = [flops[cut.first] + flops[whole] - flops[cut.last] for cut in parts]
    sides = [[cut.front(model), cut.tail(model)] for cut in parts]
    told = [half.tells_weights * sum(map(num_told, both)) for both in sides]
    down = [sum(map(num_values, both), beside) for both, beside in zip(sides, told, strict=True)]
    up = [sum((num_values(side, frozen) for side in both), beside) for both, beside in zip(sides, told, strict=True)]
    crossing = [[bits_at_cut(prod(shapes[k]), payload) for k in cut.places(model)] for cut in parts]
    return Work(
        share=np.array(own) / flops[whole],
        once_bits=np.array([BITS_PER_VALUE * float(count) for count in up]),
        example_bits=np.array([sum(bits) for bits in crossing]),
        once_down_bits=np.array([BITS_PER_VALUE * float(count) for count in down]),
    )


def bits_at_cut(num_values: int, payload: str) -> float:
    """Return the bits of an example's activations, of so many values, in a payload of `Format`'s."""
    if payload in TOP_SHARES:
        form = Format(payload)
        return float(form.num_kept(num_values) * (BITS_PER_VALUE + 8 * place_dtype(num_values).itemsize))
    value_bits, scale_bits = STREAM_PAYLOAD_BITS[payload]
    return scale_bits + value_bits * float(num_values)


def traffic_of(work: Work, num_examples: Sequence[int], downlink_bits_per_second: float) -> dict[str, np.ndarray]:
    """Return what travels for each client and way to share the work, by the names of `Problem`; shapes (U, K).

    Parameters
    ----------
    work : Work
        What training takes.
    num_examples : Sequence[int]
        By client: the examples of a local round.
    downlink_bits_per_second : float
        Rate of what comes down; 0 ignores that time.
    """
    rate = downlink_bits_per_second or inf
    per_round = np.array(num_examples, dtype=np.float64)[:, np.newaxis] * work.example_bits
    return {
        "payload_bits": np.broadcast_to(work.once_bits, per_round.shape),
        "payload_bits_per_local_round": per_round,
        "idle_seconds": np.broadcast_to(work.once_down_bits, per_round.shape) / rate,
        "idle_seconds_per_local_round": per_round / rate,
    }


@torch.no_grad()
def forward_flops(model: nn.Module, example: Any) -> int:
    """Return the floating-point operations of the products and convolutions for one example, given as to `split_work`.

    Where there are none, as in an embedding, a value that comes out counts as one.
    """
    was_training = model.training
    model.eval()
    inputs = example_input(model, example)
    with FlopCounterMode(display=False) as counter:
        outputs = model(inputs)
    model.train(was_training)
    return counter.get_total_flops() or outputs.numel()
