"""Ray, found or started, and where in it workers go."""

import gc
import logging
import os
import socket
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import ceil
from typing import Any

# Ray reads these when it is imported: what it says of a worker that died the grid says too, in a line; and that a
# worker without a share of a GPU sees none is as it should be.
os.environ.setdefault(
    "RAY_DEDUP_LOGS_SKIP_REGEX", "A worker died or was killed|Raylet is terminated|The node with node id"
)
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "1")

import ray
import torch

from espalier.app.ground.errors import UserError, bad_value
from espalier.clients.device.machine import cpu_count, memory_bytes
from espalier.sim.flower_private import is_in_simulation
from espalier.sim.ray_grid import WorkerPlace, one_line

ADDRESS_ALLOWED = "'' to start Ray here, 'auto', or the HOST:PORT that `ray start --head` printed"
CONNECT_SECONDS = 5.0
SIMULATION_SECONDS = 120.0
STARTS = 2
# What a worker holds for itself: Python, PyTorch and Flower. See docs/scale.md for what comes on top.
WORKER_BYTES = 300e6


@dataclass(frozen=True)
class Machine:
    """A machine of a Ray cluster.

    Parameters
    ----------
    node_id : str
        Ray's name for it; empty where Ray has only one machine.
    num_cores : int
        Its cores.
    num_gpus : float
        Its GPUs.
    memory_bytes : float
        Its memory, as far as Ray's workers may have it.
    """

    node_id: str
    num_cores: int
    num_gpus: float = 0
    memory_bytes: float = float("inf")


def is_connected() -> bool:
    """Return whether this process has a Ray; in Flower's simulation wait for it, since two can't be started."""
    deadline = time.monotonic() + SIMULATION_SECONDS
    while is_in_simulation() and not ray.is_initialized() and time.monotonic() < deadline:
        time.sleep(0.1)
    return ray.is_initialized()


@contextmanager
def started_ray(address: str, num_cores: int | None = None) -> Iterator[None]:
    """Connect to a Ray cluster, or start Ray on this machine; leave, or stop it, at the end.

    A Ray that this process is connected to already is used, and left alone: Flower's simulation has one.

    Parameters
    ----------
    address : str
        The cluster's; empty starts Ray here.
    num_cores : int, optional (default: None)
        Cores of a Ray that is started; None: those of this machine.

    Raises
    ------
    UserError
        If there is no cluster at the address, or Ray does not start.
    """
    if is_connected():
        yield
        return
    if address:
        check_address(address)
        try:
            _init(address=address)
        except (ConnectionError, RuntimeError, ValueError, TimeoutError) as error:
            raise bad_value("ray.address", address, f"{ADDRESS_ALLOWED} ({one_line(error)})") from None
    else:
        _start_here(num_cores or cpu_count())
    try:
        yield
    finally:
        with _unfinished_processes():
            ray.shutdown()


def _start_here(num_cores: int) -> None:
    """Start Ray on this machine; once more where one of its own processes died, as happens on a crowded machine."""
    reason = ""
    with _unfinished_processes():
        for _ in range(STARTS):
            try:
                _init(address="local", num_cpus=num_cores, include_dashboard=False)
                return
            except Exception as error:  # of no class of its own
                reason = one_line(error)
            ray.shutdown()
    raise UserError(f"engine = 'ray': allowed is 'in-process', as Ray does not start here ({reason})")


@contextmanager
def _unfinished_processes() -> Iterator[None]:
    """Say nothing of processes that Ray started inside the block, and does not wait for."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        try:
            yield
        finally:
            gc.collect()


def _init(**options: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Ray's, of its own next version
        ray.init(log_to_driver=False, logging_level=logging.ERROR, configure_logging=False, **options)


def store(value: Any) -> Any:
    """Put a value into Ray's object store, and return the reference to it."""
    return ray.put(value)


def stored(reference: Any) -> Any:
    """Return the value of a reference; its arrays are those in the store of this machine, and can't be written to."""
    return ray.get(reference)


def check_address(address: str) -> None:
    """Raise UserError unless somebody listens at a cluster's address."""
    if address == "auto":
        return
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isdigit() or int(port) > 65535 or "/" in host:
        raise bad_value("ray.address", address, ADDRESS_ALLOWED)
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS).close()
    except OSError as error:
        reason = error.strerror or error
        raise bad_value("ray.address", address, f"that of a Ray cluster, and there is none ({reason})") from None


def machine_here() -> Machine:
    """Return this machine, before Ray is started on it."""
    return Machine("", cpu_count(), torch.cuda.device_count(), memory_bytes() or float("inf"))


