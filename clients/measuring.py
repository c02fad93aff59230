"""What a device reports when its profile is asked for with measurements: its limits, and how fast it trains and sends.

What can't be measured, and what the device's owner knows better, is in the node's config.
"""

import math
import time
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import replace
from logging import getLogger
from pathlib import Path

import torch
from flwr.app import Context, Message

from .device import ROOT, cpu_count, frequency_limits_hz, memory_bytes
from .messages import (
    CAPACITANCE,
    CPU_COUNT,
    CYCLES_PER_EXAMPLE,
    ENERGY_BUDGET_JOULES,
    LINK,
    LINK_BITS_PER_SECOND,
    MAX_FREQUENCY_HZ,
    MAX_POWER_WATTS,
    MEASURE,
    MEMORY_BYTES,
    MIN_FREQUENCY_HZ,
    STREAM_TOKEN,
)
from .stream import measure_link
from .task import ClientTask
from .training import local_sgd, mini_batches

logger = getLogger("espalier")

# What holds where a node's config says nothing.
DEFAULT_ENERGY_BUDGET_JOULES = math.inf
DEFAULT_MAX_POWER_WATTS = 0.2  # 23 dBm, as telephones have
DEFAULT_CAPACITANCE = 2e-28  # the RawHFL paper's

MOST_BATCHES = 16
TRIES = 3
ENOUGH_SECONDS = 5.0


def wants_measurements(message: Message) -> bool:
    """Tell whether a ``query.profile`` message asks for measurements."""
    return bool(_config(message).get(MEASURE, False))


def measured_profile(message: Message, context: Context, task: ClientTask, root: Path = ROOT) -> dict[str, int | float]:
    """Return what a device adds to its profile when it is asked to measure.

    Parameters
    ----------
    message : Message
        The query; with the ticket of a probe (`measure_link`) the link is measured where nothing else
        says how fast it is.
    context : Context
        The node's config may set ``max-frequency-hz`` and ``link-bits-per-second``, which replace what is measured,
        and ``energy-budget-joules`` (of an edge round; default: no limit), ``max-power-watts`` (default: 0.2) and
        ``capacitance`` (default: 2e-28). The node's state may know the link's speed from earlier transfers.
    task : ClientTask
        What is trained to measure the speed; neither its model nor any later round is touched.
    root : Path (default: /)
        See `espalier.clients.device.frequency_limits_hz`.

    Returns
    -------
    dict[str, int | float]
        By the keys of the profile. 0 is unknown.

    Raises
    ------
    ValueError
        If the node's config has a value that is not allowed.
    """
    lowest, highest = frequency_limits_hz(root)
    highest = _own(context, MAX_FREQUENCY_HZ, highest)
    return {
        CPU_COUNT: cpu_count(),
        MIN_FREQUENCY_HZ: min(lowest, highest),
        MAX_FREQUENCY_HZ: highest,
        MEMORY_BYTES: memory_bytes(),
        CYCLES_PER_EXAMPLE: measure_cycles_per_example(task, highest),
        LINK_BITS_PER_SECOND: _link_bits_per_second(message, context),
        ENERGY_BUDGET_JOULES: _own(context, ENERGY_BUDGET_JOULES, DEFAULT_ENERGY_BUDGET_JOULES),
        MAX_POWER_WATTS: _own(context, MAX_POWER_WATTS, DEFAULT_MAX_POWER_WATTS),
        CAPACITANCE: _own(context, CAPACITANCE, DEFAULT_CAPACITANCE),
    }


def measure_cycles_per_example(task: ClientTask, frequency_hz: float) -> float:
    """Return the CPU cycles that training takes for an example: its time, the shortest of some tries, in cycles.

    A copy of the model is trained on mini-batches of the client's own by the code that trains in a round, whose
    generators are made anew in every call: what a run computes is the same with and without.

    Parameters
    ----------
    task : ClientTask
        Model, data and settings.
    frequency_hz : float
        What the processor runs at meanwhile.

    Returns
    -------
    float
        0 if there is nothing to train on, or the frequency is unknown.
    """
    server_round = 1
    num_examples = task.num_train(server_round)
    if num_examples == 0:
        return 0.0
    task = replace(task, model=deepcopy(task.model))

    def seconds(batches: int) -> float:
        begun = time.perf_counter()
        local_sgd(task, server_round, replace(task.training, local_epochs=1, batches_per_epoch=batches))
        return time.perf_counter() - begun

    # The first mini-batch of a process pays for more than itself, and tells how many are affordable.
    batches = max(1, min(MOST_BATCHES, int(ENOUGH_SECONDS / seconds(1))))
    tries = [seconds(batches)]
    while len(tries) < TRIES and sum(tries) < ENOUGH_SECONDS:
        tries.append(seconds(batches))
    training = replace(task.training, local_epochs=1, batches_per_epoch=batches)
    seen = sum(map(len, mini_batches(num_examples, training, torch.Generator())))
    return min(tries) / seen * frequency_hz


def _link_bits_per_second(message: Message, context: Context) -> float:
    """Return what the node's config says, else what earlier transfers showed, else a probe; 0 is unknown."""
    if LINK_BITS_PER_SECOND in context.node_config:
        return _own(context, LINK_BITS_PER_SECOND, 0.0)
    if LINK in context.state.metric_records:
        return float(context.state.metric_records[LINK][LINK_BITS_PER_SECOND])  # type: ignore[arg-type]
    config = _config(message)
    if STREAM_TOKEN not in config:
        return 0.0
    try:
        return measure_link(config)
    except (ConnectionError, TimeoutError) as error:
        logger.warning("the link can't be measured: %s", error)
        return 0.0


def _own(context: Context, key: str, otherwise: float) -> float:
    """Return a positive number of the node's config, `otherwise` where it has none."""
    if key not in context.node_config:
        return otherwise
    value = context.node_config[key]
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise ValueError(f"{key} = {value!r} in the node's config: allowed is a number above 0")
    return float(value)


def _config(message: Message) -> Mapping[str, object]:
    return next(iter(message.content.config_records.values()), {})
