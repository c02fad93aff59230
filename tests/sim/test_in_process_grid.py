import random
import time

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode
from flwr.serverapp.strategy import FedAvg
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

from espalier.sim.in_process_grid import InProcessGrid
from espalier.sim.side_by_side import FittingThreads, Threads

SERVER = 1
MODEL = np.array([[1.0, 2.0], [3.0, 4.0]], dtype=np.float32)

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """Add the partition index + 1 to every array; count the calls in the state."""
    partition = context.node_config["partition-id"]
    calls = context.state.get("count", MetricRecord({"calls": 0}))["calls"] + 1
    context.state["count"] = MetricRecord({"calls": calls})
    arrays = [array + np.float32(partition + 1) for array in message.content["arrays"].to_numpy_ndarrays()]
    metrics = MetricRecord({"num-examples": 2**partition, "calls": calls})
    return Message(RecordDict({"arrays": ArrayRecord(arrays), "metrics": metrics}), reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    partition = context.node_config["partition-id"]
    loss = float(sum(array.sum() for array in message.content["arrays"].to_numpy_ndarrays()))
    metrics = MetricRecord({"num-examples": 2**partition, "loss": loss})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)


@app.query("custom")
def custom(message: Message, context: Context) -> Message:
    """Report the context; fail, after having written to the state, where the message says so."""
    calls = context.state.get("count", MetricRecord({"calls": 0}))["calls"] + 1
    context.state["count"] = MetricRecord({"calls": calls})
    if message.content["config"].get("fail"):
        message.metadata.group_id = "spoilt"
        raise LookupError("no such thing")
    seen = {**context.node_config, "calls": calls, "node-id": str(context.node_id), **context.run_config}
    return Message(RecordDict({"seen": ConfigRecord(seen)}), reply_to=message)


@app.query("echo")
def echo(message: Message, context: Context) -> Message:
    return Message(message.content, reply_to=message)


def records(**config):
    return RecordDict({"arrays": ArrayRecord([MODEL]), "config": ConfigRecord(config)})


def ask(grid, node_id, message_type="query.custom", **config):
    [reply] = grid.send_and_receive([Message(records(**config), node_id, message_type)])
    return reply


def by_partition(grid):
    seen = {node_id: ask(grid, node_id).content["seen"] for node_id in grid.get_node_ids()}
    return sorted(seen, key=lambda node_id: seen[node_id]["partition-id"])


# Nodes


def test_node_ids_follow_the_seed_and_tell_nothing():
    grids = [InProcessGrid(app, 50, seed=seed) for seed in (7, 7, 8)]
    ids = [by_partition(grid) for grid in grids]
    assert ids[0] == ids[1]
    assert not set(ids[0]) & set(ids[2])
    assert len(set(ids[0])) == 50
    assert min(ids[0]) > SERVER
    assert max(ids[0]).bit_length() == 63
    assert ids[0] != sorted(ids[0])
    assert grids[0].get_node_ids() == sorted(ids[0])
    assert [node.node_id for node in grids[0].get_nodes()] == grids[0].get_node_ids()


def test_node_ids_can_be_given():
    grid = InProcessGrid(app, 2, node_ids=[9, 5])
    assert by_partition(grid) == [9, 5]
    assert grid.get_node_ids() == [5, 9]
    with pytest.raises(ValueError, match="node_ids has 1 entries for 2 nodes"):
        InProcessGrid(app, 2, node_ids=[9])


def test_context_holds_both_configs():
    configs = [{"edge-name": "north"}, {"edge-name": "south", "num-partitions": 9}]
    grid = InProcessGrid(app, 2, run_config={"lr": 0.5}, node_configs=configs)
    first, second = (ask(grid, node_id) for node_id in by_partition(grid))
    assert first.content["seen"] == {
        "partition-id": 0,
        "num-partitions": 2,
        "edge-name": "north",
        "calls": 2,
        "node-id": str(first.metadata.src_node_id),
        "lr": 0.5,
    }
    assert second.content["seen"]["edge-name"] == "south"
    assert second.content["seen"]["num-partitions"] == 9


@pytest.mark.parametrize(("num_nodes", "configs"), [(0, None), (-1, None), (2, [{}]), (1, [{}, {}])])
def test_impossible_numbers_of_nodes_are_refused(num_nodes, configs):
    with pytest.raises(ValueError, match="node"):
        InProcessGrid(app, num_nodes, node_configs=configs)


