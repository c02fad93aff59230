"""Streams carry the same split training as messages, and only for those who may; a bad peer harms nobody else."""

import logging
import math
import re
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from queue import SimpleQueue

import grpc
import pytest
import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from threadpoolctl import threadpool_info

from espalier.app.ground.certificates import self_signed
from espalier.clients.messages.frames import (
    METHOD,
    TOKEN_KEY,
    Format,
    StreamTicket,
    pack,
)
from espalier.clients.messages.split import SplitStream
from espalier.clients.messages.split_names import SPLIT_BEGIN, SPLIT_STREAM
from espalier.clients.messages.train import CONFIG
from espalier.clients.shared.cut import Cut
from espalier.clients.split.session import Session
from espalier.clients.split.stream import LINK, LINK_BITS_PER_SECOND
from espalier.clients.streams import Withdrawn, measure_link, open_stream
from espalier.sim.in_process_grid import InProcessGrid
from espalier.strategies.split import Relay, SplitFedV1, SplitFedV2, StreamServer
from espalier.strategies.split.stream import LEAST_CONNECTIONS, OPTIONS, SPARE_STREAMS, StreamEnded
from tests.strategies.split.federation import Federation, same, tiny_model, weights
from tests.strategies.split.proxy import StreamProxy
from tests.strategies.split.streams import HOST, ThreadedGrid, honest, lying, serving, streamed, train_on
from tests.strategies.split.test_failures import dies, faulty

SOON = 20.0
SHORTLY = 0.2  # seconds, where too few can run: nothing is worth waiting for
PAUSE_SECONDS = 0.1
NO_RETRIES = [("grpc.enable_retries", 0)]
# What is not read, beyond 64 KiB, stays at the sender.
SMALL_WINDOW = [("grpc.http2.bdp_probe", 0)]


@pytest.fixture
def server():
    with serving() as server:
        yield server


def until(condition, seconds=SOON):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.005)


def watched(app, seen):
    """Note the type of every message."""

    def answer(message, context):
        seen.append(message.metadata.message_type)
        return app(message, context)

    return answer


def own_lines(caplog):
    return [record.getMessage() for record in caplog.records if record.name == "espalier"]


def different_cuts():
    cuts = {}
    return lambda node_id: cuts.setdefault(node_id, 1 + len(cuts) % 3)


def update(outcome, edge="edge-0"):
    return outcome.edges[edge].updates[0]


# The same weights, to the bit.


@pytest.mark.parametrize(
    ("kind", "cut", "options"),
    [
        (SplitFedV1, different_cuts, {}),
        (SplitFedV1, different_cuts, {"label_policy": "labels"}),
        (SplitFedV2, lambda: 2, {}),
        (SplitFedV2, lambda: 2, {"order": "one-by-one"}),
        (Relay, lambda: 2, {}),
    ],
)
def test_a_stream_gives_the_weights_of_messages(server, kind, cut, options):
    federation = Federation(optimizer="adam", learning_rate=0.01)
    settings = {"rounds": 2, "num_edges": 2, "edge_rounds": 2}
    by_messages = federation.run(federation.split(kind, cut(), **options), **settings)
    seen = []
    # All clients of an edge at the same time, which SFL-V2 needs.
    grid = ThreadedGrid(watched(federation.app(), seen), len(federation.sizes))
    by_stream = federation.run(streamed(federation.split(kind, cut(), **options), server), grid=grid, **settings)
    assert SPLIT_BEGIN not in seen
    assert seen.count(SPLIT_STREAM) == 4 * 4
    for left, right in zip(by_messages, by_stream, strict=True):
        assert same(weights(left), weights(right))
        assert dict(left.train_metrics) == dict(right.train_metrics)
        assert update(left).participants == update(right).participants
    assert not [thread for thread in threading.enumerate() if thread.name in ("split-lane", "stream-reader")]


