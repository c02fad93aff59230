"""Mini-batches in parts: gradients add up to those of the whole, and a client can't send more than it may."""

import re

import pytest
import torch
from torch import nn

from espalier.clients.messages.frames import Format, pack
from espalier.clients.messages.split import SplitStream
from espalier.clients.messages.split_names import SPLIT_STREAM
from espalier.clients.streams import open_stream
from espalier.strategies.split import Relay, SplitFedV1, SplitFedV2
from tests.strategies.split.federation import Federation, assert_close, same, weights
from tests.strategies.split.streams import ThreadedGrid, serving, streamed


def plain_model(seed=0):
    """Three blocks, in which each example is by itself."""
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        model = nn.Sequential()
        model.add_module("first", nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.ReLU()))
        model.add_module("second", nn.Sequential(nn.Flatten(), nn.Linear(256, 16), nn.ReLU()))
        model.add_module("head", nn.Linear(16, 3))
        return model


@pytest.fixture
def server():
    with serving() as server:
        yield server


@pytest.fixture(scope="module")
def federation():
    # Mini-batches of 8 and smaller: 20 = 8 + 8 + 4, 33 = 4 * 8 + 1, 14 = 8 + 6.
    return Federation(plain_model, sizes=(20, 33, 14), optimizer="adam", learning_rate=0.01)


@pytest.mark.parametrize(
    ("kind", "cut", "options", "parts"),
    [
        (SplitFedV1, lambda node_id: 1, {}, 2),
        (SplitFedV1, lambda node_id: 1, {}, 64),
        (SplitFedV1, lambda node_id: 2, {"label_policy": "labels"}, 3),
        (SplitFedV2, 2, {"order": "one-by-one"}, 3),
        (Relay, 1, {}, 3),
    ],
)
def test_parts_give_the_weights_of_whole_mini_batches(server, federation, kind, cut, options, parts):
    make = federation.split(kind, cut, **options)
    settings = {"rounds": 2, "edge_rounds": 2}
    whole = federation.run(streamed(make, server), grid=ThreadedGrid(federation.app(), 3), **settings)
    in_parts = federation.run(streamed(make, server, parts=parts), grid=ThreadedGrid(federation.app(), 3), **settings)
    for left, right in zip(whole, in_parts, strict=True):
        assert not right.edges["edge-0"].updates[0].failures
        assert_close(weights(left), weights(right))
        assert right.train_metrics["train_loss"] == pytest.approx(left.train_metrics["train_loss"], rel=1e-9)


@pytest.mark.parametrize(("parts", "are_equal"), [(2, True), (3, False)])  # of 8 and of 4 examples
def test_what_is_left_out_of_gradients_adds_up_in_parts_of_one_size(server, parts, are_equal):
    federation = Federation(plain_model, sizes=(20, 12), local_epochs=3)
    make, payload = federation.split(SplitFedV1, lambda node_id: 1), {"payload": "top-25%"}
    whole = federation.run(streamed(make, server, **payload), grid=ThreadedGrid(federation.app(), 2), rounds=1)
    own = federation.run(
        streamed(make, server, parts=parts, **payload), grid=ThreadedGrid(federation.app(), 2), rounds=1
    )
    left, right = weights(whole[-1]), weights(own[-1])
    farthest = max(float((left[name] - right[name]).abs().max()) for name in left)
    assert farthest < 1e-12 if are_equal else 1e-6 < farthest < 1e-2


def test_one_part_is_the_whole_to_the_bit(server, federation):
    make = federation.split(SplitFedV1, lambda node_id: 1)
    plain = federation.run(make)
    one = federation.run(streamed(make, server, parts=1), grid=ThreadedGrid(federation.app(), 3))
    assert same(weights(plain[-1]), weights(one[-1]))


def test_a_group_that_shares_a_server_goes_on_with_whole_mini_batches(server, federation):
    make = federation.split(SplitFedV2, 2)
    whole = federation.run(streamed(make, server), grid=ThreadedGrid(federation.app(), 3))
    same_parts = federation.run(streamed(make, server, parts=4), grid=ThreadedGrid(federation.app(), 3))
    assert same(weights(whole[-1]), weights(same_parts[-1]))


def test_each_part_is_counted_and_indices_with_it(server, federation):
    counted = []
    make = federation.split(SplitFedV1, lambda node_id: 1)
    edge = streamed(make, server, parts=2, on_bytes=lambda *what: counted.append(what))
    federation.run(edge, grid=ThreadedGrid(federation.app(), 3), rounds=1)
    totals = {}
    for direction, kind, count in counted:
        totals[direction, kind] = totals.get((direction, kind), 0) + count
    values = (20 + 33 + 14) * 4 * 64 * 8
    assert totals == {
        ("uplink", "activations"): values,
        ("uplink", "indices"): 4 * (20 + 33 + 14),
        ("downlink", "cut-gradient"): values,
    }
    # Two for each of 3, 4 and 2 mini-batches, and one for that of one example.
    assert sum(kind == "activations" for _, kind, _ in counted) == 2 * (3 + 4 + 2) + 1


@pytest.mark.parametrize(
    ("parts", "max_batch", "sizes", "reason"),
    [
        (2, None, (2, 2, 2), "a mini-batch in more than 2 parts"),
        (8, 8, (5, 5), "10 activations in a mini-batch, expected 8 at most"),
    ],
)
def test_a_client_that_sends_too_many_parts_or_examples_is_left_out(
    server, federation, parts, max_batch, sizes, reason
):
    app = federation.app()

    def answer(message, context):
        if message.metadata.message_type != SPLIT_STREAM or context.node_config["partition-id"] != 1:
            return app(message, context)
        instruction = SplitStream.from_content(message.content)
        form = Format(instruction.payload, torch.float64)
        with open_stream(instruction.ticket, 10.0) as stream:
            for size in sizes:
                values = torch.zeros(size, 4, 8, 8, dtype=torch.float64)
                labels = torch.zeros(size, dtype=torch.int32)
                stream.send(pack(form, values, step=0, num_steps=5, labels=labels, more=True))
                stream.receive()
        raise AssertionError("the edge took them all")

    make = federation.split(SplitFedV1, lambda node_id: 1, max_batch=max_batch)
    (outcome,) = federation.run(streamed(make, server, parts=parts), grid=ThreadedGrid(answer, 3), rounds=1)
    (failure,) = outcome.edges["edge-0"].updates[0].failures
    assert re.search(reason, failure.reason), failure.reason
