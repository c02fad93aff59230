"""Which node belongs to which edge.

Node ids are random in every simulation run, so a topology is never made by slicing ids: the nodes are asked.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from logging import getLogger

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from espalier.clients.messages import (
    CAPACITANCE,
    CLASS_COUNTS,
    CONFIG,
    CPU_COUNT,
    CYCLES_PER_EXAMPLE,
    EDGE_NAME,
    ENERGY_BUDGET_JOULES,
    LINK_BITS_PER_SECOND,
    MAX_FREQUENCY_HZ,
    MAX_POWER_WATTS,
    MEASURE,
    MEMORY_BYTES,
    MIN_FREQUENCY_HZ,
    NUM_TEST_EXAMPLES,
    NUM_TRAIN_EXAMPLES,
    PARTITION_ID,
    PROFILE,
    QUERY_PROFILE,
)

from .exchange import ask

logger = getLogger("espalier")
LOG_EVERY_SECONDS = 5.0
Topology = Mapping[str, Sequence[int]]


@dataclass(frozen=True)
class DeviceProfile:
    """What a device measured of itself, and the limits that its node's config sets. 0 is unknown.

    Parameters
    ----------
    cpu_count : int
        Processors that it may use.
    min_frequency_hz, max_frequency_hz : float
        Limits of the processors' frequency.
    memory_bytes : int
        Size of its memory.
    cycles_per_example : float
        CPU cycles to train the whole model on one example.
    link_bits_per_second : float
        Rate of its uplink.
    energy_budget_joules : float
        What it may spend in an edge round; infinite is no limit.
    max_power_watts : float
        What it may transmit with.
    capacitance : float
        zeta: computing takes ``capacitance / 2 * frequency_hz**2`` joules a cycle.
    """

    cpu_count: int
    min_frequency_hz: float
    max_frequency_hz: float
    memory_bytes: int
    cycles_per_example: float
    link_bits_per_second: float
    energy_budget_joules: float
    max_power_watts: float
    capacitance: float


@dataclass(frozen=True)
class Profile:
    """What a node says of itself.

    Parameters
    ----------
    node_id : int
        Its id in this run.
    partition_id : int
        Its place among the clients; client order is the order of these.
    edge : str
        Name of the edge that the node's own config asks for, or an empty string.
    num_train_examples, num_test_examples : int
        Sizes of its data sets.
    class_counts : tuple[int, ...]
        Training examples per class.
    device : DeviceProfile, optional (default: None)
        What it measured of itself, where it was asked to.
    """

    node_id: int
    partition_id: int
    edge: str
    num_train_examples: int
    num_test_examples: int
    class_counts: tuple[int, ...]
    device: DeviceProfile | None = None


def wait_for_nodes(grid: Grid, count: int, *, timeout_seconds: float = 60.0) -> list[int]:
    """Return the ids of the connected nodes once `count` of them are there.

    Nodes register a moment after the ServerApp starts, in a simulation too.

    Parameters
    ----------
    grid : Grid
        Knows the nodes.
    count : int
        How many are needed.
    timeout_seconds : float (default: 60)
        How long to wait.

    Raises
    ------
    TimeoutError
        If they are not there in time; the text says what to type in a simulation.
    """
    deadline = time.monotonic() + timeout_seconds
    last_logged = time.monotonic()
    while len(node_ids := list(grid.get_node_ids())) < count:
        now = time.monotonic()
        if now >= deadline:
            raise TimeoutError(
                f"{len(node_ids)} of {count} SuperNodes are connected: start the others. In a simulation, type: "
                f'flwr run . --stream --federation-config "num-supernodes={count} client-resources-num-cpus=1"'
            )
        if now - last_logged >= LOG_EVERY_SECONDS:
            logger.info("waiting for SuperNodes: %d of %d connected", len(node_ids), count)
            last_logged = now
        time.sleep(min(0.2, deadline - now))
    return node_ids


def ask_to_measure(node_id: int) -> ConfigRecord:
    """Return the config record by which any node is asked to measure its device."""
    return ConfigRecord({MEASURE: True})


def ask_profiles(
    grid: Grid,
    node_ids: Iterable[int] | None = None,
    *,
    timeout_seconds: float | None = 600.0,
    measure: Callable[[int], ConfigRecord] | None = None,
) -> list[Profile]:
    """Ask nodes for their profile by the message type ``query.profile``.

    Parameters
    ----------
    grid : Grid
        Carries the messages.
    node_ids : Iterable[int], optional (default: None)
        Whom to ask; None asks all that are connected.
    timeout_seconds : float, optional (default: 600)
        How long to wait for the answers.
    measure : Callable[[int], ConfigRecord], optional (default: None)
        Returns the config record that asks a node to measure its device as well, e.g. `ask_to_measure`, by node id.
        None: nothing is measured.

    Returns
    -------
    list[Profile]
        Profiles of those who answered, by partition id.

    Raises
    ------
    ValueError
        If two nodes have the same partition id.
    """
    ids = sorted(grid.get_node_ids() if node_ids is None else node_ids)

    def query(node_id: int) -> Message:
        return Message(RecordDict({CONFIG: measure(node_id)} if measure else {}), node_id, QUERY_PROFILE)

    replies = ask(grid, [query(node_id) for node_id in ids], timeout_seconds=timeout_seconds)
    profiles, errors = [], []
    for node_id, reply in zip(ids, replies, strict=True):
        if reply.has_error():
            errors.append((node_id, reply.error.reason or ""))
            continue
        try:
            profiles.append(_profile(node_id, reply))
        except Exception as error:  # all of this only reads foreign data, which can fail in any way
            errors.append((node_id, f"it can't be read ({type(error).__name__}: {error})"))
    if errors:
        node_id, reason = errors[0][0], " ".join(errors[0][1].split())
        logger.warning("%d of %d nodes gave no profile, node %d first: %s", len(errors), len(ids), node_id, reason)
    profiles.sort(key=lambda profile: profile.partition_id)
    for before, after in pairwise(profiles):
        if before.partition_id == after.partition_id:
            raise ValueError(
                f"nodes {before.node_id} and {after.node_id} both have partition-id {after.partition_id}: "
                "give every node one of its own"
            )
    return profiles


def group_by_edge(profiles: Sequence[Profile], num_edges: int) -> dict[str, list[int]]:
    """Group nodes by edge: by the edge that a node's config names, else in blocks of partition ids.

    Parameters
    ----------
    profiles : Sequence[Profile]
        The nodes, by partition id.
    num_edges : int
        Number of blocks, named ``edge-0``, ``edge-1``, ...; their sizes differ by one at most.

    Returns
    -------
    dict[str, list[int]]
        Node ids by edge name, in client order.

    Raises
    ------
    ValueError
        If a block would be empty.
    """
    if not 1 <= num_edges <= len(profiles):
        raise ValueError(f"{num_edges} edges for {len(profiles)} nodes: an edge needs at least one node")
    topology: dict[str, list[int]] = {f"edge-{i}": [] for i in range(num_edges)}
    for i, profile in enumerate(profiles):
        name = profile.edge or f"edge-{i * num_edges // len(profiles)}"
        topology.setdefault(name, []).append(profile.node_id)
    return {name: members for name, members in topology.items() if members}


def _profile(node_id: int, reply: Message) -> Profile:
    record = reply.content.config_records[PROFILE]
    partition_id = int(record[PARTITION_ID])  # type: ignore[arg-type]
    if partition_id < 0:
        raise ValueError(f"{PARTITION_ID} is {partition_id}, expected a number >= 0")
    return Profile(
        node_id=node_id,
        partition_id=partition_id,
        edge=str(record[EDGE_NAME]),
        num_train_examples=int(record[NUM_TRAIN_EXAMPLES]),  # type: ignore[arg-type]
        num_test_examples=int(record[NUM_TEST_EXAMPLES]),  # type: ignore[arg-type]
        class_counts=tuple(map(int, record[CLASS_COUNTS])),  # type: ignore[arg-type]
        device=_device(record) if CYCLES_PER_EXAMPLE in record else None,
    )


def _device(record: ConfigRecord) -> DeviceProfile:
    return DeviceProfile(
        cpu_count=int(record[CPU_COUNT]),  # type: ignore[arg-type]
        min_frequency_hz=float(record[MIN_FREQUENCY_HZ]),  # type: ignore[arg-type]
        max_frequency_hz=float(record[MAX_FREQUENCY_HZ]),  # type: ignore[arg-type]
        memory_bytes=int(record[MEMORY_BYTES]),  # type: ignore[arg-type]
        cycles_per_example=float(record[CYCLES_PER_EXAMPLE]),  # type: ignore[arg-type]
        link_bits_per_second=float(record[LINK_BITS_PER_SECOND]),  # type: ignore[arg-type]
        energy_budget_joules=float(record[ENERGY_BUDGET_JOULES]),  # type: ignore[arg-type]
        max_power_watts=float(record[MAX_POWER_WATTS]),  # type: ignore[arg-type]
        capacitance=float(record[CAPACITANCE]),  # type: ignore[arg-type]
    )
