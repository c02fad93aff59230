"""InProcessGrid: a Flower Grid whose nodes live in this process; and what other grids have in common with it.

It is the one module of the project that leans on names Flower does not call public: `TaskIdentity`, what is inside of
messages, metadata and records, the codes of error replies and the Protobuf form of records.
"""

import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from itertools import count
from logging import getLogger
from random import Random
from typing import Any, Protocol
from uuid import uuid4

from flwr.app import Array, Context, Error, Message, Metadata, RecordDict, UserConfig
from flwr.clientapp import ClientApp
from flwr.common.constant import NUM_PARTITIONS_KEY, PARTITION_ID_KEY, SUPERLINK_NODE_ID, ErrorCode
from flwr.common.serde import recorddict_from_proto, recorddict_to_proto
from flwr.proto.recorddict_pb2 import RecordDict as ProtoRecordDict
from flwr.serverapp import Grid
from flwr.supercore.constant import SYSTEM_MESSAGE_TYPE
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

logger = getLogger("espalier")

FAULTS = (Exception, SystemExit, GeneratorExit)  # of a ClientApp: a library under it may end the program

AnyClientApp = ClientApp | Callable[[Message, Context], Message]


class GridLost(RuntimeError):
    """A grid has nothing left that could run its nodes; the text says why, in one line."""


@dataclass
class Node:
    """A simulated node: what outlives the messages it answers."""

    partition_id: int
    config: UserConfig
    state: RecordDict = field(default_factory=RecordDict)
    connected: bool = True


