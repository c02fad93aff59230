"""What the plans of a run are made for, from its config."""

import time
from collections.abc import Mapping, Sequence

from torch import nn

from espalier.app.algorithms.algorithm import Algorithm
from espalier.app.algorithms.split_edges import cuts_of, frozen_weights
from espalier.app.config.run_config import RunConfig
from espalier.app.features.table import presence_of
from espalier.app.ground.errors import bad_value
from espalier.app.planning.build import cells_of_clients, whole_radio_world, world_of
from espalier.app.planning.limits import check_cell_size, check_deadline
from espalier.app.planning.solving import own_solver
from espalier.app.planning.work import Work, split_work, whole_model_work
from espalier.app.planning.world import PlannedWorld
from espalier.app.settings.section import Section
from espalier.app.settings.sections import Split, StreamSettings
from espalier.app.settings.transports import TRANSPORTS
from espalier.app.tasks.task import Task
from espalier.clients.shared.cut import as_blocks
from espalier.strategies import Profile
from espalier.strategies.profiles import clients_by_node


def planned_world(
    config: RunConfig,
    topology: Mapping[str, Sequence[int]],
    profiles: Sequence[Profile],
    task: Task,
    model: nn.Module,
) -> PlannedWorld | None:
    """Return what the plans of a run are made for, None for a run without any; UserError if no plan could be."""
    plan, rule, num_clients = config.plan, config.rule, config.federation.num_clients
    if rule is None:
        return None
    check_cell_size(plan, rule, min(map(len, topology.values())))  # nodes may have chosen their edges
    is_part = not config.here.has_cloud
    if is_part and plan.resources == "simulated":
        # The radio world is drawn for all cells, so that plans are those of a run that has all edges.
        topology, profiles = whole_radio_world(config.deploy.edge_name, profiles, num_clients, config.edges)
    presence = presence_of(config)
    world = world_of(
        plan,
        config.radio,
        rule,
        config.seed,
        topology=topology,
        cell_of=cells_of_clients(topology, clients_by_node(profiles), config.cells // config.edges),
        profiles=profiles,
        work=work_of(config.algorithm, config.of_algorithm, config.split, config.stream, task, model),
        task=task,
        train=config.train,
        clock=time.monotonic if config.on_devices and config.here.reaches_clients else None,
        is_there=presence.is_there if presence else None,
        drops_out=presence.drops_out if presence else None,
        edge_rounds=config.federation.edge_rounds,
        num_rounds=config.edge_rounds_in_all,
    )
    if not (is_part and plan.resources == "measured"):  # then other edges' clients are not known here
        check_deadline(plan, world)
    if plan.solver.module and rule.selects_a_number:  # the user's own: tried before anything is written
        own_solver(plan.solver).try_on(world.problem(1, world.everybody, None, 0))
    return world


def work_of(
    algorithm: Algorithm, own: Section | None, split: Split, stream: StreamSettings, task: Task, model: nn.Module
) -> Work:
    """Return what a client's part of the training takes, for each cut that a plan may choose from."""
    cuts = sorted(set(cuts_of(algorithm, split, model)))
    if not cuts:
        if (passes := algorithm.passes(own)) < 1:
            raise bad_value("algorithm", algorithm.text, f"one whose passes() is 1 or more, not {passes}")
        return whole_model_work(model, algorithm.client, passes)
    payload, frozen = TRANSPORTS[split.transport].payload(stream), frozen_weights(algorithm, model)
    return split_work(as_blocks(model), task.example_input(), cuts, payload, frozen, algorithm.client)
