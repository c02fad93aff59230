"""RayGrid: a Flower Grid whose nodes live in worker processes that Ray runs, on one machine or on a cluster."""

import logging
import os
import pickle
import platform
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from io import BytesIO
from typing import Any

import ray
from flwr.app import Array, Message, RecordDict, UserConfig
from ray.exceptions import ObjectLostError, OutOfMemoryError, RayActorError, RaySystemError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from .answering import AnyClientApp, answer, context_of
from .flower_private import ensure_run_id, unavailable
from .placement import Places
from .simulated_grid import GridLost, OnWaited, SimulatedGrid

logger = logging.getLogger("espalier")

# A message is not given to a third worker.
MOST_DEATHS = 2
START_SECONDS = 120.0
# Larger arrays travel beside what is pickled, and are copied once less.
OUT_OF_BAND_BYTES = 16_384
DEATHS = (RayActorError, ObjectLostError, OutOfMemoryError)


@dataclass(frozen=True)
class WorkerPlace:
    """Where a worker is to run.

    Parameters
    ----------
    machine : str
        Node id of a machine of the Ray cluster; empty leaves it to Ray.
    num_cpus : float (default: 0)
        Cores of the machine that nobody else gets from Ray meanwhile.
    num_gpus : float (default: 0)
        Share of a GPU, or several.
    """

    machine: str = ""
    num_cpus: float = 0
    num_gpus: float = 0


@dataclass
class _Task:
    """A message that has no reply yet."""

    message: Message
    deaths: int = 0  # of workers that had it; with the second one they had nothing else


@dataclass
class _Call:
    """Messages that one worker got together, by their ids."""

    result: Any
    message_ids: list[str]
    sent_at: float


@dataclass(eq=False)
class _Worker:
    """A worker process, as a grid sees it."""

    actor: Any
    about: dict[str, Any]
    name: str
    calls: list[_Call] = field(default_factory=list)  # in the order in which it works on them
    waiting: list[list[str]] = field(default_factory=list)  # messages of calls that are still to come, likewise
    free_at: float = 0.0  # when it was done with the calls whose results are here, by the clock of this process


