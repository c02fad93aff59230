"""A client that dies or lies in the middle of a split round leaves it; the others finish."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, MetricRecord
from flwr.clientapp import ClientApp
from torch import nn

from espalier.clients.messages.labels import LabelsQuery, RegisteredLabels
from espalier.clients.messages.split_names import (
    ACTIVATIONS,
    INDICES,
    LABELS,
    NUM_STEPS,
    SPLIT_BEGIN,
    SPLIT_FEATURES,
    STEP,
)
from espalier.clients.messages.train import METRICS, NUM_EXAMPLES
from espalier.clients.shared.arrays import to_array, values_of
from espalier.clients.task import Examples
from espalier.strategies import ask_profiles
from espalier.strategies.exchange import converse
from espalier.strategies.split import FineTuning, Relay, SplitFedV1, SplitFedV2
from espalier.strategies.split.server_block import ServerBlock
from espalier.strategies.views import MemberGrid
from tests.strategies.split.federation import SGD, Federation, assert_close, examples, same, tiny_model, weights
from tests.strategies.split.streams import ThreadedGrid, honest, lying, serving, streamed

# Says that it holds 10**14 numbers.
HUGE = to_array(torch.zeros(1)).data.replace(b"(1,), }" + b" " * 14, b"(100000000000000,), }")


def replace_activations(reply, change):
    values = reply.content[ACTIVATIONS][ACTIVATIONS].numpy()
    reply.content[ACTIVATIONS] = ArrayRecord({ACTIVATIONS: Array(np.ascontiguousarray(change(values)))})


def with_nan(values):
    values[0] = np.nan
    return values


def dies(reply, task):
    raise RuntimeError("the battery\nis empty")


def answers_an_old_step(reply, task):
    metrics = dict(reply.content[METRICS])
    reply.content[METRICS] = MetricRecord({**metrics, STEP: metrics[STEP] - 1})


def has_no_activations(reply, task):
    del reply.content[ACTIVATIONS]


def has_an_index_too_many(reply, task):
    indices = reply.content[INDICES][INDICES].numpy()
    indices[0] = len(task.train)
    reply.content[INDICES] = ArrayRecord({INDICES: Array(indices)})


def has_too_few_indices(reply, task):
    reply.content[INDICES] = ArrayRecord({INDICES: Array(reply.content[INDICES][INDICES].numpy()[1:])})


def sends_too_many(reply, task):
    replace_activations(reply, lambda values: np.concatenate([values] * 1000))
    reply.content[INDICES] = ArrayRecord({INDICES: Array(np.tile(reply.content[INDICES][INDICES].numpy(), 1000))})


FAULTS = [
    (dies, "the battery is empty"),
    (answers_an_old_step, "it answered step 0, not step 1"),
    (has_no_activations, "no record 'activations'"),
    (has_an_index_too_many, "an index is out of range"),
    (has_too_few_indices, "7 labels for 8 activations"),
    (sends_too_many, "8000 activations in a mini-batch, expected 8 at most"),
    (lambda reply, task: replace_activations(reply, lambda v: v[:, :-1]), "activations have shape"),
    (lambda reply, task: replace_activations(reply, lambda v: v.astype(np.float16)), "dtype torch.float16"),
    (lambda reply, task: replace_activations(reply, with_nan), "activations hold NaN or Inf"),
]


def faulty(federation, fault, client=1, kind="train.split_step", step=1):
    """The federation's ClientApp, in which one client goes wrong at one step of its first round."""
    app = federation.app()

    def answer(message, context):
        reply = app(message, context)
        partition_id = context.node_config["partition-id"]
        config = next(iter(message.content.config_records.values()), {})
        at = config.get("step", -1) + 1
        if (message.metadata.message_type, partition_id, at, config.get("server-round")) == (kind, client, step, 1):
            fault(reply, federation.tasks[partition_id])
        return reply

    return answer


