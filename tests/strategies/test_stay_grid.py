"""Devices that stay: one message each, then all go through streams, and what holds of messages holds of streams."""

import logging
import re
import threading
import time
from dataclasses import replace

import pytest
from flwr.app import ConfigRecord, Error, Message, MetricRecord, RecordDict

from espalier.clients.client_app import make_client_app
from espalier.clients.device.edge_socket import NoEdgeError
from espalier.clients.messages.frames import StreamTicket
from espalier.clients.messages.stay import HELLO, RAISED, Stay, pack_reply, unpack_message
from espalier.clients.streams import StreamOver, open_stream
from espalier.strategies.exchange import Beside, Conversations, ask, converse
from espalier.strategies.split import SplitFedV1, SplitFedV2
from espalier.strategies.stay_grid import _Stream, let_go_of_others
from tests.strategies.devices import LIMITS, Devices, staying
from tests.strategies.split.federation import Federation, every, same, weights
from tests.strategies.split.streams import serving, streamed

MOST = LIMITS["max_message_bytes"]


def on_devices(federation):
    """Give each client a model of its own, as devices have."""
    federation.tasks = [replace(task, model=federation.make_model()) for task in federation.tasks]
    return federation


def stays(devices):
    return sorted(node_id for node_id, kind in devices.asked if kind == "query.stay")


@pytest.mark.parametrize("algorithm", ["fedavg", "sfl-v1", "sfl-v2"])
def test_rounds_through_streams_are_those_by_messages(algorithm):
    federation = on_devices(Federation())
    make = {
        "fedavg": {},
        "sfl-v1": {"make_edge": federation.split(SplitFedV1, every(2))},
        "sfl-v2": {"make_edge": federation.split(SplitFedV2, 2)},
    }[algorithm]
    expected = federation.run(num_edges=2, **make)
    devices = Devices(federation.app(durable=True), 4)
    with staying(devices) as grid:
        found = federation.run(num_edges=2, grid=grid, **make)
    assert same(weights(found[-1]), weights(expected[-1]))
    assert repr(found[-1].evaluate_metrics) == repr(expected[-1].evaluate_metrics)
    assert devices.asked == [(node_id, "query.stay") for node_id in devices.get_node_ids()]


def test_mini_batches_in_streams_of_their_own_beside_those_that_stay():
    federation = on_devices(Federation())
    make = federation.split(SplitFedV1, every(2))
    expected = federation.run(make, num_edges=2)
    devices = Devices(federation.app(durable=True), 4)
    with serving() as server, staying(devices) as grid:
        found = federation.run(streamed(make, server), num_edges=2, grid=grid)
    assert same(weights(found[-1]), weights(expected[-1]))
    assert len(devices.asked) == 4


def answering(answer, num_nodes=2):
    """Return devices that answer as said, and their node ids in order."""
    devices = Devices(make_client_app(lambda context: None, mods=[lambda m, c, call: answer(m, c)]), num_nodes)
    return devices, devices.get_node_ids()


def query(node_id, **config):
    return Message(RecordDict({"config": ConfigRecord(config)}), node_id, "query.own")


def counting(message, context):
    """Count the messages in the node's state, and tell how many there were."""
    state = context.state.setdefault("count", MetricRecord({"count": 0, "all": [0]}))
    state["count"] += 1
    state["all"].append(state["count"])
    count = MetricRecord({"count": state["count"], "all": list(state["all"])})
    return Message(RecordDict({"count": count}), reply_to=message)


def test_a_node_keeps_its_state_through_streams_that_end_and_begin():
    devices, nodes = answering(counting)
    for expected in (1, 3):
        with staying(devices) as grid:
            for more in range(2):
                for reply, node_id in zip(ask(grid, [query(n) for n in nodes]), nodes, strict=True):
                    assert reply.content["count"]["count"] == expected + more
                    assert reply.metadata.src_node_id == node_id
    assert stays(devices) == sorted(2 * nodes)


def test_who_raises_is_left_out_in_flowers_words_and_comes_back_in_a_new_process():
    def answer(message, context):
        counting(message, context)
        if message.content["config"]["fails"]:
            raise ValueError("no such column")
        return counting(message, context)

    devices, (first, second) = answering(answer)
    with staying(devices) as grid:
        good, bad = ask(grid, [query(first, fails=False), query(second, fails=True)])
        assert good.content["count"]["count"] == 2
        assert bad.error.reason == "<class 'ValueError'>:<'no such column'>"
        again = ask(grid, [query(first, fails=False), query(second, fails=False)])
        assert [reply.content["count"]["count"] for reply in again] == [4, 2]  # as if it had not been asked
        assert [reply.content["count"]["all"] for reply in again] == [[0, 1, 2, 3, 4], [0, 1, 2]]
    assert stays(devices) == sorted([first, second, second])