def test_a_plain_function_serves_as_client_app():
    grid = InProcessGrid(lambda message, context: Message(message.content, reply_to=message), 1)
    assert ask(grid, *grid.get_node_ids(), "train", x=3).content == records(x=3)


# Messages and replies


def test_reply_metadata_mirror_the_message():
    grid = InProcessGrid(app, 3)
    node_ids = grid.get_node_ids()
    messages = [Message(records(x=i), node_ids[i], "query.echo", group_id="r4", ttl=60.0) for i in (2, 0, 1)]
    ids = grid.push_messages(messages)
    assert [message.metadata.message_id for message in messages] == ids
    replies = grid.pull_messages(ids)
    assert [reply.metadata.reply_to_message_id for reply in replies] == ids
    for message, reply in zip(messages, replies, strict=True):
        sent, got = message.metadata, reply.metadata
        assert reply.content == message.content
        assert (got.src_node_id, got.dst_node_id) == (sent.dst_node_id, SERVER)
        assert (got.message_type, got.group_id, got.run_id) == ("query.echo", "r4", sent.run_id)
        assert 0 < got.ttl <= 60.0
    assert len({*ids, *(reply.metadata.message_id for reply in replies)}) == 6


def test_order_of_pulling_changes_nothing():
    def run(shuffle):
        grid = InProcessGrid(app, 4, seed=3)
        messages = [Message(records(), node_id, "train") for node_id in grid.get_node_ids() * 3]
        ids = grid.push_messages(messages)
        asked = list(ids)
        shuffle(asked)
        replies = {reply.metadata.reply_to_message_id: reply for reply in grid.pull_messages(iter(asked))}
        return [replies[message_id].content for message_id in ids], grid.state_dict()

    expected, state = run(lambda ids: None)
    assert [content["metrics"]["calls"] for content in expected] == [1] * 4 + [2] * 4 + [3] * 4
    for seed in range(3):
        assert run(random.Random(seed).shuffle) == (expected, state)
    assert run(list.reverse) == (expected, state)


def test_pulling_one_edge_runs_only_its_messages():
    ran = []

    def client_app(message, context):
        ran.append(context.node_config["partition-id"])
        return Message(message.content, reply_to=message)

    grid = InProcessGrid(client_app, 4)
    by_index = by_partition(InProcessGrid(app, 4))  # same seed, same ids
    edge_a = grid.push_messages([Message(records(), by_index[i], "train") for i in (2, 0)])
    edge_b = grid.push_messages([Message(records(), by_index[i], "train") for i in (1, 3)])
    assert ran == []
    assert len(grid.pull_messages(edge_b)) == 2
    assert ran == [1, 3]
    assert grid.pull_messages([]) == []
    assert len(grid.pull_messages(edge_a)) == 2
    assert ran == [1, 3, 2, 0]


def test_a_message_to_an_unknown_node_is_not_pushed():
    grid = InProcessGrid(app, 2)
    known = grid.get_node_ids()
    messages = [Message(records(), node_id, "query.echo") for node_id in (known[0], 12345, known[1])]
    ids = grid.push_messages(messages)
    assert ids == [messages[0].metadata.message_id, messages[2].metadata.message_id]
    assert [reply.metadata.src_node_id for reply in grid.pull_messages(ids)] == known


def test_a_reply_is_delivered_once():
    grid = InProcessGrid(app, 1)
    ids = grid.push_messages([Message(records(), *grid.get_node_ids(), "query.custom")])
    [first] = grid.pull_messages(ids + ids)
    assert first.content["seen"]["calls"] == 1
    for unavailable in [*grid.pull_messages(ids), *grid.pull_messages(["never pushed"])]:
        assert unavailable.error.code == ErrorCode.MESSAGE_UNAVAILABLE
        assert (unavailable.metadata.src_node_id, unavailable.metadata.dst_node_id) == (SERVER, SERVER)
    assert ask(grid, *grid.get_node_ids()).content["seen"]["calls"] == 2


def test_replies_cannot_be_pushed():
    grid = InProcessGrid(app, 1)
    reply = ask(grid, *grid.get_node_ids(), "query.echo")
    with pytest.raises(ValueError, match="reply"):
        grid.push_messages([reply])


# Isolation


def spoil(content):
    content["arrays"]["0"].data = b"spoilt"
    content["config"]["list"].append(666)
    content["config"]["x"] = 666
    del content["metrics"]
    content["new"] = MetricRecord()


def fresh():
    content = records(x=1, list=[1, 2, 3])
    content["metrics"] = MetricRecord({"loss": [0.5, 0.25]})
    return content


