import logging
import os
import time

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.common.constant import ErrorCode

from espalier.sim.in_process_grid import InProcessGrid
from espalier.sim.ray_grid import RayGrid, WorkerPlace, Workers, pack, unpack
from espalier.sim.simulated_grid import GridLost

SERVER = 1
NUM_NODES = 7
LARGE = np.arange(50_000, dtype=np.float32)


def warnings_in(caplog):
    """Return the warnings that were logged: of some tests' loggers, lines below are heard too."""
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def make_app():
    """Return an app that counts in its node's state, computes, logs, fails, dies or sleeps, as the message says."""
    logger = logging.getLogger("espalier.of-the-test")

    def app(message, context):
        config = message.content["config"]
        partition = context.node_config["partition-id"]
        calls = context.state.get("count", {"calls": 0})["calls"] + 1
        if config.get("die") == partition:
            os._exit(1)
        if config.get("sleep") == partition:
            time.sleep(0.3)
        if config.get("slow") and partition in config["slow"]:
            time.sleep(0.2)
        context.state["count"] = MetricRecord({"calls": calls})
        if config.get("fail") == partition:
            raise LookupError("no such thing")
        logger.info("partition %d, call %d", partition, calls)
        arrays = [array * np.float32(partition + calls) for array in message.content["arrays"].to_numpy_ndarrays()]
        metrics = MetricRecord({"calls": calls, "lr": context.run_config["lr"]})
        return Message(RecordDict({"arrays": ArrayRecord(arrays), "metrics": metrics}), reply_to=message)

    return app


def fail_to_make():
    raise ImportError("no module\nnamed so")


def new_grid(workers, **options):
    return RayGrid(workers, make_app, NUM_NODES, run_config={"lr": 0.5}, seed=3, **options)


@pytest.fixture(scope="module")
def two_workers(ray_here):
    workers = Workers([WorkerPlace()] * 2)
    yield workers
    workers.close()


@pytest.fixture(scope="module")
def grid_of_all(two_workers):
    return new_grid(two_workers, sizes=[1, 5, 3, 3, 1, 1, 1])


@pytest.fixture
def grid(grid_of_all):
    """Return a grid of two workers, whose nodes have no states."""
    grid_of_all.load_state_dict({})
    return grid_of_all


@pytest.fixture
def reference():
    return InProcessGrid(make_app(), NUM_NODES, run_config={"lr": 0.5}, seed=3)


def messages(grid, **config):
    content = RecordDict({"arrays": ArrayRecord([LARGE, np.ones(3)]), "config": ConfigRecord(config)})
    return [Message(content, node_id, "train", group_id="g") for node_id in grid.get_node_ids()]


def told(replies):
    """Return the contents of replies, and what tells about them."""
    return [
        (m.src_node_id, m.group_id, m.message_type, r.error.reason if r.has_error() else r.content)
        for r in replies
        for m in [r.metadata]
    ]


def round_of(grid, **config):
    return told(grid.send_and_receive(messages(grid, **config)))


def pulled(grid, ids):
    """Return all replies, however they come, in the order of their messages."""
    replies = {}
    while rest := [i for i in ids if i not in replies]:
        replies |= {reply.metadata.reply_to_message_id: reply for reply in grid.pull_messages(rest)}
    return [replies[i] for i in ids]


def test_replies_and_states_are_those_of_one_process(grid, reference):
    assert grid.get_node_ids() == reference.get_node_ids()
    for config in ({}, {"fail": 2}, {}):
        assert round_of(grid, **config) == round_of(reference, **config)
    assert grid.state_dict() == reference.state_dict() != {}


def test_states_go_from_one_grid_to_another(grid, reference):
    round_of(grid), round_of(reference)
    reference.load_state_dict(grid.state_dict())
    assert round_of(reference) == round_of(grid)
    grid.load_state_dict({})
    assert round_of(grid)[0][-1]["metrics"]["calls"] == 1


def test_the_largest_nodes_are_spread_first(grid):
    pids = [grid.worker_of(node_id)["pid"] for node_id in grid._nodes]
    first, second = pids[1], pids[2]
    assert first != second
    # Sizes 5, 3, 3, 1, 1, 1, 1: to the one with less, the first where both have as much.
    assert pids == [first, first, second, second, first, second, first]