def machines_of_ray() -> list[Machine]:
    """Return the machines of the Ray that this process is connected to, its own first."""
    here = ray.get_runtime_context().get_node_id()
    alive = [node for node in ray.nodes() if node["Alive"]]
    machines = [
        Machine(
            node["NodeID"],
            int(node["Resources"].get("CPU", 0)),
            node["Resources"].get("GPU", 0),
            node["Resources"].get("memory", float("inf")),
        )
        for node in sorted(alive, key=lambda node: (node["NodeID"] != here, node["NodeManagerAddress"], node["NodeID"]))
    ]
    return [machine for machine in machines if machine.num_cores]


def places_of(
    machines: Sequence[Machine],
    num_workers: int,
    gpus_per_worker: float,
    threads: int,
    *,
    on_gpu: bool,
    enough: int | None = None,
    counts_cores: bool = True,
) -> list[WorkerPlace]:
    """Return where workers go: to each machine as many as its part of all cores.

    Parameters
    ----------
    machines : Sequence[Machine]
        What there is.
    num_workers : int
        How many; 0: as many as there are cores, or shares of GPUs, and as have something to do.
    gpus_per_worker : float
        Share of a GPU that each has; 0: an equal one, where models compute there.
    threads : int
        Of each worker.
    on_gpu : bool
        Models compute on a GPU.
    enough : int, optional (default: None)
        More would have nothing to do.
    counts_cores : bool (default: True)
        The workers' cores are taken in Ray's books, so that nobody else gets them.

    Raises
    ------
    UserError
        If there are too few cores or GPUs, or too little memory.
    """
    share = gpus_per_worker
    if gpus_per_worker and not any(_shares(machine, gpus_per_worker) for machine in machines):
        most = max((machine.num_gpus for machine in machines), default=0)
        allowed = f"0 to {most:g}, the GPUs of a machine" if most else "0: Ray finds no GPU"
        raise bad_value("ray.gpus-per-worker", gpus_per_worker, allowed)
    room = {machine.node_id: machine.num_cores // threads for machine in machines}
    if not any(room.values()):
        most = max((machine.num_cores for machine in machines), default=0)
        raise bad_value("train.torch-threads", threads, f"at most {most}, the cores of a machine, for engine = 'ray'")
    what = "the cores" if threads == 1 else f"the cores by train.torch-threads = {threads}"
    if share:
        shares = {machine.node_id: _shares(machine, share) for machine in machines}
        if any(shares[name] < room[name] for name in room):
            what = f"{what}, or by ray.gpus-per-worker = {share:g}"
        room = {name: min(room[name], shares[name]) for name in room}
    most = sum(room.values())
    if num_workers > most:
        raise bad_value("ray.workers", num_workers, f"at most {most}: {what} of {_count(machines)}")
    wanted = num_workers or min(most, enough or most)
    taken = _share_out(wanted, room)
    if small := _too_small(machines, taken):
        fit = next(n for n in range(wanted - 1, -1, -1) if not _too_small(machines, _share_out(n, room)))
        each, there = WORKER_BYTES / 1e9, small.memory_bytes / 1e9
        allowed = f"at most {fit}: a worker takes {each:.2g} GB or more, and a machine has {there:.2g} GB for them"
        raise bad_value("ray.workers", wanted, allowed)
    places = []
    for machine in machines:
        count = taken[machine.node_id]
        own = share
        if on_gpu and not share and machine.num_gpus and count:
            own = 1.0 if count <= machine.num_gpus else 1 / ceil(count / machine.num_gpus)
        places += [WorkerPlace(machine.node_id, threads if counts_cores else 0, own)] * count
    return places


def _shares(machine: Machine, share: float) -> int:
    """Return how many workers with a share of a GPU fit on a machine; one share is of one GPU."""
    if share >= 1:
        return int(machine.num_gpus // share)
    return int(machine.num_gpus) * int(1 / share + 1e-9)


def _too_small(machines: Sequence[Machine], taken: Mapping[str, int]) -> Machine | None:
    """Return the first machine without the memory for the workers that it has taken."""
    return next((m for m in machines if taken[m.node_id] * WORKER_BYTES > m.memory_bytes), None)


def _share_out(count: int, room: Mapping[str, int]) -> dict[str, int]:
    """Share workers out to machines in proportion to their room; ties to the first."""
    taken = dict.fromkeys(room, 0)
    for _ in range(count):
        name = min((n for n in room if taken[n] < room[n]), key=lambda n: (taken[n] + 1) / room[n])
        taken[name] += 1
    return taken


def _count(machines: Sequence[Machine]) -> str:
    return "this machine" if len(machines) == 1 else f"{len(machines)} machines"
