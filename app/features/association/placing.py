"""Clients of the simulated radio world under the edges that the settings ask for, and what that costs."""

from logging import getLogger

import numpy as np

from espalier.app.features.association.settings import Hfel
from espalier.app.features.case import Case
from espalier.app.features.feature import Scene
from espalier.app.ground.errors import UserError
from espalier.app.planning.simulated import WirelessWorld
from espalier.sim.radio import noise_watts, upload_seconds
from espalier.strategies.allocation.association import ASSOCIATIONS, Association
from espalier.strategies.profiles import LazyProfiles
from espalier.strategies.topology import Topology

logger = getLogger("espalier")


def problem_of(case: Case, world: WirelessWorld) -> Association:
    """Return a run's clients and edges as HFEL has them: all clients train, with `plan.max-local-rounds`.

    An edge's upload to the cloud takes nothing, as in the radio world.
    """
    own, clients, gains = case[Hfel], world.problem(1, world.everybody, None, 0), world.lasting_gains()
    nothing = np.zeros(gains.shape[1])
    return Association(
        cycles=case.plan.max_local_rounds * clients.cycles_per_local_round[:, 0],
        upload_seconds=upload_seconds(
            clients.payload_bits,
            clients.max_power_watts[:, np.newaxis],
            gains,
            bandwidth_hz=own.bandwidth_hz,
            noise_watts=noise_watts(own.bandwidth_hz, case.radio.noise_figure_db),
        ),
        power_watts=clients.max_power_watts,
        max_frequency_hz=clients.max_frequency_hz,
        capacitance=clients.capacitance,
        edge_rounds=case.federation.edge_rounds,
        cloud_seconds=nothing,
        cloud_joules=nothing,
        energy_weight=own.energy_weight,
        delay_weight=own.delay_weight,
    )


def associate(scene: Scene) -> Topology | None:
    """Put clients under the edges that `association` says, and let them talk to these; None where it is "given".

    Edges without clients are left out.

    Raises
    ------
    UserError
        If nodes name their edges themselves.
    """
    name, world = scene.case[Hfel].association, scene.world
    if name == "given" or not isinstance(world, WirelessWorld):
        return None
    if not isinstance(scene.profiles, LazyProfiles):
        for profile in scene.profiles:
            if profile.edge:
                raise UserError(
                    f"association = {name!r}: client {profile.partition_id} names its edge-name, {profile.edge!r}: "
                    "allowed is 'given', or nodes without edge-name"
                )
    cells = ASSOCIATIONS[name](problem_of(scene.case, world))
    world.associate(cells)
    nodes = list(scene.client_of)
    members = {
        edge: [nodes[client] for client in np.flatnonzero(cells == cell)] for cell, edge in enumerate(scene.topology)
    }
    others = int((cells != world.cells_at_first).sum())
    sizes = ", ".join(f"{edge} has {len(own)}" for edge, own in members.items())
    logger.info("association = %r: clients at another edge: %d of %d; %s", name, others, len(cells), sizes)
    return {edge: own for edge, own in members.items() if own}