def test_neither_side_sees_the_other_change_its_objects():
    kept = []

    def client_app(message, context):
        received = RecordDict(dict(message.content))
        assert received == fresh()
        kept.append(message.content)
        context.state["mine"] = message.content["config"]
        reply = Message(fresh(), reply_to=message)
        spoil(message.content)
        kept.append(reply.content)
        kept.append(context)
        return reply

    grid = InProcessGrid(client_app, 1, run_config={"lr": 0.5})
    sent = Message(fresh(), *grid.get_node_ids(), "train")
    ids = grid.push_messages([sent])
    assert sent.content == fresh()
    spoil(sent.content)  # after the push: the client must not see it
    [reply] = grid.pull_messages(ids)
    state = grid.state_dict()
    spoil(kept[1])
    kept[2].state["mine"]["list"].append(667)
    kept[2].node_config["partition-id"] = 9
    assert reply.content == fresh()
    assert grid.state_dict() == state
    spoil(reply.content)
    again = Message(fresh(), *grid.get_node_ids(), "train")
    [reply] = grid.send_and_receive([again])
    assert reply.has_content()
    assert kept[5].node_config["partition-id"] == 0


def test_copies_share_bytes_and_survive_cached_object_ids():
    grid = InProcessGrid(app, 1)
    message = Message(records(), *grid.get_node_ids(), "query.echo")
    object_id = message.content.object_id  # Flower caches memoryviews in the arrays now
    [reply] = grid.send_and_receive([message])
    assert reply.content["arrays"]["0"] is not message.content["arrays"]["0"]
    assert reply.content["arrays"]["0"].data is message.content["arrays"]["0"].data
    assert reply.content.object_id == object_id
    reply.content["arrays"]["0"].data = b"other"
    assert reply.content.object_id != object_id


# Failures


def test_state_is_kept_only_on_success():
    grid = InProcessGrid(app, 1)
    [node_id] = grid.get_node_ids()
    assert ask(grid, node_id).content["seen"]["calls"] == 1
    for _ in range(3):
        assert ask(grid, node_id, fail=True).has_error()
    assert ask(grid, node_id).content["seen"]["calls"] == 2


def test_an_exception_becomes_an_error_reply_of_the_node():
    grid = InProcessGrid(app, 3)
    failing, *others = grid.get_node_ids()
    messages = [Message(records(fail=node_id == failing), node_id, "query.custom") for node_id in grid.get_node_ids()]
    error_reply, *replies = grid.send_and_receive(messages, timeout=0.0)
    assert error_reply.error == Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, "LookupError: no such thing")
    metadata = error_reply.metadata
    assert (metadata.src_node_id, metadata.dst_node_id) == (failing, SERVER)
    assert metadata.reply_to_message_id == messages[0].metadata.message_id
    assert metadata.group_id == ""
    assert [reply.metadata.src_node_id for reply in replies] == others
    assert all(reply.has_content() for reply in replies)


def test_an_exception_that_fails_to_say_what_it_is_is_one_too():
    class Mute(Exception):
        def __str__(self):
            raise RuntimeError("no text")

    def raises(message, context):
        raise Mute

    grid = InProcessGrid(raises, 1)
    reply = ask(grid, *grid.get_node_ids())
    assert reply.error == Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, "Mute")


def test_a_message_type_without_handler_is_an_error_reply():
    grid = InProcessGrid(app, 1)
    reply = ask(grid, *grid.get_node_ids(), "query.nothing")
    assert reply.error.code == ErrorCode.CLIENT_APP_RAISED_EXCEPTION
    assert "No query function registered with name 'nothing'" in reply.error.reason


def returns_nothing(message, context):
    context.state["x"] = MetricRecord()


def replies_to_another(message, context):
    context.state["x"] = MetricRecord()
    return Message(message.content, 5, "train")


def changes_run_config(message, context):
    context.state["x"] = MetricRecord()
    context.run_config["lr"] = 1.0
    return Message(message.content, reply_to=message)


def breaks_its_state(message, context):
    context.state = None
    return Message(message.content, reply_to=message)


@pytest.mark.parametrize("client_app", [returns_nothing, replies_to_another, changes_run_config, breaks_its_state])
def test_what_flower_would_refuse_is_an_error_reply(client_app):
    grid = InProcessGrid(client_app, 1, run_config={"lr": 0.5})
    assert ask(grid, *grid.get_node_ids()).error.code == ErrorCode.CLIENT_APP_RAISED_EXCEPTION
    assert grid.state_dict() == {}


