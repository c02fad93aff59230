"""InProcessGrid: a Flower Grid whose nodes live in this process."""

import time
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import groupby
from logging import getLogger
from typing import Protocol

from flwr.app import Context, Message, RecordDict, UserConfig

from .answering import FAULTS, AnyClientApp, answer, context_of
from .flower_private import copy_message, copy_records, handed_over, kind_and_text, raised, unavailable
from .side_by_side import Runs, one_by_one
from .simulated_grid import Node, OnWaited, SimulatedGrid

logger = getLogger("espalier")


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
    """A Grid that runs the ClientApp in this process: no Ray, no polling.

    Parameters
    ----------
    client_app : ClientApp | Callable[[Message, Context], Message]
        What every node runs.
    num_nodes, run_config, node_configs, seed, node_ids, on_waited
        As of `SimulatedGrid`.
    stack : Stack, optional (default: None)
        Answers those messages that it accepts, of those that are pulled together. If it raises, each of them is
        answered by itself. None: all are.
    runs : Runs (default: one after the other)
        Runs the nodes whose messages are pulled together, such as `espalier.sim.side_by_side.Threads`: then the
        ClientApp has to be safe in threads. A node's own messages run one after the other.

    Notes
    -----
    Of what a `SimulatedGrid` leaves open:

    - A message runs when its reply is pulled, in the order of pushing. Where several nodes run at a time, replies and
      states are still taken in this order. The result of a run therefore depends on no clock.
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
        runs: Runs = one_by_one,
        on_waited: OnWaited | None = None,
    ) -> None:
        super().__init__(
            num_nodes,
            run_config=run_config,
            node_configs=node_configs,
            seed=seed,
            node_ids=node_ids,
            on_waited=on_waited,
        )
        self._client_app = client_app
        self._stack = stack
        self._runs = runs
        self._pushed: dict[str, Message] = {}
        self._pushed_at: dict[str, float] = {}
        self._took: dict[str, float] = {}  # seconds that nodes were at work on the messages of one pull

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
        there = [message for message in messages.values() if message is not None]
        answers = self._answer_stacked(there)
        answers |= self._answer_alone([message for message in there if message.metadata.message_id not in answers])
        replies = []
        for message_id in ids:
            reply = answers[message_id] if message_id in answers else self._unknown(message_id)
            self._give_id(reply)
            replies.append(reply)
        self._tell_waits(replies)
        return replies

    def _take(self, messages: Mapping[str, Message]) -> None:
        self._pushed.update(messages)
        self._pushed_at.update(dict.fromkeys(messages, time.monotonic()))

    def _tell_waits(self, replies: Iterable[Message]) -> None:
        """Tell how long messages and replies waited: all but the time in which their own nodes were at work."""
        now, took, self._took = time.monotonic(), self._took, {}
        for reply in replies:
            message_id = reply.metadata.reply_to_message_id
            pushed_at = self._pushed_at.pop(message_id, now)
            if message_id in took:
                self._on_waited(reply, max(now - pushed_at - took[message_id], 0.0))

    def _answer_alone(self, messages: Sequence[Message]) -> dict[str, Message]:
        """Return the replies, by message id, to messages that nodes answer each by itself."""
        of_node: dict[int, list[Message]] = {}
        for message in messages:
            of_node.setdefault(message.metadata.dst_node_id, []).append(message)
        replies: dict[str, Message] = {}
        for kind, group in groupby(of_node.items(), lambda own: own[1][0].metadata.message_type):
            nodes = dict(group)
            answered = self._runs(kind, [partial(self._answer_in_turn, own) for own in nodes.values()])
            for node_id, (answers, state) in zip(nodes, answered, strict=True):
                replies |= answers
                self._nodes[node_id].state = state
        return replies

    def _answer_in_turn(self, messages: Sequence[Message]) -> tuple[dict[str, Message], RecordDict]:
        """Let a node reply to its messages, one after the other; return its new state, too."""
        node, replies = self._node(messages[0]), dict[str, Message]()
        state = node.state
        for message in messages:
            if not node.connected:
                replies[message.metadata.message_id] = unavailable(message, "the node is disconnected")
                continue
            context = context_of(message, node.config, copy_records(state), self._run_config)
            started = time.monotonic()
            reply, new_state = answer(self._client_app, message, context)
            self._took[message.metadata.message_id] = time.monotonic() - started
            replies[message.metadata.message_id] = reply
            state = state if new_state is None else new_state
        return replies, state

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
            contexts, started = [self._context(message) for message in together], time.monotonic()
            try:
                made = self._stack([handed_over(message) for message in together], contexts)
            except FAULTS as error:
                reason = " ".join(kind_and_text(error).split())
                logger.warning("%d nodes answer one after the other, not together: %s", len(together), reason)
                continue
            took = time.monotonic() - started
            for message, reply, context in zip(together, made, contexts, strict=True):
                self._took[message.metadata.message_id] = took
                if isinstance(reply, BaseException):
                    replies[message.metadata.message_id] = raised(message, reply)
                    continue
                replies[message.metadata.message_id] = copy_message(reply)
                self._node(message).state = copy_records(context.state)
        return replies

    def _node(self, message: Message) -> Node:
        return self._nodes[message.metadata.dst_node_id]

    def _context(self, message: Message) -> Context:
        node = self._node(message)
        return context_of(message, node.config, copy_records(node.state), self._run_config)
