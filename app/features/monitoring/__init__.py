"""What Prometheus reads of a run, or an edge host, while it lasts."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

from espalier.app.features.case import Case
from espalier.app.features.feature import Feature, Unused, Watcher
from espalier.app.ground.registered import load_built_in

PORT = "deploy.metrics-port"


def watch(case: Case, count_nodes: Callable[[], int]) -> AbstractContextManager[Watcher | None]:
    """Serve figures while a run lasts, where a port is given.

    Raises
    ------
    UserError
        If the package for it is not installed.
    """
    port = case.deploy.metrics_port
    if not port:
        return nullcontext()
    place, install = "espalier.app.features.monitoring.exporter:served", "'espalier-fl[prometheus]'"
    served = load_built_in(place, PORT, port, "prometheus_client", install)
    watcher: AbstractContextManager[Watcher] = served(case.deploy.metrics_address, port, count_nodes)
    return watcher


def without_use(case: Case) -> Unused:
    """Yield the address, where nothing is served."""
    if not case.deploy.metrics_port:
        yield ("deploy.metrics-address",), f"{PORT} = 0"


MONITORING = Feature(name="monitoring", without_use=without_use, watch=watch)
