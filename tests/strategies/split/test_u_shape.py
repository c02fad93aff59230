"""Two cuts: the head is the client's, and labels stay there; equal to the unsplit algorithms where theory says so."""

from collections import Counter
from functools import partial

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord
from torch.nn.functional import cross_entropy

from espalier.app.tasks.models import build_model
from espalier.clients.messages.split_names import FEATURE_GRADIENT, INDICES
from espalier.clients.messages.train import TRAIN_LOSS
from espalier.strategies.split import Cut, Relay, SplitFedV1, SplitFedV2
from tests.strategies.guards.tight import tight
from tests.strategies.split.federation import (
    SGD,
    Federation,
    assert_close,
    batches_of,
    every,
    model_with_dropout,
    momentum_sgd,
    same,
    weights,
)
from tests.strategies.split.streams import ThreadedGrid, serving, streamed

PAIRS = [Cut(1, 2), Cut(1, 3), Cut(2, 3)]
SIZES = (20, 33, 14)


@pytest.mark.parametrize("cut", PAIRS)
def test_sfl_v1_is_fedavg_at_every_pair_of_cuts(cut):
    federation = Federation(sizes=SIZES, local_epochs=2)
    split = federation.run(federation.split(SplitFedV1, every(cut)))
    whole = federation.run()
    assert_close(weights(split[-1]), weights(whole[-1]))
    assert split[-1].train_metrics["train_loss"] == pytest.approx(whole[-1].train_metrics["train_loss"], rel=1e-6)


@pytest.mark.parametrize("cut", PAIRS)
def test_sfl_v1_is_fedavg_at_every_pair_of_cuts_of_cnn(cut):
    make = partial(build_model, "cnn", image_shape=(3, 16, 16), num_classes=4, seed=1)
    federation = Federation(make, sizes=(16, 9), shape=(3, 16, 16), classes=4)
    split = federation.run(federation.split(SplitFedV1, every(cut)), rounds=1)
    assert_close(weights(split[-1]), weights(federation.run(rounds=1)[-1]))


@pytest.mark.slow
def test_sfl_v1_is_fedavg_at_pairs_of_cuts_of_resnet18():
    make = partial(build_model, "resnet18", image_shape=(3, 16, 16), num_classes=4, seed=1)
    federation = Federation(make, sizes=(4, 6), test_size=2, shape=(3, 12, 12), classes=4, batch_size=4)
    whole = weights(federation.run(rounds=1)[-1])
    for cut in (Cut(1, 4), Cut(3, 4)):
        split = federation.run(federation.split(SplitFedV1, every(cut)), rounds=1)
        assert_close(weights(split[-1]), whole, 1e-7)


def test_hsfl_is_hierarchical_fedavg_with_cuts_of_the_clients_own():
    federation, cuts = Federation(sizes=(20, 33, 14, 40)), {}

    def cut_of(node_id):
        return cuts.setdefault(node_id, (Cut(1, 3), Cut(2, 3), Cut(1, 4), Cut(1, 2))[len(cuts) % 4])

    options = {"num_edges": 2, "edge_rounds": 2, "rounds": 2}
    split = federation.run(federation.split(SplitFedV1, cut_of), **options)
    assert len(cuts) == 4
    assert_close(weights(split[-1]), weights(federation.run(**options)[-1]))


def reference(federation, kind, cut, order=None):
    """A round of SL or SFL-V2 as plain loops: the server's blocks are shared, the client has the others."""
    model = federation.make_model()
    middle = cut.server_side(model).train()
    server_optimizer = momentum_sgd(middle.parameters())
    start = {n: t.clone() for n, t in model.state_dict().items()}
    own = [federation.make_model().train() for _ in federation.sizes]
    fronts, tails = [cut.front(m) for m in own], [cut.tail(m) for m in own]
    optimizers = [SGD([*f.parameters(), *t.parameters()]) for f, t in zip(fronts, tails, strict=True)]
    todo = [batches_of(federation, i, 1) for i in range(len(own))]
    if kind is Relay:
        turns = [(i, k) for i, batches in enumerate(todo) for k in range(len(batches))]
    else:
        turns = [
            (i, k) for k in range(max(map(len, todo))) for i in order(k, [i for i in range(3) if k < len(todo[i])])
        ]
    for i, k in turns:
        if kind is Relay and k == 0 and i:
            own[i].load_state_dict(own[i - 1].state_dict())
        inputs, labels = todo[i][k]
        optimizers[i].zero_grad()
        server_optimizer.zero_grad()
        cross_entropy(tails[i](middle(fronts[i](inputs))), labels).backward()
        optimizers[i].step()
        server_optimizer.step()
    if kind is Relay:
        return {**own[-1].state_dict(), **middle.state_dict()}
    shares = [size / sum(federation.sizes) for size in federation.sizes]
    mean = {n: sum(share * m.state_dict()[n] for share, m in zip(shares, own, strict=True)) for n in start}
    return {**mean, **middle.state_dict()}