class Huge:
    """Replaces the activations by finite ones with which the server block can't compute."""

    def __call__(self, reply, task):
        replace_activations(reply, lambda values: np.full_like(values, 1e308))


FAULTS.append((Huge(), "its activations make the loss, or a gradient, NaN or too large"))


@pytest.mark.parametrize(("fault", "reason"), FAULTS)
def test_sfl_v1_goes_on_without_the_client_as_if_it_had_not_been_there(fault, reason):
    federation = Federation(sizes=(20, 33, 14))
    make_edge = federation.split(SplitFedV1, lambda node_id: 2, max_batch=8)
    (outcome,) = federation.run(make_edge, rounds=1, grid=federation.grid(faulty(federation, fault)))
    update = outcome.edges["edge-0"].updates[0]
    assert [reason in failure.reason for failure in update.failures] == [True]
    assert "\n" not in update.failures[0].reason
    assert update.weight == 20 + 14

    # FedAvg in which that client's reply is lost is the same.
    def losing(message, context):
        if message.metadata.message_type == "train" and context.node_config["partition-id"] == 1:
            raise RuntimeError("lost")
        return federation.app()(message, context)

    (whole,) = federation.run(rounds=1, grid=federation.grid(losing))
    assert_close(weights(outcome), weights(whole))


@pytest.mark.parametrize(("kind", "options"), [(SplitFedV2, {"order": "one-by-one"}), (Relay, {})])
def test_a_shared_server_makes_no_step_with_activations_too_large(kind, options):
    federation = Federation(sizes=(20, 33, 14))
    make_edge = federation.split(kind, 1, **options)
    poisoned, without = (
        federation.run(make_edge, rounds=2, grid=federation.grid(faulty(federation, fault, 1, SPLIT_BEGIN, step=0)))
        for fault in (Huge(), dies)
    )
    (failure,) = poisoned[0].edges["edge-0"].updates[0].failures
    assert "its activations make the loss" in failure.reason
    assert same(weights(poisoned[-1]), weights(without[-1]))


@pytest.mark.parametrize(("kind", "cut"), [(SplitFedV1, lambda n: 2), (Relay, 2)])
def test_activations_too_large_for_the_server_block_are_their_clients_failure_through_streams_too(kind, cut):
    federation = Federation(sizes=(20, 33, 14))
    make_edge = federation.split(kind, cut)
    (expected,) = federation.run(
        make_edge, rounds=1, grid=federation.grid(faulty(federation, dies, 1, SPLIT_BEGIN, step=0))
    )
    app = lying(federation, lambda form, values, *rest: honest(form, torch.full_like(values, 1e308), *rest))
    with serving() as server:
        (found,) = federation.run(streamed(make_edge, server), rounds=1, grid=ThreadedGrid(app, 3))
    (failure,) = found.edges["edge-0"].updates[0].failures
    assert failure.reason == "its activations make the loss, or a gradient, NaN or too large"
    assert same(weights(found), weights(expected))


def test_a_step_that_is_not_made_leaves_the_server_block_as_it_was():
    server = ServerBlock(tiny_model(), 1, partial(torch.optim.Adam, lr=0.1))
    norm = nn.Sequential(nn.BatchNorm2d(4), nn.Conv2d(4, 4, 1))
    norm_server = ServerBlock(nn.Sequential(nn.Identity(), norm, nn.Flatten(), nn.Linear(256, 3)), 1, SGD)
    labels = torch.zeros(2, dtype=torch.int64)
    for block in (server, norm_server):
        block.step(torch.ones(2, 4, 8, 8), labels)
        weights_before = {name: tensor.clone() for name, tensor in block.state_dict().items()}
        optimizer_before = block.optimizer_arrays()
        # The second makes only the statistics of BatchNorm infinite: what it gives then is zero.
        for values in (torch.full((2, 4, 8, 8), 3e38), 1e30 * torch.randn(2, 4, 8, 8)):
            if block is norm_server or values[0, 0, 0, 0] > 1e38:
                with pytest.raises(ValueError, match="its activations make"):
                    block.step(values, labels)
                assert same(block.state_dict(), weights_before)
        assert optimizer_before.keys() == block.optimizer_arrays().keys()
        for name, values in block.optimizer_arrays().items():
            np.testing.assert_array_equal(values, optimizer_before[name])


