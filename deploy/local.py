"""Run an app as it runs on real devices, all on this machine: SuperLink with TLS, SuperNodes that prove who they are.

``python deploy/local.py APP --supernodes 4 [--folder FOLDER] [OPTIONS OF flwr run]`` makes certificates and one key per
SuperNode, starts a SuperLink and the SuperNodes, registers their keys, waits until all are online, runs the app and
streams its log. A SuperNode that ends by itself meanwhile is started again. It exits with 0 only if the run completed,
and leaves no process behind. Keys, logs and Flower's own files are in FOLDER, by default a temporary one that is
deleted in the end.

With ``--edges 2`` the SuperNodes are divided among two edge hosts, each with a SuperLink and a run of its own, below a
cloud's SuperLink.
"""

import argparse
import json
import os
import re
import shutil
import signal
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from threading import Event, Thread

from certificates import make_certificates, make_device_key
from commands import device_configs, gateway_config, superlink_command, supernode_command
from flwr_run import descendants, free_ports, run_app, uninterrupted

DEPLOY = Path(__file__).parent
START_SECONDS = 120.0
STOP_SECONDS = 20.0
LOG_TAIL_LINES = 15
# Of SuperNodes that end by themselves. One that was killed is refused for about a minute, until its SuperLink has
# missed it, and is then taken back; one that still ends at once after that always will.
RESTART_SECONDS = 15.0  # as in deploy/systemd
SHORT_LIFE_SECONDS = 60.0
MOST_SHORT_LIVES = 8
LOOK_SECONDS = 1.0
COMMAND_PAUSE_SECONDS = 3.0  # a command of flwr keeps a core busy for more than a second


SETTING = re.compile(r"(\S+?)=('[^']*'|\"[^\"]*\"|\S+)")  # as Flower reads them


class StartError(Exception):
    """Something of the deployment did not start; the message says what, with the end of its log."""


@dataclass(frozen=True)
class Program:
    """A process of the deployment.

    Attributes
    ----------
    name : str
        What to call it.
    process : subprocess.Popen
        The process.
    log : Path
        Where its output goes.
    """

    name: str
    process: subprocess.Popen
    log: Path

    def check(self) -> None:
        """Raise StartError if it has ended."""
        if self.process.poll() is not None:
            raise StartError(f"{self.name} ended with status {self.process.returncode}:\n{tail(self.log)}")


def run_locally(app: Path, supernodes: int, folder: Path, options: Sequence[str] = ()) -> int:
    """Deploy on this machine, run an app and take the deployment down.

    Parameters
    ----------
    app : Path
        The app's folder.
    supernodes : int
        Number of SuperNodes.
    folder : Path
        Gets keys, logs and Flower's own files.
    options : Sequence[str]
        More options of ``flwr run``.

    Returns
    -------
    int
        0 if the run completed, 130 if interrupted, else 1.
    """
    return _run_on(lambda: federation(folder, device_configs(range(supernodes), supernodes)), app, folder, options)


def run_two_tiers(app: Path, supernodes: int, edges: int, folder: Path, options: Sequence[str] = ()) -> int:
    """Do the same with hosts for the edges: a SuperLink of its own for each, and one for the cloud.

    Parameters
    ----------
    app : Path
        The folder of this project's app.
    supernodes : int
        Number of SuperNodes, divided among the edges in blocks.
    edges : int
        Number of edges.
    folder : Path
        Gets a folder for the cloud and one for each edge.
    options : Sequence[str]
        More options of ``flwr run``, for the run of the cloud and for those of the edges.
    """
    options = [*options, *run_config({"num-clients": supernodes, "num-edges": edges})]
    cloud = [*options, *run_config({"deploy.role": "cloud"})]
    return _run_on(lambda: two_tiers(app, supernodes, edges, folder, options), app, folder, cloud)


def _run_on(
    make: Callable[[], AbstractContextManager["Federation"]], app: Path, folder: Path, options: Sequence[str]
) -> int:
    with ExitStack() as stack:
        try:
            made = stack.enter_context(make())
        except (StartError, OSError, ValueError) as error:
            print(error, file=sys.stderr)
            return 1
        except KeyboardInterrupt:
            print("interrupted", file=sys.stderr)
            return 130
        print(f"SuperNodes online: {counted_supernodes(made)}; keys and logs are in {folder}", flush=True)
        stack.enter_context(kept_going([made, *made.edges]))
        return run_app(str(app), one_run_config(options), made.environment)


