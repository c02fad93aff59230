"""What the tests of the streams share: a server, edges that use it, clients side by side, and clients that lie."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Lock

import torch
from flwr.app import Message

from espalier.app.ground.certificates import self_signed
from espalier.clients.messages.frames import Format, pack, unpack_gradient
from espalier.clients.messages.split import SplitStream
from espalier.clients.messages.split_names import SPLIT_STREAM
from espalier.clients.messages.train import SERVER_ROUND
from espalier.clients.split.session import Session
from espalier.clients.streams import open_stream
from espalier.sim.in_process_grid import InProcessGrid
from espalier.strategies.split import StreamServer, StreamTransport

HOST = "127.0.0.1"


@contextmanager
def serving(**limits):
    limits = {"max_frame_bytes": 2**20, "max_streams": 8} | limits
    with StreamServer(*self_signed(HOST, 1), address=HOST, **limits) as server:
        yield server


def streamed(make_edge, server, **options):
    """Let the edges that `make_edge` makes use streams."""

    def make(name, size):
        edge = make_edge(name, size)
        edge.transport = StreamTransport(server, **{"timeout_seconds": 10.0, "patience_seconds": 20.0} | options)
        return edge

    return make


class ThreadedGrid(InProcessGrid):
    """Runs up to `workers` clients at the same time."""

    def __init__(self, app, num_nodes, *, workers=8, seed=0):
        lock = Lock()

        def answer(message, context):
            if message.metadata.message_type == SPLIT_STREAM:
                return app(message, context)
            with lock:  # these share a model
                return app(message, context)

        super().__init__(answer, num_nodes, seed=seed)
        self.workers = workers

    def pull_messages(self, message_ids):
        with ThreadPoolExecutor(self.workers) as pool:
            pulled = pool.map(lambda message_id: super(ThreadedGrid, self).pull_messages([message_id]), message_ids)
            return [reply for replies in pulled for reply in replies]


def lying(federation, lie, client=1, server_round=1):
    """The federation's ClientApp; one client sends, in one round, what `lie` makes of what `honest` takes."""
    app = federation.app()

    def answer(message, context):
        config = next(iter(message.content.config_records.values()), {})
        who = (message.metadata.message_type, context.node_config["partition-id"], config.get(SERVER_ROUND))
        if who != (SPLIT_STREAM, client, server_round):
            return app(message, context)
        task, instruction = federation.load(context), SplitStream.from_content(message.content)
        session = Session.begin(task, instruction.begin)
        form = Format(instruction.payload, next(task.model.parameters()).dtype)
        with open_stream(instruction.ticket, 10.0) as stream:
            while not session.is_over:
                train_on(session, form, stream.exchange, lie)
        return Message(session.result().to_content(), reply_to=message)

    return answer


def train_on(session, form, exchange, lie):
    """Make a step of a session, with what `lie` makes of its activations."""
    batch = session.forward()
    frame = lie(form, batch.values, batch.step, batch.num_steps, torch.from_numpy(batch.numbers))
    shape = tuple(batch.values.shape)
    session.backward(unpack_gradient(form, exchange(frame), step=batch.step, shape=shape).values)


def honest(form, values, step, num_steps, labels):
    return pack(form, values, step=step, num_steps=num_steps, labels=labels)