@pytest.mark.parametrize("dtype", ["float32", "not a dtype", "<U9"])
@pytest.mark.parametrize("data", [b"", b"PK\x03\x04x", HUGE])
def test_a_client_block_that_can_not_be_read_is_its_failure(data, dtype):
    federation = Federation(sizes=(20, 33, 14))

    def lies(reply, task):
        block = reply.content["client-block"]
        name = next(iter(block))
        array = Array(dtype, tuple(block[name].shape), "numpy.ndarray", data)
        reply.content["client-block"] = ArrayRecord({**block, name: array})

    app = faulty(federation, lies, kind="train.split_end", step=5)
    (outcome,) = federation.run(federation.split(SplitFedV1, lambda n: 1), rounds=1, grid=federation.grid(app))
    (failure,) = outcome.edges["edge-0"].updates[0].failures
    assert "can't be read (" in failure.reason
    assert "\n" not in failure.reason
    assert outcome.edges["edge-0"].updates[0].weight == 20 + 14


@pytest.mark.parametrize(
    "data",
    [b"", b"PK\x03\x04x", HUGE, np.lib.format.magic(1, 0) + b"\x00", HUGE.replace(b"<f4", b"|O ") + b"\x01" * 64],
)
def test_labels_that_can_not_be_read_are_their_clients_failure(data):
    federation = Federation(sizes=(20, 33, 14))
    app = federation.app()

    def lies(message, context):
        reply = app(message, context)
        if message.metadata.message_type == "query.labels" and context.node_config["partition-id"] == 2:
            reply.content[LABELS] = ArrayRecord({LABELS: Array("int32", (14,), "numpy.ndarray", data)})
        return reply

    (outcome,) = federation.run(federation.split(SplitFedV1, lambda n: 1), rounds=1, grid=federation.grid(lies))
    (failure,) = outcome.edges["edge-0"].updates[0].failures
    assert "no labels registered: labels can't be read (" in failure.reason
    assert outcome.edges["edge-0"].updates[0].weight == 20 + 33


@pytest.mark.parametrize(
    "array",
    [
        np.zeros((0, 3), np.float32),
        np.array(7, np.int64),
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        np.ones(2, bool),
    ],
)
def test_an_array_is_read_as_it_was_written(array):
    values = values_of(Array(array))
    assert (values.dtype, values.shape) == (array.dtype, array.shape)
    np.testing.assert_array_equal(values, array)


@pytest.mark.parametrize(("fault", "reason"), [FAULTS[0], FAULTS[8]])
@pytest.mark.parametrize("kind", [SplitFedV2, Relay])
def test_a_shared_server_keeps_the_steps_made_before(kind, fault, reason):
    federation = Federation(sizes=(20, 33, 14))
    make_edge = federation.split(kind, 2)
    with_fault = federation.run(make_edge, rounds=2, grid=federation.grid(faulty(federation, fault)))
    first, second = (outcome.edges["edge-0"].updates[0] for outcome in with_fault)
    assert [reason in failure.reason for failure in first.failures] == [True]
    assert (len(first.participants), len(second.participants)) == (2, 3)
    assert not same(weights(with_fault[-1]), weights(federation.run(make_edge, rounds=2)[-1]))
    assert all(torch.isfinite(tensor.double()).all() for tensor in weights(with_fault[-1]).values())


def test_clients_without_registered_labels_are_left_out():
    federation = Federation(sizes=(20, 33, 14))
    app = federation.app()

    def shy(message, context):
        if message.metadata.message_type == "query.labels" and context.node_config["partition-id"] == 2:
            raise RuntimeError("my labels are mine")
        return app(message, context)

    (outcome,) = federation.run(federation.split(SplitFedV1, lambda n: 1), rounds=1, grid=federation.grid(shy))
    (failure,) = outcome.edges["edge-0"].updates[0].failures
    assert "no labels registered: " in failure.reason
    assert outcome.edges["edge-0"].updates[0].weight == 20 + 33


