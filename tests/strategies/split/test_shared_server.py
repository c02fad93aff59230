"""SFL-V2 and SL are their algorithms, written as loops over one model."""

from functools import partial

import pytest
import torch
from flwr.app import Array, ArrayRecord
from flwr.serverapp.strategy import FedAvg
from torch.nn.functional import cross_entropy

from espalier.strategies import Hierarchical, ask_profiles, group_by_edge
from espalier.strategies.split import Relay, SplitFedV1, SplitFedV2
from tests.strategies.split.federation import (
    ANY,
    SGD,
    Federation,
    assert_close,
    batches_of,
    every,
    momentum_sgd,
    same,
    weights,
)


def split_step(client_block, server_block, client_optimizer, server_optimizer, inputs, labels):
    """One step of split training as autograd alone would make it."""
    client_optimizer.zero_grad()
    server_optimizer.zero_grad()
    cross_entropy(server_block(client_block(inputs)), labels).backward()
    client_optimizer.step()
    server_optimizer.step()


def reference(federation, kind, cut, *, rounds, orders=None):
    """SL and SFL-V2 as plain loops over one model."""
    model = federation.make_model()
    server_block = model[cut:]
    server_optimizer = SGD(server_block.parameters(), momentum=0.5)
    for t in range(1, rounds + 1):
        starts = {k: v.clone() for k, v in model[:cut].state_dict().items()}
        blocks, remaining = [], []
        for i in range(len(federation.sizes)):
            block = federation.make_model()[:cut]
            block.load_state_dict(starts)
            block.train()
            blocks.append(block)
            remaining.append(batches_of(federation, i, t))
        server_block.train()
        optimizers = [SGD(block.parameters()) for block in blocks]
        if kind == "sl":
            carried = starts
            for block, own in zip(blocks, remaining, strict=True):
                block.load_state_dict(carried)
                optimizer = SGD(block.parameters())
                for inputs, labels in own:
                    split_step(block, server_block, optimizer, server_optimizer, inputs, labels)
                carried = block.state_dict()
            model[:cut].load_state_dict(carried)
            continue
        for k in range(max(map(len, remaining))):
            active = [i for i in range(len(blocks)) if k < len(remaining[i])]
            for i in orders(t, k, active):
                split_step(blocks[i], server_block, optimizers[i], server_optimizer, *remaining[i][k])
        total = sum(federation.sizes)
        model[:cut].load_state_dict(
            {
                name: sum(b.state_dict()[name] * (n / total) for b, n in zip(blocks, federation.sizes, strict=True)).to(
                    starts[name].dtype
                )
                for name in starts
            }
        )
    return dict(model.state_dict())


def test_sl_is_the_relay_written_as_loops():
    federation = Federation()
    split = federation.run(federation.split(Relay, 2, make_optimizer=momentum_sgd), rounds=2)
    assert_close(weights(split[-1]), reference(federation, "sl", 2, rounds=2))


def test_sfl_v2_is_algorithm_2_written_as_loops(monkeypatch):
    drawn = {}

    def spy(self, items, *purpose):
        order = original(self, items, *purpose)
        if purpose[0] == "order":
            drawn[purpose[1:]] = order
        return order

    original = SplitFedV2.random_order
    monkeypatch.setattr(SplitFedV2, "random_order", spy)
    # BatchNorm's counter is an integer, which the average of clients with different numbers of steps would round.
    federation = Federation(sizes=(20, 33, 14, 40))
    split = federation.run(federation.split(SplitFedV2, 2, make_optimizer=momentum_sgd), rounds=2)

    def orders(t, k, active):
        return [active[i] for i in drawn[(t, k)]]

    expected = reference(federation, "sfl-v2", 2, rounds=2, orders=orders)
    got = weights(split[-1])
    counter = "first.1.num_batches_tracked"
    assert abs(int(got.pop(counter)) - int(expected.pop(counter))) <= 1
    assert_close(got, expected)
    assert len({tuple(order) for key, order in drawn.items() if len(order) == 4}) > 1