@pytest.mark.parametrize(
    ("workers", "payload", "cut"),
    [
        *((1, "float32", 2), (2, "float32", 2), (1, "bfloat16", 2), (2, "int8", 2)),
        (
            1,
            "top-25%",
            Cut(1, 3),
        ),  # nothing is fed back, in any of the four tensors: the edge does not know the samples
    ],
)
def test_with_fewer_workers_than_clients_sfl_v2_goes_on_by_messages(server, workers, payload, cut, caplog):
    federation = Federation()
    make_edge = streamed(federation.split(SplitFedV2, cut), server, payload=payload, patience_seconds=SHORTLY)
    expected = federation.run(
        streamed(federation.split(SplitFedV2, cut), server, payload=payload),
        rounds=3,
        grid=ThreadedGrid(federation.app(), 4),
    )
    seen = []
    app = watched(federation.app(), seen)
    grid = InProcessGrid(app, 4) if workers == 1 else ThreadedGrid(app, 4, workers=workers)
    with caplog.at_level(logging.WARNING, "espalier"):
        found = federation.run(make_edge, rounds=3, grid=grid)
    assert same(weights(expected[-1]), weights(found[-1]))
    by_messages = federation.run(federation.split(SplitFedV2, cut), rounds=3)
    assert same(weights(by_messages[-1]), weights(found[-1])) == (payload == "float32")
    assert seen.count(SPLIT_STREAM) == 4  # tried once
    assert seen.count(SPLIT_BEGIN) == 3 * 4
    assert [update(outcome).failures for outcome in found] == [[], [], []]
    (line,) = own_lines(caplog)
    assert f"only {workers} of 4 clients could open their streams" in line


def test_streams_are_tried_again_after_some_rounds_by_messages(server, monkeypatch):
    monkeypatch.setattr("espalier.strategies.split.stream_transport.FIRST_ROUNDS_BY_MESSAGES", 2)
    federation, seen = Federation(), []
    app = federation.app()

    def answer(message, context):
        seen.append((message.content.config_records.get(CONFIG, {}).get("server-round"), message.metadata.message_type))
        if message.metadata.message_type == SPLIT_BEGIN:
            grid.workers = 8  # from the second round on all can run at the same time
        return app(message, context)

    grid = ThreadedGrid(answer, 4, workers=2)
    make_edge = streamed(federation.split(SplitFedV2, 2), server, patience_seconds=SHORTLY)
    found = federation.run(make_edge, rounds=4, grid=grid)
    by_stream = [sum(each == (t, SPLIT_STREAM) for each in seen) for t in (1, 2, 3, 4)]
    assert by_stream == [4, 0, 0, 4]
    assert [sum(each == (t, SPLIT_BEGIN) for each in seen) for t in (1, 2, 3, 4)] == [4, 4, 4, 0]
    assert same(weights(found[-1]), weights(federation.run(federation.split(SplitFedV2, 2), rounds=4)[-1]))


def test_sfl_v1_needs_no_more_than_one_worker(server):
    federation, seen = Federation(), []
    expected = federation.run(federation.split(SplitFedV1, different_cuts()))
    grid = InProcessGrid(watched(federation.app(), seen), 4)
    found = federation.run(streamed(federation.split(SplitFedV1, different_cuts()), server), grid=grid)
    assert same(weights(expected[-1]), weights(found[-1]))
    assert SPLIT_BEGIN not in seen


def test_a_client_that_fails_before_its_stream_costs_the_others_no_more_than_a_new_stream(server):
    federation, seen = Federation(), []
    app = federation.app()

    def answer(message, context):
        seen.append((message.metadata.message_type, context.node_config["partition-id"]))
        if message.metadata.message_type.startswith("train") and context.node_config["partition-id"] == 3:
            raise RuntimeError("dead")
        return app(message, context)

    grid = ThreadedGrid(answer, 4)
    make_edge = streamed(federation.split(SplitFedV2, 2), server, patience_seconds=2.0)
    found = federation.run(make_edge, rounds=2, grid=grid)
    assert seen.count((SPLIT_STREAM, 0)) == 4  # in each round with the one that fails, then without
    assert seen.count((SPLIT_STREAM, 3)) == 2
    assert SPLIT_BEGIN not in {kind for kind, _ in seen}
    without = federation.run(federation.split(SplitFedV2, 2), rounds=2, grid=federation.grid(answer))
    assert same(weights(found[-1]), weights(without[-1]))
    assert [[f.reason for f in update(outcome).failures] for outcome in found] == [["RuntimeError: dead"]] * 2


