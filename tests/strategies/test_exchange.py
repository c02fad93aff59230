"""Exchanges that need not wait for everybody."""

import time

import pytest
from flwr.app import Message, RecordDict

from espalier.sim.in_process_grid import InProcessGrid
from espalier.strategies.exchange import LATE, Losable, converse


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


@pytest.mark.parametrize("lost", [True, False])
def test_a_lost_reply_is_not_waited_for(lost):
    grid = Withholding(echo, 3)
    nodes = grid.get_node_ids()

    def conversation():
        messages = [Message(RecordDict(), node_id, "query.profile") for node_id in nodes]
        return (yield Losable(messages, lambda node_id: lost and node_id == nodes[0]))

    started = time.monotonic()
    replies = converse(grid, {"edge": conversation()}, timeout_seconds=0.5, poll_seconds=0.01)["edge"]
    assert [reply.has_error() for reply in replies] == [True, False, False]
    assert replies[0].error.code == LATE
    assert (time.monotonic() - started < 0.4) == lost
