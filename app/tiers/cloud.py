"""The edges, each on a host of its own, that the cloud's run works with."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from logging import getLogger
from typing import Any

from flwr.serverapp import Grid

from espalier.app.config.keys import keys_tagged
from espalier.app.features.feature import MakeEdge
from espalier.app.ground.checkpoint import to_bytes
from espalier.app.ground.errors import UserError, bad_value, shown
from espalier.app.reports.made_by import maker
from espalier.app.settings.section import Tag
from espalier.app.settings.sections import Deploy
from espalier.app.tiers.remote_edge import EdgeError, RemoteEdge, reply_of
from espalier.app.tiers.states import AtCloud
from espalier.app.tiers.wire import Wire, profile_from_wire
from espalier.app.wiring.federation import answers_of_nodes, leave_out
from espalier.clients.messages.edge import QUERY_EDGE, EdgeRequest
from espalier.clients.messages.train import ACCURACY, LOSS
from espalier.clients.shared.text import is_name, quoted
from espalier.strategies import Profile
from espalier.strategies.exchange import Losable, ask
from espalier.strategies.replies import one_line
from espalier.strategies.topology import naming

logger = getLogger("espalier")

# In a round, for an edge's run that is just being started anew; `deploy.wait-for-nodes` is for the start.
LONGEST_WAIT_SECONDS = 20


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
    version : str
        Of its code; an empty text if it is older than this field.
    """

    name: str
    gateway: int
    clients: Sequence[Profile]
    config: Mapping[str, Any]
    state: dict[str, Any]
    version: str


def gather_edges(grid: Grid, num_edges: int, deploy: Deploy, edge_names: Sequence[str] = ()) -> list[EdgeHost]:
    """Wait until the gateways of `num-edges` edges have answered; return the edges.

    Where `edge_names` are given, an edge of another name is left out, with a line in the log.

    Raises
    ------
    UserError
        If too few or too many answer within `deploy.wait-for-nodes` seconds, or two are of the same edge.
    """
    edges: dict[str, EdgeHost] = {}
    said = set[tuple[int, str]]()
    try:
        for answers in answers_of_nodes(grid, num_edges, deploy.wait_for_nodes, partial(ask_edges, grid, deploy)):
            before, edges = edges, _one_each(answers, edge_names, said)
            for edge in edges.values():
                if edge is not before.get(edge.name):
                    _log_joined(edge)
            if len(edges) >= num_edges:
                break
    except TimeoutError:
        there = ", ".join(map(repr, edges)) or "none"
        raise UserError(
            f"num-edges = {num_edges}: only these edges answered: {there}. A gateway is a SuperNode with edge-folder "
            "in its config. An edge that works on an earlier run's round answers after it: raise deploy.wait-for-nodes"
        ) from None
    if len(edges) > num_edges:
        raise bad_value("num-edges", num_edges, f"{len(edges)}, the number of edges that answered: {', '.join(edges)}")
    return list(edges.values())


def _one_each(hosts: Iterable[EdgeHost], edge_names: Sequence[str], said: set[tuple[int, str]]) -> dict[str, EdgeHost]:
    edges: dict[str, EdgeHost] = {}
    for edge in hosts:
        if edge_names and edge.name not in edge_names:
            allowed = f"allowed is one of edge-names, {', '.join(edge_names)}"
            leave_out(edge.gateway, f"it is the gateway of edge {edge.name!r}: {allowed}", said)
            continue
        if edge.name in edges:
            both = f"{edges[edge.name].gateway} and {edge.gateway}"
            raise UserError(f"nodes {both} are both gateways of edge {edge.name!r}: an edge has one")
        edges[edge.name] = edge
    return edges


def _log_joined(edge: EdgeHost) -> None:
    if edge.version != (own := maker()["version"]):
        versions = f"{edge.version or 'an older version'}, the cloud {own}: install the same on both"
        logger.warning("edge %r runs %s", edge.name, versions)
    numbers = ", ".join(str(profile.partition_id) for profile in edge.clients)
    logger.info("edge %r joined, with clients %s (gateway: node %d)", edge.name, numbers, edge.gateway)


