"""Run `flwr run` on a local SuperLink of its own and take that down afterwards.

``python deploy/flwr_run.py APP [OPTIONS OF flwr run]`` streams the run's log and exits with 0 only if the run
completed. The SuperLink gets free ports and a temporary home, so it meets no other SuperLink of the machine, and it
leaves no process and no file behind. `flwr run` alone would leave a SuperLink running in the background, for next time.
``python deploy/flwr_run.py --stop`` ends that one, with its runs, and no other.
"""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

START_SECONDS = 60.0
STOP_SECONDS = 60.0
FAMILY_SECONDS = 20.0


def flwr_run(app: str, options: Sequence[str] = ()) -> int:
    """Run an app, stream its log to standard output and return 0 if it completed, 130 if interrupted, else 1."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with local_superlink() as environment:
            return run_app(app, options, environment)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


def run_app(app: str, options: Sequence[str], environment: Mapping[str, str], superlink: str = "") -> int:
    """Do the same on a SuperLink that `flwr` finds in an environment, by its name or as its default."""
    name = [superlink] if superlink else []
    command = ["flwr", "run", app, *name, "--stream", *options]
    # `flwr` would hold the log back until much of it has come together.
    environment = {**environment, "PYTHONUNBUFFERED": "1"}
    run_id = ""
    # In a session of its own: Ctrl-C is for this script, which then stops the run as well.
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                if started := re.search(r"Successfully started run (\d+)", line):
                    run_id = started[1]
                print(line, end="", flush=True)
            if process.wait() == 0 and run_id:
                return int(not completed(run_id, environment, name))
            status, why = 1, "flwr run failed"
        except KeyboardInterrupt:
            process.terminate()
            status, why = 130, "interrupted"
        if run_id:
            print(f"{why}; stopping the run", file=sys.stderr)
            with uninterrupted():
                stop_run(run_id, environment, name)
        process.kill()  # it has had the time that stopping took
    return status


def stop_background() -> int:
    """End the SuperLinks that ``flwr run`` has left in the background, with their runs, and say which.

    Runs end as processes that a SuperLink has started: ``flwr stop`` would ask the SuperLink that is the user's
    default, which may be another.
    """
    for pid in (found := background_superlinks()):
        with uninterrupted():
            end_family(pid)
        print(f"ended the SuperLink of flwr run, process {pid}")
    if not found:
        print("no SuperLink of flwr run is in the background")
    return 0


def background_superlinks() -> list[int]:
    """Return the processes of this user's that ``flwr run`` has started as SuperLinks; their log's path tells them."""
    log = Path(os.environ.get("FLWR_HOME", Path.home() / ".flwr")).expanduser() / "local-superlink" / "superlink.log"
    command = ["ps", "-ww", "-u", str(os.getuid()), "-o", "pid=,args="]
    listing = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    processes = (line.split(maxsplit=1) for line in listing.splitlines())
    marks = "flower-superlink --insecure --simulation ", f" --log-file {log} "
    return [int(pid) for pid, program in processes if all(mark in f"{program} " for mark in marks)]


def stop_run(run_id: str, environment: Mapping[str, str], name: Sequence[str] = ()) -> None:
    """Stop a run, if its SuperLink answers."""
    command = ["flwr", "stop", run_id, *name]
    with suppress(subprocess.TimeoutExpired):
        subprocess.run(
            command,
            env=environment,
            check=False,
            capture_output=True,
            timeout=STOP_SECONDS,
            start_new_session=True,
        )


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Let a second Ctrl-C, or SIGTERM, not keep the block from ending what is left to end."""
    handlers = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def runs_going_on(environment: Mapping[str, str], name: Sequence[str] = ()) -> list[str]:
    """Return the ids of the runs that are not over on a SuperLink; none if it does not answer."""
    runs = listed_runs(environment, name)
    return [str(run["run-id"]) for run in runs if not run["status"].startswith("finished")]


def completed(run_id: str, environment: Mapping[str, str], name: Sequence[str] = ()) -> bool:
    """Return whether a run that is over completed; `flwr run --stream` exits with 0 either way.

    False, with a line, where the SuperLink does not say.
    """
    runs = listed_runs(environment, [*name, "--run-id", run_id])
    if not runs:
        print(f"the SuperLink does not say what became of run {run_id}; type: flwr list", file=sys.stderr)
    return any(run["status"] == "finished:completed" for run in runs)