def test_an_error_reply_of_the_client_itself_is_passed_on():
    error = Error(1234, "not today")
    grid = InProcessGrid(lambda message, context: Message(error, reply_to=message), 1)
    assert ask(grid, *grid.get_node_ids()).error == error


def test_a_request_to_stop_is_not_an_error_reply():
    def client_app(message, context):
        context.state["x"] = MetricRecord()
        raise KeyboardInterrupt

    grid = InProcessGrid(client_app, 1)
    with pytest.raises(KeyboardInterrupt):
        ask(grid, *grid.get_node_ids())
    assert grid.state_dict() == {}


@pytest.mark.parametrize(("ending", "reason"), [(SystemExit(0), "SystemExit: 0"), (GeneratorExit(), "GeneratorExit: ")])
def test_a_client_app_that_ends_the_program_has_failed(ending, reason):
    def client_app(message, context):
        context.state["x"] = MetricRecord()
        raise ending

    grid = InProcessGrid(client_app, 1)
    error = ask(grid, *grid.get_node_ids()).error
    assert (error.code, error.reason) == (ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason)
    assert grid.state_dict() == {}


def test_a_disconnected_node_is_missed_and_comes_back_with_its_state():
    grid = InProcessGrid(app, 3)
    gone, *others = grid.get_node_ids()
    assert ask(grid, gone).content["seen"]["calls"] == 1
    [pending] = grid.push_messages([Message(records(), gone, "query.custom", group_id="r1")])
    grid.disconnect(gone)
    assert grid.get_node_ids() == others
    for reply, group_id in ((*grid.pull_messages([pending]), "r1"), (ask(grid, gone), "")):
        assert reply.error.code == ErrorCode.NODE_UNAVAILABLE
        assert reply.metadata.src_node_id == SERVER
        assert (reply.metadata.group_id, reply.metadata.message_type) == (group_id, "query.custom")
    grid.connect(gone)
    assert ask(grid, gone).content["seen"]["calls"] == 2
    with pytest.raises(KeyError):
        grid.disconnect(12345)


# State


def test_states_can_be_saved_and_loaded():
    grid = InProcessGrid(app, 3, seed=1)
    nodes = by_partition(grid)  # one call each
    ask(grid, nodes[2], "train")
    saved = grid.state_dict()
    assert sorted(saved) == ["0", "1", "2"]

    resumed = InProcessGrid(app, 3, seed=2)  # other ids: states belong to partitions
    assert resumed.state_dict() == {}
    resumed.load_state_dict(saved)
    assert resumed.state_dict() == saved
    calls = [ask(resumed, node_id).content["seen"]["calls"] for node_id in by_partition(resumed)]
    assert calls == [3, 3, 4]

    resumed.load_state_dict({"1": saved["1"]})
    assert resumed.state_dict() == {"1": saved["1"]}
    with pytest.raises(ValueError, match="'3'"):
        resumed.load_state_dict({"0": saved["0"], "3": saved["0"]})
    assert resumed.state_dict() == {"1": saved["1"]}


def test_states_keep_every_kind_of_record():
    content = fresh()
    content["config"] = ConfigRecord(
        {"flag": True, "raw": b"\x00\xff", "text": "ü", "big": 2**63, "many": [True, False]}
    )

    def client_app(message, context):
        if not context.state:
            context.state = message.content
        return Message(context.state, reply_to=message)

    grid, resumed = InProcessGrid(client_app, 1), InProcessGrid(client_app, 1)
    [node_id] = grid.get_node_ids()
    grid.send_and_receive([Message(content, node_id, "train")])
    resumed.load_state_dict(grid.state_dict())
    assert ask(resumed, node_id).content == content


# Flower


def test_fedavg_gives_the_weighted_average():
    """The numbers are small integers and the weights 1/8, 1/8, ..., so that float sums are exact in any order."""
    weights = np.array([1, 2, 4, 1])

    def client_app(message, context):
        reply = app(message, context)
        reply.content["metrics"]["num-examples"] = int(weights[context.node_config["partition-id"]])
        return reply

    grid = InProcessGrid(client_app, 4)
    result = FedAvg(min_available_nodes=4).start(grid, initial_arrays=ArrayRecord([MODEL]), num_rounds=3)
    steps = np.arange(1, 5)
    expected = MODEL
    for current_round in (1, 2, 3):
        expected = np.average([expected + step for step in steps], axis=0, weights=weights)
        assert result.train_metrics_clientapp[current_round] == {"calls": current_round}
        assert result.evaluate_metrics_clientapp[current_round] == {"loss": expected.sum()}
    [averaged] = result.arrays.to_numpy_ndarrays()
    assert np.array_equal(averaged, expected)


