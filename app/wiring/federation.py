"""Who takes part: the clients that the config asks for, and the edge that each belongs to."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from logging import getLogger
from typing import TypeVar

from flwr.serverapp import Grid

from espalier.app.ground.errors import UserError, bad_value, shown
from espalier.app.settings.sections import Deploy
from espalier.app.tasks.task import Task
from espalier.clients.messages.profile import ProfileQuery
from espalier.strategies import Profile, ask_profiles, group_by_edge, wait_for_nodes
from espalier.strategies.profiles import LazyProfiles, clients_by_node
from espalier.strategies.topology import MOST_LINES, Topology, in_blocks

logger = getLogger("espalier")

# Makes the query that asks a node, by its id, to measure its device and its link.
Measure = Callable[[int], ProfileQuery]
Answer = TypeVar("Answer")

FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 5.0, 300.0  # until a node that gave no answer is asked again


def gather_clients(
    grid: Grid,
    num_clients: int,
    deploy: Deploy,
    measure: Measure | None = None,
    edge_names: Sequence[str] = (),
) -> list[Profile]:
    """Wait until `num-clients` good nodes are connected and return their profiles, in client order.

    A node that can't take part is left out, with a line in the log.

    Parameters
    ----------
    grid : Grid
        Reaches the nodes.
    num_clients : int
        How many.
    deploy : Deploy
        Section of the run config.
    measure : Callable[[int], ProfileQuery], optional (default: None)
        Asks nodes to measure themselves.
    edge_names : Sequence[str] (default: any)
        The edges that a node may ask to belong to.

    Raises
    ------
    UserError
        If too few nodes are there after `deploy.wait-for-nodes` seconds, or some do not answer with a profile.
    """
    profiles: dict[int, Profile] = {}
    are_there = False

    def fault_of(profile: Profile) -> str:
        if edge_names and profile.edge and profile.edge not in edge_names:
            return f"its edge-name is {profile.edge!r}: allowed is one of edge-names, {', '.join(edge_names)}"
        return ""

    said = set[tuple[int, str]]()
    ask = _asking(grid, num_clients, deploy, measure, fault_of, said)
    try:
        for answers in answers_of_nodes(grid, num_clients, deploy.wait_for_nodes, ask):
            are_there = True
            profiles = _one_each(answers, said)
            if len(profiles) == num_clients:
                break
    except TimeoutError as error:
        if not are_there:
            connected = len(list(grid.get_node_ids()))
            fewer = f" (or set num-clients={connected})" if connected else ""
            raise UserError(f"num-clients = {num_clients}: {error}{fewer}") from None
        missing = sorted(set(range(num_clients)) - profiles.keys())
        raise UserError(f"no profile from clients {missing}: the log says what they failed on") from None
    return [profiles[i] for i in range(num_clients)]


def told_clients(task: Task, numbers: Mapping[int, int] | None) -> LazyProfiles | None:
    """Return the profiles of clients whose data this process can tell of, each made when it is looked at.

    Parameters
    ----------
    task : Task
        The one that the nodes have, too.
    numbers : Mapping[int, int], optional
        Each client's number by its node id, in client order; None where nodes are asked, see `Engine.numbers`.

    Returns
    -------
    LazyProfiles or None
        What the nodes would answer; None where the task can't tell without making the data.
    """
    if numbers is None or task.num_examples(0) is None:
        return None

    def tell(node_id: int, client: int) -> Profile:
        train, test = task.num_examples(client) or (0, 0)
        return Profile(node_id, client, "", train, test, task.class_counts(client))

    return LazyProfiles(numbers, tell)


def gather_devices(grid: Grid, num_clients: int, deploy: Deploy, measure: Measure | None = None) -> list[Profile]:
    """Wait until an edge's `deploy.edge-clients` devices are connected; return their profiles in client order.

    Parameters
    ----------
    grid, num_clients, deploy, measure
        As for `gather_clients`.

    Raises
    ------
    UserError
        If too few or too many good ones are there.
    """
    if deploy.edge_clients > num_clients:
        raise bad_value("deploy.edge-clients", deploy.edge_clients, f"at most num-clients = {num_clients}")
    profiles: dict[int, Profile] = {}

    def fault_of(profile: Profile) -> str:
        if profile.edge in ("", deploy.edge_name):
            return ""
        return f"its edge-name is {profile.edge!r}: allowed is {deploy.edge_name!r}, the edge of this run"

    said = set[tuple[int, str]]()
    ask = _asking(grid, num_clients, deploy, measure, fault_of, said)
    try:
        for answers in answers_of_nodes(grid, deploy.edge_clients, deploy.wait_for_nodes, ask):
            profiles = _one_each(answers, said)
            if len(profiles) >= deploy.edge_clients:
                break
    except TimeoutError as error:
        raise UserError(f"deploy.edge-clients = {deploy.edge_clients}: {error}") from None
    if len(profiles) > deploy.edge_clients:
        raise bad_value("deploy.edge-clients", deploy.edge_clients, f"{len(profiles)}, the number of connected clients")
    return [profiles[i] for i in sorted(profiles)]


def answers_of_nodes(
    grid: Grid, count: int, seconds: float, ask: Callable[[list[int]], Mapping[int, Answer]]
) -> Iterator[list[Answer]]:
    """Yield the answers of the nodes that are connected, first come first, again and again once there are `count`.

    A node that has been away is asked anew, for its config may be another one. Who gives no answer, for a device may be
    set up wrongly at first, is also asked again after 5 s, 10 s and so on, up to 5 minutes.

    Parameters
    ----------
    grid : Grid
        Knows the nodes.
    count : int
        How many nodes there must be at first.
    seconds : float
        How long to wait in all; the time in which nodes are asked doesn't count.
    ask : Callable[[list[int]], Mapping[int, Answer]]
        Asks nodes, and returns the answers by node id.

    Raises
    ------
    TimeoutError
        When the time is over.
    """
    deadline = time.monotonic() + seconds
    node_ids = wait_for_nodes(grid, count, timeout_seconds=seconds)
    answers: dict[int, Answer] = {}
    again: dict[int, tuple[float, float]] = {}  # when to ask a node that gave no answer, and the pause after that
    while True:
        now, connected = time.monotonic(), set(node_ids)
        again = {node_id: when for node_id, when in again.items() if node_id in connected}
        answers = {node_id: answer for node_id, answer in answers.items() if node_id in connected}
        due = [n for n in node_ids if n not in answers and (n not in again or again[n][0] <= now)]
        if due:
            asked = time.monotonic()
            answers |= ask(due)
            # A SuperNode that starts again keeps the request for a minute and fails it; it must be asked once more.
            deadline += time.monotonic() - asked
            for node_id in set(due) - answers.keys():
                pause = again[node_id][1] if node_id in again else FIRST_PAUSE_SECONDS
                again[node_id] = (time.monotonic() + pause, min(2 * pause, LONGEST_PAUSE_SECONDS))
        yield list(answers.values())
        if time.monotonic() >= deadline:
            silent = f"{len(again)} of {len(node_ids)} connected SuperNodes gave no answer"
            raise TimeoutError(silent if again else f"only {len(node_ids)} SuperNodes are connected: start the others")
        time.sleep(0.2)
        node_ids = list(grid.get_node_ids())


def _asking(
    grid: Grid,
    num_clients: int,
    deploy: Deploy,
    measure: Measure | None,
    fault_of: Callable[[Profile], str],
    said: set[tuple[int, str]],
) -> Callable[[Iterable[int]], dict[int, Profile]]:
    """Return what asks nodes for their profiles; it may ask them again, and logs a fault that was `said` no more.

    Those are good that are one of the run's clients, have something to train on, and no fault beside.
    """

    def is_good(profile: Profile) -> bool:
        fault = fault_of(profile)
        if not fault and profile.partition_id >= num_clients:
            fault = f"its partition-id is {profile.partition_id}: allowed is 0 to {num_clients - 1}"
        if profile.num_train_examples < 1:
            fault = f"it has {profile.num_train_examples} training examples: allowed is 1 or more"
        if fault:
            leave_out(profile.node_id, fault, said)
        return not fault

    def ask(node_ids: Iterable[int]) -> dict[int, Profile]:
        timeout = deploy.reply_timeout or None
        asked = ask_profiles(grid, node_ids, timeout_seconds=timeout, measure=measure, is_good=is_good, said=said)
        return {profile.node_id: profile for profile in asked}

    return ask


def _one_each(profiles: Iterable[Profile], said: set[tuple[int, str]]) -> dict[int, Profile]:
    """Return the profile of each client; a node that comes second with a number is left out."""
    firsts: dict[int, Profile] = {}
    for profile in profiles:
        first = firsts.setdefault(profile.partition_id, profile)
        if first is not profile:
            fault = f"its partition-id, {profile.partition_id}, is that of node {first.node_id}"
            leave_out(profile.node_id, fault, said)
    return firsts


def leave_out(node_id: int, fault: str, said: set[tuple[int, str]]) -> None:
    """Log that a node can't take part, unless it was `said`; the others go on."""
    if (node_id, fault) in said:
        return
    said.add((node_id, fault))
    hint = f"to lock its key out: flwr supernode unregister {node_id} CONNECTION"
    logger.warning("node %d is left out: %s (%s)", node_id, fault, hint)


