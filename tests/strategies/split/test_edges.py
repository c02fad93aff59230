"""The split algorithms: equal to the unsplit ones wherever theory says so."""

import copy
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from itertools import count

import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord
from flwr.serverapp.strategy import FedAvg
from torch import nn
from torch.nn.functional import cross_entropy

from espalier.app.tasks.models import build_model
from espalier.clients.randomness import client_generator
from espalier.clients.split import Session, Sessions, SessionTerms
from espalier.clients.training import local_sgd, make_optimizer, mini_batches
from espalier.strategies import Hierarchical, ask_profiles, group_by_edge
from espalier.strategies.split import Cut, Relay, SplitFedV1, SplitFedV2
from espalier.strategies.split.edges import draws_random_numbers
from espalier.strategies.split.server_block import legal_cuts
from espalier.strategies.split.serving import MiniBatch
from tests.strategies.split.federation import ANY, SGD, SHAPE, Federation, assert_close, same, tiny_model, weights
from tests.strategies.split.streams import ThreadedGrid, serving, streamed


def every(cut):
    return lambda node_id: cut


@pytest.mark.parametrize("labels", ["indices", "labels"])
@pytest.mark.parametrize("cut", [1, 2, 3])
def test_sfl_v1_is_fedavg_at_any_cut(cut, labels):
    federation = Federation(local_epochs=2)
    split = federation.run(federation.split(SplitFedV1, every(cut), label_policy=labels), rounds=3)
    whole = federation.run(rounds=3)
    assert_close(weights(split[-1]), weights(whole[-1]))
    assert split[-1].train_metrics["train_loss"] == pytest.approx(whole[-1].train_metrics["train_loss"], rel=1e-6)
    assert dict(split[-1].evaluate_metrics) == pytest.approx(dict(whole[-1].evaluate_metrics), rel=1e-6)


def test_what_is_sent_along_reaches_the_clients_as_in_fedavg():
    federation, config = Federation(), ConfigRecord({"local-rounds": 3, "cut": 99, "server-round": 99})

    def run(make_edge, config):
        grid = federation.grid()
        strategy = Hierarchical(FedAvg(**ANY), make_edge, group_by_edge(ask_profiles(grid), 1))
        arrays = ArrayRecord(federation.make_model().state_dict())
        return weights(list(strategy.rounds(grid, arrays, 2, train_config=config))[-1])

    told = run(federation.split(SplitFedV1, every(2)), config)
    assert_close(told, run(lambda name, size: FedAvg(**ANY), config))
    assert_close(told, weights(Federation(local_epochs=3).run()[-1]))
    assert not same(told, run(federation.split(SplitFedV1, every(2)), None))


def sequential(**blocks):
    model = nn.Sequential()
    for name, block in blocks.items():
        model.add_module(name, block)
    return model


@pytest.mark.parametrize("kind", [SplitFedV1, SplitFedV2, Relay])
@pytest.mark.parametrize("cut", [0, 4, -1])
def test_an_illegal_cut_is_refused_with_those_that_are_legal(kind, cut):
    federation = Federation()
    with pytest.raises(ValueError, match=f"^cut {cut}: allowed are 1, 2, 3; the last block stays at the server$"):
        federation.run(federation.split(kind, every(cut) if kind is SplitFedV1 else cut))


@pytest.mark.parametrize("kind", [SplitFedV1, SplitFedV2, Relay])
def test_a_number_is_short_for_a_cut_behind_which_all_is_the_servers(kind):
    federation = Federation(sizes=(20, 33))
    own = every if kind is SplitFedV1 else lambda cut: cut
    short, long = (federation.run(federation.split(kind, own(cut))) for cut in (2, Cut(2, 4)))
    assert same(weights(short[-1]), weights(long[-1]))
    with pytest.raises(ValueError, match=r"^cut 1 to 5: allowed is to 4 at most, the model's number of blocks$"):
        federation.run(federation.split(kind, own(Cut(1, 5))))
    with pytest.raises(ValueError, match=r"^tail from block 2 on, with cut 2: allowed are 3 to 4, so that a block is"):
        federation.run(federation.split(kind, own(Cut(2, 2))))


@pytest.mark.parametrize(
    ("model", "fault"),
    [
        (nn.Linear(64, 3), "is not an nn.Sequential of blocks that ends with a head with `out_features`"),
        (nn.Sequential(), "is not an nn.Sequential of blocks that ends with a head with `out_features`"),
        (sequential(a=nn.Linear(64, 8), head=nn.Sequential(nn.Linear(8, 3))), "a head with `out_features`, such as"),
        (sequential(flat=nn.Flatten(), head=nn.Linear(64, 3)), "has no weights that train in front of its last block"),
    ],
)
def test_a_model_that_cannot_be_split_is_refused(model, fault):
    federation = Federation(lambda: model)
    with pytest.raises(ValueError, match=fault):
        federation.split(SplitFedV1, every(1))("edge-0", 4)