def ask_edges(grid: Grid, deploy: Deploy, node_ids: Iterable[int]) -> dict[int, EdgeHost]:
    """Return the edges that nodes are gateways of, by node id; others are logged."""
    ids = sorted(node_ids)
    # An edge's run is there before its devices are; it may be asked again.
    wait = max(deploy.wait_for_nodes, 1)
    messages = [EdgeRequest(to_bytes({}), wait, wait).to_message(n, QUERY_EDGE) for n in ids]
    asked = Losable(messages, naming("what its edge says of itself"))
    replies = ask(grid, asked, timeout_seconds=deploy.reply_timeout or None)
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
    name, config = answer["name"], config_from_wire(answer["config"])
    if not isinstance(name, str) or not is_name(name):
        raise ValueError(f"an edge's name is {quoted(name)}, expected a text")
    clients = [profile_from_wire(client, name) for client in answer["clients"]]
    version = answer.get("version", "")
    if not isinstance(version, str) or (version and not is_name(version)):
        raise ValueError(f"its version is {quoted(version)}, expected a text")
    return EdgeHost(name, gateway, clients, config, dict(answer["state"]), version)


def config_from_wire(config: Any) -> dict[str, Any]:
    """Return an edge's run config as it came; ValueError, or what else foreign data leads to, if it is none."""
    if not all(isinstance(k, str) and is_name(k) and isinstance(v, str | int | float) for k, v in config.items()):
        raise ValueError("its config holds more than texts and numbers, by short names")
    return dict(config)


def check_edges(own: Mapping[str, Any], edges: Sequence[EdgeHost], num_clients: int) -> None:
    """Raise UserError where an edge's run trains in another way than this one, or the clients are not all there.

    Parameters
    ----------
    own : Mapping[str, Any]
        The settings of the cloud's run, by their keys.
    edges : Sequence[EdgeHost]
        What the edges say of themselves.
    num_clients : int
        The clients are 0 to `num_clients` - 1, each once.
    """
    for edge in edges:
        check_same_config(own, edge.name, edge.config)
    check_clients(num_clients, edges)


def check_same_config(own: Mapping[str, Any], name: str, config: Any) -> None:
    """Raise UserError where an edge's run trains in another way than this one; else as `config_from_wire`."""
    config = config_from_wire(config)
    free = keys_tagged(Tag.OWN_AT_EDGES)
    for key in sorted(own.keys() | config.keys()):
        is_own = key in free
        if key == "split.transport":  # messages round nothing
            is_own = own["stream.payload"] == "float32"
        if key == "global-rounds":  # a schedule of learning rates goes over them
            is_own = own["train.schedule"] == "constant"
        if is_own:
            continue
        if own.get(key) != (theirs := config.get(key)):
            raise UserError(
                f"{key} = {own.get(key)!r}, but {shown(theirs)} at edge {name!r}: allowed is the same at "
                "both: start one of the two runs again with the other's value"
            )


def check_clients(num_clients: int, edges: Iterable[EdgeHost]) -> None:
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
    if missing := sorted(set(range(num_clients)) - edge_of.keys()):
        raise UserError(f"num-clients = {num_clients}: no edge has clients {shown(missing)}")
    if unknown := sorted(edge_of.keys() - set(range(num_clients))):
        raise UserError(f"num-clients = {num_clients}: the edges have clients {shown(unknown)} besides")


def remote_edges(
    edges: Iterable[EdgeHost],
    edge_rounds: int,
    deploy: Deploy,
    figures: Sequence[str] = (ACCURACY, LOSS),
    **options: Any,
) -> MakeEdge:
    """Return the function that makes the edge of a name; `options` go to `RemoteEdge` as they are."""
    by_name = {edge.name: edge for edge in edges}

    def make(name: str, size: int) -> RemoteEdge:
        edge = by_name[name]
        return RemoteEdge(
            name,
            edge.gateway,
            edge.clients,
            edge_rounds,
            AtCloud(edge.state),
            wait_seconds=min(deploy.wait_for_nodes, LONGEST_WAIT_SECONDS),
            reply_seconds=deploy.reply_timeout,
            figures=figures,
            **options,
        )

    return make