def test_run_and_identity_are_set_where_flower_has_not(monkeypatch):
    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, name, None)
    grid = InProcessGrid(app, 1)
    reply = ask(grid, *grid.get_node_ids())
    assert reply.metadata.run_id == grid.run.run_id == TaskIdentity.run_id
    assert TaskIdentity.node_id == SERVER


def test_run_and_identity_are_kept_where_flower_has(monkeypatch):
    monkeypatch.setattr(TaskIdentity, "_run_id", 77)
    runs = []

    def client_app(message, context):
        runs.append(context.run_id)
        return Message(message.content, reply_to=message)

    grid = InProcessGrid(client_app, 1)
    message = grid.create_message(records(), "train", *grid.get_node_ids(), group_id="r1")
    [reply] = grid.send_and_receive([message])
    assert grid.run.run_id == reply.metadata.run_id == 77
    assert (runs, reply.metadata.group_id) == ([77], "r1")


def test_set_run_wants_a_run():
    grid = InProcessGrid(app, 1)
    grid.set_run(Run.create_empty(5))
    grid.run.run_id = 6  # a copy
    assert grid.run.run_id == 5
    with pytest.raises(TypeError, match="int"):
        grid.set_run(7)


class Pairs:
    """Answers two nodes at once, each by its number in the message and what its state counts."""

    size = 2

    def __init__(self):
        self.sizes = []

    def accepts(self, message):
        return message.metadata.message_type == "train"

    def __call__(self, messages, contexts):
        self.sizes.append(len(messages))
        if any("fail" in message.content.config_records for message in messages):
            raise ValueError("not together")
        for context in contexts:
            context.state["seen"] = ConfigRecord({"stacked": True})
        return [Message(message.content, reply_to=message) for message in messages]


def alone(message, context):
    if "fail" in message.content.config_records:
        raise ValueError("not alone either")
    context.state["seen"] = ConfigRecord({"stacked": False})
    return Message(message.content, reply_to=message)


def test_a_stack_answers_several_messages_at_once_and_who_harms_it_is_answered_alone():
    pairs = Pairs()
    grid = InProcessGrid(alone, 5, stack=pairs)
    nodes = grid.get_node_ids()
    grid.disconnect(nodes[4])
    kinds = ["train", "train", "query", "train", "train"]
    messages = [Message(RecordDict(), node, kind) for node, kind in zip(nodes, kinds, strict=True)]
    messages.append(Message(RecordDict({"second": ConfigRecord()}), nodes[0], "train"))
    replies = grid.send_and_receive(messages)
    assert pairs.sizes == [2, 1]  # neither the query, nor a node that is away, nor a node's second message
    assert [reply.metadata.reply_to_message_id for reply in replies] == [m.metadata.message_id for m in messages]
    assert [reply.metadata.src_node_id for reply in replies[:4]] == nodes[:4]
    assert [reply.has_error() for reply in replies] == [False, False, False, False, True, False]
    assert len(grid.state_dict()) == 4

    bad = Message(RecordDict({"fail": ConfigRecord()}), nodes[1], "train")
    good = Message(RecordDict(), nodes[0], "train")
    first, second = grid.send_and_receive([good, bad])
    assert not first.has_error()
    assert "not alone either" in second.error.reason


@pytest.mark.parametrize("runs", [Threads(2), Threads(5), FittingThreads(3)])
def test_threads_give_the_replies_and_states_of_one(runs):
    """Also where nodes fail, are away, or have several messages, and whoever is ready first."""

    def waits(message, context):
        time.sleep(0.002 * (5 - context.node_config["partition-id"]))
        return app(message, context)

    def asked(grid):
        node_ids = grid.get_node_ids()
        grid.disconnect(node_ids[3])
        told = [*node_ids, node_ids[1], node_ids[0], node_ids[1]]
        contents = [records(fail=i % 4 == 2) for i in range(len(told))]
        kinds = ["query.custom", "train"] * len(told)
        sent = [Message(c, n, kind) for c, n, kind in zip(contents, told, kinds, strict=False)]
        return [
            (r.metadata.src_node_id, r.error if r.has_error() else repr(sorted(r.content.items())))
            for r in grid.send_and_receive(sent)
        ], grid.state_dict()

    assert asked(InProcessGrid(waits, 5, runs=runs)) == asked(InProcessGrid(app, 5))