class Workers:
    """Worker processes for grids; Ray has to be initialised, and stays so.

    Parameters
    ----------
    places : Sequence[WorkerPlace]
        One for each worker.

    Raises
    ------
    ValueError
        Without places.
    GridLost
        If a worker can't be started or has other versions of what computes, in one line.

    Attributes
    ----------
    abouts : list[dict]
        What each worker said of itself: ``pid``, ``host``, ``machine`` and versions.
    """

    def __init__(self, places: Sequence[WorkerPlace]) -> None:
        if not places:
            raise ValueError("a grid needs a worker")
        worker_class = _worker_class()
        self.actors = [worker_class.options(**_options(place)).remote(sys.path) for place in places]
        try:
            self.abouts = all_of([actor.about.remote() for actor in self.actors], START_SECONDS)
            for about in self.abouts:
                _check_versions(about)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the workers."""
        for actor in self.actors:
            ray.kill(actor)


class RayGrid(SimulatedGrid):
    """A Grid that runs ClientApps in worker processes: each node has its worker, and stays there.

    Parameters
    ----------
    workers : Workers
        Where its nodes are; other grids may use them too.
    make_app : Callable[[], ClientApp | Callable[[Message, Context], Message]]
        Makes what every node runs; called once in every worker. It is pickled.
    num_nodes, run_config, node_configs, seed, on_waited
        As of `SimulatedGrid`.
    sizes : Sequence[float], optional (default: None)
        How much work each node has, in partition order. None: all nodes are alike.
    groups : Sequence[int], optional (default: None)
        Nodes of one group are at the same worker; a number for each, in partition order. None: each is by itself.
    moves : bool (default: False)
        Nodes are shared out anew when messages are pushed and none is open, by the time that those of this type took;
        only the type that took most so far moves nodes.

    Attributes
    ----------
    workers : list[dict]
        What the workers that are alive say of themselves: ``pid``, ``host``, ``machine`` and versions.

    Raises
    ------
    ValueError
        As `SimulatedGrid`.
    GridLost
        If an app can't be made, in one line. `pull_messages` raises it when no worker is left, or one fails by itself.

    Notes
    -----
    Of what a `SimulatedGrid` leaves open:

    - Messages go to the workers when they are pushed, those for one worker together, and so do the replies come back.
      Workers work side by side, and each on one message after the other.
    - `pull_messages` waits until it has a reply.
    - The reply brings the node's state if it has changed: the grid always has the states of all nodes, as they were
      after the replies that it has. A ClientApp that keeps more than that from one message to the next, in its process,
      does so at its own risk.
    - When a worker dies, its messages are given to other workers, with the states that their nodes had, so that the
      replies are the same. These get one of them at a time, and nothing else until it is answered: of several, any
      could be to blame, since replies of a process that dies may be lost. A message with which two workers have died is
      answered by an error reply, and its node is disconnected: it would take down one after the other. When a whole
      machine goes, that is no message's fault.
    - Groups are shared out by `espalier.sim.placement.Places`.
    - What workers log to the logger ``espalier``, from INFO on, is logged here, when the replies come.

    Which worker a node is at, and how many there are, makes no difference to any reply.
    """

    def __init__(
        self,
        workers: Workers,
        make_app: Callable[[], AnyClientApp],
        num_nodes: int,
        *,
        run_config: UserConfig | None = None,
        node_configs: Sequence[UserConfig] | None = None,
        sizes: Sequence[float] | None = None,
        groups: Sequence[int] | None = None,
        moves: bool = False,
        seed: int = 0,
        on_waited: OnWaited | None = None,
    ) -> None:
        super().__init__(num_nodes, run_config=run_config, node_configs=node_configs, seed=seed, on_waited=on_waited)
        self._moves = moves
        self._tasks: dict[str, _Task] = {}
        self._replies: dict[str, Message] = {}
        self._knows: dict[int, _Worker] = {}  # which worker has a node's state, as the node has it
        self._workers = [
            _Worker(actor, about, f"worker {i} (process {about['pid']} on {about['host']})")
            for i, (actor, about) in enumerate(zip(workers.actors, workers.abouts, strict=True))
        ]
        all_of([w.actor.open.remote(str(self._grid_id), make_app, self._run_config) for w in self._workers])
        self._places = Places(
            dict(zip(self._nodes, sizes or [1.0] * num_nodes, strict=True)),
            dict(zip(self._nodes, groups or range(num_nodes), strict=True)),
            self._workers,
        )

    @property
    def workers(self) -> list[dict[str, Any]]:
        """What the workers that are alive say of themselves."""
        return [dict(worker.about) for worker in self._workers]

    def worker_of(self, node_id: int) -> dict[str, Any]:
        """Return what a node's worker says of itself."""
        return dict(self._places.at[node_id].about)

    def load_state_dict(self, state: Mapping[str, bytes]) -> None:
        """Give all nodes the states that `state_dict` returned; see `SimulatedGrid.load_state_dict`."""
        super().load_state_dict(state)
        self._knows.clear()

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Wait until there is a reply to one of the messages, and return all replies to them that there are.

        Returns
        -------
        list[Message]
            In the order of pushing. An id that is not known, or whose reply was pulled before, gets an error reply
            (`ErrorCode.MESSAGE_UNAVAILABLE`).

        Raises
        ------
        GridLost
            If no worker is left.
        """
        asked = sorted(set(message_ids))  # sorted as they were pushed: see `_give_id`
        for message_id in asked:
            if message_id in self._tasks:
                node_id = self._tasks[message_id].message.metadata.dst_node_id
                if not self._nodes[node_id].connected:
                    message = self._tasks.pop(message_id).message
                    self._replies[message_id] = unavailable(message, "the node is disconnected")
                    self._knows.pop(node_id, None)  # the worker may come to a state that nobody hears of
            elif message_id not in self._replies:
                self._replies[message_id] = self._unknown(message_id)
        wanted = set(asked)
        self._collect(0.0)
        while wanted and not wanted & self._replies.keys():
            self._collect(None)
        replies = [self._replies.pop(message_id) for message_id in asked if message_id in self._replies]
        for reply in replies:
            self._give_id(reply)
        return replies

    def _take(self, messages: Mapping[str, Message]) -> None:
        if self._moves and not self._tasks:
            for kind in dict.fromkeys(message.metadata.message_type for message in messages.values()):
                self._places.share_out_anew(kind, self._workers)
        self._tasks |= {message_id: _Task(message) for message_id, message in messages.items()}
        self._send(list(messages))

    def _send(self, message_ids: Sequence[str]) -> None:
        """Give messages to the workers of their nodes; one that may have killed a worker goes alone."""
        groups: dict[_Worker, list[list[str]]] = {}
        for message_id in message_ids:
            task = self._tasks[message_id]
            groups_there = groups.setdefault(self._places.at[task.message.metadata.dst_node_id], [])
            if not groups_there or self._are_suspect([groups_there[-1][-1], message_id]):
                groups_there.append([])
            groups_there[-1].append(message_id)
        for worker, groups_there in groups.items():
            worker.waiting += groups_there
            self._call_on(worker)

    def _are_suspect(self, message_ids: Iterable[str]) -> bool:
        """Return whether a worker may have died with one of these messages, which have no reply yet."""
        return any(self._tasks[message_id].deaths for message_id in message_ids if message_id in self._tasks)

    def _call_on(self, worker: _Worker) -> None:
        """Make a worker's next calls; one with a message that may have killed a worker has it for itself."""
        while worker.waiting:
            in_work = [message_id for call in worker.calls for message_id in call.message_ids]
            if in_work and self._are_suspect([*in_work, *worker.waiting[0]]):
                return
            # Nodes may have been disconnected meanwhile.
            if message_ids := [message_id for message_id in worker.waiting.pop(0) if message_id in self._tasks]:
                self._call(worker, message_ids)

    def _call(self, worker: _Worker, message_ids: list[str]) -> None:
        messages = [self._tasks[message_id].message for message_id in message_ids]
        news = {}
        for node_id in dict.fromkeys(message.metadata.dst_node_id for message in messages):
            if self._knows.get(node_id) is not worker:
                node = self._nodes[node_id]
                news[node_id] = (node.config, node.state)
                self._knows[node_id] = worker
        result = worker.actor.answer.remote(str(self._grid_id), *pack((messages, news)))
        worker.calls.append(_Call(result, message_ids, time.monotonic()))

    def _collect(self, seconds: float | None) -> None:
        """Take in the results of calls that are over; wait for the first one, for so many seconds or for ever."""
        calls = {call.result: (worker, call) for worker in self._workers for call in worker.calls}
        if not calls:
            if self._tasks and not self._workers:
                raise GridLost("no Ray worker is left")
            return
        over, _ = ray.wait(list(calls), num_returns=1, timeout=seconds)
        if over and len(calls) > 1:
            over, _ = ray.wait(list(calls), num_returns=len(calls), timeout=0)
        dead: list[_Worker] = []
        for result in over:  # in the order in which each worker works on them
            worker, call = calls[result]
            if worker in dead:
                continue
            try:
                answers, took, log = unpack(*ray.get(result))
            except DEATHS as error:
                logger.debug("%s: %s", worker.name, error)
                dead.append(worker)
                continue
            except RayTaskError as error:
                raise GridLost(f"{worker.name} failed: {fault_of(error)}") from error
            worker.calls.remove(call)
            waited = max(worker.free_at - call.sent_at, 0.0)  # for the calls before it
            worker.free_at = max(worker.free_at, call.sent_at) + sum(took)
            for level, line in log:
                logger.log(level, "%s", line)
            for message_id, (reply, state), own in zip(call.message_ids, answers, took, strict=True):
                self._on_waited(reply, waited + sum(took) - own)
                if task := self._tasks.pop(message_id, None):  # none: the node was disconnected
                    self._replies[message_id] = reply
                    node_id = task.message.metadata.dst_node_id
                    self._places.add(task.message.metadata.message_type, node_id, own)
                    if state is not None:
                        self._nodes[node_id].state = state
            self._call_on(worker)
        if dead:
            self._bury(dead)

    def _bury(self, dead: Sequence[_Worker]) -> None:
        """Go on without workers that have died: others take their nodes, and do their messages again."""
        machines = {machine["NodeID"] for machine in ray.nodes() if machine["Alive"]}
        self._workers = [worker for worker in self._workers if worker not in dead]
        again: list[str] = []
        for worker in dead:
            # Replies of later calls, if there are any, would be to nodes whose earlier messages are done again.
            lost = [i for call in worker.calls for i in call.message_ids if i in self._tasks]
            again += [*lost, *(i for group in worker.waiting for i in group if i in self._tasks)]
            is_machine = worker.about["machine"] not in machines
            for message_id in () if is_machine else lost:
                self._tasks[message_id].deaths += 1
            what = f"the machine of {worker.name} is gone" if is_machine else f"{worker.name} died"
            logger.warning("%s: its nodes go to others, of which %d are left", what, len(self._workers))
        if not self._workers:
            raise GridLost("no Ray worker is left")
        # Not to the same machine, where there is another: when a machine goes its workers seem to die one by one, and a
        # message that had met two of them would be left out.
        machines_of_dead = {worker.about["machine"] for worker in dead}
        elsewhere = [worker for worker in self._workers if worker.about["machine"] not in machines_of_dead]
        self._places.leave(dead, elsewhere or self._workers)
        for message_id in again:
            if self._tasks[message_id].deaths >= MOST_DEATHS:
                self._leave_out(message_id)
        self._send(sorted(message_id for message_id in again if message_id in self._tasks))

    def _leave_out(self, message_id: str) -> None:
        """Answer a message that kills workers, and disconnect its node."""
        message = self._tasks.pop(message_id).message
        reason = f"{MOST_DEATHS} workers died with its {message.metadata.message_type!r}"
        self._replies[message_id] = unavailable(message, reason)
        node = self._nodes[message.metadata.dst_node_id]
        self._set_connected(message.metadata.dst_node_id, False)
        logger.warning(
            "node %d (partition %d) is left out: %s", message.metadata.dst_node_id, node.partition_id, reason
        )