class SimulatedGrid(Grid, ABC):
    """A Grid that has its nodes itself; a subclass runs their ClientApps, somewhere.

    Parameters
    ----------
    num_nodes : int
        Number of nodes, at least 1. Node `i` finds ``partition-id = i`` and ``num-partitions = num_nodes`` in its
        `context.node_config`.
    run_config : UserConfig, optional (default: None)
        The `context.run_config` of every node. None is an empty config.
    node_configs : Sequence[UserConfig], optional (default: None)
        One per node, in partition order: added to the node's config, and wins over the two keys above.
    seed : int (default: 0)
        Decides the node ids.
    node_ids : Sequence[int], optional (default: None)
        The node ids, in partition order, where they are not to be drawn.

    Raises
    ------
    ValueError
        If `num_nodes` is less than 1, or `node_configs` or `node_ids` has another length.

    Notes
    -----
    As in Flower's own runtimes:

    - Node ids are random, so their order says nothing about partitions.
    - A node's `context.state` is kept when the ClientApp returns a reply, and left as it was when it raises.
    - An exception in the ClientApp becomes an error reply (`ErrorCode.CLIENT_APP_RAISED_EXCEPTION`) with the node as
      its `src_node_id`.
    - Error replies made for want of a node or a message have 1, the server, as their `src_node_id`: match replies by
      `reply_to_message_id`.

    Unlike in them:

    - The messages of one node run one after the other, in the order of pushing.
    - No timeout or time-to-live ends anything: a ClientApp runs until it returns.
    - A return value that is no reply to the message is an error reply as well; Flower drops it and waits in vain.
    - Of a changed context only the state is kept; a changed `run_config` is an error, as it is in Flower's.

    Where Flower has not told this process which run it works for (that is, outside of `flwr run`), the first grid
    does, since `Message(...)` asks for it. A grid is to be used by one thread.
    """

    def __init__(
        self,
        num_nodes: int,
        *,
        run_config: UserConfig | None = None,
        node_configs: Sequence[UserConfig] | None = None,
        seed: int = 0,
        node_ids: Sequence[int] | None = None,
    ) -> None:
        if num_nodes < 1:
            raise ValueError(f"num_nodes is {num_nodes}: it must be 1 or more")
        if node_configs is None:
            node_configs = [{}] * num_nodes
        if len(node_configs) != num_nodes:
            raise ValueError(f"node_configs has {len(node_configs)} entries for {num_nodes} nodes")
        self._run_config = dict(run_config or {})
        if node_ids is None:
            # 0 and 1 are not drawn: Flower keeps them for "unset" and for the server.
            node_ids = Random(seed).sample(range(2, 2**63), num_nodes)
        if len(node_ids) != num_nodes:
            raise ValueError(f"node_ids has {len(node_ids)} entries for {num_nodes} nodes")
        self._nodes = {
            node_id: Node(i, {PARTITION_ID_KEY: i, NUM_PARTITIONS_KEY: num_nodes, **node_configs[i]})
            for i, node_id in enumerate(node_ids)
        }
        self._connected = sorted(self._nodes)
        self._grid_id = str(uuid4())
        self._message_numbers = count()
        self._run = Run.create_empty(ensure_run_id())

    @property
    def run(self) -> Run:
        """The run this grid works for (a copy)."""
        return replace(self._run)

    def set_run(self, run: Run) -> None:
        """Set the run this grid works for; messages keep the run they were created in.

        Raises
        ------
        TypeError
            If `run` is not a `Run`.
        """
        if not isinstance(run, Run):
            raise TypeError(f"`run` must be an instance of Run, got {type(run).__name__}")
        self._run = run

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """Create a message. Deprecated in Flower, which recommends the constructor of `Message`."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> list[int]:
        """Return the ids of the connected nodes, in ascending order, which is not the partitions' order."""
        return self._connected.copy()

    def disconnect(self, node_id: int) -> None:
        """Take a node off the network; its messages get error replies (`ErrorCode.NODE_UNAVAILABLE`) when pulled.

        Raises
        ------
        KeyError
            If there is no such node.
        """
        self._set_connected(node_id, False)

    def connect(self, node_id: int) -> None:
        """Bring a node back, with the state it had; it answers the messages that were not pulled meanwhile.

        Raises
        ------
        KeyError
            If there is no such node.
        """
        self._set_connected(node_id, True)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Take copies of the messages and write an id into each of the messages given.

        Returns
        -------
        list[str]
            The ids, in order. A message to an unknown node is not pushed and its id is missing, as with Flower's
            `InMemoryGrid`.

        Raises
        ------
        ValueError
            If a message is a reply.
        """
        pushed = {}
        for message in messages:
            if message.metadata.reply_to_message_id:
                raise ValueError(f"a reply can't be pushed: {message.metadata}")
            message_id = self._give_id(message)
            if message.metadata.dst_node_id not in self._nodes:
                logger.error("message not pushed: there is no node %d", message.metadata.dst_node_id)
                continue
            pushed[message_id] = _copy_message(message)
        self._take(pushed)
        return list(pushed)

    @abstractmethod
    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Return replies to messages, in the order of pushing."""

    @abstractmethod
    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        """Push messages and return their replies, in the order of pushing; `timeout` has no effect."""

    @abstractmethod
    def _take(self, messages: Mapping[str, Message]) -> None:
        """Take messages, by their ids, that were pushed together; they are the grid's own."""

    def state_dict(self) -> dict[str, bytes]:
        """Return the states of the nodes that have one, serialised, by partition index as a string."""
        return {
            str(node.partition_id): recorddict_to_proto(node.state).SerializeToString()
            for node in self._nodes.values()
            if node.state
        }

    def load_state_dict(self, state: Mapping[str, bytes]) -> None:
        """Give all nodes the states that `state_dict` returned; nodes that are not in it get an empty one.

        Raises
        ------
        ValueError
            If there is a state for a partition that does not exist. No node is changed then.
        google.protobuf.message.DecodeError
            If a value is not a serialised state. No node is changed then.
        """
        if unknown := state.keys() - {str(node.partition_id) for node in self._nodes.values()}:
            raise ValueError(f"states of unknown partitions: {sorted(unknown)}")
        states = {key: recorddict_from_proto(ProtoRecordDict.FromString(value)) for key, value in state.items()}
        for node in self._nodes.values():
            node.state = states.get(str(node.partition_id), RecordDict())

    def _set_connected(self, node_id: int, connected: bool) -> None:
        self._nodes[node_id].connected = connected
        self._connected = sorted(n for n, node in self._nodes.items() if node.connected)

    def _give_id(self, message: Message) -> str:
        """Write a new id into the message; ids of one grid sort in the order they were given."""
        message_id = f"{self._grid_id}-{next(self._message_numbers):012d}"
        message.metadata.__dict__["_message_id"] = message_id
        return message_id

    def _unknown(self, message_id: str) -> Message:
        """Return the error reply to a message that the grid does not have."""
        return _server_error(self._run.run_id, message_id, ErrorCode.MESSAGE_UNAVAILABLE, "no such message")


class Stack(Protocol):
    """Answers the messages of several nodes at once, where that is quicker than one after the other.

    Attributes
    ----------
    size : int
        The most messages at a time.
    """

    size: int

    def accepts(self, message: Message) -> bool:
        """Return whether a message may be answered together with others."""

    def __call__(self, messages: Sequence[Message], contexts: Sequence[Context]) -> list[Message | BaseException]:
        """Return one reply per message, or what its node failed on; each message is another node's, with its context.

        What is raised instead means that none has been answered.
        """


