"""Exchanges that need not wait for everybody, and conversations inside of others."""

import time
from typing import ClassVar

import pytest
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict

from espalier.clients.messages.seconds import SECONDS, ToldSeconds
from espalier.sim.in_process_grid import InProcessGrid
from espalier.strategies.exchange import LATE, Beside, Conversations, Losable, Together, Until, answered, ask, converse


class Withholding(InProcessGrid):
    """A Grid on which one node, the first to be asked, never answers."""

    def push_messages(self, messages):
        ids = super().push_messages(messages)
        self.withheld = ids[0]
        return ids

    def pull_messages(self, message_ids):
        return super().pull_messages(set(message_ids) - {self.withheld})


def echo(message, context):
    return Message(RecordDict(), reply_to=message)


@pytest.mark.parametrize(("lost", "seconds"), [(True, 30.0), (False, 0.2)])
def test_a_lost_reply_is_not_waited_for(lost, seconds):
    grid = Withholding(echo, 3)
    nodes = grid.get_node_ids()

    def conversation():
        messages = [Message(RecordDict(), node_id, "query.profile") for node_id in nodes]
        return (yield Losable(messages, lambda node_id: lost and node_id == nodes[0]))

    started = time.monotonic()
    trips = {}
    replies = converse(
        grid,
        {"edge": conversation()},
        timeout_seconds=seconds,
        poll_seconds=0.01,
        on_trip=lambda path, message, trip: trips.update({message.metadata.dst_node_id: trip.transfer}),
    )["edge"]
    assert [reply.has_error() for reply in replies] == [True, False, False]
    assert trips.keys() == set(nodes)
    assert (trips[nodes[0]] >= seconds) == (not lost)
    assert replies[0].error.code == LATE
    assert (time.monotonic() - started < seconds) == lost


class Waking(InProcessGrid):
    """A Grid that knows when a reply is in: when somebody has waited for it twice."""

    waits: ClassVar[list[float]] = []

    def wait(self, seconds):
        self.waits.append(seconds)

    def pull_messages(self, message_ids):
        return super().pull_messages(message_ids) if len(self.waits) == 2 else []


def test_a_grid_that_wakes_is_waited_for_by_itself(monkeypatch):
    monkeypatch.setattr(time, "sleep", lambda seconds: pytest.fail("slept"))
    grid = Waking(echo, 1)
    assert ask(grid, [Message(RecordDict(), *grid.get_node_ids(), "query.profile")])[0].has_content()
    assert grid.waits == [0.05, 0.1]


class Slow(InProcessGrid):
    """A Grid whose replies can be had after so many seconds of its own clock, which runs while somebody sleeps."""

    def __init__(self, app, delays):
        super().__init__(app, len(delays))
        self.now = 0.0
        self._delays = dict(zip(self.get_node_ids(), delays, strict=True))
        self._due = {}

    def push_messages(self, messages):
        messages = list(messages)
        ids = list(super().push_messages(messages))
        self._due |= {i: self.now + self._delays[m.metadata.dst_node_id] for i, m in zip(ids, messages, strict=True)}
        return ids

    def pull_messages(self, message_ids):
        return super().pull_messages([i for i in message_ids if self._due[i] <= self.now])

    def sleep(self, seconds):
        self.now += seconds


@pytest.mark.parametrize("ends", [0.5, 2.0, 4.5])
def test_what_is_in_until_a_time_is_in_time_and_what_comes_after_it_is_not(monkeypatch, ends):
    grid = Slow(echo, [0.0, ends - 0.01, ends, ends + 0.01])
    nodes = list(grid.get_node_ids())
    monkeypatch.setattr(time, "sleep", grid.sleep)
    here = []

    def one(node_id):
        yield [Message(RecordDict(), node_id, "query.profile")]
        here.append(node_id)

    def conversation():
        yield Beside([one(node_id) for node_id in nodes])
        yield Until(lambda: grid.now >= ends, lambda: ends - grid.now)
        return list(here)

    assert converse(grid, {"edge": conversation()})["edge"] == nodes[:3]
    assert grid.now == ends


def test_what_comes_while_others_are_at_work_is_in_time(monkeypatch):
    grid = Slow(echo, [1.5, 0.5])
    late, early = grid.get_node_ids()
    monkeypatch.setattr(time, "sleep", grid.sleep)
    here = []

    def one():
        yield [Message(RecordDict(), late, "query.profile")]
        here.append(grid.now)

    def waits():
        yield Beside([one()])
        yield Until(lambda: grid.now >= 2.0, lambda: 2.0 - grid.now)
        return list(here)

    def works():
        yield [Message(RecordDict(), early, "query.profile")]
        grid.now += 3.0

    assert converse(grid, {"waits": waits(), "works": works()})["waits"] == [grid.now] > [3.0]


def asking(nodes, kind="query.profile"):
    """Ask nodes one after the other; return what the replies say."""
    replies = []
    for node_id in nodes:
        replies += yield [Message(RecordDict(), node_id, kind)]
    return [reply.metadata.src_node_id for reply in replies]


