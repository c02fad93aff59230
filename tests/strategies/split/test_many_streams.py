"""A hundred streams at once through one port, a part of which break: the rest train as if by themselves."""

import os
import threading
from pathlib import Path

import pytest

from espalier.clients.messages.split_names import SPLIT_BEGIN, SPLIT_STREAM
from espalier.strategies import ask_profiles
from espalier.strategies.split import SplitFedV1
from tests.strategies.split.federation import Federation, same, weights
from tests.strategies.split.proxy import StreamFault, StreamProxy
from tests.strategies.split.streams import ThreadedGrid, serving, streamed

CLIENTS = 100
OF_A_KIND = 12
# Behind the handshake, and before the last of a client's two mini-batches, of 6 KB up and 6 KB down each, is over.
FAULT_BYTES = range(4000, 10_000, 6000 // OF_A_KIND)


def sockets():
    """Return the sockets that this process has open."""
    found = []
    for descriptor in Path("/proc/self/fd").iterdir():
        try:
            found.append(os.readlink(descriptor))
        except OSError:
            continue
    return sorted(name for name in found if name.startswith("socket:"))


def losing_the_end(app, clients):
    """The same app; of some clients the reply at the end of the round is lost."""

    def answer(message, context):
        reply = app(message, context)
        if message.metadata.message_type == SPLIT_STREAM and context.node_config["partition-id"] in clients:
            raise ConnectionError("the reply is lost")
        return reply

    return answer


def without(app, clients):
    """The same app without some clients."""

    def answer(message, context):
        if message.metadata.message_type == SPLIT_BEGIN and context.node_config["partition-id"] in clients:
            raise ConnectionError("not there")
        return app(message, context)

    return answer


@pytest.mark.slow
def test_a_hundred_streams_of_which_some_lose_activations_gradients_or_the_end_of_the_round(monkeypatch):
    federation, lost, struck = Federation(sizes=(16,) * CLIENTS), set(range(0, CLIENTS, 10)), []
    threads, open_sockets = threading.active_count(), sockets()
    proxy = StreamProxy(struck.append)
    monkeypatch.setenv("grpc_proxy", proxy.address)
    for after_bytes in FAULT_BYTES:
        for direction, kind in (("up", "truncate"), ("down", "drop")):
            proxy.add(StreamFault(kind, direction, after_bytes))
    with serving(max_streams=CLIENTS) as server:
        grid = ThreadedGrid(losing_the_end(federation.app(), lost), CLIENTS, workers=CLIENTS)
        (found,) = federation.run(streamed(federation.split(SplitFedV1, lambda n: 2), server), rounds=1, grid=grid)
    proxy.close()
    assert len(struck) == 2 * OF_A_KIND
    (update,) = found.edges["edge-0"].updates
    place = {node.node_id: node.partition_id for node in ask_profiles(grid)}
    survivors = {place[node_id] for node_id in update.participants}
    left_out = {place[failure.node_id] for failure in update.failures}
    assert survivors | left_out == set(range(CLIENTS))
    assert len(survivors) + len(left_out) == CLIENTS
    assert lost <= left_out
    assert 2 * OF_A_KIND <= len(left_out) <= 2 * OF_A_KIND + len(lost)
    (expected,) = federation.run(
        federation.split(SplitFedV1, lambda n: 2), rounds=1, grid=federation.grid(without(federation.app(), left_out))
    )
    assert same(weights(found), weights(expected))
    assert threading.active_count() == threads
    assert sockets() == open_sockets
