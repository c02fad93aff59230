"""Who takes part: the clients that the config asks for, and the edge that each belongs to."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from logging import getLogger

from flwr.app import ConfigRecord
from flwr.serverapp import Grid

from app.config import RunConfig
from app.errors import UserError, bad_value
from strategies import Profile, ask_profiles, ask_to_measure, group_by_edge, wait_for_nodes
from strategies.attendance import MOST_LINES
from strategies.topology import Topology

logger = getLogger("espalier")

# Makes the config record that asks a node, by its id, to measure its device and its link.
Measure = Callable[[int], ConfigRecord]


def gather_clients(grid: Grid, config: RunConfig, measure: Measure | None = None) -> list[Profile]:
    """Wait until `num-clients` nodes are connected and return their profiles, in client order.

    Parameters
    ----------
    grid : Grid
        Reaches the nodes.
    config : RunConfig
        The run.
    measure : Callable[[int], ConfigRecord], optional (default: None)
        Asks nodes to measure with ``resources = "measured"``; None leaves the link to their configs.

    Raises
    ------
    UserError
        If too few nodes are there after `wait-for-nodes` seconds, or some do not answer with a profile.
    """
    profiles: dict[int, Profile] = {}
    asked = 0
    try:
        for new in arriving_nodes(grid, config.num_clients, config.wait_for_nodes):
            asked += len(new)
            for profile in _ask(grid, new, config, measure):
                if profile.partition_id < config.num_clients:
                    profiles.setdefault(profile.partition_id, profile)
            if len(profiles) == config.num_clients:
                break
    except TimeoutError as error:
        if asked < config.num_clients:
            raise bad_value("num-clients", config.num_clients, f"as many SuperNodes as there are: {error}") from None
        missing = sorted(set(range(config.num_clients)) - profiles.keys())
        raise UserError(f"no profile from clients {missing}: the log says what they failed on") from None
    return [profiles[i] for i in range(config.num_clients)]


def gather_devices(grid: Grid, config: RunConfig, measure: Measure | None = None) -> list[Profile]:
    """Wait until the `edge-clients` devices of an edge's host are connected; return their profiles in client order.

    Parameters
    ----------
    grid, config, measure
        As for `gather_clients`.

    Raises
    ------
    UserError
        If too few or too many are there, two are the same client, or one belongs to another edge.
    """
    if config.edge_clients > config.num_clients:
        raise bad_value("edge-clients", config.edge_clients, f"at most num-clients = {config.num_clients}")
    profiles: dict[int, Profile] = {}
    try:
        for new in arriving_nodes(grid, config.edge_clients, config.wait_for_nodes):
            for profile in _ask(grid, new, config, measure):
                if profile.edge not in ("", config.edge_name):
                    raise UserError(
                        f"edge-name = {profile.edge!r} in the config of client {profile.partition_id}'s node: allowed "
                        f"is {config.edge_name!r}, the edge that this run serves"
                    )
                first = profiles.setdefault(profile.partition_id, profile)
                if first is not profile:
                    raise UserError(
                        f"nodes {first.node_id} and {profile.node_id} both have partition-id {profile.partition_id}: "
                        "give every node one of its own"
                    )
            if len(profiles) >= config.edge_clients:
                break
    except TimeoutError as error:
        allowed = f"as many SuperNodes as there are with a profile, {len(profiles)} so far: {error}"
        raise bad_value("edge-clients", config.edge_clients, allowed) from None
    if len(profiles) > config.edge_clients:
        raise bad_value("edge-clients", config.edge_clients, f"{len(profiles)}, the clients that are there")
    return [profiles[i] for i in sorted(profiles)]


def arriving_nodes(grid: Grid, count: int, seconds: float) -> Iterator[list[int]]:
    """Yield the ids of the connected nodes once `count` of them are there, then those that join, until some seconds on.

    Raises
    ------
    TimeoutError
        If no more come in time.
    """
    deadline = time.monotonic() + seconds
    known: set[int] = set()
    while True:
        left = max(deadline - time.monotonic(), 0)
        # At least one node more than those that turned out to be of no use.
        node_ids = wait_for_nodes(grid, max(count, len(known) + 1), timeout_seconds=left)
        new = [node_id for node_id in node_ids if node_id not in known]
        known |= set(new)
        yield new


def _ask(grid: Grid, node_ids: Iterable[int], config: RunConfig, measure: Measure | None) -> list[Profile]:
    measure = (measure or ask_to_measure) if config.resources == "measured" else None
    try:
        profiles = ask_profiles(grid, node_ids, timeout_seconds=config.reply_timeout or None, measure=measure)
    except ValueError as error:
        raise UserError(str(error)) from None
    for profile in profiles:
        if profile.num_train_examples < 1:
            count = profile.num_train_examples
            raise UserError(f"client {profile.partition_id} has {count} training examples: allowed is 1 or more")
    return profiles


def assign_edges(profiles: list[Profile], config: RunConfig) -> dict[str, list[int]]:
    """Return node ids by edge, and log who joined; a flat algorithm has the one group "cloud"."""
    if config.is_flat:
        log_joined(profiles, {})
        return {"cloud": [profile.node_id for profile in profiles]}
    topology = group_by_edge(profiles, config.edges)
    log_joined(profiles, topology)
    return topology


def log_joined(profiles: Sequence[Profile], edges: Topology) -> None:
    """Log a line for each client of the run, with its edge where it has one; for many clients one line in all."""
    if len(profiles) > MOST_LINES:
        logger.info("%d clients joined%s", len(profiles), f" ({len(edges)} edges)" if edges else "")
        return
    edge_of = {node_id: f" (edge {edge})" for edge, members in edges.items() for node_id in members}
    for profile in profiles:
        logger.info("client %d joined%s", profile.partition_id, edge_of.get(profile.node_id, ""))
