"""Run an app as it runs on real devices, all on this machine: SuperLink with TLS, SuperNodes that prove who they are.

``python deploy/local.py APP --supernodes 4 [--folder FOLDER] [OPTIONS OF flwr run]`` makes certificates and one key per
SuperNode, starts a SuperLink and the SuperNodes, registers their keys, waits until all are online, runs the app and
streams its log. It exits with 0 only if the run completed, and leaves no process behind. Keys, logs and Flower's own
files are in FOLDER, by default a temporary one that is deleted in the end.
"""

import argparse
import json
import os
import shutil
import signal
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from certificates import make_certificates, make_device_key
from flwr_run import descendants, free_ports, run_app

START_SECONDS = 120.0
STOP_SECONDS = 20.0
LOG_TAIL_LINES = 15


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
    with ExitStack() as stack:
        try:
            environment = stack.enter_context(deployment(supernodes, folder))
        except (StartError, OSError, ValueError) as error:
            print(error, file=sys.stderr)
            return 1
        except KeyboardInterrupt:
            print("interrupted", file=sys.stderr)
            return 130
        print(f"SuperNodes online: {supernodes}; keys and logs are in {folder}", flush=True)
        return run_app(str(app), options, environment)


@contextmanager
def deployment(supernodes: int, folder: Path) -> Iterator[dict[str, str]]:
    """Run a SuperLink and its SuperNodes; yield the environment in which `flwr` finds them.

    Raises
    ------
    StartError
        Something ends at once, or is not ready in time.
    """
    port, *node_ports = free_ports(1 + supernodes)
    address = f"127.0.0.1:{port}"
    make_certificates(folder / "certificates", ["localhost", "127.0.0.1"])
    environment = flower_environment(folder, address)
    programs: list[Program] = []
    try:
        programs.append(start_superlink(folder, port, environment))
        wait_for_superlink(programs[0], address, folder / "certificates" / "ca.crt")
        for i, node_port in enumerate(node_ports):
            public_key = make_device_key(folder / "keys" / f"device-{i}")
            flwr(["supernode", "register", str(public_key)], environment)
            node_config = f"partition-id={i} num-partitions={supernodes}"
            programs.append(start_supernode(folder, i, address, node_port, node_config, environment))
        wait_until_online(programs, supernodes, environment)
        yield environment
    finally:
        stop_all([program.process for program in programs])


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
        # Each message starts a process; by default it is looked for once a second.
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",
    }


def start_superlink(folder: Path, port: int, environment: Mapping[str, str]) -> Program:
    """Start a SuperLink with TLS that accepts registered SuperNodes only."""
    certificates = folder / "certificates"
    command = [
        *("flower-superlink", "--enable-supernode-auth", "--host", "127.0.0.1", "--port", str(port)),
        *("--ssl-ca-certfile", str(certificates / "ca.crt")),
        *("--ssl-certfile", str(certificates / "server.crt"), "--ssl-keyfile", str(certificates / "server.key")),
    ]
    return start("the SuperLink", command, folder / "logs" / "superlink.log", environment)


def start_supernode(
    folder: Path, i: int, address: str, port: int, node_config: str, environment: Mapping[str, str]
) -> Program:
    """Start the SuperNode of device `i`, which talks to its ClientApp on `port`."""
    command = [
        *("flower-supernode", "--superlink", address, "--host", "127.0.0.1", "--port", str(port)),
        *("--root-certificates", str(folder / "certificates" / "ca.crt")),
        *("--auth-supernode-private-key", str(folder / "keys" / f"device-{i}")),
        *("--node-config", node_config),
    ]
    home = {"FLWR_HOME": str(folder / f"flower-{i}")}
    return start(f"SuperNode {i}", command, folder / "logs" / f"supernode-{i}.log", {**environment, **home})


def start(name: str, command: Sequence[str], log: Path, environment: Mapping[str, str]) -> Program:
    """Start a program of Flower, with its output in a log file."""
    executable = shutil.which(command[0], path=environment["PATH"])
    if executable is None:
        raise StartError(f"{command[0]} is not installed beside this Python; type: make install")
    with log.open("w") as output:
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


def wait_until_online(programs: Sequence[Program], supernodes: int, environment: Mapping[str, str]) -> None:
    """Wait until the SuperLink lists all SuperNodes as online."""
    deadline = time.monotonic() + START_SECONDS
    while (online := count_online(environment)) < supernodes:
        for program in programs:
            program.check()
        if time.monotonic() > deadline:
            logs = "\n".join(tail(program.log) for program in programs)
            raise StartError(f"{online} of {supernodes} SuperNodes are online after {START_SECONDS:.0f} s:\n{logs}")
        time.sleep(0.2)


def count_online(environment: Mapping[str, str]) -> int:
    """Return how many SuperNodes the SuperLink lists as online."""
    listing = json.loads(flwr(["supernode", "list", "--format", "json"], environment))
    return sum(node["status"] == "online" for node in listing["nodes"])


def flwr(arguments: Sequence[str], environment: Mapping[str, str]) -> str:
    """Run a `flwr` command and return its output; StartError if it fails."""
    done = subprocess.run(
        ["flwr", *arguments], env=dict(environment), check=False, capture_output=True, text=True, start_new_session=True
    )
    if done.returncode:
        raise StartError(f"flwr {' '.join(arguments)} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def stop_all(processes: Sequence[subprocess.Popen]) -> None:
    """End processes that this script started, and all that they started in turn."""
    # A second Ctrl-C must not keep it from ending the rest.
    handlers = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    # Those below them would outlive them, or start others meanwhile.
    for pid in [pid for process in processes for pid in descendants(process.pid)]:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    for process in processes:
        process.terminate()
    deadline = time.monotonic() + STOP_SECONDS
    for process in processes:
        try:
            process.wait(timeout=max(deadline - time.monotonic(), 0))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    for number, handler in handlers.items():
        signal.signal(number, handler)


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
    known, options = parser.parse_known_args(arguments)
    if known.supernodes < 1:
        parser.error(f"--supernodes = {known.supernodes}: allowed is 1 or more")
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    with ExitStack() as stack:
        if known.folder:
            folder = known.folder.expanduser().resolve()
        else:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="flwr-", ignore_cleanup_errors=True)))
        return run_locally(known.app.resolve(), known.supernodes, folder, options)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
