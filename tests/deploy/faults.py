"""What the tests of faults share: deployments to break, and what must come out of them."""

import os
import signal
import time
from collections.abc import Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import local
from flwr_run import descendants

from espalier.app.config.parse import parse_config
from espalier.app.engines.in_process import InProcess
from espalier.app.reports.progress import LogProgress
from espalier.app.run.run import run
from espalier.app.wiring.clients import client_task
from espalier.clients.client_app import make_client_app
from espalier.clients.messages.split_names import SPLIT_BEGIN
from espalier.clients.messages.train import CONFIG, SERVER_ROUND, TRAIN
from espalier.sim.in_process_grid import InProcessGrid
from tests.app.runs import app_folder, key_of, lines

ROOT = Path(__file__).parent.parent.parent
PATIENCE_SECONDS = 300  # for what takes a minute where nothing else runs


def wait_for(condition, seconds, what, pause=0.2):
    """Poll until `condition()` gives something true, and return that."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, f"no {what} after {seconds} s"
        time.sleep(pause)
    return found


def kill(pid):
    """Kill a process and all that it has started."""
    for each in (pid, *descendants(pid)):
        with suppress(ProcessLookupError):
            os.kill(each, signal.SIGKILL)


def kill_server_app(superlink):
    """Kill the ServerApp of the run on a SuperLink."""
    kill(server_app(superlink))


def server_app(superlink):
    """Return the process of the ServerApp of the run on a SuperLink."""

    def server_apps():
        return [pid for pid in descendants(superlink.process.pid) if "flwr-serverapp" in command_of(pid)]

    return wait_for(server_apps, PATIENCE_SECONDS, "ServerApp")[0]


@contextmanager
def stopped(pid):
    """Stop a process and all that it has started, inside the block."""
    pids = [pid, *descendants(pid)]
    for each in pids:
        with suppress(ProcessLookupError):
            os.kill(each, signal.SIGSTOP)
    try:
        yield
    finally:
        for each in pids:
            with suppress(ProcessLookupError):
                os.kill(each, signal.SIGCONT)


def command_of(pid):
    """Return the command line of a process, nothing if it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


def client_app(supernode, port):
    """Return the ClientApp of a SuperNode that has a stream open to a port, or None."""
    for pid in descendants(supernode.process.pid):
        if "flwr-clientapp" in command_of(pid) and is_connected(pid, port):
            return pid
    return None


def is_connected(pid, port):
    """Return whether a process has a connection to a TCP port."""
    try:
        ends = {os.readlink(fd) for fd in Path(f"/proc/{pid}/fd").iterdir()}
    except OSError:
        return False
    rows = [line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]]
    established = [row for row in rows if row[2].endswith(f":{port:04X}") and row[3] == "01"]
    return any(f"socket:[{row[9]}]" in ends for row in established)


def start(environment: Mapping[str, str], folder: Path, settings: Mapping[str, object]) -> str:
    """Start a run of the app, without pictures, with its results in a folder, and return its id."""
    values = {"output_dir": str(folder), "report.plots": False} | settings
    return local.start_run(app_folder(), local.run_config(values), environment)


def finish(run_id, environment, seconds=2 * PATIENCE_SECONDS):
    """Wait for the end of a run, which must have completed."""
    status = local.wait_for_end(run_id, environment, seconds)
    assert status == "finished:completed", local.log_of(run_id, environment)


def edge_lines(folder):
    """Return the lines of edges that are in the results so far."""
    return lines(folder, "edge") if (folder / "metrics.jsonl").exists() else []


def rounds(folder):
    """Return how many global rounds are in the results so far."""
    return max((line["round"] for line in edge_lines(folder)), default=0)


def replay(recorded: Path, folder: Path, settings: Mapping[str, object]) -> Path:
    """Run the same settings in this process, with those taking part who did by `recorded`, and return the results."""
    values = {key_of(key): value for key, value in settings.items()}
    config = parse_config(values | {"engine": "in-process", "output-dir": str(folder)})
    edge_rounds = config.edge_rounds
    took_part = {
        ((line["round"] - 1) * edge_rounds + e, client)
        for line in edge_lines(recorded)
        for e, participants in enumerate(line["participants"], start=1)
        for client in participants
    }
    app = make_client_app(client_task, durable=False)

    def with_absence(message, context):
        if message.metadata.message_type in (TRAIN, SPLIT_BEGIN):
            server_round = message.content.config_records[CONFIG][SERVER_ROUND]
            if (server_round, context.node_config["partition-id"]) not in took_part:
                raise ValueError("absent")
        return app(message, context)

    grid = InProcessGrid(with_absence, config.federation.num_clients, run_config=config.as_dict(), seed=config.seed)
    return run(config, InProcess(grid), LogProgress(), folder.parent)
