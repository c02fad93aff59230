"""Two tiers on loopback, each of whose programs a supervisor starts again when it ends."""

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import local
from flwr_run import descendants
from local import Federation, Program

from espalier.clients.device.edge_socket import is_served

from ..faults import ROOT, command_of, rounds
from .supervisor import Unit

EDGES = 2
CLIENTS = 4


@dataclass
class TwoTiers:
    """The cloud, two edge hosts, their devices and gateways, and the runs on them.

    Attributes
    ----------
    folder : Path
        Of everything.
    settings : Mapping[str, object]
        Of all runs.
    cloud : Federation
        The cloud's.
    edges : list[Federation]
        Those of the edges.
    units : list[Unit]
        All that is supervised; the last is the cloud's run.
    served : dict[str, Path]
        The results folder of each edge's present run, where it writes when it serves.
    """

    folder: Path
    settings: Mapping[str, object]
    cloud: Federation
    edges: list[Federation]
    units: list[Unit] = field(default_factory=list)
    served: dict[str, Path] = field(default_factory=dict)

    @property
    def results(self) -> Path:
        """Results folder of the cloud's run."""
        return self.folder / "results"

    @property
    def cloud_run(self) -> Unit:
        """The cloud's run."""
        return self.units[-1]

    def supervise(self) -> None:
        """Make the units."""
        for number, edge in enumerate(self.edges):
            self.units += _federation_units(edge, f"edge-{number}", "device")
        self.units += _federation_units(self.cloud, "cloud", "gateway")
        for number, edge in enumerate(self.edges):
            name = f"edge-{number}"
            self.units.append(
                Unit(f"run of {name}", "edge-run", partial(self.start_edge, edge, name), partial(server_app, edge))
            )
        self.units.append(Unit("cloud's run", "cloud-run", self.start_cloud, partial(server_app, self.cloud)))

    def start_edge(self, edge: Federation, name: str) -> Program:
        """Start the run of an edge."""
        self.served[name] = local.new_results(edge.folder)
        settings = local.edge_settings(name, len(edge.supernodes), edge.meeting, self.served[name])
        return start_run(edge, f"the run of {name}", {**self.settings, **settings})

    def start_cloud(self, **settings: object) -> Program:
        """Start the cloud's run, or let it go on where it stopped."""
        resume = {"resume": str(self.results)} if self.results.exists() else {}
        own = {"deploy.role": "cloud", "output-dir": str(self.results), **resume}
        return start_run(self.cloud, "the cloud's run", {**self.settings, **own, **settings})

    def missing(self) -> list[str]:
        """Return the names of what is not there, or not in touch yet."""
        names = [unit.name for unit in self.units if unit.is_wanted and not unit.is_running]
        for number, edge in enumerate(self.edges):
            served = self.served.get(f"edge-{number}")
            if served is None or not (served / "config.json").exists() or not is_served(edge.meeting):
                names.append(f"run of edge-{number} (not serving)")
        if names:
            return names  # a command of flwr is dear
        for made in (*self.edges, self.cloud):
            try:
                online = local.count_online(made.environment)
            except local.StartError:
                online = 0
            if online < len(made.supernodes):
                names.append(f"{len(made.supernodes) - online} SuperNodes of {made.folder.name}")
        return names

    def rounds(self) -> int:
        """Return how many global rounds are over."""
        return rounds(self.results)


def _federation_units(made: Federation, name: str, kind: str) -> Iterator[Unit]:
    """Yield the units of a SuperLink and of its SuperNodes, which run already."""

    def start_superlink() -> Program:
        made.superlink = local.start_superlink(made.folder, made.address, made.environment, database(made.folder))
        return made.superlink

    def start_supernode(i: int) -> Program:
        made.supernodes[i] = made.start_supernode(i)
        return made.supernodes[i]

    yield Unit(
        f"SuperLink of {name}",
        "superlink",
        start_superlink,
        lambda: made.superlink.process.pid,
        made.superlink,
    )
    for i, supernode in enumerate(made.supernodes):
        yield Unit(
            f"{kind} {i} of {name}",
            kind,
            partial(start_supernode, i),
            partial(lambda i: made.supernodes[i].process.pid, i),
            supernode,
        )


def start_run(made: Federation, name: str, settings: Mapping[str, object]) -> Program:
    """Start a run that is stopped when its program is ended."""
    command = [sys.executable, str(ROOT / "deploy" / "supervised_run.py"), str(ROOT), "local"]
    log = made.folder / "logs" / "run.log"
    return local.start(name, [*command, *local.run_config(settings)], log, made.environment)


def server_app(made: Federation) -> int | None:
    """Return the process of the run on a SuperLink, None if there is none."""
    apps = [pid for pid in descendants(made.superlink.process.pid) if "flwr-serverapp" in command_of(pid)]
    return apps[0] if apps else None


def database(folder: Path) -> Sequence[str]:
    """Return the options of a SuperLink that knows after a restart what it knew before."""
    return ["--database", str(folder / "superlink.db")]


@contextmanager
def two_tiers(folder: Path, settings: Mapping[str, object]) -> Iterator[TwoTiers]:
    """Start SuperLinks, devices and gateways, and in the end stop all that runs; runs are started by the units."""
    with ExitStack() as stack:
        edges, gateways = [], []
        for e in range(EDGES):
            clients = [i for i in range(CLIENTS) if i * EDGES // CLIENTS == e]
            path = folder / f"edge-{e}"
            made = local.federation(path, local.device_configs(clients, CLIENTS), database(path))
            edges.append(stack.enter_context(made))
            gateways.append(f"edge-folder={json.dumps(str(edges[-1].meeting))}")
        path = folder / "cloud"
        cloud = stack.enter_context(local.federation(path, gateways, database(path)))
        tiers = TwoTiers(folder, settings, cloud, edges)
        tiers.supervise()
        stack.callback(_stop_runs, tiers)
        yield tiers


def _stop_runs(tiers: TwoTiers) -> None:
    programs = [unit.program for unit in tiers.units if unit.kind.endswith("run") and unit.program]
    for unit in tiers.units:
        unit.go_on()
    local.stop_all([program.process for program in programs])