def test_a_frozen_head_stays_out_of_streams_too(server):
    federation, start = Federation(), tiny_model(seed=4).double()
    head = ArrayRecord({n: a for n, a in ArrayRecord(start.state_dict()).items() if n.startswith("head.")})
    make = federation.split(SplitFedV1, lambda n: 2, frozen=head)
    expected = federation.run(make, rounds=2, start=start)
    found = federation.run(streamed(make, server), rounds=2, start=start)
    assert same(weights(expected[-1]), weights(found[-1]))
    assert not any(name.startswith("head.") for name in weights(found[-1]))


def test_the_shared_optimizers_state_resumes_over_streams(server):
    federation = Federation()
    adam = {"make_optimizer": lambda parameters: torch.optim.Adam(parameters, lr=0.01)}
    make = federation.split(Relay, 2, **adam)
    whole = federation.run(make, rounds=1, edge_rounds=3)
    edges = []

    def kept(name, size):
        edges.append(streamed(make, server)(name, size))
        return edges[-1]

    (first,) = federation.run(kept, rounds=1, edge_rounds=1)
    state = edges[0].state_dict()

    def restored(name, size):
        edge = streamed(make, server)(name, size)
        edge.load_state_dict(state)
        edges.append(edge)
        return edge

    def later_rounds(name, size):
        edge = restored(name, size)
        original = edge.train_round
        edge.train_round = lambda server_round, *rest: original(server_round + 1, *rest)
        return edge

    start = federation.make_model()
    start.load_state_dict(weights(first))
    (second,) = federation.run(later_rounds, rounds=1, edge_rounds=2, start=start)
    assert same(weights(second), weights(whole[-1]))


@pytest.mark.parametrize(
    ("payload", "tolerance"), [("float16", 2e-3), ("bfloat16", 2e-2), ("int8", 5e-2), ("top-25%", 0.3)]
)
def test_shorter_payloads_are_close_and_not_equal(server, payload, tolerance):
    federation = Federation()
    make = federation.split(SplitFedV1, different_cuts())
    exact = weights(federation.run(make, rounds=1)[-1])
    found = weights(federation.run(streamed(make, server, payload=payload), rounds=1)[-1])
    assert not same(exact, found)
    for name, tensor in exact.items():
        torch.testing.assert_close(tensor, found[name], rtol=tolerance, atol=tolerance)


def test_servers_steps_take_the_threads_of_the_process(server):
    """By what OpenMP says: to ask PyTorch would set them."""
    before, seen = torch.get_num_threads(), []
    federation = Federation(sizes=(20, 33))

    class Noted(SplitFedV1):
        def converse(self, groups, start, server_round, config, serve, pull=0.0):
            def noted(batches):
                own = [lib["num_threads"] for lib in threadpool_info() if "torch" in lib["filepath"]]
                seen.append((max(own), threading.current_thread() is threading.main_thread()))
                return serve(batches)

            return super().converse(groups, start, server_round, config, noted)

    try:
        torch.set_num_threads(3)
        federation.run(streamed(federation.split(Noted, lambda n: 1), server), rounds=1)
    finally:
        torch.set_num_threads(before)
    assert set(seen) == {(3, False)}


def test_an_error_of_the_edge_itself_is_not_a_clients_failure(server):
    federation = Federation()

    class Broken(SplitFedV1):
        def converse(self, groups, start, server_round, config, serve, pull=0.0):
            return super().converse(groups, start, server_round, config, lambda batches: 1 / 0)

    with pytest.raises(ZeroDivisionError):
        federation.run(streamed(federation.split(Broken, lambda n: 1), server), rounds=1)


def test_frames_are_counted(server):
    federation, counted = Federation(sizes=(20,), local_epochs=1), []
    make = federation.split(SplitFedV1, lambda n: 1)
    federation.run(streamed(make, server, on_bytes=lambda *what: counted.append(what)), rounds=1)
    values = 20 * 4 * 8 * 8 * 8  # float64
    totals = {}
    for direction, kind, count in counted:
        totals[direction, kind] = totals.get((direction, kind), 0) + count
    assert totals == {
        ("uplink", "activations"): values,
        ("uplink", "indices"): 80,
        ("downlink", "cut-gradient"): values,
    }


# Peers that fail or lie.


def changed(change):
    """A lie: at the second mini-batch, what is packed is changed."""

    def lie(form, values, step, num_steps, labels):
        own = {"values": values.detach(), "labels": labels, "step": step, "form": form}
        return pack(num_steps=num_steps, **(own | (change(own) if step == 1 else {})))

    return lie


