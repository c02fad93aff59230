"""What grids whose nodes are simulated have in common: nodes, ids of messages, states."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from logging import getLogger
from random import Random
from uuid import uuid4

from flwr.app import Message, RecordDict, UserConfig
from flwr.serverapp import Grid

from .flower_private import (
    NUM_PARTITIONS_KEY,
    PARTITION_ID_KEY,
    Run,
    copy_message,
    ensure_run_id,
    no_such_message,
    records_from_bytes,
    records_to_bytes,
    write_id,
)

logger = getLogger("espalier")

OnWaited = Callable[[Message, float], None]


class GridLost(RuntimeError):
    """A grid has nothing left that could run its nodes; the text says why, in one line."""


@dataclass
class Node:
    """A simulated node: what outlives the messages it answers."""

    partition_id: int
    config: UserConfig
    state: RecordDict = field(default_factory=RecordDict)
    connected: bool = True


class _Nodes(Mapping[int, Node]):
    """All nodes by their ids, in partition order; one is made when somebody first looks at it.

    Parameters
    ----------
    node_ids : Sequence[int]
        In partition order.
    node_configs : Sequence[UserConfig], optional
        One per node, see `SimulatedGrid`.
    """

    def __init__(self, node_ids: Sequence[int], node_configs: Sequence[UserConfig] | None) -> None:
        self._ids = node_ids
        self._configs = node_configs
        self._number_of = {node_id: i for i, node_id in enumerate(node_ids)}
        self._made: dict[int, Node] = {}

    def __getitem__(self, node_id: int) -> Node:
        if node_id not in self._made:
            number = self._number_of[node_id]
            config = {PARTITION_ID_KEY: number, NUM_PARTITIONS_KEY: len(self._ids)}
            self._made[node_id] = Node(number, config | dict(self._configs[number] if self._configs else {}))
        return self._made[node_id]

    def __contains__(self, node_id: object) -> bool:
        return node_id in self._number_of

    def __iter__(self) -> Iterator[int]:
        return iter(self._ids)

    def __len__(self) -> int:
        return len(self._ids)

    @property
    def have_own_configs(self) -> bool:
        """True where nodes have configs that somebody gave them."""
        return self._configs is not None

    @property
    def numbers(self) -> Mapping[int, int]:
        """The nodes' places, by their ids."""
        return self._number_of

    def at(self, number: int) -> Node:
        """Return the node of a place; IndexError if there is none."""
        return self[self._ids[number]]

    def made(self) -> list[Node]:
        """Return the nodes that somebody has looked at, in partition order: all others are as they were."""
        return sorted(self._made.values(), key=lambda node: node.partition_id)


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
    on_waited : Callable[[Message, float], None], optional (default: None)
        Called with every reply of a node and the seconds that the message and the reply waited while their process was
        at work for others.

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
        on_waited: OnWaited | None = None,
    ) -> None:
        if num_nodes < 1:
            raise ValueError(f"num_nodes is {num_nodes}: it must be 1 or more")
        if node_configs is not None and len(node_configs) != num_nodes:
            raise ValueError(f"node_configs has {len(node_configs)} entries for {num_nodes} nodes")
        self._run_config = dict(run_config or {})
        if node_ids is None:
            # 0 and 1 are not drawn: Flower keeps them for "unset" and for the server.
            node_ids = Random(seed).sample(range(2, 2**63), num_nodes)
        if len(node_ids) != num_nodes:
            raise ValueError(f"node_ids has {len(node_ids)} entries for {num_nodes} nodes")
        self._nodes = _Nodes(node_ids, node_configs)
        self._away: set[int] = set()
        self._connected = sorted(node_ids)
        self._on_waited = on_waited or (lambda reply, seconds: None)
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

    def connected_of(self, node_ids: Sequence[int]) -> list[int]:
        """Return those of some nodes that are connected, in their order; how many others there are costs nothing."""
        there = filter(self._nodes.numbers.__contains__, node_ids)
        return [node_id for node_id in there if node_id not in self._away] if self._away else list(there)

    @property
    def has_own_configs(self) -> bool:
        """True where nodes have configs that somebody gave them."""
        return self._nodes.have_own_configs

    @property
    def numbers(self) -> Mapping[int, int]:
        """Every node's ``partition-id`` by its id, in ascending order of the numbers."""
        return self._nodes.numbers

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
            pushed[message_id] = copy_message(message)
        self._take(pushed)
        return list(pushed)

    @abstractmethod
    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Return replies to messages, in the order of pushing."""

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        """Push messages, wait for all replies and return them in the order of pushing; `timeout` has no effect."""
        waiting = self.push_messages(messages)
        replies: dict[str, Message] = {}
        while missing := [message_id for message_id in waiting if message_id not in replies]:
            replies |= {reply.metadata.reply_to_message_id: reply for reply in self.pull_messages(missing)}
        return [replies[message_id] for message_id in waiting]

    @abstractmethod
    def _take(self, messages: Mapping[str, Message]) -> None:
        """Take messages, by their ids, that were pushed together; they are the grid's own."""

    def state_dict(self) -> dict[str, bytes]:
        """Return the states of the nodes that have one, serialised, by partition index as a string."""
        return {str(node.partition_id): records_to_bytes(node.state) for node in self._nodes.made() if node.state}

    def load_state_dict(self, state: Mapping[str, bytes]) -> None:
        """Give all nodes the states that `state_dict` returned; nodes that are not in it get an empty one.

        Raises
        ------
        ValueError
            If there is a state for a partition that does not exist. No node is changed then.
        google.protobuf.message.DecodeError
            If a value is not a serialised state. No node is changed then.
        """
        if unknown := [key for key in state if not self._is_number(key)]:
            raise ValueError(f"states of unknown partitions: {sorted(unknown)}")
        states = {int(key): records_from_bytes(value) for key, value in state.items()}
        for node in self._nodes.made():
            node.state = RecordDict()
        for number, records in states.items():
            self._nodes.at(number).state = records

    def _is_number(self, key: str) -> bool:
        """Return whether a text is the number of a node, as `state_dict` writes it."""
        return key.isdecimal() and str(int(key)) == key and int(key) < len(self._nodes)

    def _set_connected(self, node_id: int, connected: bool) -> None:
        self._nodes[node_id].connected = connected
        (self._away.discard if connected else self._away.add)(node_id)
        self._connected = sorted(node_id for node_id in self._nodes if node_id not in self._away)

    def _give_id(self, message: Message) -> str:
        """Write a new id into the message; ids of one grid sort in the order they were given."""
        message_id = f"{self._grid_id}-{next(self._message_numbers):012d}"
        write_id(message, message_id)
        return message_id

    def _unknown(self, message_id: str) -> Message:
        """Return the error reply to a message that the grid does not have."""
        return no_such_message(self._run.run_id, message_id)