class MuteError(Exception):
    def __str__(self):
        raise RuntimeError("no words")


@pytest.mark.parametrize(
    ("error", "reason"),
    [(ValueError(2**21 * "a"), "<class 'ValueError'>:<'aaaa"), (MuteError(), f"{MuteError}")],
    ids=["long", "mute"],
)
def test_who_raises_with_more_words_than_there_is_room_for_or_none_is_named_by_its_error(error, reason):
    def answer(message, context):
        raise error

    devices, (first, _) = answering(answer)
    with staying(devices) as grid:
        (bad,) = ask(grid, [query(first)], timeout_seconds=20)
    assert bad.error.code == RAISED
    assert bad.error.reason.startswith(reason)
    assert len(bad.error.reason) <= 10_000


def test_messages_and_replies_that_are_larger_than_the_runs_are_refused_with_their_sizes():
    def answer(message, context):
        config = ConfigRecord({"bytes": bytes(message.content["config"]["size"])})
        return Message(RecordDict({"config": config}), reply_to=message)

    devices, (first, second) = answering(answer)
    with staying(devices, max_message_bytes=2**16) as grid:
        good, large = ask(grid, [query(first, size=2**15), query(second, size=2**16)], timeout_seconds=20)
        assert len(good.content["config"]["bytes"]) == 2**15
        assert re.search(r"65[67]\d\d bytes are too many for a stream of this run: expected 65536", large.error.reason)
        (refused,) = ask(grid, [query(first, size=0, more=bytes(2**16))], timeout_seconds=20)
        assert re.search(
            r"65[67]\d\d bytes are too many for a stream of this run: expected 65536", refused.error.reason
        )
        assert ask(grid, [query(first, size=1)], timeout_seconds=20)[0].has_content()
    assert stays(devices) == sorted([first, second])


def test_a_gateway_whose_edge_is_not_there_stays():
    def answer(message, context):
        raise NoEdgeError("the edge's run is not there")

    devices, (first, _) = answering(answer)
    with staying(devices) as grid:
        for _ in range(2):
            (reply,) = ask(grid, [query(first)])
            assert "NoEdgeError'>:<'the edge's run is not there'>" in reply.error.reason
    assert stays(devices) == [first]


def test_who_dies_at_work_is_left_out_at_once_and_comes_back():
    def answer(message, context):
        if message.content["config"]["dies"]:
            raise SystemExit
        return counting(message, context)

    devices, (first, second) = answering(answer)
    with staying(devices) as grid:
        good, bad = ask(grid, [query(first, dies=False), query(second, dies=True)], timeout_seconds=60)
        assert good.content["count"]["count"] == 1
        assert bad.error.reason == "its stream broke"
        assert ask(grid, [query(second, dies=False)])[0].has_content()
    assert stays(devices) == sorted([first, second, second])


def test_a_stream_that_breaks_before_it_is_noted_as_open_is_asked_for_again(monkeypatch):
    read, closed, noted = threading.Event(), threading.Event(), threading.Event()
    exchange, close = _Stream.exchange, _Stream.closed

    def late_exchange(stream, frame):
        if not read.is_set():
            read.set()
            assert closed.wait(20)
            try:
                return exchange(stream, frame)
            finally:
                noted.set()
        return exchange(stream, frame)

    monkeypatch.setattr(_Stream, "exchange", late_exchange)
    monkeypatch.setattr(_Stream, "closed", lambda stream: (close(stream), closed.set()))
    stays_on = make_client_app(lambda context: None, mods=[lambda message, context, call: counting(message, context)])

    def app(message, context):
        if closed.is_set():
            return stays_on(message, context)
        with open_stream(Stay.from_content(message.content).ticket, 10.0) as stream:
            stream.send(HELLO)
            assert read.wait(20)
        assert noted.wait(20)
        return Message(RecordDict(), reply_to=message)

    devices = Devices(app, 1)
    (only,) = devices.get_node_ids()
    with staying(devices) as grid:
        (reply,) = ask(grid, [query(only)], timeout_seconds=10)
        assert reply.content["count"]["count"] == 1
    assert stays(devices) == [only, only]