def with_nan(own):
    own["values"][0, 0] = torch.nan
    return {}


def raw(make):
    def lie(form, values, step, num_steps, labels):
        frame = honest(form, values, step, num_steps, labels)
        return make(frame) if step == 1 else frame

    return lie


def stop(own):
    raise RuntimeError("the battery is empty")


LIES = [
    (changed(stop), r"its stream broke.*mini-batch 1.*the battery is empty"),
    (changed(lambda own: {"step": 0}), "it answered step 0, not step 1"),
    (changed(lambda own: {"values": own["values"][:, :-1]}), "activations have shape"),
    (changed(lambda own: {"form": Format("float16")}), "numbers of kind 2, expected 1"),
    (changed(lambda own: {"form": Format("float32", torch.float32), "values": own["values"].float()}), "kind 0"),
    (changed(with_nan), "activations hold NaN or Inf"),
    (changed(lambda own: {"labels": own["labels"] + 1000}), "an index is out of range"),
    (changed(lambda own: {"labels": own["labels"][1:]}), "7 labels for 8 activations"),
    (raw(lambda frame: frame[:-1]), "expected"),
    (raw(lambda frame: frame + b"\0"), "expected"),
    (raw(lambda frame: b""), "has no header"),
    (raw(lambda frame: bytes(3 * 2**20)), "too large a frame"),
]


@pytest.mark.parametrize(("lie", "reason"), LIES)
def test_a_client_that_lies_is_left_out_and_the_others_finish_without_it(server, lie, reason):
    federation = Federation(sizes=(20, 33, 14))
    make = federation.split(SplitFedV1, lambda n: 2)

    app = federation.app()

    def losing(message, context):
        if message.metadata.message_type.startswith("train") and context.node_config["partition-id"] == 1:
            raise RuntimeError("lost")
        return app(message, context)

    (expected,) = federation.run(make, rounds=1, grid=federation.grid(losing))
    grid = ThreadedGrid(lying(federation, lie), 3)
    first, second = federation.run(streamed(make, server), rounds=2, grid=grid)
    (failure,) = update(first).failures
    assert re.search(reason, failure.reason), failure.reason
    assert "\n" not in failure.reason
    assert same(weights(first), weights(expected))
    assert update(second).failures == []


def test_lies_are_lies_only_for_what_they_change(server):
    federation = Federation(sizes=(20, 33, 14))
    make = federation.split(SplitFedV1, lambda n: 2)
    grid = federation.grid(lying(federation, honest))
    assert same(weights(federation.run(streamed(make, server), grid=grid)[-1]), weights(federation.run(make)[-1]))


def test_a_shared_server_keeps_the_steps_made_before_as_by_messages(server):
    federation = Federation(sizes=(20, 33, 14))
    make = federation.split(SplitFedV2, 2)
    expected = federation.run(make, rounds=2, grid=federation.grid(faulty(federation, dies)))
    grid = ThreadedGrid(lying(federation, LIES[0][0]), 3)
    found = federation.run(streamed(make, server), rounds=2, grid=grid)
    assert same(weights(found[-1]), weights(expected[-1]))
    assert len(update(found[0]).failures) == 1


def test_a_client_whose_block_is_bad_is_left_out_although_its_stream_finished(server):
    federation = Federation(sizes=(20, 33))
    app = federation.app()

    def answer(message, context):
        reply = app(message, context)
        if message.metadata.message_type == SPLIT_STREAM and context.node_config["partition-id"] == 0:
            del reply.content["client-block"]
        return reply

    make = streamed(federation.split(SplitFedV1, lambda n: 1), server)
    (outcome,) = federation.run(make, rounds=1, grid=federation.grid(answer))
    (failure,) = update(outcome).failures
    assert "no record 'client-block'" in failure.reason
    assert update(outcome).weight == 33