def test_nodes_go_where_the_time_that_they_took_is_evened_out(two_workers, reference):
    moving, staying = new_grid(two_workers, moves=True), new_grid(two_workers)
    slow = [0, 2, 4]  # nodes that are alike go to the workers in turn, and these to the first one
    for _ in range(2):
        expected = round_of(reference, slow=slow)
        assert round_of(moving, slow=slow) == round_of(staying, slow=slow) == expected

    def at_the_first(grid):
        pids = [grid.worker_of(node_id)["pid"] for node_id in grid._nodes]
        return sum(pids[partition] == grid.workers[0]["pid"] for partition in slow)

    assert at_the_first(staying) == 3
    assert at_the_first(moving) in (1, 2)


def test_replies_that_are_there_do_not_wait_for_others(grid):
    slow = grid._nodes[grid.get_node_ids()[0]].partition_id
    ids = grid.push_messages(messages(grid, sleep=slow))
    first = grid.pull_messages(ids)
    assert 0 < len(first) < len(ids)
    got = [reply.metadata.reply_to_message_id for reply in first]
    rest = pulled(grid, [i for i in ids if i not in got])
    assert sorted([*got, *(reply.metadata.reply_to_message_id for reply in rest)]) == ids
    (unknown,) = grid.pull_messages([ids[0]])
    assert unknown.error.code == ErrorCode.MESSAGE_UNAVAILABLE


def test_workers_log_here_once_in_the_order_of_their_work(grid, caplog):
    caplog.set_level(logging.INFO, "espalier")
    ids = grid.push_messages(messages(grid))
    pulled(grid, ids)
    for pid in {worker["pid"] for worker in grid.workers}:
        own = [n for n in grid.get_node_ids() if grid.worker_of(n)["pid"] == pid]
        lines = [f"partition {grid._nodes[n].partition_id}, call 1" for n in own]
        assert [line for line in caplog.messages if line in lines] == lines
    assert len(caplog.messages) == NUM_NODES


def test_a_message_can_be_changed_after_it_was_pushed(grid, reference):
    for each in (grid, reference):
        sent = messages(each)
        ids = each.push_messages(sent)
        sent[0].content["config"]["fail"] = 0
        sent[0].content["arrays"].clear()
        assert not any(reply.has_error() for reply in pulled(each, ids))


def test_a_disconnected_node_answers_with_an_error(grid):
    node_id = grid.get_node_ids()[0]
    grid.disconnect(node_id)
    assert node_id not in grid.get_node_ids()
    (reply,) = grid.send_and_receive([Message(RecordDict(), node_id, "train")])
    assert reply.error.code == ErrorCode.NODE_UNAVAILABLE
    grid.connect(node_id)
    assert len(round_of(grid)) == NUM_NODES


def test_worker_after_worker_dies(ray_here, reference, caplog):
    workers = Workers([WorkerPlace()] * 4)
    try:
        grid = new_grid(workers)
        assert round_of(grid) == round_of(reference)
        slow = grid._nodes[grid.get_node_ids()[0]].partition_id

        # In the middle of its work: others do it, from the states before.
        ids = grid.push_messages(messages(grid, sleep=slow))
        victim = grid.worker_of(grid.get_node_ids()[0])
        os.kill(victim["pid"], 9)
        assert told(pulled(grid, ids)) == round_of(reference, sleep=slow)
        (line,) = warnings_in(caplog)
        assert (
            f"(process {victim['pid']} on {victim['host']}) died: its nodes go to others, of which 3 are left" in line
        )
        assert round_of(grid) == round_of(reference)
        assert grid.state_dict() == reference.state_dict()

        # With one and the same message: its node is left out, and all others answer.
        caplog.clear()
        replies, expected = round_of(grid, die=4), round_of(reference)
        bad = list(grid._nodes)[4]
        assert [r for r in replies if r[0] != SERVER] == [r for r in expected if r[0] != bad]
        assert [r[-1] for r in replies if r[0] == SERVER] == ["2 workers died with its 'train'"]
        left_out = f"node {bad} (partition 4) is left out: 2 workers died with its 'train'"
        assert [line for line in warnings_in(caplog) if "died:" not in line] == [left_out]
        assert bad not in grid.get_node_ids()
        assert len(grid.workers) == 1
        assert round_of(grid) == [r for r in round_of(reference) if r[0] != bad]

        os.kill(grid.workers[0]["pid"], 9)
        with pytest.raises(GridLost, match="no Ray worker is left"):
            round_of(grid)
    finally:
        workers.close()