@pytest.mark.parametrize("policy", ["indices", "labels"])
def test_labels_that_are_no_integers_are_not_cut_off(policy):
    federation = Federation(sizes=(20, 33, 14))
    floats = Examples(federation.tasks[1].train.inputs, torch.full((33,), 0.9))
    federation.tasks[1] = replace(federation.tasks[1], train=floats)
    edge = federation.split(SplitFedV1, lambda n: 1, label_policy=policy)
    (outcome,) = federation.run(edge, rounds=1)
    (failure,) = outcome.edges["edge-0"].updates[0].failures
    assert "labels are torch.float32, an edge takes integers, the classes" in failure.reason
    assert outcome.edges["edge-0"].updates[0].weight == 20 + 14


def test_an_edge_whose_clients_all_leave_keeps_its_model():
    federation = Federation(sizes=(20, 33))
    app = federation.app()

    def all_die(message, context):
        if message.metadata.message_type == "train.split_step":
            raise RuntimeError("gone")
        return app(message, context)

    for kind, cut in ((SplitFedV1, lambda n: 1), (SplitFedV2, 1), (Relay, 1)):
        (outcome,) = federation.run(federation.split(kind, cut), rounds=1, grid=federation.grid(all_die))
        assert same(weights(outcome), dict(federation.make_model().state_dict()))
        assert len(outcome.edges["edge-0"].updates[0].failures) == 2


@pytest.mark.parametrize("kind", ["train.split_begin", "train.split_end"])
@pytest.mark.parametrize("claim", [10**9, 0, -1, 1.5])
def test_a_client_that_claims_other_steps_than_it_has_is_left_out(kind, claim):
    """Who claims more runs out of mini-batches."""
    federation = Federation(sizes=(20, 33, 14))

    def claims(reply, task):
        key = NUM_STEPS if kind == SPLIT_BEGIN else NUM_EXAMPLES
        reply.content[METRICS] = MetricRecord({**reply.content[METRICS], key: claim})

    app = faulty(federation, claims, kind=kind, step=0 if kind == SPLIT_BEGIN else 5)
    (outcome,) = federation.run(federation.split(SplitFedV1, lambda n: 1), rounds=1, grid=federation.grid(app))
    update = outcome.edges["edge-0"].updates[0]
    if (kind, claim) == ("train.split_end", 10**9):  # nobody else knows how many examples it has
        assert (len(update.failures), update.weight) == (0, 20 + 10**9 + 14)
    else:
        assert (len(update.failures), update.weight) == (1, 20 + 14)


@pytest.mark.parametrize(("kind", "cut"), [(SplitFedV1, lambda n: 1), (SplitFedV2, 1), (Relay, 1)])
def test_an_edge_whose_only_client_claims_no_examples_keeps_its_model(kind, cut):
    federation = Federation(sizes=(20, 33))

    def claims(reply, task):
        reply.content[METRICS] = MetricRecord({**reply.content[METRICS], NUM_EXAMPLES: 0})

    app = faulty(federation, claims, kind="train.split_end", step=5)
    (outcome,) = federation.run(federation.split(kind, cut), rounds=1, num_edges=2, grid=federation.grid(app))
    (failure,) = outcome.edges["edge-1"].updates[0].failures
    assert failure.reason == "num-examples is 0, expected a whole number from 1 on"
    assert len(outcome.edges["edge-0"].updates[0].participants) == 1


