"""What a device reports when its profile is asked for with measurements: its limits, and how fast it trains and sends.

What can't be measured, and what the device's owner knows better, is in the node's config.
"""

import math
import time
from dataclasses import replace
from logging import getLogger
from pathlib import Path

import torch
from flwr.app import Context, Message, MetricRecord

from ..messages.frames import StreamTicket
from ..messages.profile import DeviceProfile, ProfileQuery, key_of
from ..shared.cut import copied
from ..shared.records import records_in
from ..split.stream import LINK, LINK_BITS_PER_SECOND
from ..streams import measure_link
from ..task import ClientTask
from ..whole.training import local_sgd, mini_batches
from .machine import ROOT, cpu_count, highest_frequency_hz, memory_bytes
from .profile import profile_reply

logger = getLogger("espalier")

# What holds where a node's config says nothing.
DEFAULT_ENERGY_BUDGET_JOULES = math.inf
DEFAULT_MAX_POWER_WATTS = 0.2  # 23 dBm, as telephones have
DEFAULT_CAPACITANCE = 2e-28  # the RawHFL paper's

MOST_BATCHES = 16
TRIES = 3
ENOUGH_SECONDS = 5.0


def tell_profile(message: Message, context: Context, task: ClientTask) -> Message:
    """Answer ``query.profile``: who the client is, what it has, and what it measured where it is asked to."""
    query = ProfileQuery.from_content(message.content)
    return profile_reply(
        message,
        partition_id=task.partition_id,
        num_train_examples=len(task.train),
        num_test_examples=len(task.test),
        class_counts=task.class_counts,
        edge_name=task.edge_name,
        device=measured_profile(query, context, task) if query.measure else None,
    )


def measured_profile(query: ProfileQuery, context: Context, task: ClientTask, root: Path = ROOT) -> DeviceProfile:
    """Return what a device adds to its profile when it is asked to measure.

    Parameters
    ----------
    query : ProfileQuery
        With the ticket of a probe (`measure_link`) the link is measured where nothing else
        says how fast it is.
    context : Context
        The node's config may set ``max-frequency-hz`` and ``link-bits-per-second``, which replace what is measured,
        ``min-frequency-hz``, where the frequency is set as a plan says (default: it can't be set, and is the highest),
        and ``energy-budget-joules`` (of an edge round; default: no limit), ``max-power-watts`` (default: 0.2) and
        ``capacitance`` (default: 2e-28). The node's state may know the link's speed from earlier transfers.
    task : ClientTask
        What is trained to measure the speed; neither its model nor any later round is touched.
    root : Path (default: /)
        See `espalier.clients.device.machine.highest_frequency_hz`.

    Raises
    ------
    ValueError
        If the node's config has a value that is not allowed.
    """
    highest = _own(context, "max_frequency_hz", highest_frequency_hz(root))
    return DeviceProfile(
        cpu_count=cpu_count(),
        min_frequency_hz=_own(context, "min_frequency_hz", highest),
        max_frequency_hz=highest,
        memory_bytes=memory_bytes(),
        cycles_per_example=measure_cycles_per_example(task, highest),
        link_bits_per_second=_link_bits_per_second(query.ticket, context),
        energy_budget_joules=_own(context, "energy_budget_joules", DEFAULT_ENERGY_BUDGET_JOULES),
        max_power_watts=_own(context, "max_power_watts", DEFAULT_MAX_POWER_WATTS),
        capacitance=_own(context, "capacitance", DEFAULT_CAPACITANCE),
    )


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
    task = replace(task, model=copied(task.model))

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


def _link_bits_per_second(ticket: StreamTicket | None, context: Context) -> float:
    """Return what the node's config says, else what earlier transfers showed, else a probe; 0 is unknown."""
    if LINK_BITS_PER_SECOND in context.node_config:
        return _own(context, "link_bits_per_second", 0.0)
    if (link := records_in(context.state, MetricRecord).get(LINK)) is not None:
        return float(link[LINK_BITS_PER_SECOND])  # type: ignore[arg-type]
    if ticket is None:
        return 0.0
    try:
        return measure_link(ticket)
    except (ConnectionError, TimeoutError) as error:
        logger.warning("the link can't be measured: %s", error)
        return 0.0


def _own(context: Context, field: str, otherwise: float) -> float:
    """Return a positive number of the node's config, by the field of a profile; `otherwise` where it has none."""
    if (key := key_of(field)) not in context.node_config:
        return otherwise
    value = context.node_config[key]
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise ValueError(f"{key} = {value!r} in the node's config: allowed is a number above 0")
    return float(value)
