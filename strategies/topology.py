"""Which node belongs to which edge.

Node ids are random in every simulation run, so a topology is never made by slicing ids: the nodes are asked.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from logging import getLogger

from flwr.serverapp import Grid

from espalier.clients.messages.profile import Profile, ProfileQuery

from .exchange import Losable, ask
from .replies import reason_of

logger = getLogger("espalier")
MOST_LINES = 20  # of one kind at a time; for more nodes there is one line with their number
LOG_EVERY_SECONDS = 5.0
FIRST_NAMED_SECONDS, NAMED_EVERY_SECONDS = 10.0, 60.0  # who keeps all others waiting at the start
Topology = Mapping[str, Sequence[int]]
TopologyOf = Callable[[int], Topology]  # of a global round, from 1


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
                f"only {len(node_ids)} of {count} SuperNodes are connected: start the others. In a simulation, type: "
                f'flwr run . --stream --federation-config "num-supernodes={count} client-resources-num-cpus=1"'
            )
        if now - last_logged >= LOG_EVERY_SECONDS:
            logger.info("waiting for SuperNodes: %d of %d connected", len(node_ids), count)
            last_logged = now
        time.sleep(min(0.2, deadline - now))
    return node_ids


def ask_to_measure(node_id: int) -> ProfileQuery:
    """Return the query by which any node is asked to measure its device."""
    return ProfileQuery(measure=True)


def ask_profiles(
    grid: Grid,
    node_ids: Iterable[int] | None = None,
    *,
    timeout_seconds: float | None = 600.0,
    measure: Callable[[int], ProfileQuery] | None = None,
    is_good: Callable[[Profile], bool] = lambda profile: True,
    said: set[tuple[int, str]] | None = None,
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
    measure : Callable[[int], ProfileQuery], optional (default: None)
        Returns the query that asks a node to measure its device as well, e.g. `ask_to_measure`, by node id.
        None: nothing is measured.
    is_good : Callable[[Profile], bool] (default: all are)
        Whether a node may take part.
    said : set[tuple[int, str]], optional (default: None)
        Nodes and faults that have been logged, for who asks again: these are not logged, and new ones are added.

    Returns
    -------
    list[Profile]
        Profiles of the good ones of those who answered, by partition id. Of two with the same, the one with the lower
        node id is taken.
    """
    ids = sorted(grid.get_node_ids() if node_ids is None else node_ids)
    queries = [(measure(n) if measure else ProfileQuery()).to_message(n) for n in ids]
    replies = ask(grid, Losable(queries, naming("its profile")), timeout_seconds=timeout_seconds)
    profiles, errors = [], list[tuple[int, str]]()
    said = set() if said is None else said
    for node_id, reply in zip(ids, replies, strict=True):
        if reply.has_error():
            errors.append((node_id, reason_of(reply.error)))
            continue
        try:
            profiles.append(Profile.from_content(node_id, reply.content))
        except ValueError as error:
            errors.append((node_id, str(error)))
    news = [error for error in errors if error not in said]
    for node_id, reason in news[:MOST_LINES]:
        logger.warning("node %d gave no profile: %s", node_id, reason)
    if len(news) > MOST_LINES:
        logger.warning("%d of %d nodes gave no profile", len(errors), len(ids))
    said.update(news[:MOST_LINES])
    found: dict[int, Profile] = {}
    for profile in filter(is_good, profiles):
        first = found.setdefault(profile.partition_id, profile)
        same = f"its partition-id, {profile.partition_id}, is that of node {first.node_id}"
        if first is not profile and (profile.node_id, same) not in said:
            said.add((profile.node_id, same))
            logger.warning("node %d is left out: %s: give every node one of its own", profile.node_id, same)
    return [found[partition_id] for partition_id in sorted(found)]


def naming(what: str) -> Callable[[int], bool]:
    """Return what keeps no reply from being waited for, and logs now and then whose it is: see `Losable`."""
    due = time.monotonic() + FIRST_NAMED_SECONDS

    def is_lost(node_id: int) -> bool:
        nonlocal due
        if time.monotonic() >= due:
            due = time.monotonic() + NAMED_EVERY_SECONDS
            logger.info("waiting for node %d: it has not sent %s yet", node_id, what)
        return False

    return is_lost


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
    blocks = in_blocks(range(len(profiles)), num_edges)
    block_of = [name for name, places in blocks.items() for _ in places]
    topology: dict[str, list[int]] = {name: [] for name in blocks}
    for name, profile in zip(block_of, profiles, strict=True):
        topology.setdefault(profile.edge or name, []).append(profile.node_id)
    return {name: members for name, members in topology.items() if members}


