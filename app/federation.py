"""Who takes part: the clients that the config asks for, and the edge that each belongs to."""

import time

from flwr.serverapp import Grid

from app.config import RunConfig
from app.errors import UserError, bad_value
from strategies import Profile, ask_profiles, group_by_edge, wait_for_nodes


def gather_clients(grid: Grid, config: RunConfig) -> list[Profile]:
    """Wait until `num-clients` nodes are connected and return their profiles, in client order.

    Raises
    ------
    UserError
        If too few nodes are there after `wait-for-nodes` seconds, or some do not answer with a profile.
    """
    deadline = time.monotonic() + config.wait_for_nodes
    profiles: dict[int, Profile] = {}
    asked: set[int] = set()
    while len(profiles) < config.num_clients:
        left = max(deadline - time.monotonic(), 0)
        try:
            # At least one node more than those that turned out to be nobody's client.
            node_ids = wait_for_nodes(grid, max(config.num_clients, len(asked) + 1), timeout_seconds=left)
        except TimeoutError as error:
            if len(asked) < config.num_clients:
                allowed = f"as many SuperNodes as there are: {error}"
                raise bad_value("num-clients", config.num_clients, allowed) from None
            missing = sorted(set(range(config.num_clients)) - profiles.keys())
            raise UserError(f"no profile from clients {missing}: the log says what they failed on") from None
        new = [node_id for node_id in node_ids if node_id not in asked]
        asked |= set(new)
        for profile in ask_profiles(grid, new, timeout_seconds=config.reply_timeout or None):
            if profile.partition_id < config.num_clients:
                profiles.setdefault(profile.partition_id, profile)
    return [profiles[i] for i in range(config.num_clients)]


def assign_edges(profiles: list[Profile], config: RunConfig) -> dict[str, list[int]]:
    """Return node ids by edge; a flat algorithm has the one group "cloud"."""
    if config.is_flat:
        return {"cloud": [profile.node_id for profile in profiles]}
    return group_by_edge(profiles, config.edges)