def test_who_was_killed_before_it_opened_its_stream_and_is_back_is_asked_again(monkeypatch):
    monkeypatch.setattr("espalier.strategies.stay_grid.ASK_AGAIN_SECONDS", 0.3)
    devices, (only, _) = answering(counting)
    push, asked = devices.push_messages, []

    def push_messages(messages):
        messages = list(messages)
        asked.append(messages)
        if len(asked) <= 2:  # Flower hands a message out once, and tells nothing of who is gone and back
            return [f"lost {len(asked)}"]
        return push(messages)

    monkeypatch.setattr(devices, "push_messages", push_messages)
    began = time.monotonic()
    with staying(devices) as grid:
        assert ask(grid, [query(only)], timeout_seconds=20)[0].content["count"]["count"] == 1
        assert ask(grid, [query(only)], timeout_seconds=20)[0].content["count"]["count"] == 2
    assert len(asked) == 3
    assert time.monotonic() - began > 0.3 + 0.6  # later each time


def test_a_slow_process_opens_its_stream_by_the_ticket_that_it_was_sent_first(monkeypatch):
    monkeypatch.setattr("espalier.strategies.stay_grid.ASK_AGAIN_SECONDS", 0.3)
    monkeypatch.setattr("espalier.clients.streams.CONNECT_SECONDS", 0.1)
    stays_on = make_client_app(lambda context: None, mods=[lambda message, context, call: counting(message, context)])

    def app(message, context):
        if devices.asked == [(only, "query.stay")]:
            while len(devices.asked) == 1:
                time.sleep(0.01)
        return stays_on(message, context)

    devices = Devices(app, 1)
    (only,) = devices.get_node_ids()
    with staying(devices) as grid:
        for count in (1, 2):
            (reply,) = ask(grid, [query(only)], timeout_seconds=20)
            assert reply.content["count"]["count"] == count
    assert len(devices.asked) == 2


def test_who_can_open_no_stream_is_left_out_with_its_own_words(monkeypatch):
    monkeypatch.setattr("espalier.clients.streams.CONNECT_SECONDS", 0.1)
    devices, (first, _) = answering(counting)

    def elsewhere(message):
        ticket = Stay.from_content(message.content).ticket
        message.content = Stay(replace(ticket, address="127.0.0.1:1")).to_content()

    push = devices.push_messages
    monkeypatch.setattr(devices, "push_messages", lambda messages: [elsewhere(m) for m in messages] and push(messages))
    with staying(devices) as grid:
        (reply,) = ask(grid, [query(first)], timeout_seconds=60)
    assert "stream to 127.0.0.1:1: UNAVAILABLE" in reply.error.reason


def test_who_is_late_answers_what_came_after_too_and_its_late_reply_is_not_kept():
    go_on = threading.Event()

    def answer(message, context):
        if message.content["config"]["slow"]:
            assert go_on.wait(20)
        return counting(message, context)

    devices, (first, second) = answering(answer)
    with staying(devices) as grid:
        late, good = ask(grid, [query(first, slow=True), query(second, slow=False)], timeout_seconds=0.5)
        assert late.error.reason == "no reply before the deadline"
        assert good.has_content()
        (late_id,) = grid.push_messages([query(first, slow=False)])
        go_on.set()
        (reply,) = ask(grid, [query(first, slow=False)], timeout_seconds=20)
        assert reply.content["count"]["count"] == 3
        assert [r.content["count"]["count"] for r in grid.pull_messages(["stay-0", late_id])] == [2]
        assert grid.pull_messages([late_id]) == []
    assert len(devices.asked) == 2


def test_who_hangs_is_spared_what_nobody_waits_for_any_more():
    go_on = threading.Event()

    def answer(message, context):
        assert go_on.wait(20)
        return counting(message, context)

    devices, (first, _) = answering(answer)
    with staying(devices) as grid:
        for _ in range(3):
            assert ask(grid, [query(first)], timeout_seconds=0.2)[0].has_error()
        assert grid.send_and_receive([query(first)], timeout=0.2) == []
        go_on.set()
        assert ask(grid, [query(first)], timeout_seconds=20)[0].content["count"]["count"] == 2
        assert grid.pull_messages([f"stay-{number}" for number in range(5)]) == []


def test_what_conversations_that_are_closed_have_asked_is_withdrawn():
    go_on = threading.Event()

    def answer(message, context):
        assert go_on.wait(20)
        return counting(message, context)

    devices, (first, second) = answering(answer)

    def fails():
        yield Beside([asks(first), asks(first)])
        raise ValueError("what it got")

    def asks(node_id):
        yield [query(node_id)]

    def lets_go_on():
        yield Beside([asks(second), asks(second)])

    with staying(devices) as grid:
        with pytest.raises(ValueError, match="what it got"):
            converse(grid, {"": fails()})
        conversations = Conversations(grid)
        conversations.run({"": lets_go_on()})
        conversations.close()
        go_on.set()
        replies = ask(grid, [query(first), query(second)], timeout_seconds=20)
        assert max(reply.content["count"]["count"] for reply in replies) <= 2


