"""Exchanges that need not wait for everybody, and conversations inside of others."""

import time

import pytest
from flwr.app import Message, RecordDict

from espalier.sim.in_process_grid import InProcessGrid
from espalier.strategies.exchange import LATE, Losable, Together, answered, converse


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
    replies = converse(grid, {"edge": conversation()}, timeout_seconds=seconds, poll_seconds=0.01)["edge"]
    assert [reply.has_error() for reply in replies] == [True, False, False]
    assert replies[0].error.code == LATE
    assert (time.monotonic() - started < seconds) == lost


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


def test_answered_steps_are_answered_by_another_conversation():
    grid = InProcessGrid(echo, 2)
    nodes = grid.get_node_ids()

    def twice(messages):
        replies = yield messages
        again = yield [Message(RecordDict(), nodes[1], "query.profile") for _ in replies]
        return again

    assert converse(grid, {"": answered(asking(nodes[:1] * 2), twice)}) == {"": [nodes[1]] * 2}
