"""What holds for the edge of every split algorithm."""

import copy
from dataclasses import replace
from functools import partial
from itertools import count

import pytest
import torch
from flwr.app import ArrayRecord
from flwr.serverapp.strategy import FedAvg
from torch import nn

from espalier.clients.split.session import Session, SessionTerms
from espalier.clients.split.sessions import Sessions
from espalier.clients.whole.training import local_sgd, make_optimizer
from espalier.strategies import StrategyEdge
from espalier.strategies.split import Cut, Relay, SplitFedV1, SplitFedV2
from espalier.strategies.split.cuts import legal_cuts
from espalier.strategies.split.serving import MiniBatch
from tests.strategies.split.federation import (
    SHAPE,
    Federation,
    assert_close,
    every,
    model_with_dropout,
    same,
    tiny_model,
    weights,
)
from tests.strategies.split.streams import ThreadedGrid, serving, streamed


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


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"label_policy": "index"}, "label_policy is 'index': allowed are 'indices' and 'labels'"),
        ({"participation": 2}, "participation is 2: it must be above 0, and 1 at most"),
        ({"input_shape": (5, 5, 5)}, "input_shape is none that the model takes: Given groups=1"),
        ({"input_shape": torch.zeros(1, 1, 12, 12)}, "input_shape is none that the model takes: mat1 and mat2 shapes"),
        ({"evaluation": FedAvg()}, r"evaluation is a FedAvg: it must be a StrategyEdge"),
    ],
)
def test_arguments_of_another_kind_are_refused(wrong, message):
    given = {"input_shape": SHAPE, "evaluation": StrategyEdge(FedAvg()), **wrong}
    with pytest.raises(ValueError, match=message):
        SplitFedV1(tiny_model(), every(1), partial(torch.optim.SGD, lr=0.1), **given)


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


@pytest.mark.parametrize("cut", [1, 3])
def test_dropout_on_either_side_follows_the_seed_over_streams_too(cut):
    """The edges' threads share PyTorch's generator, here with clients that are threads too."""
    federation = Federation(model_with_dropout)
    make_edge = federation.split(SplitFedV1, every(cut))
    expected = weights(federation.run(make_edge, rounds=1, num_edges=2)[-1])
    for _ in range(3):
        with serving() as server:
            grid = ThreadedGrid(federation.app(), 4)
            (found,) = federation.run(streamed(make_edge, server), rounds=1, num_edges=2, grid=grid)
        assert same(weights(found), expected)


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