def test_a_client_that_never_opens_its_stream_is_left_out_whatever_it_answers(server):
    federation = Federation(sizes=(20, 33))
    app = federation.app()

    def answer(message, context):
        if message.metadata.message_type == SPLIT_STREAM and context.node_config["partition-id"] == 0:
            block = message.content["client-block"]
            metrics = MetricRecord({"num-examples": 20, "step": 2})
            return Message(RecordDict({"client-block": block, "metrics": metrics}), reply_to=message)
        return app(message, context)

    make = streamed(federation.split(SplitFedV1, lambda n: 1), server)
    (outcome,) = federation.run(make, rounds=1, grid=federation.grid(answer))
    (failure,) = update(outcome).failures
    assert failure.reason == "it did not train through a stream"
    assert update(outcome).weight == 33


def test_a_client_that_falls_silent_is_left_out_when_its_time_is_over(server):
    federation, released = Federation(sizes=(20, 33, 14)), threading.Event()

    def silent(form, values, step, num_steps, labels):
        if step == 1:
            assert released.wait(SOON)
        return honest(form, values, step, num_steps, labels)

    app = lying(federation, silent)
    seen = []

    def answer(message, context):
        reply = app(message, context)
        if message.metadata.message_type == SPLIT_STREAM:
            seen.append(context.node_config["partition-id"])
            if len(seen) == 2:
                released.set()
        return reply

    # SFL-V2: the others can't go on before the edge has left it out.
    make = streamed(federation.split(SplitFedV2, 2), server, timeout_seconds=2.0)
    (outcome,) = federation.run(make, rounds=1, grid=ThreadedGrid(answer, 3))
    (failure,) = update(outcome).failures
    assert "nothing came in time (mini-batch 1)" in failure.reason
    assert "CANCELLED" in failure.reason  # what the client's own end says
    assert sorted(seen) == [0, 2]


# Who may open a stream.


def call(ticket, frames, channel_options=()):
    """A stream of a client that does as it likes; for use in a with statement."""
    credentials = grpc.ssl_channel_credentials(ticket.certificate)
    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_send_message_length", -1), *channel_options]
    channel = grpc.secure_channel(ticket.address, credentials, options)
    return channel, channel.stream_stream(METHOD)(iter(frames), metadata=((TOKEN_KEY, ticket.token),), timeout=SOON)


def test_a_wrong_token_is_refused_before_its_64_mb_are_read(server, caplog, monkeypatch):
    opened = []
    ticket = server.expect(opened.append)
    proxy = StreamProxy()
    monkeypatch.setenv("grpc_proxy", proxy.address)
    wrong = replace(ticket.told, token="x" * 43)
    with caplog.at_level(logging.WARNING, "espalier"):
        channel, stream = call(wrong, [bytes(64 * 2**20)])
        with channel, pytest.raises(grpc.RpcError) as error:
            next(stream)
    proxy.close()
    assert error.value.code() is grpc.StatusCode.UNAUTHENTICATED
    assert 0 < proxy.passed["up"] < 2**20
    assert not opened
    (line,) = own_lines(caplog)
    assert line.startswith(f"stream from ipv4:{HOST}:")
    assert line.endswith("refused: unknown token")


def test_strangers_do_not_fill_the_log(server, caplog):
    with caplog.at_level(logging.WARNING, "espalier"):
        for _ in range(20):
            channel, stream = call(replace(server.expect_probe().told, token="guessed"), [b"frame"])
            with channel, pytest.raises(grpc.RpcError):
                next(stream)
    assert len(own_lines(caplog)) == 1


@contextmanager
def strangers(server, number=3, streams=19):
    """Strangers without a ticket, who open connections one after the other, with many streams in each."""
    is_over = threading.Event()
    told = replace(server.expect_probe().told, token="guessed")
    refused = []

    def connect():
        while not is_over.is_set():
            channel, first = call(told, [b"frame"], NO_RETRIES)
            others = [channel.stream_stream(METHOD)(iter([b"frame"]), timeout=SOON) for _ in range(streams - 1)]
            with channel:
                for stream in (first, *others):
                    with pytest.raises(grpc.RpcError):
                        next(stream)
                    refused.append(stream.code())

    with ThreadPoolExecutor(number) as pool:
        loops = [pool.submit(connect) for _ in range(number)]
        try:
            yield refused
        finally:
            is_over.set()
    for loop in loops:
        loop.result()


def test_strangers_take_no_clients_place():
    with serving(max_streams=1) as server, strangers(server) as refused:
        until(lambda: len(refused) > 50)
        for _ in range(20):
            with open_stream(server.expect_probe().told, SOON) as stream:
                assert stream.exchange(b"frame") == b"f"
        until(lambda: len(refused) > 100)
    # With a reason, in haste, and for more than one stream in a connection.
    codes = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.UNAVAILABLE)
    assert set(refused) <= set(codes)


