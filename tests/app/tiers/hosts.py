"""Edge hosts as threads of this process, each with devices of its own, and a cloud whose nodes are their gateways."""

import threading
import time
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path

from espalier.app.reports.progress import LogProgress
from espalier.app.run.run import run, run_edge
from tests.app.assembling import config_of, engine_of

SMALL = {
    "num_clients": 4,
    "num_edges": 2,
    "global_rounds": 2,
    "edge_rounds": 2,
    "local_epochs": 1,
    "batches_per_epoch": 2,
    "batch_size": 16,
    "wait_for_nodes": 0,
}


class EdgeHost:
    """The run of an edge in a thread; its devices are nodes of a grid of its own."""

    def __init__(self, folder: Path, name: str, clients: list[int], node_settings: dict | None = None, **settings):
        self.folder, self.name = folder, name
        self.settings = {"edge_clients": len(clients), **settings}
        self.node_configs = [{"partition-id": client, **(node_settings or {})} for client in clients]
        self.error: BaseException | None = None
        self._over = threading.Event()
        self._starts = count()
        self._thread: threading.Thread | None = None

    def start(self) -> "EdgeHost":
        """Start with devices and an edge that know nothing of what was before."""
        self._over.clear()
        self.results = self.folder / f"results-{self.name}-{next(self._starts)}"
        self.config = config_of(
            role="edge",
            edge_name=self.name,
            edge_folder=str(self.folder / self.name),
            output_dir=str(self.results),
            **self.settings,
        )
        self.engine = engine_of(self.config, self.node_configs, seed=sum(map(ord, self.name)))
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        wait_until(lambda: (self.results / "config.json").exists() or not self._thread.is_alive())
        if self.error:
            raise self.error
        return self

    def stop(self) -> None:
        self._over.set()
        self._thread.join()

    @property
    def socket(self) -> Path:
        return Path(self.config.deploy.edge_folder) / "socket"

    def _run(self) -> None:
        try:
            run_edge(self.config, self.engine, self.folder, self._over.is_set, look_seconds=0.02)
        except BaseException as error:
            self.error = error


class Watching(LogProgress):
    """Calls a function at the end of a round."""

    def __init__(self, after_round):
        super().__init__()
        self.after_round = after_round

    def round_over(self, number, rounds, line):
        super().round_over(number, rounds, line)
        self.after_round(number)


def cloud_engine(hosts, config, devices=0):
    """Return the cloud's engine; its last nodes are no gateways."""
    gateways = [{"edge-folder": host.config.deploy.edge_folder} for host in hosts]
    return engine_of(config, gateways + [{}] * devices)


def run_cloud(folder: Path, hosts, after_round=lambda number: None, devices=0, **settings) -> Path:
    """Run the cloud over edge hosts that are there, into `folder`."""
    config = config_of(**{"role": "cloud", "output_dir": str(folder)} | settings)
    return run(config, cloud_engine(hosts, config, devices), Watching(after_round), folder.parent)


@contextmanager
def edge_hosts(folder: Path, clients_of: dict[str, list[int]], **settings):
    """Run edge hosts inside the block."""
    with ExitStack() as stack:
        hosts = []
        for name, clients in clients_of.items():
            host = EdgeHost(folder, name, clients, **settings).start()
            stack.callback(host.stop)
            hosts.append(host)
        yield hosts


def wait_until(condition, seconds=20.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.005)