def in_blocks(node_ids: Sequence[int], num_edges: int) -> dict[str, list[int]]:
    """Group nodes whose configs name no edge, as `group_by_edge` does.

    Parameters
    ----------
    node_ids : Sequence[int]
        In client order.
    num_edges, returns, raises
        As of `group_by_edge`.
    """
    size = len(node_ids)
    if not 1 <= num_edges <= size:
        raise ValueError(f"{num_edges} edges for {size} nodes: an edge needs at least one node")
    begins = [-(-edge * size // num_edges) for edge in range(num_edges + 1)]
    return {f"edge-{i}": list(node_ids[begins[i] : begins[i + 1]]) for i in range(num_edges)}


def moving(topology: Topology, node_ids: Sequence[int], moves: Iterable[tuple[int, int, str]]) -> TopologyOf:
    """Return the topology of each global round, for `Hierarchical(topology_of=...)`, where nodes move between edges.

    Parameters
    ----------
    topology : Mapping[str, Sequence[int]]
        Where the nodes start.
    node_ids : Sequence[int]
        All of them, in client order.
    moves : Iterable[tuple[int, int, str]]
        Global round, node id and edge: from this round on, the node is under this edge. Of two moves of a node in the
        same round the later one counts.

    Raises
    ------
    ValueError
        If a move is of a node or an edge that is not there.
    """
    start = {node_id: edge for edge, members in topology.items() for node_id in members}
    if sorted(start) != sorted(node_ids):
        raise ValueError("the topology has other nodes than those in client order")
    by_round = sorted(moves, key=lambda move: move[0])
    for number, node_id, edge in by_round:
        if node_id not in start:
            raise ValueError(f"round {number}: there is no node {node_id} to move")
        if edge not in topology:
            raise ValueError(f"round {number}: there is no edge {edge!r} to move to")

    def topology_of(server_round: int) -> Topology:
        edge_of = start | {node_id: edge for number, node_id, edge in by_round if number <= server_round}
        members: dict[str, list[int]] = {edge: [] for edge in topology}
        for node_id in node_ids:
            members[edge_of[node_id]].append(node_id)
        return members

    return topology_of


def asking(
    grid: Grid, topology: Topology, profiles: Sequence[Profile], *, timeout_seconds: float | None = 600.0
) -> TopologyOf:
    """Return the topology of each global round, for `Hierarchical(topology_of=...)`, as the nodes themselves name it.

    Before the second global round that is run, and each later one, all connected nodes are asked for their profile. Who
    names another edge of the run moves there; whoever names none, or gives no answer, stays.

    Parameters
    ----------
    grid : Grid
        Carries the messages.
    topology : Mapping[str, Sequence[int]]
        Where the nodes are in the first of the rounds.
    profiles : Sequence[Profile]
        All of them, in client order. A node that says that it is another client stays where it was.
    timeout_seconds : float, optional (default: 600)
        How long to wait for the answers; None waits for ever.
    """
    number_of = {profile.node_id: profile.partition_id for profile in profiles}
    edge_of = {node_id: edge for edge, members in topology.items() for node_id in members}
    said: set[tuple[int, str]] = set()
    latest = 0  # the round that `edge_of` is for

    def fault_of(profile: Profile) -> str:
        if profile.partition_id != number_of[profile.node_id]:
            return f"its partition-id is {profile.partition_id}, and was {number_of[profile.node_id]}"
        if profile.edge not in ("", *topology):
            return f"it names the edge {profile.edge!r}, and this run has {', '.join(topology)}"
        return ""

    def is_good(profile: Profile) -> bool:
        fault = fault_of(profile)
        if fault and (profile.node_id, fault) not in said:
            said.add((profile.node_id, fault))
            logger.warning("node %d stays under %s: %s", profile.node_id, edge_of[profile.node_id], fault)
        return not fault

    def ask_all() -> None:
        there = number_of.keys() & grid.get_node_ids()  # who is away would be waited for
        for profile in ask_profiles(grid, there, timeout_seconds=timeout_seconds, is_good=is_good):
            if profile.edge:
                edge_of[profile.node_id] = profile.edge

    def topology_of(server_round: int) -> Topology:
        nonlocal latest
        if latest and server_round > latest:
            ask_all()
        latest = max(latest, server_round)
        return {edge: [n for n in number_of if edge_of[n] == edge] for edge in topology}

    return topology_of
