"""Nodes as devices are: each answers by itself, in a thread of its own, from when a message is pushed."""

from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

from espalier.app.ground.certificates import self_signed
from espalier.sim.in_process_grid import InProcessGrid
from espalier.strategies import StayGrid
from espalier.strategies.split import StreamServer

HOST = "127.0.0.1"


class Devices(InProcessGrid):
    """A device answers its messages one after the other; their replies are there when they are.

    Attributes
    ----------
    asked : list[tuple[int, str]]
        Node id and type of every message that was pushed.
    """

    def __init__(self, app, num_nodes, **options):
        super().__init__(app, num_nodes, **options)
        self.asked = []
        self._workers = {node_id: ThreadPoolExecutor(1) for node_id in self.get_node_ids()}
        self._answers: dict[str, Future] = {}

    def push_messages(self, messages):
        messages = list(messages)
        ids = super().push_messages(messages)
        self.asked += [(m.metadata.dst_node_id, m.metadata.message_type) for m in messages]
        for message, message_id in zip(messages, ids, strict=True):
            pull = super().pull_messages
            self._answers[message_id] = self._workers[message.metadata.dst_node_id].submit(pull, [message_id])
        return ids

    def pull_messages(self, message_ids):
        done = [i for i in message_ids if i in self._answers and self._answers[i].done()]
        return [self._answers.pop(i).result()[0] for i in done]

    def wait_for_all(self):
        """Wait until no device is at work."""
        for answer in self._answers.values():
            answer.result(timeout=10)


@contextmanager
def staying(devices, **options):
    """Reach devices by streams; in the end they are all at rest."""
    with (
        StreamServer(*self_signed(HOST, 1), address=HOST, **LIMITS | options) as server,
        StayGrid(devices, server) as grid,
    ):
        yield grid
    devices.wait_for_all()


LIMITS = {"max_frame_bytes": 2**20, "max_streams": 8, "max_message_bytes": 2**24}
