"""Who takes part: the clients that the config asks for, and the edge that each belongs to."""

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
    try:
        node_ids = wait_for_nodes(grid, config.num_clients, timeout_seconds=config.wait_for_nodes)
    except TimeoutError as error:
        raise bad_value("num-clients", config.num_clients, f"as many SuperNodes as there are: {error}") from None
    profiles = ask_profiles(grid, node_ids, timeout_seconds=config.reply_timeout or None)
    profiles = [profile for profile in profiles if profile.partition_id < config.num_clients]
    if len(profiles) < config.num_clients:
        missing = sorted(set(range(config.num_clients)) - {profile.partition_id for profile in profiles})
        raise UserError(f"no profile from clients {missing}: see the ClientApps' log for what they failed on")
    return profiles


def assign_edges(profiles: list[Profile], config: RunConfig) -> dict[str, list[int]]:
    """Return node ids by edge; a flat algorithm has the one group "cloud"."""
    if config.is_flat:
        return {"cloud": [profile.node_id for profile in profiles]}
    return group_by_edge(profiles, config.num_edges)
