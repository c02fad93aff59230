"""RayGrid: a Flower Grid whose nodes live in worker processes that Ray runs, on one machine or on a cluster."""

import logging
import os
import pickle
import platform
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from io import BytesIO
from typing import Any

import ray
from flwr.app import Array, Message, RecordDict, UserConfig
from ray.exceptions import GetTimeoutError, ObjectLostError, OutOfMemoryError, RayActorError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from .in_process_grid import AnyClientApp, GridLost, SimulatedGrid, answer, context_of, ensure_run_id, unavailable

logger = logging.getLogger("espalier")

# A message is not given to a third worker.
MOST_DEATHS = 2
# Larger arrays travel beside what is pickled, and are copied once less.
OUT_OF_BAND_BYTES = 16_384
DEATHS = (RayActorError, ObjectLostError, OutOfMemoryError)


@dataclass(frozen=True)
class Place:
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
    deaths: int = 0  # of workers that it may have caused


@dataclass
class _Call:
    """Messages that one worker got together, by their ids."""

    result: Any
    message_ids: list[str]


@dataclass
class _Worker:
    """A worker process, as the grid sees it."""

    number: int
    actor: Any
    about: dict[str, Any] = field(default_factory=dict)
    calls: list[_Call] = field(default_factory=list)  # in the order in which it works on them
    load: float = 0.0

    @property
    def name(self) -> str:
        return f"worker {self.number} (process {self.about.get('pid')} on {self.about.get('host')})"


