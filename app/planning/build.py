"""The world that the plans of a run are made for."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from espalier.app.ground.errors import UserError, bad_value
from espalier.app.planning.measured import MeasuredWorld
from espalier.app.planning.rule import PlanRule
from espalier.app.planning.simulated import WirelessWorld
from espalier.app.planning.work import Work
from espalier.app.planning.world import PlannedWorld
from espalier.app.settings.sections import Plans, RadioWorld, TrainSettings
from espalier.app.settings.values import read_csv
from espalier.app.tasks.task import Task
from espalier.clients.shared.nested import tensors_of
from espalier.clients.task import batches_of_a_pass
from espalier.sim.radio_trace import COLUMNS, RadioTrace, read_radio_trace
from espalier.strategies import Profile
from espalier.strategies.profiles import clients_by_node


def world_of(
    plan: Plans,
    radio: RadioWorld,
    rule: PlanRule,
    seed: int,
    *,
    topology: Mapping[str, Sequence[int]],
    cell_of: Mapping[int, int],
    profiles: Sequence[Profile],
    work: Work,
    task: Task,
    train: TrainSettings,
    clock: Callable[[], float] | None = None,
    is_there: Callable[[int, int], bool] | None = None,
    drops_out: Callable[[int, int], bool] | None = None,
    edge_rounds: int = 1,
    num_rounds: int = 1,
) -> PlannedWorld:
    """Return what plans are made for: the clients' measurements, or the simulated radio world.

    Parameters
    ----------
    plan, radio, train
        Sections of the run config.
    rule : PlanRule
        How plans are made.
    seed : int
        Of the run.
    topology : Mapping[str, Sequence[int]]
        Node ids by edge; an algorithm's one group of clients where it has no edges.
    cell_of : Mapping[int, int]
        Radio cell by client number.
    profiles : Sequence[Profile]
        The clients, in client order.
    work : Work
        What a client's part of the training takes.
    task : Task
        Says what an example is, and whether the data grow.
    clock : Callable[[], float], optional (default: None)
        By which measured devices keep the deadline; None: they take turns, or run elsewhere.
    is_there
        As for `PlannedWorld`.
    drops_out, edge_rounds
        As for `WirelessWorld`.
    num_rounds : int (default: 1)
        Edge rounds of the whole run, which a trace must have.

    Raises
    ------
    UserError
        For a trace that is not one of these clients and rounds.
    """
    client_of = clients_by_node(profiles)
    examples = examples_of_local_rounds(train, task.grows, [profile.num_train_examples for profile in profiles])
    if plan.resources == "measured":
        return MeasuredWorld(plan, rule, seed, topology, client_of, cell_of, work, profiles, examples, clock, is_there)
    values = sum(tensor.numel() for tensor in tensors_of(task.example_input()))
    return WirelessWorld(
        plan,
        radio,
        rule,
        seed,
        topology,
        client_of,
        cell_of,
        work,
        values,
        examples,
        is_there=is_there,
        drops_out=drops_out,
        edge_rounds=edge_rounds,
        trace=radio_trace(
            plan, radio, len(cell_of), max(cell_of.values()) + 1, num_rounds, [cell_of[i] for i in sorted(cell_of)]
        ),
    )


def radio_trace(
    plan: Plans,
    radio: RadioWorld,
    num_clients: int,
    num_cells: int,
    num_rounds: int,
    first_cells: Sequence[int] | None = None,
) -> RadioTrace | None:
    """Return the trace that the settings name, if any; parameters as of `read_radio_trace`, and UserError for none.

    Also for one that does not say where clients are, if plans go by that.
    """
    if not radio.trace:
        return None
    trace = read_csv(
        "radio.trace",
        radio.trace,
        ",".join(COLUMNS),
        read_radio_trace,
        num_clients=num_clients,
        num_cells=num_cells,
        num_rounds=num_rounds,
        first_cells=first_cells,
        may_move=radio.speed_metres_per_second > 0,
    )
    if trace.x_metres is None and plan.late_share and radio.planning_error_db:
        allowed = (
            "0.0, or radio.planning-error-db = 0.0, with a radio.trace without places, by which plans expect gains"
        )
        raise bad_value("plan.late-share", plan.late_share, allowed)
    return trace


def examples_of_local_rounds(train: TrainSettings, grows: bool, num_examples: Sequence[int]) -> list[int]:
    """Return the examples of a local round by client, from those that each has: `mini_batches`.

    Where data grow, mini-batches count as full, as the RawHFL paper has it.
    """
    batches, size = train.batches_per_epoch, train.batch_size
    passes = [batches_of_a_pass(n, size, drop_last=train.drop_last) for n in num_examples]
    seen = [min(of_a_pass * size, n) for n, of_a_pass in zip(num_examples, passes, strict=True)]
    if not batches:
        return seen
    if grows:
        return [batches * size] * len(num_examples)
    permutations = [divmod(batches, of_a_pass) if of_a_pass else (0, 0) for of_a_pass in passes]
    return [whole * n + rest * size for n, (whole, rest) in zip(seen, permutations, strict=True)]


def whole_radio_world(
    name: str, profiles: Sequence[Profile], num_clients: int, num_edges: int
) -> tuple[dict[str, list[int]], list[Profile]]:
    """Return the edges and clients of all radio cells, of which one edge's are known.

    The simulated radio world is drawn for all cells, whose clients are blocks of numbers.

    Parameters
    ----------
    name : str
        Of the edge.
    profiles : Sequence[Profile]
        Its devices, in client order.
    num_clients, num_edges : int
        Of the whole run.

    Returns
    -------
    tuple[dict[str, list[int]], list[Profile]]
        Node ids by edge, and the profiles in client order.

    Raises
    ------
    UserError
        If the devices are not one of the blocks.
    """
    own = {profile.partition_id: profile for profile in profiles}
    cells: dict[int, list[int]] = {}
    for client in range(num_clients):
        cells.setdefault(client * num_edges // num_clients, []).append(client)
    cell = min(own) * num_edges // num_clients
    if cells[cell] != list(own):
        blocks = ", ".join(f"{block[0]} to {block[-1]}" for block in cells.values())
        numbers = ", ".join(map(str, own))
        raise UserError(f"edge {name!r} has clients {numbers}: allowed are whole radio cells, {blocks}")
    names = {i: name if i == cell else f"edge-{i}" for i in cells}
    if len(set(names.values())) < len(names):
        raise bad_value("deploy.edge-name", name, f"'edge-{cell}', or a name that is not of the form 'edge-N'")
    # Nodes of other edges are not known here, and nothing of them matters but that they are in other cells.
    nobody = Profile(0, 0, "", 1, 1, ())
    everybody = [
        own.get(client) or replace(nobody, node_id=-client - 1, partition_id=client) for client in range(num_clients)
    ]
    return {names[i]: [everybody[client].node_id for client in block] for i, block in cells.items()}, everybody


def cells_of_clients(
    topology: Mapping[str, Sequence[int]], client_of: Mapping[int, int], num_cells: int
) -> dict[int, int]:
    """Return each client's cell: that of its edge; one group of clients is in `num_cells` cells of equal size."""
    cell_of = {client_of[n]: cell for cell, members in enumerate(topology.values()) for n in members}
    if len(topology) == 1:
        return {client: client * num_cells // len(cell_of) for client in sorted(cell_of)}
    return cell_of