def counted_supernodes(made: "Federation") -> str:
    """Return, in words, how many SuperNodes there are: devices, and gateways where edges have hosts of their own."""
    if not made.edges:
        return str(len(made.supernodes))
    return f"{sum(len(edge.supernodes) for edge in made.edges)}, and {len(made.supernodes)} gateways of edges"


@contextmanager
def kept_going(federations: Sequence["Federation"]) -> Iterator[None]:
    """Start SuperNodes again that end by themselves, as systemd does, until the block is left.

    Each time is reported on standard error. One that has ended `MOST_SHORT_LIVES` times in a row, each time within
    `SHORT_LIFE_SECONDS`, is given up, with the end of its log.
    """
    is_over = Event()
    keepers = [
        Thread(target=_keep_going, args=(made, i, is_over), name=f"keeper of SuperNode {i}")
        for made in federations
        for i in range(len(made.supernodes))
    ]
    for keeper in keepers:
        keeper.start()
    try:
        yield
    finally:
        is_over.set()
        for keeper in keepers:
            keeper.join()


def _keep_going(made: "Federation", i: int, is_over: Event) -> None:
    name, started, short_lives = f"SuperNode {i} of {made.folder.name}", time.monotonic(), 0
    while not is_over.wait(LOOK_SECONDS):
        if (status := made.supernodes[i].process.poll()) is None:
            continue
        end_session(made.supernodes[i].process)
        short_lives = short_lives + 1 if time.monotonic() < started + SHORT_LIFE_SECONDS else 0
        if short_lives == MOST_SHORT_LIVES:
            log = tail(made.supernodes[i].log)
            print(f"{name} ended {short_lives} times in a row and stays down:\n{log}", file=sys.stderr, flush=True)
            return
        print(f"{name} ended with status {status}, and starts again", file=sys.stderr, flush=True)
        if is_over.wait(RESTART_SECONDS):
            return
        made.supernodes[i], started = made.start_supernode(i), time.monotonic()