def assign_edges(profiles: Sequence[Profile], num_edges: int) -> dict[str, list[int]]:
    """Return node ids by edge, and log who joined; without edges (0) there is the one group "cloud"."""
    if not num_edges:
        log_joined(profiles, {})
        return {"cloud": list(clients_by_node(profiles))}
    if isinstance(profiles, LazyProfiles):  # no node's config names an edge
        topology = in_blocks(profiles.node_ids, num_edges)
    else:
        topology = group_by_edge(profiles, num_edges)
        _warn_of_edges(profiles, topology, num_edges)
    log_joined(profiles, topology)
    return topology


def _warn_of_edges(profiles: Sequence[Profile], topology: Topology, num_edges: int) -> None:
    """Warn where nodes name more edges, or fewer, than were asked for."""
    if len(topology) == num_edges:
        return
    there = f"{len(topology)} by the edge-name of nodes, {shown(list(topology))}"
    # Those without a name are in blocks, which another number of edges would change.
    fits = f"num-edges={len(topology)}" if all(profile.edge for profile in profiles) else "edge-name for every node"
    logger.warning("num-edges = %d, but there are %s: set %s, or correct NODE_CONFIG", num_edges, there, fits)


def log_joined(profiles: Sequence[Profile], edges: Topology) -> None:
    """Log a line for each client of the run, with its edge where it has one; for many clients one line in all."""
    _warn_of_weight(profiles)
    if len(profiles) > MOST_LINES:
        logger.info("%d clients joined%s", len(profiles), f" ({len(edges)} edges)" if edges else "")
        return
    edge_of = {node_id: f" (edge {edge})" for edge, members in edges.items() for node_id in members}
    for profile in profiles:
        logger.info("client %d joined%s", profile.partition_id, edge_of.get(profile.node_id, ""))


def _warn_of_weight(profiles: Sequence[Profile]) -> None:
    """Warn where one client says that it has most of all examples: what it says can't be checked."""
    total, largest = 0, profiles[0]
    for profile in profiles:
        total += profile.num_train_examples
        if profile.num_train_examples > largest.num_train_examples:
            largest = profile
    if len(profiles) > 2 and 2 * largest.num_train_examples > total:
        logger.warning(
            "client %d says that it has %d of all %d training examples: averages follow it. "
            "train.weighting = 'equal' lets all clients weigh the same",
            largest.partition_id,
            largest.num_train_examples,
            total,
        )