@pytest.mark.parametrize("dtype", ["(1,", "float31", "i4,i4", "O", ""])
def test_activations_of_no_data_type_are_their_clients_failure(dtype):
    federation = Federation(sizes=(20, 33, 14))

    def lies(reply, task):
        honest = reply.content[ACTIVATIONS][ACTIVATIONS]
        lie = Array(dtype, tuple(honest.shape), "numpy.ndarray", honest.data)
        reply.content[ACTIVATIONS] = ArrayRecord({ACTIVATIONS: lie})

    app = faulty(federation, lies)
    (outcome,) = federation.run(federation.split(SplitFedV1, lambda n: 1), rounds=1, grid=federation.grid(app))
    update = outcome.edges["edge-0"].updates[0]
    assert (len(update.failures), update.weight) == (1, 20 + 14)


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_whose_labels_have_changed_registers_them_anew(stream):
    """With indices alone it would train on the labels of other examples."""
    federation = Federation(sizes=(20, 33, 14))
    app, asked = federation.app(), []

    def changes(message, context):
        client, config = context.node_config["partition-id"], message.content.config_records.get("config", {})
        if message.metadata.message_type == "query.labels":
            asked.append(client)
        elif client == 1 and config.get("server-round") == 2 and len(federation.tasks[1].train) == 33:
            federation.tasks[1] = replace(federation.tasks[1], train=examples(33, seed=99))
        return app(message, context)

    make_edge = federation.split(SplitFedV1, lambda n: 1)
    with serving() as server:
        if stream:
            rounds = federation.run(streamed(make_edge, server), rounds=3, grid=ThreadedGrid(changes, 3))
        else:
            rounds = federation.run(make_edge, rounds=3, grid=federation.grid(changes))
    updates = [outcome.edges["edge-0"].updates[0] for outcome in rounds]
    assert [len(update.participants) for update in updates] == [3, 2, 3]
    assert "labels-changed: its data are not those whose labels it registered" in updates[1].failures[0].reason
    assert sorted(asked) == [0, 1, 1, 2]


def test_a_client_whose_state_is_lost_registers_its_labels_anew():
    federation = Federation(sizes=(20, 33))
    app = federation.app()

    def forgets(message, context):
        config = message.content.config_records.get("config", {})
        begins = message.metadata.message_type == SPLIT_BEGIN
        if begins and (context.node_config["partition-id"], config["server-round"]) == (1, 2):
            context.state.clear()
        return app(message, context)

    rounds = federation.run(federation.split(SplitFedV1, lambda n: 1), rounds=3, grid=federation.grid(forgets))
    assert [len(outcome.edges["edge-0"].updates[0].participants) for outcome in rounds] == [2, 1, 2]


def test_the_digest_of_labels_tells_others_nothing():
    """Clients with the same labels have other digests; a client's own stays the same until its labels change."""
    federation = Federation(sizes=(20, 20))
    federation.tasks[1] = replace(federation.tasks[1], train=federation.tasks[0].train)
    grid = federation.grid()
    ids = [profile.node_id for profile in ask_profiles(grid)]

    def digests():
        replies = grid.send_and_receive([LabelsQuery().to_message(node_id) for node_id in ids])
        return [RegisteredLabels.from_content(reply.content).digest for reply in replies]

    first, again = digests(), digests()
    assert first == again
    assert first[0] != first[1]
    federation.tasks[0] = replace(federation.tasks[0], train=examples(20, seed=99))
    assert digests()[0] != first[0]
    assert digests()[1] == first[1]


def test_a_client_that_fails_for_another_reason_is_not_asked_for_its_labels_again():
    federation, asked = Federation(sizes=(20, 33)), []
    app = faulty(federation, dies)

    def watched(message, context):
        asked.append(message.metadata.message_type)
        return app(message, context)

    first, second = federation.run(federation.split(SplitFedV1, lambda n: 1), rounds=2, grid=federation.grid(watched))
    assert [len(outcome.edges["edge-0"].updates[0].participants) for outcome in (first, second)] == [1, 2]
    assert asked.count("query.labels") == 2