def test_clients_hold_some_weights_at_least():
    model = sequential(flat=nn.Flatten(), first=nn.Linear(64, 8), act=nn.ReLU(), head=nn.Linear(8, 3))
    federation = Federation(lambda: copy.deepcopy(model))
    assert list(legal_cuts(model)) == [2, 3]
    split = federation.run(federation.split(SplitFedV1, every(2)))
    assert_close(weights(split[-1]), weights(federation.run()[-1]))


@pytest.mark.parametrize("cut", [1, 2, 3])
def test_sfl_v1_is_fedavg_at_every_cut_of_cnn(cut):
    make = partial(build_model, "cnn", image_shape=(3, 16, 16), num_classes=4, seed=1)
    federation = Federation(make, sizes=(16, 9), shape=(3, 16, 16), classes=4)
    split = federation.run(federation.split(SplitFedV1, every(cut)), rounds=2)
    assert_close(weights(split[-1]), weights(federation.run(rounds=2)[-1]))


@pytest.mark.parametrize("cut", [1, 2, 3, 4])
def test_sfl_v1_is_fedavg_at_every_cut_of_resnet18(cut):
    make = partial(build_model, "resnet18", image_shape=(3, 16, 16), num_classes=4, seed=1)
    federation = Federation(make, sizes=(8, 12), shape=(3, 16, 16), classes=4)
    split = federation.run(federation.split(SplitFedV1, every(cut)), rounds=2)
    assert_close(weights(split[-1]), weights(federation.run(rounds=2)[-1]), 1e-7)


def test_hsfl_is_hierarchical_fedavg():
    federation = Federation(sizes=(20, 33, 14, 40, 9, 25))
    options = {"num_edges": 3, "edge_rounds": 2, "rounds": 2}
    split = federation.run(federation.split(SplitFedV1, every(2)), **options)
    assert_close(weights(split[-1]), weights(federation.run(**options)[-1]))


def test_mixed_cuts_are_one_cut():
    federation = Federation()
    cuts = {}

    def cut_of(node_id):
        return cuts.setdefault(node_id, 1 + len(cuts) % 3)

    mixed = federation.run(federation.split(SplitFedV1, cut_of), rounds=2)
    assert sorted(cuts.values()) == [1, 1, 2, 3]
    assert_close(weights(mixed[-1]), weights(federation.run(rounds=2)[-1]))


@pytest.mark.parametrize(
    "settings", [{"momentum": 0.9, "weight_decay": 0.01}, {"optimizer": "adam", "learning_rate": 0.01}]
)
def test_with_one_client_every_algorithm_is_local_training(settings):
    # The optimizers of both halves start afresh with each round in SFL-V1; one round, since in V2 and SL they do not.
    federation = Federation(sizes=(30,), local_epochs=2, **settings)
    server = lambda parameters: make_optimizer(parameters, federation.tasks[0].training)  # noqa: E731
    expected = federation.make_model()
    local_sgd(federation.tasks[0].__class__(**{**vars(federation.tasks[0]), "model": expected}), 1)
    for kind, cut in ((SplitFedV1, every(2)), (SplitFedV2, 2), (Relay, 2)):
        (outcome,) = federation.run(federation.split(kind, cut, make_optimizer=server), rounds=1)
        assert_close(weights(outcome), dict(expected.state_dict()))


def batches_of(federation, client, server_round):
    task = federation.tasks[client]
    order = client_generator(task.seed, client, server_round, "batches")
    return [
        (task.prepare(task.train.inputs[b]), task.train.labels[b])
        for b in mini_batches(len(task.train), task.training, order)
    ]


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


def momentum_sgd(parameters):
    return SGD(parameters, momentum=0.5)


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


def test_sfl_v2_one_by_one_shares_the_server_block_and_averages_the_clients():
    federation = Federation()
    interleaved = federation.run(federation.split(SplitFedV2, 1), rounds=1)
    one_by_one = federation.run(federation.split(SplitFedV2, 1, order="one-by-one"), rounds=1)
    relay = federation.run(federation.split(Relay, 1), rounds=1)
    found = [weights(run[-1]) for run in (interleaved, one_by_one, relay)]
    assert not same(found[0], found[1])
    assert not same(found[1], found[2])
    assert [len(run[-1].edges["edge-0"].updates[0].participants) for run in (interleaved, one_by_one, relay)] == [4] * 3


