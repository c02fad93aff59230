"""The edges, each on a host of its own, that the cloud's run works with."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from logging import getLogger
from typing import Any

from flwr.serverapp import Grid

from espalier.app.algorithms import MakeEdge
from espalier.app.checkpoint import to_bytes
from espalier.app.config import RunConfig
from espalier.app.errors import UserError, bad_value
from espalier.app.federation import answers_of_nodes
from espalier.app.tiers.remote_edge import EdgeError, RemoteEdge, reply_of
from espalier.app.tiers.wire import Wire, profile_from_wire
from espalier.app.wireless import JOINT_RULES
from espalier.clients.messages.edge import QUERY_EDGE, EdgeRequest
from espalier.strategies import Profile
from espalier.strategies.exchange import ask
from espalier.strategies.screening import one_line

logger = getLogger("espalier")

# In a round, for an edge's run that is just being started anew; `wait-for-nodes` is for the start.
LONGEST_WAIT_SECONDS = 20

# An edge's host may have other values than the cloud's for these; keys with the prefixes below as well.
OWN_KEYS = frozenset(
    {
        "role",
        "output-dir",
        "resume",
        "data-dir",
        "cache-dir",
        "device",
        "reply-timeout",
        "wait-for-nodes",
        "split-transport",
        "engine",
        "evaluate-every",
        "global-rounds",
        "cloud-strategy",
    }
)
OWN_PREFIXES = ("stream-", "edge-")
NOT_OWN = ("edge-rounds", "edge-strategy", "stream-payload")


@dataclass(frozen=True)
class EdgeHost:
    """What an edge's run says of itself.

    Parameters
    ----------
    name : str
        The edge.
    gateway : int
        Node id of the gateway that answered for it.
    clients : Sequence[Profile]
        Its clients.
    config : Mapping[str, Any]
        Its run config.
    state : dict
        Its state at the start.
    """

    name: str
    gateway: int
    clients: Sequence[Profile]
    config: Mapping[str, Any]
    state: dict[str, Any]


def gather_edges(grid: Grid, config: RunConfig) -> list[EdgeHost]:
    """Wait until the gateways of `num-edges` edges have answered; return the edges.

    Raises
    ------
    UserError
        If too few or too many answer within `wait-for-nodes` seconds, two are of the same edge, an edge's config is
        another one, or the clients are not 0 to num-clients - 1, each once.
    """
    refuse_rules_over_all_cells(config)
    edges: dict[str, EdgeHost] = {}
    try:
        for answers in answers_of_nodes(grid, config.edges, config.wait_for_nodes, partial(ask_edges, grid, config)):
            for edge in answers:
                if edge.name in edges:
                    both = f"{edges[edge.name].gateway} and {edge.gateway}"
                    raise UserError(f"nodes {both} are both gateways of edge {edge.name!r}: an edge has one")
                edges[edge.name] = edge
                numbers = ", ".join(str(profile.partition_id) for profile in edge.clients)
                logger.info("edge %r joined, with clients %s (gateway: node %d)", edge.name, numbers, edge.gateway)
            if len(edges) >= config.edges:
                break
    except TimeoutError:
        there = ", ".join(map(repr, edges)) or "none"
        allowed = f"as many edges as answer: {there}; a gateway is a SuperNode with edge-folder in its config, and "
        allowed += "an edge that is busy with a round of an earlier run answers when that is over: raise wait-for-nodes"
        raise bad_value("num-edges", config.edges, allowed) from None
    if len(edges) > config.edges:
        raise bad_value("num-edges", config.edges, f"{len(edges)}, the edges that answer: {', '.join(edges)}")
    for edge in edges.values():
        check_same_config(config, edge)
    check_clients(config, edges.values())
    return list(edges.values())


def ask_edges(grid: Grid, config: RunConfig, node_ids: Iterable[int]) -> dict[int, EdgeHost]:
    """Return the edges that nodes are gateways of, by node id; others are logged."""
    ids = sorted(node_ids)
    # An edge's run is there before its devices are; it may be asked again.
    wait = max(config.wait_for_nodes, 1)
    messages = [EdgeRequest(to_bytes({}), wait, wait).to_message(n, QUERY_EDGE) for n in ids]
    replies = ask(grid, messages, timeout_seconds=config.reply_timeout or None)
    edges = {}
    for node_id, reply in zip(ids, replies, strict=True):
        try:
            edges[node_id] = _edge_host(node_id, reply_of(reply))
        except EdgeError as error:
            logger.warning("node %d is left out: %s", node_id, error)
        except Exception as error:  # all of this only reads foreign data, which can fail in any way
            reason = f"{type(error).__name__}: {one_line(error)}"
            logger.warning("node %d is left out: its answer does not fit: %s", node_id, reason)
    return edges


def _edge_host(gateway: int, answer: Wire) -> EdgeHost:
    name, config = answer["name"], answer["config"]
    if not isinstance(name, str) or not name or not name.isprintable():
        raise ValueError(f"an edge's name is {name!r}, expected a text")
    if not all(isinstance(k, str) and isinstance(v, str | int | float) for k, v in config.items()):
        raise ValueError("its config holds more than texts and numbers")
    clients = [profile_from_wire(client, name) for client in answer["clients"]]
    return EdgeHost(name, gateway, clients, config, dict(answer["state"]))


def check_same_config(config: RunConfig, edge: EdgeHost) -> None:
    """Raise UserError where an edge's run trains in another way than this one."""
    own = config.as_dict()
    for key in sorted(own.keys() | edge.config.keys()):
        is_own = key in OWN_KEYS or (key.startswith(OWN_PREFIXES) and key not in NOT_OWN)
        if key == "split-transport":  # messages round nothing
            is_own = config.stream_payload == "float32"
        if is_own:
            continue
        if own.get(key) != edge.config.get(key):
            raise UserError(
                f"{key} = {own.get(key)!r}, but {edge.config.get(key)!r} at edge {edge.name!r}: allowed is the same at "
                "both, so start one of the two runs again"
            )