class InProcessGrid(SimulatedGrid):
    """A Grid that runs the ClientApp in this process: no Ray, no polling, one message after the other.

    Parameters
    ----------
    client_app : ClientApp | Callable[[Message, Context], Message]
        What every node runs.
    num_nodes, run_config, node_configs, seed, node_ids
        As of `SimulatedGrid`.
    stack : Stack, optional (default: None)
        Answers those messages that it accepts, of those that are pulled together. If it raises, each of them is
        answered by itself. None: all are.

    Notes
    -----
    Of what a `SimulatedGrid` leaves open:

    - A message runs when its reply is pulled, in the order of pushing. The result of a run therefore depends on no
      clock.
    - Messages and contexts are copied on the way there and back; only what an `Array` holds is shared, which nobody
      can change: its `bytes`, or with a subclass what its ``__copy__`` shares.
    - `KeyboardInterrupt` raised in a ClientApp reaches whoever pulls; by all else its node fails, as by an error.
    - A ClientApp sees the server's identity; it does not matter for ``Message(..., reply_to=message)``.

    Examples
    --------
    ::

        grid = InProcessGrid(client_app, num_nodes=8)
        result = FedAvg().start(grid, initial_arrays=arrays, num_rounds=3)
    """

    def __init__(
        self,
        client_app: AnyClientApp,
        num_nodes: int,
        *,
        run_config: UserConfig | None = None,
        node_configs: Sequence[UserConfig] | None = None,
        seed: int = 0,
        node_ids: Sequence[int] | None = None,
        stack: Stack | None = None,
    ) -> None:
        super().__init__(num_nodes, run_config=run_config, node_configs=node_configs, seed=seed, node_ids=node_ids)
        self._client_app = client_app
        self._stack = stack
        self._pushed: dict[str, Message] = {}

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Run the messages asked for, and no others, and return their replies.

        Returns
        -------
        list[Message]
            One reply per id, in the order of pushing. An id that is not known, or whose reply was pulled before,
            gets an error reply (`ErrorCode.MESSAGE_UNAVAILABLE`).
        """
        ids = sorted(set(message_ids))  # sorted as they were pushed: see `_give_id`
        messages = {message_id: self._pushed.pop(message_id, None) for message_id in ids}
        stacked = self._answer_stacked([message for message in messages.values() if message is not None])
        replies = []
        for message_id, message in messages.items():
            reply = stacked.get(message_id)
            if reply is None:
                reply = self._unknown(message_id) if message is None else self._answer(message)
            self._give_id(reply)
            replies.append(reply)
        return replies

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        """Push messages, run them and return their replies; `timeout` has no effect."""
        return self.pull_messages(self.push_messages(messages))

    def _take(self, messages: Mapping[str, Message]) -> None:
        self._pushed.update(messages)

    def _answer(self, message: Message) -> Message:
        """Let the message's node reply to it."""
        if not self._node(message).connected:
            return unavailable(message, "the node is disconnected")
        reply, state = answer(self._client_app, message, self._context(message))
        if state is not None:
            self._node(message).state = state
        return reply

    def _answer_stacked(self, messages: Sequence[Message]) -> dict[str, Message]:
        """Return the replies, by message id, to those messages that were answered together."""
        if self._stack is None:
            return {}
        fitting, seen, replies = [], set(), {}
        for message in messages:
            node_id = message.metadata.dst_node_id
            # A second message of a node has to find the state that the first one leaves.
            if node_id not in seen and self._node(message).connected and self._stack.accepts(message):
                fitting.append(message)
            seen.add(node_id)
        for start in range(0, len(fitting), self._stack.size):
            together = fitting[start : start + self._stack.size]
            contexts = [self._context(message) for message in together]
            try:
                made = self._stack([_handed_over(message) for message in together], contexts)
            except FAULTS as error:
                reason = " ".join(kind_and_text(error).split())
                logger.warning("%d nodes answer one after the other, not together: %s", len(together), reason)
                continue
            for message, reply, context in zip(together, made, contexts, strict=True):
                if isinstance(reply, BaseException):
                    replies[message.metadata.message_id] = _raised(message, reply)
                    continue
                replies[message.metadata.message_id] = _copy_message(reply)
                self._node(message).state = _copy_records(context.state)
        return replies

    def _node(self, message: Message) -> Node:
        return self._nodes[message.metadata.dst_node_id]

    def _context(self, message: Message) -> Context:
        node = self._node(message)
        return context_of(message, node.config, _copy_records(node.state), self._run_config)


def _handed_over(message: Message) -> Message:
    """Return a message with metadata of its own, and the same content."""
    return _message(_copy_metadata(message.metadata), message.content)


def context_of(message: Message, node_config: UserConfig, state: RecordDict, run_config: Mapping[str, Any]) -> Context:
    """Return the context in which a node answers a message."""
    return Context(
        run_id=message.metadata.run_id,
        node_id=message.metadata.dst_node_id,
        node_config=dict(node_config),
        state=state,
        run_config=dict(run_config),
    )