@pytest.mark.parametrize(("kind", "cut"), [(SplitFedV1, every(2)), (SplitFedV2, 2), (Relay, 2)])
def test_sessions_in_the_contexts_state_give_the_same_bits_as_sessions_in_memory(kind, cut):
    federation = Federation(optimizer="adam", learning_rate=0.01)
    memory = federation.run(federation.split(kind, cut), rounds=2, num_edges=2)
    kept = federation.run(federation.split(kind, cut), rounds=2, num_edges=2, grid=federation.grid(durable=True))
    assert same(weights(memory[-1]), weights(kept[-1]))

    # A process of its own for every message: nothing survives but the context.
    def forgetful(message, context):
        return federation.app(durable=True)(message, context)

    restored = federation.run(federation.split(kind, cut), rounds=2, num_edges=2, grid=federation.grid(forgetful))
    assert same(weights(memory[-1]), weights(restored[-1]))


@pytest.mark.parametrize(("kind", "cut"), [(SplitFedV1, every(2)), (SplitFedV2, 2), (Relay, 2)])
def test_node_ids_change_nothing_and_participation_follows_the_seed(kind, cut):
    federation = Federation(sizes=(20, 33, 14, 40, 9, 25))

    def run(grid_seed, seed):
        make = federation.split(kind, cut, participation=0.5, seed=seed)
        return weights(federation.run(make, rounds=2, num_edges=2, grid=federation.grid(seed=grid_seed))[-1])

    assert same(run(1, 5), run(2, 5))
    assert not same(run(1, 5), run(1, 6))


@pytest.mark.parametrize(("kind", "cut"), [(SplitFedV1, every(2)), (SplitFedV2, 2)])
def test_other_clients_train_in_other_rounds(kind, cut):
    federation = Federation(sizes=(8,) * 6)
    outcomes = federation.run(federation.split(kind, cut, participation=0.5), rounds=6)
    assert len({tuple(outcome.edges["edge-0"].updates[0].participants) for outcome in outcomes}) > 1


def test_the_server_optimizers_of_sfl_v1_start_afresh_in_every_round_as_the_clients_do():
    federation = Federation(momentum=0.5)
    whole = federation.run(rounds=3)
    split = federation.run(federation.split(SplitFedV1, every(2), make_optimizer=momentum_sgd), rounds=3)
    assert_close(weights(split[-1]), weights(whole[-1]))


def test_dropout_in_front_of_the_cut_depends_on_seed_client_round_and_step():
    task = Federation(model_with_dropout).tasks[0]

    def activations(step=0, server_round=1, **changes):
        own = replace(task, **changes)
        session = Session(own, SessionTerms(Cut(3, 4), server_round, "indices", local_epochs=1))
        session.batches, session.step = [torch.arange(8)] * 2, step
        return session.forward().values.detach()

    assert torch.equal(activations(), activations())
    for changes in ({"step": 1}, {"server_round": 2}, {"seed": 1}, {"partition_id": 1}):
        assert not torch.equal(activations(), activations(**changes)), changes


def test_dropout_behind_the_cut_depends_on_client_round_and_step():
    at_rest = partial(torch.optim.SGD, lr=0.0)
    edge = Federation(model_with_dropout).split(SplitFedV1, every(1), make_optimizer=at_rest)("edge-0", 4)
    server = edge.server_block(1)
    batch = MiniBatch(1, torch.randn(8, 4, 8, 8).double(), torch.arange(8) % 3)

    def gradient(*purpose):
        with edge._seeded(server.device, *purpose):
            return server.step(batch.activations, batch.labels)[0]

    assert torch.equal(gradient(1, 0, 0), gradient(1, 0, 0))
    for purpose in ((2, 0, 0), (1, 1, 0), (1, 0, 1)):
        assert not torch.equal(gradient(1, 0, 0), gradient(*purpose))


@pytest.mark.parametrize(("kind", "cut"), [(SplitFedV1, every(2)), (SplitFedV2, 2), (Relay, 2)])
def test_a_step_leaves_a_frozen_head_as_it_was(kind, cut):
    federation = Federation()
    start = ArrayRecord(federation.make_model().state_dict())
    head = ArrayRecord({name: array for name, array in start.items() if name.startswith("head.")})
    edge = federation.split(kind, cut, frozen=head)("edge-0", 4)
    server = getattr(edge, "server", None) or edge.server_block(2)
    before = copy.deepcopy(server.blocks.state_dict())
    server.step(torch.randn(8, 96).double(), torch.arange(8) % 3)
    changed = {name for name, tensor in server.blocks.state_dict().items() if not torch.equal(tensor, before[name])}
    assert changed
    assert not [name for name in changed if name.startswith("head.")]