def test_a_connection_has_one_stream(server):
    told = server.expect_probe().told
    channel, first = call(told, never_ending(b"frame")[0])
    with channel:
        assert next(first) == b"f"
        token = ((TOKEN_KEY, server.expect_probe().told.token),)
        second = channel.stream_stream(METHOD)(iter([b"frame"]), metadata=token, timeout=0.5)
        with pytest.raises(grpc.RpcError) as error:
            next(second)
    assert error.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED


def test_a_connection_grows_old_and_its_stream_goes_on(monkeypatch):
    own = [(name, 300 if name == "grpc.max_connection_age_ms" else value) for name, value in OPTIONS]
    monkeypatch.setattr("espalier.strategies.split.stream.OPTIONS", own)
    with serving() as server, open_stream(server.expect_probe().told, SOON) as stream:
        for _ in range(10):
            assert stream.exchange(b"frame") == b"f"
            time.sleep(PAUSE_SECONDS)


def test_a_client_for_whom_there_is_no_thread_waits_for_one():
    with serving(max_streams=0) as server, ThreadPoolExecutor(1) as pool:
        calls = [call(server.expect_probe().told, never_ending(b"frame")[0]) for _ in range(SPARE_STREAMS)]
        assert [next(stream) for _, stream in calls] == [b"f"] * SPARE_STREAMS
        with open_stream(server.expect_probe().told, SOON) as stream:
            answer = pool.submit(stream.exchange, b"frame")
            time.sleep(5 * PAUSE_SECONDS)
            assert not answer.done()
            calls[0][1].cancel()
            assert answer.result(SOON) == b"f"
        for channel, _ in calls:
            channel.close()


def never_ending(*first):
    """Frames to send, and the function that adds one; the stream stays open behind them."""
    frames = SimpleQueue()
    for frame in first:
        frames.put(frame)
    return iter(frames.get, None), frames.put


def test_streams_that_clients_leave_open_are_ended():
    federation, left_open = Federation(), []
    app = federation.app()

    def answer(message, context):
        if message.metadata.message_type != SPLIT_STREAM:
            return app(message, context)
        task, instruction = federation.load(context), SplitStream.from_content(message.content)
        session = Session.begin(task, instruction.begin)
        form = Format(instruction.payload, next(task.model.parameters()).dtype)
        frames, send = never_ending()
        channel, answers = call(instruction.ticket, frames)
        left_open.append(channel)

        def exchange(frame):
            send(frame)
            return next(answers)

        while not session.is_over:
            train_on(session, form, exchange, honest)
        return Message(session.result().to_content(), reply_to=message)

    rounds = SPARE_STREAMS // 4 + 3
    with serving(max_streams=4) as server:
        make_edge = streamed(federation.split(SplitFedV1, lambda n: 2), server)
        found = federation.run(make_edge, rounds=rounds, grid=federation.grid(answer))
        for channel in left_open:
            channel.close()
    assert [update(outcome).failures for outcome in found] == [[]] * rounds
    assert len(left_open) == 4 * rounds


def test_a_probe_that_is_over_holds_no_thread():
    with serving(max_streams=0) as server:
        tickets = [server.expect_probe() for _ in range(SPARE_STREAMS)]
        calls = [call(ticket.told, never_ending(b"frame")[0]) for ticket in tickets]
        for _, stream in calls:
            next(stream)
        for ticket in tickets:
            ticket.forget()
        until(lambda: not any(stream.is_active() for _, stream in calls))
        assert measure_link(server.expect_probe().told) > 0
        for channel, _ in calls:
            channel.close()


def test_a_token_opens_one_stream_once(server):
    told = server.expect_probe().told
    with open_stream(told, SOON) as stream:
        assert stream.exchange(b"one") == b"o"
        with open_stream(told, SOON) as another, pytest.raises(ConnectionError, match="UNAUTHENTICATED"):
            another.exchange(b"two")
        assert stream.exchange(b"three") == b"t"