@pytest.mark.parametrize("cut", [Cut(1, 3), Cut(2, 3)])
def test_sl_relays_front_and_tail_as_written_in_loops(cut):
    federation = Federation(sizes=SIZES)
    split = federation.run(federation.split(Relay, cut, make_optimizer=momentum_sgd), rounds=1)
    assert_close(weights(split[-1]), reference(federation, Relay, cut))


@pytest.mark.parametrize("cut", [Cut(1, 2), Cut(1, 3)])
def test_sfl_v2_serves_the_clients_in_turn_as_written_in_loops(cut, monkeypatch):
    drawn, original = {}, SplitFedV2.random_order

    def spy(self, items, *purpose):
        drawn[purpose] = original(self, items, *purpose)
        return drawn[purpose]

    monkeypatch.setattr(SplitFedV2, "random_order", spy)
    federation = Federation(sizes=SIZES)
    split = federation.run(federation.split(SplitFedV2, cut, make_optimizer=momentum_sgd), rounds=1)
    expected = reference(federation, SplitFedV2, cut, lambda k, active: [active[i] for i in drawn["order", 1, k]])
    found, counter = weights(split[-1]), "first.1.num_batches_tracked"  # an integer, whose average is rounded
    assert abs(int(found.pop(counter)) - float(expected.pop(counter))) <= 0.5
    assert_close(found, expected)


KINDS = [(SplitFedV1, every(Cut(1, 3))), (SplitFedV2, Cut(1, 3)), (Relay, Cut(2, 3))]


@pytest.mark.parametrize(("kind", "cut"), KINDS)
def test_sessions_in_the_contexts_state_give_the_same_bits_as_sessions_in_memory(kind, cut):
    federation = Federation(model_with_dropout, sizes=SIZES, optimizer="adam", learning_rate=0.01)
    make_edge = federation.split(kind, cut)
    memory = federation.run(make_edge, rounds=1)

    # A process of its own for every message: nothing survives but the context.
    def forgetful(message, context):
        return federation.app(durable=True)(message, context)

    for grid in (federation.grid(durable=True), federation.grid(forgetful)):
        kept = federation.run(make_edge, rounds=1, grid=grid)
        assert same(weights(memory[-1]), weights(kept[-1]))
        assert kept[-1].train_metrics["train_loss"] == memory[-1].train_metrics["train_loss"]


@pytest.mark.parametrize(("kind", "cut"), KINDS)
def test_streams_give_the_bits_of_messages(kind, cut):
    federation = Federation(sizes=SIZES)
    make_edge = federation.split(kind, cut)
    (expected,) = federation.run(make_edge, rounds=1)
    with serving() as server:
        (found,) = federation.run(streamed(make_edge, server), rounds=1, grid=ThreadedGrid(federation.app(), 3))
    assert not found.edges["edge-0"].updates[0].failures
    assert same(weights(found), weights(expected))


class Recorded:
    """An app whose messages are kept."""

    def __init__(self, app):
        self.app, self.exchanges = app, []

    def __call__(self, message, context):
        reply = self.app(message, context)
        self.exchanges.append((message, reply))
        return reply


def test_a_round_of_s_mini_batches_is_two_s_messages_and_one():
    federation = Federation(sizes=(20,))  # 3 mini-batches
    recorded = Recorded(federation.app())
    make_edge = federation.split(SplitFedV1, every(Cut(1, 3)), evaluates_whole=True)
    federation.run(make_edge, rounds=1, grid=federation.grid(recorded))
    kinds = [message.metadata.message_type for message, _ in recorded.exchanges]
    step = ["train.split_tail", "train.split_step"]
    assert [kind for kind in kinds if "split" in kind] == [
        "train.split_begin",
        *step,
        *step,
        step[0],
        "train.split_end",
    ]


@pytest.mark.parametrize(("cut", "exchanges"), [(1, 1), (Cut(1, 3), 2)])
def test_in_a_stream_a_mini_batch_is_one_exchange_or_two_with_a_tail(cut, exchanges):
    federation, frames = Federation(sizes=(20, 33)), Counter()  # 3 and 5 mini-batches

    def note(direction, kind, size):
        frames[direction] += kind != INDICES  # these go with the activations

    with serving() as server:
        make_edge = streamed(federation.split(SplitFedV1, every(cut)), server, on_bytes=note)
        (outcome,) = federation.run(make_edge, rounds=1)
    assert not outcome.edges["edge-0"].updates[0].failures
    assert frames == {"uplink": exchanges * 8, "downlink": exchanges * 8}


