"""The parts of a run, made from settings in the way in which `espalier.app.run.run` makes them."""

from collections.abc import Callable, Mapping, Sequence

from espalier.app.algorithms.algorithm import Site
from espalier.app.algorithms.auxiliary_heads import auxiliary_head
from espalier.app.algorithms.split_edges import check_cuts
from espalier.app.client import app
from espalier.app.config.parse import parse_config
from espalier.app.config.run_config import RunConfig
from espalier.app.engines.in_process import InProcess
from espalier.app.planning.build import cells_of_clients, world_of
from espalier.app.planning.world import PlannedWorld
from espalier.app.tasks.common import compute_device
from espalier.app.wiring.one_server import Assembled, assemble, checked_task
from espalier.app.wiring.planning import work_of
from espalier.app.wiring.task_of_run import build_task
from espalier.sim.in_process_grid import InProcessGrid
from espalier.strategies import DeviceProfile, Profile
from tests.app.runs import key_of


def config_of(**settings) -> RunConfig:
    """Return the config of settings: underscores for hyphens and dots."""
    return parse_config({key_of(key): value for key, value in settings.items()})


def engine_of(
    config: RunConfig, node_configs: Sequence[Mapping] | None = None, *, client_app=app, seed: int | None = None
) -> InProcess:
    """Return an engine with a node for each of these configs, or for each client; by default of the run's seed."""
    if node_configs is None:
        node_configs = [{} for _ in range(config.federation.num_clients)]
    grid = InProcessGrid(
        client_app,
        len(node_configs),
        run_config=config.as_dict(),
        node_configs=[dict(own) for own in node_configs],
        seed=config.seed if seed is None else seed,
    )
    return InProcess(grid)


def federation_of(config: RunConfig, grid: InProcessGrid) -> Assembled:
    """Return the clients that are there and the config's algorithm."""
    return assemble(config, grid, *checked_task(config))


def site_of(config: RunConfig) -> Site:
    """Return an edge that is to be made, of two clients with the first cut."""
    return Site(
        name="edge-0",
        size=2,
        seed=0,
        cut_of=lambda node_id: check_cuts(config.split, build_task(config).new_model())[0],
        client_of={10: 0, 11: 1},
        transport=None,
        task=build_task(config),
        federation=config.federation,
        train=config.train,
        split=config.split,
        device=compute_device(config.device),
        own=config.of_algorithm,
        auxiliary=auxiliary_head(config.split, build_task(config), config.seed) if config.algorithm.auxiliary else None,
    )


def make_world(
    config: RunConfig,
    topology: Mapping[str, Sequence[int]],
    client_of: Mapping[int, int],
    num_examples: Sequence[int],
    devices: Sequence[DeviceProfile | None] | None = None,
    clock: Callable[[], float] | None = None,
) -> PlannedWorld:
    """Return what plans are made for, whether a plan can be made or not.

    Parameters
    ----------
    config : RunConfig
        Of a run with plans.
    topology : Mapping[str, Sequence[int]]
        Node ids by edge.
    client_of : Mapping[int, int]
        Client number by node id.
    num_examples, devices : Sequence
        Of the clients, in the order of their numbers.
    clock : Callable[[], float], optional (default: None)
        By which measured devices keep the deadline.
    """
    assert config.rule is not None
    nodes = sorted(client_of, key=client_of.__getitem__)
    profiles = [
        Profile(node_id, client_of[node_id], "", count, 5, (1,), device)
        for node_id, count, device in zip(nodes, num_examples, devices or [None] * len(nodes), strict=True)
    ]
    task = build_task(config)
    return world_of(
        config.plan,
        config.radio,
        config.rule,
        config.seed,
        topology=topology,
        cell_of=cells_of_clients(topology, client_of, config.cells if config.is_flat else 1),
        profiles=profiles,
        work=work_of(config.algorithm, config.of_algorithm, config.split, config.stream, task, task.new_model()),
        task=task,
        train=config.train,
        clock=clock,
    )