@contextmanager
def two_tiers(
    app: Path,
    supernodes: int,
    edges: int,
    folder: Path,
    options: Sequence[str] = (),
    own_options: Callable[[int], Sequence[str]] = lambda edge: (),
    devices: Callable[[Sequence[int], int], Sequence[str]] = device_configs,
) -> Iterator["Federation"]:
    """Run the edges' federations with a run of the app on each, and the cloud's, whose SuperNodes are their gateways.

    The run of an edge has `own_options` as well, by its number. `devices` gives the node configs of an edge's clients.

    Yields
    ------
    Federation
        The cloud's.

    Raises
    ------
    StartError
        Something ends at once, or is not ready in time.
    """
    with ExitStack() as stack:
        below, gateways = [], []
        for e in range(edges):
            # Blocks as the app makes them where one server has all clients.
            clients = [i for i in range(supernodes) if i * edges // supernodes == e]
            below.append(stack.enter_context(starting(folder / f"edge-{e}", devices(clients, supernodes))))
            gateways.append(gateway_config(e, edges, below[e].meeting))
        cloud = stack.enter_context(starting(folder / "cloud", gateways))
        runs = []
        for e, edge in enumerate(below):
            wait_until_online(edge)
            runs.append(begin_edge_run(edge, app, [*options, *own_options(e)]))
        for run in runs:
            wait_until_it_serves(run)
        wait_until_online(cloud)
        yield replace(cloud, edges=below)


@dataclass(frozen=True)
class LongRun:
    """The long run of an edge: the edge, the run's id and its results folder."""

    edge: "Federation"
    run_id: str
    results: Path


def start_edge_run(edge: "Federation", app: Path, options: Sequence[str]) -> None:
    """Start the long run of an edge and wait until it has its devices and serves the gateway."""
    wait_until_it_serves(begin_edge_run(edge, app, options))


def begin_edge_run(edge: "Federation", app: Path, options: Sequence[str]) -> LongRun:
    """Start the long run of an edge, which is called as its folder is."""
    results = new_results(edge.folder)
    settings = edge_settings(edge.folder.name, len(edge.supernodes), edge.meeting, results)
    return LongRun(edge, start_run(app, [*options, *run_config(settings)], edge.environment), results)


def wait_until_it_serves(run: LongRun) -> None:
    """Wait until the run of an edge has its devices and serves the gateway."""
    environment, asked = run.edge.environment, time.monotonic()
    deadline = asked + START_SECONDS
    while not (run.results / "config.json").exists():
        run.edge.superlink.check()
        time.sleep(0.1)
        if (now := time.monotonic()) < asked + COMMAND_PAUSE_SECONDS:
            continue
        if status_of(run.run_id, environment).startswith("finished") or now > deadline:
            raise StartError(f"the run of {run.edge.folder.name} does not serve:\n{log_of(run.run_id, environment)}")
        asked = time.monotonic()


def new_results(folder: Path) -> Path:
    """Return the path of the next results folder in a folder."""
    names = ("results" if i == 1 else f"results-{i}" for i in count(1))
    return next(results for name in names if not (results := folder / name).exists())


def edge_settings(name: str, num_clients: int, meeting: Path, results: Path) -> dict[str, object]:
    """Return what the run of an edge has other than the cloud's."""
    return {
        "deploy.role": "edge",
        "deploy.edge-name": name,
        "deploy.edge-clients": num_clients,
        "deploy.edge-folder": str(meeting),
        "output-dir": str(results),
        # These are for the cloud's run: all share this machine's ports.
        "resume": "",
        "stream.port": 0,
        "deploy.metrics-port": 0,
    }


@dataclass
class Federation:
    """A SuperLink and its SuperNodes.

    Attributes
    ----------
    folder : Path
        Its keys, logs and Flower's own files.
    address : str
        Of the SuperLink.
    environment : dict[str, str]
        In it, `flwr` finds the SuperLink.
    superlink : Program
        The SuperLink, or the one that was started in its place.
    node_configs : Sequence[str]
        Of the SuperNodes.
    supernodes : list[Program]
        The SuperNodes, likewise.
    edges : Sequence[Federation]
        Those whose gateways its SuperNodes are.
    """

    folder: Path
    address: str
    environment: dict[str, str]
    superlink: Program
    node_configs: Sequence[str]
    supernodes: list[Program] = field(default_factory=list)
    edges: Sequence["Federation"] = ()

    @property
    def meeting(self) -> Path:
        """The folder where the run of an edge and its gateway meet."""
        return self.folder / "gateway"

    def start_supernode(self, i: int) -> Program:
        """Start the SuperNode of device `i`, whose key is registered."""
        home = {"FLWR_HOME": str(self.folder / f"flower-{i}")}
        command = supernode_command(
            sys.executable,
            DEPLOY,
            self.address,
            self.folder / "certificates" / "ca.crt",
            self.folder / "keys" / f"device-{i}",
            self.node_configs[i],
            ["--host", "127.0.0.1", "--port", str(free_ports(1)[0])],
        )
        log = self.folder / "logs" / f"supernode-{i}.log"
        return start(f"SuperNode {i}", command, log, {**self.environment, **home})


@contextmanager
def federation(
    folder: Path, node_configs: Sequence[str], superlink_options: Sequence[str] = ()
) -> Iterator[Federation]:
    """Run a SuperLink, with more options, and SuperNodes with these configs, all in a folder of their own.

    Raises
    ------
    StartError
        Something ends at once, or is not ready in time.
    """
    with starting(folder, node_configs, superlink_options) as made:
        wait_until_online(made)
        yield made


@contextmanager
def starting(folder: Path, node_configs: Sequence[str], superlink_options: Sequence[str] = ()) -> Iterator[Federation]:
    """Do the same without waiting for the SuperNodes."""
    address = f"127.0.0.1:{free_ports(1)[0]}"
    make_certificates(folder / "certificates", ["localhost", "127.0.0.1"])
    environment = flower_environment(folder, address)
    superlink = start_superlink(folder, address, environment, superlink_options)
    made = Federation(folder, address, environment, superlink, node_configs)
    try:
        wait_for_superlink(superlink, address, folder / "certificates" / "ca.crt")
        for i in range(len(node_configs)):
            public_key = make_device_key(folder / "keys" / f"device-{i}")
            flwr(["supernode", "register", str(public_key)], environment)
            made.supernodes.append(made.start_supernode(i))
        yield made
    finally:
        stop_all([program.process for program in (made.superlink, *made.supernodes)])


def flower_environment(folder: Path, address: str) -> dict[str, str]:
    """Return an environment with a Flower home of its own, where `flwr` finds the SuperLink as its default."""
    home = folder / "flower"
    for made in (home, folder / "keys", folder / "logs", folder / "tmp"):
        made.mkdir(parents=True, exist_ok=True)
    root_certificate = json.dumps(str(folder / "certificates" / "ca.crt"))
    (home / "config.toml").write_text(
        f'[superlink]\ndefault = "local"\n\n[superlink.local]\naddress = "{address}"\n'
        f"root-certificates = {root_certificate}\n",
        encoding="utf-8",
    )
    return {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
        "FLWR_HOME": str(home),
        "TMPDIR": str(folder / "tmp"),
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "GRPC_VERBOSITY": "NONE",  # no line for each stranger at the streams' port
        # Each message starts a process; by default it is looked for once a second.
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": os.environ.get("FLWR_SUPEREXEC_TASK_POLL_INTERVAL", "0.25"),
    }


def start_superlink(folder: Path, address: str, environment: Mapping[str, str], options: Sequence[str] = ()) -> Program:
    """Start a SuperLink with TLS that accepts registered SuperNodes only."""
    command = superlink_command(sys.executable, DEPLOY, address, folder / "certificates", options)
    return start("the SuperLink", command, folder / "logs" / "superlink.log", environment)


def start(name: str, command: Sequence[str], log: Path, environment: Mapping[str, str]) -> Program:
    """Start a program of Flower, with its output in a log file."""
    executable = shutil.which(command[0], path=environment["PATH"])
    if executable is None:
        raise StartError(f"{command[0]} is not installed beside this Python; type: make install")
    with log.open("a") as output:
        process = subprocess.Popen(
            [executable, *command[1:]],
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            # Ctrl-C is for this script, which then ends the others in order.
            start_new_session=True,
        )
    return Program(name, process, log)


def wait_for_superlink(superlink: Program, address: str, root_certificate: Path) -> None:
    """Wait until the SuperLink answers, with a certificate that the authority signed."""
    trust = ssl.create_default_context(cafile=root_certificate)
    deadline = time.monotonic() + START_SECONDS
    while True:
        superlink.check()
        try:
            with urllib.request.urlopen(f"https://{address}/health", timeout=1, context=trust):
                return
        except OSError as error:
            if time.monotonic() > deadline:
                raise StartError(f"the SuperLink does not answer ({error}):\n{tail(superlink.log)}") from None
        time.sleep(0.1)


def wait_until_online(made: Federation) -> None:
    """Wait until the SuperLink lists all SuperNodes as online."""
    programs = [made.superlink, *made.supernodes]
    deadline = time.monotonic() + START_SECONDS
    while (online := count_online(made.environment)) < len(made.supernodes):
        for program in programs:
            program.check()
        if time.monotonic() > deadline:
            logs = "\n".join(tail(program.log) for program in programs)
            of_all = f"{online} of {len(made.supernodes)}"
            raise StartError(f"{of_all} SuperNodes are online after {START_SECONDS:.0f} s:\n{logs}")
        time.sleep(COMMAND_PAUSE_SECONDS)


def count_online(environment: Mapping[str, str]) -> int:
    """Return how many SuperNodes the SuperLink lists as online."""
    listing = json.loads(flwr(["supernode", "list", "--format", "json"], environment))
    return sum(node["status"] == "online" for node in listing["nodes"])


def flwr(arguments: Sequence[str], environment: Mapping[str, str], seconds: float | None = None) -> str:
    """Run a `flwr` command and return its output; StartError if it fails or takes longer than that."""
    options = {"capture_output": True, "text": True, "start_new_session": True}
    try:
        done = subprocess.run(["flwr", *arguments], env=dict(environment), check=False, timeout=seconds, **options)
    except subprocess.TimeoutExpired:
        raise StartError(f"flwr {' '.join(arguments)} is not over after {seconds:.0f} s") from None
    if done.returncode:
        raise StartError(f"flwr {' '.join(arguments)} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def start_run(app: Path, options: Sequence[str], environment: Mapping[str, str]) -> str:
    """Start a run of an app, without waiting for its end, and return its id."""
    command = ["run", str(app), *one_run_config(options), "--format", "json"]
    return str(json.loads(flwr(command, environment))["run-id"])


def status_of(run_id: str, environment: Mapping[str, str]) -> str:
    """Return the status of a run, "finished:completed" for one that succeeded."""
    return json.loads(flwr(["list", "--run-id", run_id, "--format", "json"], environment))["runs"][0]["status"]


def wait_for_end(run_id: str, environment: Mapping[str, str], seconds: float) -> str:
    """Return the status of a run at its end; StartError if it is not over in time."""
    flwr(["log", run_id, "--stream"], environment, seconds)  # it ends with the run
    return status_of(run_id, environment)


def log_of(run_id: str, environment: Mapping[str, str]) -> str:
    """Return the log of a run so far."""
    return flwr(["log", run_id, "--show"], environment)


def run_config(settings: Mapping[str, object]) -> list[str]:
    """Return the options of `flwr run` for settings, whose names may have underscores."""
    return ["--run-config", " ".join(f"{key.replace('_', '-')}={json.dumps(value)}" for key, value in settings.items())]


def one_run_config(options: Sequence[str]) -> list[str]:
    """Return options of `flwr run` with one ``--run-config`` in which, of several, the last value of each key counts.

    Of several Flower takes no ``deploy.transport`` from an earlier one where a later one has a ``deploy.role``.
    """
    others, settings = list[str](), dict[str, str]()
    rest = iter(options)
    for option in rest:
        name, is_joined, value = option.partition("=")
        if name not in ("--run-config", "-c"):
            others.append(option)
            continue
        value = value if is_joined else next(rest, "")
        if value.endswith(".toml"):  # it stands alone
            others += [name, value]
        settings |= dict(SETTING.findall(value))
    config = " ".join(f"{key}={value}" for key, value in settings.items())
    return [*others, *(["--run-config", config] if config else [])]


def stop_all(processes: Sequence[subprocess.Popen]) -> None:
    """End processes that this script started, and all that they started in turn."""
    with uninterrupted():
        # The number of one that was over before may be another's.
        going = [process for process in processes if process.poll() is None]
        # Those below them would outlive them, or start others meanwhile.
        for pid in [pid for process in going for pid in descendants(process.pid)]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for process in going:
            process.terminate()
        deadline = time.monotonic() + STOP_SECONDS
        for process in going:
            try:
                process.wait(timeout=max(deadline - time.monotonic(), 0))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for process in going:
            end_session(process)


def end_session(process: subprocess.Popen) -> None:
    """End what is left of the session of a process that is over: what it had started belongs to nobody now."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def tail(log: Path) -> str:
    """Return the last lines of a log."""
    return "\n".join(log.read_text(errors="replace").splitlines()[-LOG_TAIL_LINES:])


def main(arguments: Sequence[str]) -> int:
    """Run as the command line says and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("app", type=Path, help="folder of the app")
    parser.add_argument("--supernodes", type=int, default=4, help="number of SuperNodes (default: 4)")
    parser.add_argument(
        "--folder", type=Path, help="folder for keys, logs and Flower's files (default: a temporary one)"
    )
    parser.add_argument(
        "--edges",
        type=int,
        default=0,
        help="number of edge hosts; sets num-clients and num-edges (default: none, one tier)",
    )
    known, options = parser.parse_known_args(arguments)
    if known.supernodes < 1:
        parser.error(f"--supernodes = {known.supernodes}: allowed is 1 or more")
    if not 0 <= known.edges <= known.supernodes:
        parser.error(f"--edges = {known.edges}: allowed is 0 to --supernodes = {known.supernodes}")
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    with ExitStack() as stack:
        if known.folder:
            folder = known.folder.expanduser().resolve()
        else:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="flwr-", ignore_cleanup_errors=True)))
        if known.edges:
            return run_two_tiers(known.app.resolve(), known.supernodes, known.edges, folder, options)
        return run_locally(known.app.resolve(), known.supernodes, folder, options)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
