"""What holds of every algorithm, tried on its edge with clients that train."""

from collections.abc import Mapping
from typing import Any

from espalier.app.algorithms.algorithm import Algorithm
from espalier.app.config.parse import parse_config
from espalier.app.config.run_config import RunConfig
from espalier.app.run.travelling import travelling_weights
from espalier.app.tasks.node import parse_node
from espalier.app.wiring.clients import ClientTasks
from espalier.app.wiring.one_server import assemble, checked_task
from espalier.clients.client_app import make_client_app
from espalier.clients.shared.arrays import to_record, to_weights
from espalier.sim.in_process_grid import InProcessGrid
from espalier.strategies.edge_laws import Trial, check_edge
from espalier.strategies.laws import Broken

SMALL = {"num-clients": 4, "num-edges": 1, "batches-per-epoch": 2, "local-epochs": 1, "split.execution": "messages"}


def check_algorithm(algorithm: Algorithm, settings: Mapping[str, Any] | None = None) -> list[Broken]:
    """Return the laws that an algorithm breaks: those of edges, see `espalier.strategies.check_edge`.

    Its edge and its four clients, in this process, train a small model on built-in data.

    Parameters
    ----------
    algorithm : Algorithm
        The algorithm.
    settings : Mapping[str, Any], optional (default: None)
        What else a run config for it has, such as ``{"task": "my_package:MyTask"}``.

    Raises
    ------
    UserError
        If no run could be made of it.
    """
    config = _config(algorithm, settings or {})
    (task, model), tasks = checked_task(config), ClientTasks(config)
    client_app = make_client_app(lambda context: tasks.of(parse_node(context.node_config)), durable=False)

    def new_trial() -> Trial:
        grid = InProcessGrid(client_app, config.federation.num_clients, run_config=config.as_dict(), seed=config.seed)
        hierarchical = assemble(config, grid, task, model).hierarchical
        ((name, edge),) = hierarchical.edges.items()
        arrays = to_record(to_weights(travelling_weights(config.algorithm, config.split, config.seed, task, model)))
        return Trial(edge, grid, hierarchical.topology[name], arrays)

    return check_edge(new_trial)


def _config(algorithm: Algorithm, settings: Mapping[str, Any]) -> RunConfig:
    """Return a small run of an algorithm, with one edge."""
    data = {"dataset": "video-caching"} if algorithm.ranks_requests else {}
    return parse_config({**SMALL, **data, **settings, "algorithm": algorithm})