@pytest.mark.parametrize(("kind", "cut"), [(SplitFedV1, every(1)), (SplitFedV2, 1), (Relay, 3)])
def test_a_frozen_head_stays_out_of_training_to_the_bit(kind, cut):
    federation = Federation()
    start = tiny_model(seed=4).double()
    head = ArrayRecord({n: a for n, a in ArrayRecord(start.state_dict()).items() if n.startswith("head.")})
    make = federation.split(kind, cut, frozen=head)
    outcomes = federation.run(make, rounds=2, num_edges=2, edge_rounds=2, start=start)
    assert not any(name.startswith("head.") for name in outcomes[-1].arrays)
    # The reference trains the whole model with a head that has no gradient.
    if kind is SplitFedV1:
        unsplit = Federation(model_with_frozen_head)
        whole = weights(unsplit.run(rounds=2, num_edges=2, edge_rounds=2, start=start)[-1])
        assert_close(weights(outcomes[-1]), {n: t for n, t in whole.items() if not n.startswith("head.")})
    assert not same(weights(outcomes[-1]), {n: t for n, t in start.state_dict().items() if not n.startswith("head.")})


def model_with_frozen_head():
    model = tiny_model()
    model[-1].requires_grad_(False)
    return model


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


def model_with_dropout():
    model = tiny_model()
    model.third.add_module("drop", nn.Dropout(0.5))
    return model


@pytest.mark.parametrize(("kind", "cut"), [(SplitFedV1, lambda n: 1), (SplitFedV2, 1), (Relay, 1)])
def test_dropout_behind_the_cut_follows_the_seed(kind, cut):
    federation = Federation(model_with_dropout)
    drawn = torch.get_rng_state()
    first, again, other = (
        weights(federation.run(federation.split(kind, cut, seed=seed), rounds=1, grid=federation.grid(seed=grid))[-1])
        for seed, grid in ((0, 1), (0, 2), (3, 1))
    )
    assert same(first, again)
    assert not same(first, other)
    assert torch.equal(torch.get_rng_state(), drawn)


def test_dropout_behind_the_cut_follows_the_seed_over_streams_too(monkeypatch):
    """The edges' threads share PyTorch's generator. Here clients are threads too, but draw nothing themselves."""
    monkeypatch.setattr("espalier.clients.split.seeded_torch", lambda *_: nullcontext())
    federation = Federation(model_with_dropout)
    make_edge = federation.split(SplitFedV1, lambda n: 1)
    expected = weights(federation.run(make_edge, rounds=1, num_edges=2)[-1])
    for _ in range(3):
        with serving() as server:
            grid = ThreadedGrid(federation.app(), 4)
            (found,) = federation.run(streamed(make_edge, server), rounds=1, num_edges=2, grid=grid)
        assert same(weights(found), expected)


def test_only_models_that_draw_are_seeded():
    assert draws_random_numbers(model_with_dropout(), SHAPE)
    assert draws_random_numbers(model_with_dropout()[1:], (4, 8, 8))
    assert not draws_random_numbers(tiny_model(), SHAPE)


def test_a_process_keeps_no_sessions_of_earlier_rounds(monkeypatch):
    """Their graphs would stay for as long as the process lives, where other processes went on with them."""
    federation = Federation()
    kept = []

    class Watched(Sessions):
        def put(self, context, session):
            activations = super().put(context, session)
            kept.append({s.server_round for s in self._alive.values()})
            return activations

    monkeypatch.setattr("espalier.clients.client_app.Sessions", Watched)
    processes = [federation.app(durable=True) for _ in range(2)]
    turn = count()
    federation.run(
        federation.split(SplitFedV1, lambda n: 1),
        rounds=4,
        grid=federation.grid(lambda message, context: processes[next(turn) % 2](message, context)),
    )
    assert max(max(rounds) - min(rounds) for rounds in kept) <= 1
    assert set().union(*kept) == {1, 2, 3, 4}


def test_a_model_in_which_a_block_stands_twice_is_refused():
    relu = nn.ReLU()
    model = nn.Sequential(nn.Linear(2, 2), relu, nn.Linear(2, 2), relu, nn.Linear(2, 2))
    with pytest.raises(ValueError, match="one block stands in the model twice"):
        legal_cuts(model)
    assert list(legal_cuts(nn.Sequential(*model[:3], nn.ReLU(), model[4]))) == [1, 2, 3, 4]