def all_of(results: Sequence[Any], seconds: float | None = None) -> list[Any]:
    """Return what workers answer that have just been started; GridLost if one can't."""
    over, late = ray.wait(list(results), num_returns=len(results), timeout=seconds)
    if late:
        raise GridLost(f"{len(over)} of {len(results)} Ray workers started in {seconds:g} s: others may hold the cores")
    try:
        return ray.get(list(results))
    except RayTaskError as error:
        raise GridLost(f"a Ray worker can't start: {fault_of(error)}") from error
    except DEATHS as error:
        raise GridLost(f"a Ray worker can't start: {one_line(error)}") from error


def fault_of(error: RayTaskError) -> str:
    """Return in one line what a worker failed on, and what to do where it can't read what it was sent."""
    cause = error.cause
    if not isinstance(cause, RaySystemError):
        return f"{type(cause).__name__}: {one_line(cause)}"
    last = str(cause).strip().splitlines()[-1]  # of a traceback
    return (
        f"it can't read what it was sent ({last}): install your own modules on all machines, or put them beside the run"
    )


def one_line(error: BaseException) -> str:
    """Return an error's text in one line."""
    return " ".join(str(error).split())


def _check_versions(about: Mapping[str, Any]) -> None:
    for name, version in versions().items():
        if about[name] != version:
            raise GridLost(
                f"{name} is {about[name]} on {about['host']}, and {version} here: allowed is the same on all machines"
            )