def dies(reply):
    raise RuntimeError("the battery is empty")


def replace_gradient(reply, change):
    values = reply.content[FEATURE_GRADIENT][FEATURE_GRADIENT].numpy()
    reply.content[FEATURE_GRADIENT] = ArrayRecord({FEATURE_GRADIENT: Array(np.ascontiguousarray(change(values)))})


def answers_an_old_step(reply):
    reply.content["metrics"]["step"] = 7


FAULTS = [
    ("train.split_step", dies, "the battery is empty"),
    ("train.split_tail", dies, "the battery is empty"),
    (
        "train.split_tail",
        lambda reply: replace_gradient(reply, lambda values: values * np.nan),
        "feature gradient holds NaN or Inf",
    ),
    ("train.split_tail", answers_an_old_step, "it answered step 7, not step 1"),
    ("train.split_tail", lambda reply: replace_gradient(reply, lambda values: values[1:]), "gradient of shape (7, 16)"),
]


def faulty(federation, kind, fault):
    app = federation.app()

    def answer(message, context):
        reply = app(message, context)
        step = next(iter(message.content.config_records.values()), {}).get("step")
        due = 0 if kind == "train.split_step" else 1
        if (message.metadata.message_type, context.node_config["partition-id"], step) == (kind, 1, due):
            fault(reply)
        return reply

    return answer


@pytest.mark.parametrize(("message_type", "fault", "reason"), FAULTS)
@pytest.mark.parametrize(("kind", "cut"), KINDS)
def test_a_client_that_fails_in_either_phase_leaves_and_the_others_finish(kind, cut, message_type, fault, reason):
    federation = Federation(sizes=SIZES)
    app = faulty(federation, message_type, fault)
    (outcome,) = federation.run(federation.split(kind, cut), rounds=1, grid=federation.grid(app))
    update = outcome.edges["edge-0"].updates[0]
    (failure,) = update.failures
    assert reason in failure.reason
    assert update.weight == 20 + 14
    assert all(torch.isfinite(tensor).all() for tensor in weights(outcome).values())
    if kind is SplitFedV1:  # as if the client had not been there

        def losing(message, context):
            if message.metadata.message_type == "train" and context.node_config["partition-id"] == 1:
                raise RuntimeError("lost")
            return federation.app()(message, context)

        (whole,) = federation.run(rounds=1, grid=federation.grid(losing))
        assert_close(weights(outcome), weights(whole))


@pytest.mark.parametrize("loss", [1e200, float("nan"), [1.0]])
@pytest.mark.parametrize(("kind", "cut"), KINDS)
def test_a_loss_that_can_not_be_one_is_its_clients_failure(kind, cut, loss):
    federation = Federation(sizes=SIZES)
    app = federation.app()

    def liar(message, context):
        reply = app(message, context)
        if context.node_config["partition-id"] == 1 and TRAIN_LOSS in reply.content.get("metrics", {}):
            reply.content["metrics"][TRAIN_LOSS] = loss
        return reply

    (outcome,) = federation.run(federation.split(kind, cut), rounds=1, grid=federation.grid(liar), guard=tight())
    (failure,) = outcome.edges["edge-0"].updates[0].failures
    assert failure.reason.startswith("metric 'train_loss' is ")
    assert outcome.edges["edge-0"].updates[0].weight == 20 + 14
    assert 0 < outcome.train_metrics[TRAIN_LOSS] < 5


@pytest.mark.parametrize("kind", [SplitFedV2, Relay])
def test_a_forward_pass_whose_client_leaves_leaves_the_shared_block_as_it_was(kind):
    """Client 1 fails at its first tail: nobody can tell, but by the statistics of BatchNorm, that it was there."""
    federation = Federation(model_with_norm, sizes=SIZES)
    make_edge = federation.split(kind, Cut(1, 3), **({"order": "one-by-one"} if kind is SplitFedV2 else {}))

    def app_failing(at):
        app = federation.app()

        def answer(message, context):
            if (message.metadata.message_type, context.node_config["partition-id"]) == (at, 1):
                raise RuntimeError("gone")
            return app(message, context)

        return federation.grid(answer)

    late, early = (
        federation.run(make_edge, rounds=1, grid=app_failing(kind_of))[-1]
        for kind_of in ("train.split_tail", "train.split_begin")
    )
    assert same(weights(late), weights(early))


def model_with_norm():
    model = model_with_dropout()
    model.third.add_module("norm", torch.nn.BatchNorm1d(16))
    return model