def test_a_withdrawn_ticket_and_a_forgotten_one(server):
    opened = []
    withdrawn, forgotten = server.expect(opened.append), server.expect(opened.append)
    withdrawn.withdraw()
    forgotten.forget()
    with open_stream(withdrawn.told, SOON) as stream, pytest.raises(Withdrawn):
        stream.exchange(b"frame")
    with open_stream(forgotten.told, SOON) as stream, pytest.raises(ConnectionError, match="unknown token"):
        stream.exchange(b"frame")
    assert (withdrawn.came_late, forgotten.came_late, opened) == (True, False, [])


def test_a_client_trusts_the_runs_certificate_alone(server, monkeypatch):
    monkeypatch.setattr("espalier.clients.streams.CONNECT_SECONDS", 0.5)
    ticket = server.expect(lambda connection: pytest.fail("it was let in"))
    with serving() as other:
        elsewhere = replace(ticket.told, address=other.address)
        with open_stream(elsewhere, SOON) as stream, pytest.raises(ConnectionError, match="UNAVAILABLE"):
            stream.exchange(b"frame")


def test_without_tls_nobody_gets_in(server):
    ticket = server.expect(lambda connection: pytest.fail("it was let in"))
    with grpc.insecure_channel(server.address) as channel:
        stream = channel.stream_stream(METHOD)(iter([b"x"]), metadata=((TOKEN_KEY, ticket.told.token),))
        with pytest.raises(grpc.RpcError):
            next(stream)


def test_too_large_a_message_ends_its_own_stream_only(server):
    opened = []
    channel, stream = call(server.expect(opened.append).told, [bytes(2**20 + 1)])
    with channel:
        with pytest.raises(grpc.RpcError) as error:
            next(stream)
        assert error.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        until(lambda: opened)
        with pytest.raises(StreamEnded):
            opened[0].receive(time.monotonic() + SOON)
    assert measure_link(server.expect_probe().told) > 0


def test_a_probe_takes_no_larger_frames_where_others_stay():
    with serving(max_message_bytes=2**22) as server:
        with open_stream(replace(server.expect_probe().told, max_bytes=2**22), SOON) as stream:
            assert stream.exchange(bytes(2**20)) == b"\0"
            with pytest.raises(ConnectionError, match="CANCELLED"):
                stream.exchange(bytes(2**20 + 1))
        assert measure_link(server.expect_probe().told) > 0


def test_peers_that_stop_reading_hold_no_thread_once_they_are_broken_off():
    with serving(max_streams=0) as server:
        opened, calls = [], []
        for _ in range(SPARE_STREAMS):
            calls.append(call(server.expect(opened.append).told, [b"frame"], SMALL_WINDOW))
        until(lambda: len(opened) == SPARE_STREAMS)
        for connection in opened:
            connection.receive(time.monotonic() + SOON)
            connection.send(bytes(4 * 2**20))  # never read
        # Every thread is taken.
        with open_stream(server.expect_probe().told, 0.5) as stream, pytest.raises(TimeoutError):
            stream.exchange(b"frame")
        for connection in opened:
            connection.cancel()
            with pytest.raises(StreamEnded):
                connection.receive(time.monotonic() + SOON)
        assert measure_link(server.expect_probe().told) > 0
        for channel, _ in calls:
            channel.close()


def test_a_client_notices_that_the_edge_is_gone(monkeypatch):
    monkeypatch.setattr("espalier.clients.streams.CONNECT_SECONDS", 0.5)
    with serving() as server:
        opened = []
        ticket = server.expect(opened.append)
        with ThreadPoolExecutor(1) as pool, open_stream(ticket.told, SOON) as stream:
            waiting = pool.submit(stream.exchange, b"frame")
            until(lambda: opened)
            server.__exit__()
            with pytest.raises(ConnectionError):
                waiting.result(SOON)
    with open_stream(ticket.told, SOON) as stream, pytest.raises(ConnectionError, match="UNAVAILABLE"):
        stream.exchange(b"frame")


def test_a_client_that_strangers_keep_out_for_a_moment_tries_again():
    with serving(max_streams=1) as server, ExitStack() as strangers, ThreadPoolExecutor(1) as pool:
        for _ in range(LEAST_CONNECTIONS):
            strangers.enter_context(socket.create_connection((HOST, server.port)))
        time.sleep(PAUSE_SECONDS)

        def exchange():
            with open_stream(server.expect_probe().told, SOON) as stream:
                return stream.exchange(b"frame")

        answer = pool.submit(exchange)
        time.sleep(5 * PAUSE_SECONDS)
        assert not answer.done()
        strangers.close()
        assert answer.result(SOON) == b"f"