def versions() -> dict[str, str]:
    """Return what has to be the same in all processes for the same bits."""
    names = ("numpy", "flwr", "torch", "espalier-fl")
    found = {}
    for name in names:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "not installed"
    return {"Python": platform.python_version(), **found}


def _options(place: WorkerPlace) -> dict[str, Any]:
    options: dict[str, Any] = {"num_cpus": place.num_cpus, "num_gpus": place.num_gpus}
    if place.machine:
        options["scheduling_strategy"] = NodeAffinitySchedulingStrategy(place.machine, soft=False)
    return options


def _worker_class() -> Any:
    """Return Ray's class of workers.

    It is defined here, so that Ray sends its code: where this package is found a worker only knows once it has the path
    of the process that started it.
    """

    class Worker:
        def __init__(self, path: list[str]) -> None:
            sys.path += [folder for folder in path if folder not in sys.path]
            from espalier.sim import ray_grid

            self._module = ray_grid
            self._grids: dict[str, WorkerNodes] = {}

        def about(self) -> dict[str, Any]:
            return self._module.about_worker()

        def open(self, grid: str, make_app: Any, run_config: UserConfig) -> None:
            self._grids[grid] = self._module.WorkerNodes(make_app, run_config)

        def answer(self, grid: str, *request: Any) -> tuple[Any, ...]:
            return self._grids[grid].answer(*request)

    return ray.remote(max_restarts=0, max_task_retries=0)(Worker)