def test_an_optimizers_state_stays_finite():
    """Squares of gradients this large would be infinite: Adam would never move these weights again."""
    with torch.random.fork_rng([]):
        torch.manual_seed(0)  # with some weights both labels are certain, and there is no gradient
        model = nn.Sequential(nn.Identity(), nn.Linear(4, 3))
    server = ServerBlock(model, 1, partial(torch.optim.Adam, lr=0.1))
    labels = torch.zeros(2, dtype=torch.int64)
    server.step(torch.ones(2, 4), labels)
    with pytest.raises(ValueError, match="its activations make the loss, or a gradient, NaN or too large"):
        server.step(1e24 * torch.randn(2, 4, generator=torch.Generator().manual_seed(0)), labels)
    assert all(np.isfinite(values).all() for values in server.optimizer_arrays().values())


def test_no_message_of_a_training_step_holds_labels_with_the_policy_indices():
    federation = Federation(sizes=(20, 33), local_epochs=2)
    seen = []

    def watch(message, context):
        reply = app(message, context)
        seen.append((message.metadata.message_type, context.node_config["partition-id"], reply.content))
        return reply

    app = federation.app()
    federation.run(federation.split(SplitFedV1, lambda n: 1), rounds=2, num_edges=2, grid=federation.grid(watch))
    kinds = [kind for kind, _, _ in seen]
    assert kinds.count("query.labels") == 2  # once per client, not once per round
    steps = [(client, content) for kind, client, content in seen if kind.startswith("train.split")]
    assert len(steps) > 20
    for client, content in steps:
        assert LABELS not in content
        labels = set(federation.tasks[client].train.labels.tolist())
        for record in content.array_records.values():
            for array in record.values():
                values = array.numpy()
                # Nothing small and whole travels but the sample indices.
                assert values.dtype.kind == "f" or set(record) == {INDICES} or values.ndim == 0
        assert set(content.metric_records[METRICS]) <= {STEP, NUM_STEPS, "num-examples"}
        assert labels == {0, 1, 2}


def test_profiles_are_asked_of_the_same_clients():
    federation = Federation()
    assert [p.num_train_examples for p in ask_profiles(federation.grid())] == list(federation.sizes)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda v: v[:, 0, 0, 0], "activations have shape (8,), expected (N, 4, 8, 8)"),
        (lambda v: np.zeros((8, 5)), "activations have shape (8, 5), expected (N, 4, 8, 8)"),
        (lambda v: v[:0], "activations have shape (0, 4, 8, 8), expected (N, 4, 8, 8)"),
        (lambda v: v.astype(np.float32), "activations have dtype torch.float32, expected torch.float64"),
        (lambda v: v[:3], "2 mini-batches with 16 labels for 6 samples"),
    ],
)
def test_activations_that_do_not_fit_a_fine_tuning_are_their_clients_failure(change, reason):
    federation = Federation()
    inner, app = federation.app(), ClientApp()

    def answer(message, context):
        reply = inner(message, context)
        if message.metadata.message_type == SPLIT_FEATURES and context.node_config["partition-id"] == 1:
            arrays = reply.content[ACTIVATIONS]
            reply.content[ACTIVATIONS] = ArrayRecord(
                {name: Array(np.ascontiguousarray(change(array.numpy()))) for name, array in arrays.items()}
            )
        return reply

    app.train("split_features")(answer)
    app.evaluate()(answer)
    for action in ("labels", "profile"):
        app.query(action)(answer)
    grid = federation.grid(app)
    members = [profile.node_id for profile in ask_profiles(grid)]
    edge = federation.split(SplitFedV1, lambda n: 1, evaluates_whole=True)("edge-0", 4)
    arrays = ArrayRecord(federation.make_model().state_dict())
    conversation = edge.personalise(arrays, FineTuning(2, 0.05), MemberGrid(grid, members))
    result = converse(grid, {"edge-0": conversation})["edge-0"]
    assert [(f.node_id, f.reason) for f in result.failures] == [(members[1], reason)]
    assert list(result.heads) == [members[0], *members[2:]]