def check_clients(config: RunConfig, edges: Iterable[EdgeHost]) -> None:
    """Raise UserError unless every client belongs to one edge."""
    edge_of: dict[int, str] = {}
    for edge in edges:
        for profile in edge.clients:
            client = profile.partition_id
            if client in edge_of:
                raise UserError(
                    f"partition-id = {client} at edge {edge_of[client]!r} and at {edge.name!r}: allowed is one edge"
                )
            edge_of[client] = edge.name
    if missing := sorted(set(range(config.num_clients)) - edge_of.keys()):
        raise bad_value("num-clients", config.num_clients, f"as many as the edges have: clients {missing} are missing")
    if unknown := sorted(edge_of.keys() - set(range(config.num_clients))):
        raise bad_value("num-clients", config.num_clients, f"as many as the edges have: they have clients {unknown}")


def remote_edges(config: RunConfig, edges: Iterable[EdgeHost]) -> MakeEdge:
    """Return the function that makes the edge of a name."""
    by_name = {edge.name: edge for edge in edges}

    def make(name: str, size: int) -> RemoteEdge:
        edge = by_name[name]
        return RemoteEdge(
            name,
            edge.gateway,
            [profile.partition_id for profile in edge.clients],
            config.edge_rounds,
            edge.state,
            wait_seconds=min(config.wait_for_nodes, LONGEST_WAIT_SECONDS),
            reply_seconds=config.reply_timeout,
        )

    return make


def refuse_rules_over_all_cells(config: RunConfig) -> None:
    """Raise UserError for an algorithm whose edges must know the clients of all edges."""
    if config.algorithm in JOINT_RULES:
        allowed = f"another one for role = {config.role!r}: its plans are made for the clients of all edges at once"
        raise bad_value("algorithm", config.algorithm, allowed)