def answer(client_app: AnyClientApp, message: Message, context: Context) -> tuple[Message, RecordDict | None]:
    """Let a ClientApp answer a message.

    Parameters
    ----------
    client_app : ClientApp | Callable[[Message, Context], Message]
        What the node runs.
    message : Message
        Gives its content away; its metadata stay the grid's.
    context : Context
        The ClientApp's own.

    Returns
    -------
    tuple[Message, RecordDict or None]
        The reply, and the state that it leaves the node in. The reply to a message on which the ClientApp fails is an
        error reply, and there is no new state.
    """
    metadata, run_config = message.metadata, dict(context.run_config)
    try:
        reply = client_app(_handed_over(message), context)
        _check_reply(reply, metadata.message_id)
        if context.run_config != run_config:
            raise ValueError("a ClientApp can't change context.run_config")
        return _copy_message(reply), _copy_records(context.state)
    except FAULTS as error:
        partition_id = context.node_config.get(PARTITION_ID_KEY)
        logger.debug("partition %s failed on %r", partition_id, metadata.message_type, exc_info=True)
        return _raised(message, error), None


def _raised(message: Message, error: BaseException) -> Message:
    """Return the error reply of a node whose ClientApp raised."""
    return Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, kind_and_text(error)), reply_to=message)


def kind_and_text(error: BaseException) -> str:
    """Return what an error says of itself; its kind alone where it is of a class that fails to."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:
        return type(error).__name__


def unavailable(message: Message, reason: str) -> Message:
    """Return the error reply that the server makes for a node that can't."""
    metadata = message.metadata
    return _server_error(
        metadata.run_id,
        metadata.message_id,
        ErrorCode.NODE_UNAVAILABLE,
        reason,
        group_id=metadata.group_id,
        message_type=metadata.message_type,
    )


def is_in_simulation() -> bool:
    """Return whether this is a process of Flower's simulation, which starts Ray in another thread."""
    return "flwr.server.superlink.fleet.vce.vce_api" in sys.modules


def ensure_run_id() -> int:
    """Return the run id of this process; where Flower's runtime has not given it an identity, do so first."""
    try:
        return TaskIdentity.run_id
    except RuntimeError:
        TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = 1, 1, SUPERLINK_NODE_ID
        return TaskIdentity.run_id


def _copy_message(message: Message) -> Message:
    if message.has_error():
        return _message(_copy_metadata(message.metadata), error=message.error)
    return _message(_copy_metadata(message.metadata), _copy_records(message.content))


def _message(metadata: Metadata, content: RecordDict | None = None, error: Error | None = None) -> Message:
    """Return a message of parts of messages, which need not be checked again."""
    message = Message.__new__(Message)
    message.__dict__.update(_metadata=metadata, _content=content, _error=error)
    return message


def _copy_metadata(metadata: Metadata) -> Metadata:
    """Copy metadata as `copy.copy` does, which takes ten times as long."""
    copied = Metadata.__new__(Metadata)
    copied.__dict__.update(metadata.__dict__)
    return copied


def _copy_records(records: RecordDict) -> RecordDict:
    """Copy the records down to their values, sharing what can't be changed (numbers, text, bytes).

    `copy.deepcopy` fails once an `Array` was asked for its object id, which makes it cache memoryviews. What is in a
    record was checked when it got there, so it is not assigned, which would check it again.
    """
    copied = records.copy()
    contents = copied.__dict__["_data"]
    for name, original in contents.items():
        record = contents[name] = original.copy()
        values = record.__dict__["_data"]
        for key, value in values.items():
            if isinstance(value, (Array, list)):
                values[key] = copy(value)
    return copied


def _check_reply(reply: object, message_id: str) -> None:
    """Raise unless `reply` is a reply to the message: Flower would drop it, and the server wait in vain."""
    if not isinstance(reply, Message):
        raise TypeError(f"a ClientApp must return a Message, not {type(reply).__name__}")
    if reply.metadata.reply_to_message_id != message_id:
        raise ValueError("a ClientApp must reply to the message it was given: Message(..., reply_to=message)")


def _server_error(
    run_id: int,
    message_id: str,
    code: int,
    reason: str,
    *,
    group_id: str = "",
    message_type: str = SYSTEM_MESSAGE_TYPE,
) -> Message:
    """Return the error reply that the server itself makes where no node can."""
    metadata = Metadata(
        run_id=run_id,
        message_id="",
        src_node_id=SUPERLINK_NODE_ID,
        dst_node_id=SUPERLINK_NODE_ID,
        reply_to_message_id=message_id,
        group_id=group_id,
        created_at=time.time(),
        ttl=0,
        message_type=message_type,
    )
    return _message(metadata, error=Error(code, reason))