class RayGrid(SimulatedGrid):
    """A Grid that runs ClientApps in worker processes: each node has its worker, and stays there.

    Ray has to be initialised. The grid ends its workers, and leaves Ray as it is.

    Parameters
    ----------
    make_app : Callable[[], ClientApp | Callable[[Message, Context], Message]]
        Makes what every node runs; called once in every worker. It is pickled.
    num_nodes, run_config, node_configs, seed
        As of `SimulatedGrid`.
    places : Sequence[Place]
        One for each worker.
    sizes : Sequence[float], optional (default: None)
        How much work each node has, in partition order. The largest goes first to the worker that has least. None: all
        nodes are alike.
    start_seconds : float (default: 120)
        How long the workers have to start.

    Attributes
    ----------
    workers : list[dict]
        What the workers that are alive say of themselves: ``pid``, ``host``, ``machine`` and versions.

    Raises
    ------
    ValueError
        As `SimulatedGrid`; also without workers.
    GridLost
        If a worker can't be started, in one line. `pull_messages` raises it when no worker is left.

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
      replies are the same. A message with which two workers have died is answered by an error reply, and its node is
      disconnected: it would take down one after the other. When a whole machine goes, that is no message's fault.
    - What workers log to the logger ``espalier``, from INFO on, is logged here, when the replies come.

    Which worker a node is at, and how many there are, makes no difference to any reply.
    """

    def __init__(
        self,
        make_app: Callable[[], AnyClientApp],
        num_nodes: int,
        places: Sequence[Place],
        *,
        run_config: UserConfig | None = None,
        node_configs: Sequence[UserConfig] | None = None,
        sizes: Sequence[float] | None = None,
        seed: int = 0,
        start_seconds: float = 120.0,
    ) -> None:
        super().__init__(num_nodes, run_config=run_config, node_configs=node_configs, seed=seed)
        if not places:
            raise ValueError("a grid needs a worker")
        self._sizes = dict(zip(self._nodes, sizes or [1.0] * num_nodes, strict=True))
        self._tasks: dict[str, _Task] = {}
        self._replies: dict[str, Message] = {}
        self._knows: dict[int, _Worker] = {}  # which worker has a node's state, as the node has it
        worker_class = _worker_class(self._run_config)
        self._workers = [
            _Worker(i, worker_class.options(**_options(place)).remote(sys.path)) for i, place in enumerate(places)
        ]
        try:
            self._start(make_app, start_seconds)
        except BaseException:
            self.close()
            raise
        self._at = spread(self._sizes, self._workers)

    @property
    def workers(self) -> list[dict[str, Any]]:
        """What the workers that are alive say of themselves."""
        return [dict(worker.about) for worker in self._workers]

    def worker_of(self, node_id: int) -> dict[str, Any]:
        """Return what a node's worker says of itself."""
        return dict(self._at[node_id].about)

    def close(self) -> None:
        """End the workers; nothing can be pushed or pulled any more."""
        for worker in self._workers:
            ray.kill(worker.actor)
        self._workers = []

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

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        """Push messages, wait for all replies and return them in the order of pushing; `timeout` has no effect."""
        waiting = self.push_messages(messages)
        replies: dict[str, Message] = {}
        while missing := [message_id for message_id in waiting if message_id not in replies]:
            replies |= {reply.metadata.reply_to_message_id: reply for reply in self.pull_messages(missing)}
        return [replies[message_id] for message_id in waiting]

    def _take(self, messages: Mapping[str, Message]) -> None:
        self._tasks |= {message_id: _Task(message) for message_id, message in messages.items()}
        self._send(list(messages))

    def _send(self, message_ids: Sequence[str]) -> None:
        """Give messages to the workers of their nodes; one that may have killed a worker goes alone."""
        groups: dict[int, list[list[str]]] = {}
        for message_id in message_ids:
            task = self._tasks[message_id]
            groups_there = groups.setdefault(self._at[task.message.metadata.dst_node_id].number, [])
            if task.deaths or not groups_there or self._tasks[groups_there[-1][-1]].deaths:
                groups_there.append([])
            groups_there[-1].append(message_id)
        by_number = {worker.number: worker for worker in self._workers}
        for number, groups_there in groups.items():
            for group in groups_there:
                self._call(by_number[number], group)

    def _call(self, worker: _Worker, message_ids: list[str]) -> None:
        messages = [self._tasks[message_id].message for message_id in message_ids]
        news = {}
        for node_id in dict.fromkeys(message.metadata.dst_node_id for message in messages):
            if self._knows.get(node_id) is not worker:
                node = self._nodes[node_id]
                news[node_id] = (node.config, node.state)
                self._knows[node_id] = worker
        worker.calls.append(_Call(worker.actor.answer.remote(*pack((messages, news))), message_ids))

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
        dead: dict[int, _Worker] = {}
        for result in over:  # in the order in which each worker works on them
            worker, call = calls[result]
            if worker.number in dead:
                continue
            try:
                answers, log = unpack(*ray.get(result))
            except DEATHS as error:
                logger.debug("%s: %s", worker.name, error)
                dead[worker.number] = worker
                continue
            worker.calls.remove(call)
            for level, line in log:
                logger.log(level, "%s", line)
            for message_id, (reply, state) in zip(call.message_ids, answers, strict=True):
                if task := self._tasks.pop(message_id, None):  # none: the node was disconnected
                    self._replies[message_id] = reply
                    if state is not None:
                        self._nodes[task.message.metadata.dst_node_id].state = state
        if dead:
            self._bury(list(dead.values()))

    def _bury(self, dead: Sequence[_Worker]) -> None:
        """Go on without workers that have died: others take their nodes, and do their messages again."""
        machines = {machine["NodeID"] for machine in ray.nodes() if machine["Alive"]}
        numbers = {worker.number for worker in dead}
        self._workers = [worker for worker in self._workers if worker.number not in numbers]
        again: list[str] = []
        for worker in dead:
            # Replies of later calls, if there are any, would be to nodes whose earlier messages are done again.
            lost = [[i for i in call.message_ids if i in self._tasks] for call in worker.calls]
            again += [message_id for call in lost for message_id in call]
            is_machine = worker.about["machine"] not in machines
            for message_id in lost[0] if lost and not is_machine else ():
                self._tasks[message_id].deaths += 1
            what = f"the machine of {worker.name} is gone" if is_machine else f"{worker.name} died"
            logger.warning("%s: %d others go on with its nodes", what, len(self._workers))
        orphans = {node_id: self._sizes[node_id] for node_id, worker in self._at.items() if worker.number in numbers}
        self._knows = {node_id: worker for node_id, worker in self._knows.items() if worker.number not in numbers}
        if not self._workers:
            raise GridLost("no Ray worker is left")
        self._at |= spread(orphans, self._workers)
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
        node.connected = False
        logger.warning(
            "node %d (partition %d) is left out: %s", message.metadata.dst_node_id, node.partition_id, reason
        )

    def _start(self, make_app: Callable[[], AnyClientApp], seconds: float) -> None:
        """Let the workers make their apps and say what they are."""
        started = [worker.actor.start.remote(make_app) for worker in self._workers]
        over, late = ray.wait(started, num_returns=len(started), timeout=seconds)
        here = versions()
        for worker, result in zip(self._workers, started, strict=True):
            if result in late:
                raise GridLost(
                    f"{len(over)} of {len(started)} Ray workers started in {seconds:g} s: others may hold the cores"
                )
            try:
                worker.about = ray.get(result, timeout=seconds)
            except RayTaskError as error:
                cause = error.cause
                raise GridLost(
                    f"a Ray worker can't start: {type(cause).__name__}: {' '.join(str(cause).split())}"
                ) from error
            except (*DEATHS, GetTimeoutError) as error:
                raise GridLost(f"a Ray worker can't start: {' '.join(str(error).split())}") from error
            for name, version in here.items():
                if worker.about[name] != version:
                    raise GridLost(
                        f"{name} is {worker.about[name]} on {worker.about['host']}, and {version} here: allowed is the "
                        "same on all machines"
                    )