def test_a_client_tries_again_where_an_edge_has_no_room():
    key, certificate = self_signed(HOST, 1)
    asked = []

    def serve(frames, context):
        asked.append(dict(context.invocation_metadata())[TOKEN_KEY])
        if len(asked) == 1:
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "no room")
        yield from frames

    with ThreadPoolExecutor(2) as pool:
        service, method = METHOD.strip("/").split("/")
        handlers = {method: grpc.stream_stream_rpc_method_handler(serve)}
        crowded = grpc.server(pool, [grpc.method_handlers_generic_handler(service, handlers)])
        port = crowded.add_secure_port(f"{HOST}:0", grpc.ssl_server_credentials([(key, certificate)]))
        crowded.start()
        ticket = StreamTicket(f"{HOST}:{port}", certificate, "token", 2**21)
        with open_stream(ticket, SOON) as stream:
            assert stream.exchange(bytes(2**20)) == bytes(2**20)
            assert stream.exchange(b"frame") == b"frame"
        crowded.stop(None).wait()
    assert asked == ["token", "token"]


def test_a_client_does_not_wait_for_ever(server):
    opened, started = [], time.monotonic()
    told = server.expect(opened.append).told
    with open_stream(told, 1.0) as stream, pytest.raises(TimeoutError, match=r"no answer from .* for 1 s"):
        stream.exchange(b"frame")
    assert opened
    assert time.monotonic() - started < SOON


def test_two_servers_do_not_share_a_port(server):
    with pytest.raises(RuntimeError):
        StreamServer(*self_signed(HOST, 1), address=HOST, port=server.port, max_frame_bytes=1, max_streams=1)


# The speed of the link.


def test_a_round_leaves_the_links_speed_in_the_nodes_state(server):
    federation, states = Federation(sizes=(20, 33)), []
    app = federation.app()

    def answer(message, context):
        reply = app(message, context)
        states.append((message.metadata.message_type, dict(context.state)))
        return reply

    make = streamed(federation.split(SplitFedV1, lambda n: 1), server)
    federation.run(make, rounds=1, grid=federation.grid(answer))
    speeds = [state[LINK][LINK_BITS_PER_SECOND] for kind, state in states if kind == SPLIT_STREAM]
    assert len(speeds) == 2
    assert all(1e4 < speed < 1e12 for speed in speeds)


def test_time_that_the_edge_computes_is_not_the_links(server):
    federation = Federation(sizes=(24,))

    class Slow(SplitFedV1):
        def converse(self, groups, start, server_round, config, serve, pull=0.0):
            def slowly(batches):
                time.sleep(PAUSE_SECONDS)
                return serve(batches)

            return super().converse(groups, start, server_round, config, slowly, pull)

    speeds = []
    app = federation.app()

    def answer(message, context):
        reply = app(message, context)
        if message.metadata.message_type == SPLIT_STREAM:
            speeds.append(context.state[LINK][LINK_BITS_PER_SECOND])
        return reply

    federation.run(streamed(federation.split(Slow, lambda n: 1), server), rounds=1, grid=federation.grid(answer))
    bits = 8 * 2 * 8 * 4 * 8 * 8 * 8
    assert speeds[0] > 2 * bits / PAUSE_SECONDS


def test_a_probe_measures_the_link(server):
    assert 1e6 < measure_link(server.expect_probe().told) < 1e13


@pytest.mark.parametrize(("up", "down"), [(64e6, math.inf), (math.inf, 8e6)])
def test_a_probe_measures_the_way_up_alone(server, monkeypatch, up, down):
    proxy = StreamProxy(bits_per_second={"up": up, "down": down})
    monkeypatch.setenv("grpc_proxy", proxy.address)
    rate = measure_link(server.expect_probe().told)
    proxy.close()
    if up < down:
        assert 0.5 * up < rate < 1.05 * up  # up to twice as much if what the edge sent counted, too
    else:
        assert rate > 4 * down  # then 16e6
    assert proxy.passed["up"] > 2**22 > 2**18 > proxy.passed["down"]