def about_worker() -> dict[str, Any]:
    """Return what a worker's process says of itself."""
    machine = ray.get_runtime_context().get_node_id()
    return {"pid": os.getpid(), "host": platform.node(), "machine": machine, **versions()}


class WorkerNodes:
    """A grid's nodes of one worker, in its process.

    Parameters
    ----------
    make_app : Callable[[], ClientApp | Callable[[Message, Context], Message]]
        Makes what the nodes run.
    run_config : UserConfig
        The `context.run_config` of every node.
    """

    def __init__(self, make_app: Callable[[], AnyClientApp], run_config: UserConfig) -> None:
        ensure_run_id()
        own = logging.getLogger("espalier")
        own.setLevel(logging.INFO)
        own.propagate = False
        # One for all grids of the process: whichever has messages answered next takes what was logged meanwhile.
        self._log = next((one for one in own.handlers if isinstance(one, _Collected)), None) or _Collected()
        own.handlers = [self._log]
        self._run_config = run_config
        self._nodes: dict[int, tuple[UserConfig, RecordDict]] = {}
        self._client_app = make_app()

    def answer(self, head: bytes, *buffers: Any) -> tuple[Any, ...]:
        """Answer messages one after the other; what comes and goes is packed.

        Returns
        -------
        tuple
            For each message the reply, and the node's state or None where it stays as it was; the seconds that each
            message took; and what was logged.
        """
        messages, news = unpack(head, *buffers)
        self._nodes |= news
        answers: list[tuple[Message, RecordDict | None]] = []
        took: list[float] = []
        for message in messages:
            started = time.monotonic()
            node_id = message.metadata.dst_node_id
            config, before = self._nodes[node_id]
            # Pickled, records are copied as well as by hand, and with all that is in them.
            own = pickle.loads(pickle.dumps(before)) if before else RecordDict()
            reply, state = answer(self._client_app, message, context_of(message, config, own, self._run_config))
            took.append(time.monotonic() - started)
            if state is not None and state != before:
                self._nodes[node_id] = (config, state)
                answers.append((reply, state))
            else:
                answers.append((reply, None))
        return pack((answers, took, self._log.drain()))


class _Collected(logging.Handler):
    """Keeps what is logged."""

    def __init__(self) -> None:
        super().__init__()
        self._lines: list[tuple[int, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self._lines.append((record.levelno, self.format(record)))

    def drain(self) -> list[tuple[int, str]]:
        """Return the lines since the last time, with their levels."""
        lines, self._lines = self._lines, []
        return lines


def pack(value: Any) -> tuple[Any, ...]:
    """Return a value as bytes, and the buffers of its large arrays, which Ray moves without copying them.

    Parameters
    ----------
    value : Any
        Messages, records, and plain values in lists, tuples and dicts.
    """
    file = BytesIO()
    buffers: list[pickle.PickleBuffer] = []
    _Pickler(file, 5, buffer_callback=buffers.append).dump(value)
    return file.getvalue(), *buffers


def unpack(head: bytes, *buffers: Any) -> Any:
    """Return what `pack` packed; nothing of it is shared."""
    return pickle.loads(head, buffers=buffers)


class _Pickler(pickle.Pickler):
    """Pickles each large array's bytes once, however many records they are in, and out of band."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._large: dict[int, _Large] = {}

    def reducer_override(self, value: Any) -> Any:
        if not isinstance(value, Array):
            return NotImplemented
        data: Any = value.data
        if len(data) >= OUT_OF_BAND_BYTES:
            data = self._large.setdefault(id(data), _Large(data))
        return Array, (value.dtype, value.shape, value.stype, data)


class _Large:
    """Bytes that are pickled out of band, and are bytes again afterwards."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def __reduce__(self) -> Any:
        return bytes, (pickle.PickleBuffer(self._data),)