@pytest.mark.parametrize("order", ["one-by-one", "in-client-order"])
def test_sfl_v2_one_by_one_is_its_loops(order, monkeypatch):
    federation, cut, drawn = Federation(), 2, {}
    original = SplitFedV2.random_order

    def spy(self, items, *purpose):
        drawn[purpose] = original(self, items, *purpose)
        return drawn[purpose]

    monkeypatch.setattr(SplitFedV2, "random_order", spy)
    (outcome,) = federation.run(federation.split(SplitFedV2, cut, order=order), rounds=1)
    in_client_order = list(range(len(federation.sizes)))
    turns = drawn.get(("turns", 1), in_client_order)
    assert (turns == in_client_order) == (order == "in-client-order")
    server, blocks = federation.make_model()[cut:].train(), {}
    server_optimizer = SGD(server.parameters())
    for client in turns:
        blocks[client] = federation.make_model()[:cut].train()
        optimizer = SGD(blocks[client].parameters())
        for inputs, labels in batches_of(federation, client, 1):
            split_step(blocks[client], server, optimizer, server_optimizer, inputs, labels)
    shares = [size / sum(federation.sizes) for size in federation.sizes]
    expected = dict(server.state_dict()) | {
        name: sum(share * blocks[client].state_dict()[name] for client, share in enumerate(shares))
        for name in blocks[0].state_dict()
    }
    counter = "first.1.num_batches_tracked"  # an integer, whose average is rounded
    found = weights(outcome)
    assert abs(int(found.pop(counter)) - float(expected.pop(counter))) <= 0.5
    assert_close(found, expected)


def test_sfl_v2_with_a_frozen_head_alone_at_the_server_is_sfl_v1_to_the_bit():
    federation = Federation()
    head = federation.make_model().head.state_dict()
    frozen = ArrayRecord({f"head.{name}": Array(values.numpy()) for name, values in head.items()})
    shared = federation.run(federation.split(SplitFedV2, 3, frozen=frozen), rounds=2)
    copies = federation.run(federation.split(SplitFedV1, every(3), frozen=frozen), rounds=2)
    assert same(weights(shared[-1]), weights(copies[-1]))
    assert not same(weights(shared[0]), weights(shared[1]))


def test_sfl_v2_with_clients_at_rest_is_sgd_in_one_place():
    federation = Federation(learning_rate=1e-200)
    split = federation.run(federation.split(SplitFedV2, 1, order="in-client-order"), rounds=2)
    model = federation.make_model().train()
    optimizer = SGD(model[1:].parameters())
    for inputs, labels in (b for t in (1, 2) for i in range(4) for b in batches_of(federation, i, t)):
        optimizer.zero_grad()
        cross_entropy(model(inputs), labels).backward()
        optimizer.step()
    found, expected = (
        {name: values for name, values in state.items() if not name.startswith("first.")}
        for state in (weights(split[-1]), model.state_dict())
    )
    assert_close(found, expected, 1e-13)
    assert not same(found, {name: federation.make_model().state_dict()[name] for name in found})


def test_sfl_v2_one_by_one_shares_the_server_block_and_averages_the_clients():
    federation = Federation()
    interleaved = federation.run(federation.split(SplitFedV2, 1), rounds=1)
    one_by_one = federation.run(federation.split(SplitFedV2, 1, order="one-by-one"), rounds=1)
    relay = federation.run(federation.split(Relay, 1), rounds=1)
    found = [weights(run[-1]) for run in (interleaved, one_by_one, relay)]
    assert not same(found[0], found[1])
    assert not same(found[1], found[2])
    assert [len(run[-1].edges["edge-0"].updates[0].participants) for run in (interleaved, one_by_one, relay)] == [4] * 3


def test_the_shared_optimizers_state_resumes_to_the_same_bits():
    federation = Federation()

    def build(grid):
        make = federation.split(SplitFedV2, 2, make_optimizer=partial(torch.optim.Adam, lr=0.01))
        return Hierarchical(FedAvg(**ANY), make, group_by_edge(ask_profiles(grid), 2))

    start, grid = ArrayRecord(federation.make_model().state_dict()), federation.grid()
    whole = weights(list(build(grid).rounds(grid, start, 3))[-1])
    first = build(grid)
    half = list(first.rounds(grid, start, 1))[-1].arrays
    second = build(grid)
    second.load_state_dict(first.state_dict())
    assert same(weights(list(second.rounds(grid, half, 3, first_round=2))[-1]), whole)
    assert not same(weights(list(build(grid).rounds(grid, half, 3, first_round=2))[-1]), whole)