def test_conversations_inside_of_others_run_together_and_are_named_by_path():
    grid, seen = InProcessGrid(echo, 6), []
    nodes = grid.get_node_ids()

    def site(*rooms):
        results = yield Together({f"room-{i}": asking(room) for i, room in enumerate(rooms)})
        (reply,) = yield [Message(RecordDict(), nodes[5], "query.profile")]
        return results, reply.metadata.src_node_id

    def cloud():
        return (yield Together({"north": site(nodes[:1], nodes[1:3]), "south": site(nodes[3:5])}))

    result = converse(grid, {"": cloud(), "other": asking(nodes[:1])}, on_message=lambda *what: seen.append(what))
    assert list(result) == ["", "other"]
    assert list(result[""]) == ["north", "south"]
    assert result[""]["north"] == ({"room-0": nodes[:1], "room-1": nodes[1:3]}, nodes[5])
    assert result[""]["south"] == ({"room-0": nodes[3:5]}, nodes[5])
    sent = [path for path, direction, message in seen if direction == "downlink"]
    assert sorted(sent) == sorted(
        ["north/room-0", *["north/room-1"] * 2, "north", *["south/room-0"] * 2, "south", "other"]
    )
    # Nobody waits for another: south's second message goes out with north's.
    assert sent[:4] == ["north/room-0", "north/room-1", "south/room-0", "other"]


def test_conversations_that_ask_nobody_end_at_once_however_many():
    def nothing():
        return 7
        yield

    def many():
        counted = 0
        for _ in range(2000):
            counted += sum((yield Together({"a": nothing(), "b": nothing()})).values())
            assert (yield Together({})) == {}
        return counted

    assert converse(InProcessGrid(echo, 1), {"": many()}) == {"": 14 * 2000}


def test_what_a_conversation_inside_raises_reaches_whoever_runs_it():
    def broken():
        yield []
        raise RuntimeError("broken")

    def outer():
        yield Together({"a": broken()})

    with pytest.raises(RuntimeError, match="broken"):
        converse(InProcessGrid(echo, 1), {"": outer()})


def test_if_one_raises_the_others_give_back_what_they_hold_and_those_from_before_go_on():
    ended, is_over = [], False

    def holding(name, *inside):
        try:
            yield Together({str(i): one for i, one in enumerate(inside)}) if inside else Until(lambda: is_over)
        finally:
            ended.append(name)

    def begins(one):
        yield Beside([one])

    def passed_on(messages):
        return (yield messages)

    def failing():
        yield []
        raise ValueError("broken")

    conversations = Conversations(InProcessGrid(echo, 1))
    conversations.run({"": begins(holding("late"))})
    outer = holding("outer", answered(holding("inner"), passed_on))
    with pytest.raises(ValueError, match="broken"):
        conversations.run({"a": outer, "b": failing()})
    assert ended == ["inner", "outer"]
    is_over = True
    conversations.advance()
    assert ended == ["inner", "outer", "late"]


def test_answered_steps_are_answered_by_another_conversation():
    grid = InProcessGrid(echo, 2)
    nodes = grid.get_node_ids()

    def twice(messages):
        replies = yield messages
        again = yield [Message(RecordDict(), nodes[1], "query.profile") for _ in replies]
        return again

    assert converse(grid, {"": answered(asking(nodes[:1] * 2), twice)}) == {"": [nodes[1]] * 2}


def test_a_trip_has_three_parts_and_what_a_node_tells_is_taken_out_of_its_reply():
    told = {0: (0.0, 0.0), 1: (9e9, 0.0), 2: (0.0, 9e9)}  # more than it took is no more than that

    def node(message, context):
        reply = echo(message, context)
        computing, waiting = told[context.node_config["partition-id"]]
        ToldSeconds(computing, waiting).add_to(reply)
        return reply

    grid, trips = InProcessGrid(node, 3), []

    def conversation():
        replies = yield [Message(RecordDict(), node_id, "query.profile") for node_id in grid.get_node_ids()]
        return [SECONDS in reply.content for reply in replies]

    assert converse(grid, {"edge": conversation()}, on_trip=lambda *what: trips.append(what))["edge"] == [False] * 3
    assert [(path, message.metadata.dst_node_id) for path, message, _ in trips] == [
        ("edge", node_id) for node_id in grid.get_node_ids()
    ]
    whole = [
        (trip.computing / trip.seconds, trip.waiting / trip.seconds, trip.transfer / trip.seconds) for *_, trip in trips
    ]
    assert sorted(whole) == [(0.0, 0.0, 1.0), (0.0, 1.0, 0.0), (1.0, 0.0, 0.0)]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0, 3, "x", b"x", [1.0]])
def test_what_is_no_time_is_not_told(value):
    InProcessGrid(echo, 1)
    reply = Message(RecordDict({SECONDS: ConfigRecord({"computing": value, "waiting": 0.5})}), 1, "query")
    assert ToldSeconds.removed_from(reply) == ToldSeconds(0.0, 0.5)
    reply.content[SECONDS] = ArrayRecord()
    assert ToldSeconds.removed_from(reply) == ToldSeconds()
    assert not reply.content


def test_a_node_that_failed_has_no_trip():
    def fails(message, context):
        raise ValueError

    trips = []
    grid = InProcessGrid(fails, 1)
    converse(grid, {"": asking(grid.get_node_ids())}, on_trip=lambda *what: trips.append(what))
    assert trips == []