def listed_runs(environment: Mapping[str, str], options: Sequence[str]) -> list[dict[str, Any]]:
    """Return what ``flwr list`` says of runs; nothing if there is no answer."""
    command = ["flwr", "list", *options, "--format", "json"]
    try:
        done = subprocess.run(
            command, env=environment, check=True, stdout=subprocess.PIPE, text=True, timeout=STOP_SECONDS
        )
        return list(json.loads(done.stdout)["runs"])
    except (subprocess.TimeoutExpired, subprocess.CalledProcessError, ValueError, KeyError, TypeError):
        return []


@contextmanager
def local_superlink() -> Iterator[dict[str, str]]:
    """Run a SuperLink for simulations; yield the environment in which `flwr` finds it."""
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="flwr-home-", ignore_cleanup_errors=True)))
        http, control = free_ports(2)
        environment = {
            **with_programs(os.environ),
            "FLWR_HOME": str(home),
            "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": str(http),
            "FLWR_LOCAL_CONTROL_API_PORT": str(control),
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
            "FLWR_TELEMETRY_ENABLED": "0",
            "GRPC_VERBOSITY": "NONE",
            "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        }
        superlink = shutil.which("flower-superlink", path=environment["PATH"])
        if superlink is None:
            sys.exit("flower-superlink is not installed beside this Python; type: make install")
        log = stack.enter_context((home / "superlink.log").open("w+"))
        process = subprocess.Popen(
            [
                *(superlink, "--insecure", "--simulation", "--isolation", "subprocess"),
                *("--control-api-address", f"127.0.0.1:{control}", "--host", "127.0.0.1", "--port", str(http)),
            ],
            env=environment,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        stack.callback(stop, process)
        deadline = time.monotonic() + START_SECONDS
        while not answers(f"http://127.0.0.1:{http}/health"):
            if process.poll() is not None or time.monotonic() > deadline:
                log.seek(0)
                sys.exit(f"the SuperLink did not start:\n{log.read()}")
            time.sleep(0.2)
        yield environment


def with_programs(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment in which the programs beside this Python are found first."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{environment.get('PATH', '')}"
    return {**environment, "PATH": path}


def end_family(pid: int) -> None:
    """End a process that is no child of this one's, and all that it started; the others if it does not go by itself."""
    family = {member: began_of(member) for member in (pid, *descendants(pid))}
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + FAMILY_SECONDS
    while began_of(pid) == family[pid] and time.monotonic() < deadline:
        time.sleep(0.1)
    kill_those(family)


def kill_those(family: Mapping[int, str]) -> None:
    """Kill processes by their numbers, if they are still those that began then."""
    for pid, began in family.items():
        # A number may be another process's by now.
        if began_of(pid) == began:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def stop(process: subprocess.Popen) -> None:
    """End a process that this script started, and all that it started in turn."""
    with uninterrupted():
        # A SuperLink starts its simulations in sessions of their own, and they outlive it.
        family = {pid: began_of(pid) for pid in descendants(process.pid)}
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=20)
        process.kill()  # does nothing once it has been waited for
        kill_those(family)
        process.wait()


def descendants(pid: int) -> list[int]:
    """Return the processes that a process has started, and those that these have."""
    listing = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], check=True, capture_output=True, text=True).stdout
    children: dict[int, list[int]] = {}
    for line in listing.splitlines():
        child, parent = map(int, line.split())
        children.setdefault(parent, []).append(child)
    found = list(children.get(pid, []))
    for child in found:  # grows while it is walked
        found += children.get(child, [])
    return found


def began_of(pid: int) -> str:
    """Return when a process began; an empty text for one that is not there."""
    command = ["ps", "-o", "lstart=", "-p", str(pid)]
    return subprocess.run(command, check=False, capture_output=True, text=True).stdout.strip()


def answers(url: str) -> bool:
    """Return whether a server answers at `url`."""
    try:
        with urllib.request.urlopen(url, timeout=1):
            return True
    except (urllib.error.URLError, OSError):
        return False


def free_ports(count: int) -> list[int]:
    """Return ports of the loopback interface that nobody uses at the moment."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for s in sockets:
            s.bind(("127.0.0.1", 0))
        return [s.getsockname()[1] for s in sockets]


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    if sys.argv[1:] == ["--stop"]:
        sys.exit(stop_background())
    sys.exit(flwr_run(sys.argv[1], sys.argv[2:]))