def spread(sizes: Mapping[int, float], workers: Sequence[_Worker]) -> dict[int, _Worker]:
    """Give nodes to workers: the largest first, to the worker that has least; ties in the order given."""
    at = {}
    for node_id in sorted(sizes, key=lambda node_id: -sizes[node_id]):
        at[node_id] = worker = min(workers, key=lambda worker: worker.load)
        worker.load += sizes[node_id]
    return at


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


def _options(place: Place) -> dict[str, Any]:
    options: dict[str, Any] = {"num_cpus": place.num_cpus, "num_gpus": place.num_gpus}
    if place.machine:
        options["scheduling_strategy"] = NodeAffinitySchedulingStrategy(place.machine, soft=False)
    return options


def _worker_class(run_config: UserConfig) -> Any:
    """Return Ray's class of workers.

    It is defined here, so that Ray sends its code: where this package is found a worker only knows once it has the path
    of the process that started it.
    """

    class Worker:
        def __init__(self, path: list[str]) -> None:
            sys.path += [folder for folder in path if folder not in sys.path]
            from espalier.sim.ray_grid import WorkerNodes

            self._nodes = WorkerNodes(run_config)

        def start(self, make_app: Any) -> dict[str, Any]:
            return self._nodes.start(make_app)

        def answer(self, *request: Any) -> tuple[Any, ...]:
            return self._nodes.answer(*request)

    return ray.remote(max_restarts=0, max_task_retries=0)(Worker)


class WorkerNodes:
    """The nodes of a worker, in its process.

    Parameters
    ----------
    run_config : UserConfig
        The `context.run_config` of every node.
    """

    def __init__(self, run_config: UserConfig) -> None:
        self._run_config = run_config
        self._nodes: dict[int, tuple[UserConfig, RecordDict]] = {}
        self._log = _Collected()
        own = logging.getLogger("espalier")
        own.setLevel(logging.INFO)
        own.propagate = False
        own.handlers = [self._log]
        ensure_run_id()

    def start(self, make_app: Callable[[], AnyClientApp]) -> dict[str, Any]:
        """Make the app; return what the process says of itself."""
        self._client_app = make_app()
        machine = ray.get_runtime_context().get_node_id()
        return {"pid": os.getpid(), "host": platform.node(), "machine": machine, **versions()}

    def answer(self, head: bytes, *buffers: Any) -> tuple[Any, ...]:
        """Answer messages one after the other; what comes and goes is packed.

        Returns
        -------
        tuple
            For each message the reply, and the node's state or None where it stays as it was; and what was logged.
        """
        messages, news = unpack(head, *buffers)
        self._nodes |= news
        answers: list[tuple[Message, RecordDict | None]] = []
        for message in messages:
            node_id = message.metadata.dst_node_id
            config, before = self._nodes[node_id]
            # Pickled, records are copied as well as by hand, and with all that is in them.
            own = pickle.loads(pickle.dumps(before)) if before else RecordDict()
            reply, state = answer(self._client_app, message, context_of(message, config, own, self._run_config))
            if state is not None and state != before:
                self._nodes[node_id] = (config, state)
                answers.append((reply, state))
            else:
                answers.append((reply, None))
        return pack((answers, self._log.take()))


class _Collected(logging.Handler):
    """Keeps what is logged."""

    def __init__(self) -> None:
        super().__init__()
        self._lines: list[tuple[int, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self._lines.append((record.levelno, self.format(record)))

    def take(self) -> list[tuple[int, str]]:
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