def test_all_replies_that_are_awaited_are_kept():
    devices, (first, _) = answering(counting)
    with staying(devices) as grid:
        ids = list(grid.push_messages([query(first) for _ in range(6)]))
        assert ask(grid, [query(first)])[0].has_content()
        assert [reply.content["count"]["count"] for reply in grid.pull_messages(ids)] == [1, 2, 3, 4, 5, 6]


def test_each_message_to_who_can_open_no_stream_has_its_reply():
    devices = Devices(lambda message, context: Message(RecordDict(), reply_to=message), 1)
    with staying(devices) as grid:
        replies = grid.send_and_receive([query(*devices.get_node_ids()) for _ in range(6)], timeout=20)
    assert [reply.error.reason for reply in replies] == ["it opened no stream"] * 6


def test_nodes_that_nobody_will_ask_are_let_go(caplog):
    devices, (first, second) = answering(counting)
    with staying(devices) as grid:
        ask(grid, [query(first), query(second)])
        let_go_of_others(grid, [first])
        let_go_of_others(devices, [first])  # holds nothing
        (of_second,) = [i for i, (node_id, _) in enumerate(devices.asked) if node_id == second]
        list(devices._answers.values())[of_second].result(timeout=10)
        assert ask(grid, [query(first)])[0].content["count"]["count"] == 2
    assert len(devices.asked) == 2


def test_more_nodes_than_streams_are_told_of_once(caplog):
    devices, nodes = answering(counting, 3)
    with caplog.at_level(logging.WARNING, "espalier"), staying(devices, max_streams=2) as grid:
        ask(grid, [query(node_id) for node_id in nodes[:2]])
        assert not caplog.messages
        for _ in range(2):
            ask(grid, [query(node_id) for node_id in nodes])
    (line,) = caplog.messages
    assert line.startswith("3 nodes are to open a stream, and 2 may: ")


def liar(frames):
    """Return an app that stays and sends these frames, one by one, with what it got in between."""

    def app(message, context):
        with open_stream(Stay.from_content(message.content).ticket, 10.0) as stream:
            got = unpack_message(stream.exchange(HELLO), message)
            for frame in frames:
                try:
                    stream.exchange(frame(got))
                except (StreamOver, ConnectionError):
                    break
        return Message(RecordDict(), reply_to=message)

    return app


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        (lambda got: b"nonsense", "its reply can't be read: it holds no records"),
        (lambda got: b"", "its reply can't be read: it holds no records"),
        (lambda got: pack_reply(Message(Error(7, "own words"), reply_to=got), MOST, is_last=False), "own words"),
    ],
)
def test_what_cant_be_read_leaves_its_sender_out(frame, reason):
    devices = Devices(liar([frame]), 1)
    with staying(devices) as grid:
        (reply,) = ask(grid, [query(*devices.get_node_ids())], timeout_seconds=20)
        assert reason in reply.error.reason


def test_a_frame_that_nobody_waits_for_ends_the_stream():
    def twice(got):
        return pack_reply(Message(RecordDict(), reply_to=got), MOST, is_last=False)

    devices, replies = Devices(liar([twice, twice]), 1), []
    with staying(devices) as grid:
        for _ in range(2):
            replies += ask(grid, [query(*devices.get_node_ids())], timeout_seconds=20)
    assert [reply.has_content() for reply in replies] == [True, True]


def test_a_ticket_opens_one_stream_once(caplog):
    seen = []

    def app(message, context):
        seen.append(ticket := Stay.from_content(message.content).ticket)
        assert isinstance(ticket, StreamTicket)
        with open_stream(ticket, 10.0) as stream:
            got = unpack_message(stream.exchange(HELLO), message)
            with open_stream(ticket, 10.0) as again, pytest.raises(ConnectionError, match="UNAUTHENTICATED"):
                again.exchange(HELLO)
            with pytest.raises(StreamOver):
                stream.exchange(pack_reply(Message(RecordDict(), reply_to=got), MOST, is_last=True))
        return Message(RecordDict(), reply_to=message)

    devices = Devices(app, 1)
    with caplog.at_level(logging.WARNING, "espalier"), staying(devices) as grid:
        assert ask(grid, [query(*devices.get_node_ids())], timeout_seconds=20)[0].has_content()
    assert len(seen) == 1
    assert len([line for line in caplog.messages if "refused: unknown token" in line]) == 1