def test_a_message_behind_others_takes_down_two_workers_and_no_third(ray_here, reference):
    workers = Workers([WorkerPlace()] * 3)
    try:
        grid = new_grid(workers)
        victim = grid.worker_of(grid.get_node_ids()[0])
        first, bad = [n for n in grid.get_node_ids() if grid.worker_of(n) == victim][:2]
        of_first, of_bad = (grid._nodes[n].partition_id for n in (first, bad))
        ids = grid.push_messages(messages(grid, sleep=of_first)[:1])
        ids += grid.push_messages(messages(grid, die=of_bad))
        # The worker is still at the first message. It is unknown with which one of its messages it died.
        os.kill(victim["pid"], 9)
        replies = told(pulled(grid, ids))
        expected = told(reference.send_and_receive(messages(reference)[:1])) + round_of(reference)
        assert [r for r in replies if r[0] != SERVER] == [r for r in expected if r[0] != bad]
        assert [r[-1] for r in replies if r[0] == SERVER] == ["2 workers died with its 'train'"]
        assert len(grid.workers) == 1
    finally:
        workers.close()


def test_an_app_that_can_not_be_made_is_one_line(two_workers):
    with pytest.raises(GridLost, match=r"^a Ray worker can't start: ImportError: no module named so$"):
        RayGrid(two_workers, fail_to_make, 2)


class Unreadable:
    """What a worker can't unpickle, as a class whose module it does not have."""

    def __reduce__(self):
        return unreadable_but_here, (os.getpid(),)


def unreadable_but_here(pid):
    if os.getpid() != pid:
        raise ModuleNotFoundError("No module named 'theirs'")
    return Unreadable()


def test_what_a_worker_can_not_unpickle_is_one_line_that_says_what_to_do(two_workers):
    said = (
        r"^a Ray worker can't start: it can't read what it was sent \(ModuleNotFoundError: No module named 'theirs'\): "
        "install your own modules on all machines, or put them beside the run$"
    )
    with pytest.raises(GridLost, match=said):
        RayGrid(two_workers, Unreadable(), 2)


def test_a_worker_that_fails_by_itself_is_one_line(two_workers):
    grid = new_grid(two_workers)
    grid._grid_id = "another"  # which no worker knows
    grid.push_messages(messages(grid))
    with pytest.raises(GridLost, match=r"^worker \d \(process \d+ on .*\) failed: KeyError: 'another'$"):
        grid.pull_messages([f"another-{0:012d}"])


def test_a_node_that_is_disconnected_while_it_works_goes_on_from_the_state_that_it_had(grid, reference):
    for each in (grid, reference):
        round_of(each)
        node_id = each.get_node_ids()[0]
        (message,) = [m for m in messages(each) if m.metadata.dst_node_id == node_id]
        ids = each.push_messages([message])
        each.disconnect(node_id)
        (reply,) = each.pull_messages(ids)
        assert reply.error.code == ErrorCode.NODE_UNAVAILABLE
        each.connect(node_id)
    assert round_of(grid) == round_of(reference)
    assert grid.state_dict() == reference.state_dict()


def test_nodes_of_a_group_are_at_one_worker(two_workers):
    grid = new_grid(two_workers, groups=[0, 0, 1, 1, 1, 2, 2])
    pids = [grid.worker_of(node_id)["pid"] for node_id in grid._nodes]
    first, second = pids[2], pids[0]
    # Sizes 2, 3, 2: group 1 goes first, then 0 to the other, and 2 to that too.
    assert pids == [second, second, first, first, first, second, second]


def test_a_large_array_is_packed_once_and_beside_the_rest():
    array = next(iter(ArrayRecord([LARGE]).values()))
    head, *buffers = pack([ArrayRecord({"a": array}), ArrayRecord({"b": array})])
    assert len(head) < 2_000
    assert [buffer.raw().nbytes for buffer in buffers] == [len(array.data)]
    first, second = unpack(head, *buffers)
    assert type(first["a"].data) is bytes
    assert first["a"].data is second["b"].data
    assert np.array_equal(second["b"].numpy(), LARGE)
