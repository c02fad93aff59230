"""Split training without messages, where clients and edge are in one process."""

from collections import Counter, OrderedDict
from dataclasses import replace
from functools import partial

import pytest
import torch
from flwr.app import ArrayRecord
from torch import nn
from torch.nn.functional import cross_entropy

from espalier.app.algorithms.stacked_servers import stacked_servers
from espalier.app.meters.bytes import ByteMeter
from espalier.clients.client_app import make_client_app
from espalier.clients.half import PLAIN
from espalier.clients.messages.split_names import SPLIT_FUSED
from espalier.clients.shared.lanes import Lanes
from espalier.clients.stacked.stacking import TrainingStack
from espalier.clients.task import LocalTraining
from espalier.clients.whole.training import make_optimizer
from espalier.sim.in_process_grid import InProcessGrid
from espalier.strategies.guards.bounds import Guard
from espalier.strategies.split import Relay, SplitFedV1, SplitFedV2
from espalier.strategies.split.fused import FusedTransport
from tests.strategies.split.federation import Federation, assert_close, same, tiny_model, weights

HEAD = {name: array for name, array in ArrayRecord(tiny_model().double().state_dict()).items() if "head" in name}


def run(federation, kind, cut, *, lanes=None, rounds=2, **options):
    """Run rounds by messages, or by lanes; return them, and the bytes by kind."""
    meter = ByteMeter({"edge": "edge"})
    transport = FusedTransport(lanes, on_passed=partial(meter.on_passed, "edge-0")) if lanes else None
    grid = federation.grid(make_client_app(federation.load, durable=False, lanes=lanes))
    edge = federation.split(kind, cut, transport=transport, **options)
    outcomes = federation.run(edge, grid=grid, rounds=rounds, observers=[meter])
    counts = Counter()
    for link, count in meter.drain().items():
        counts[link.direction, link.kind] += count
    return outcomes, counts


def failed(outcomes):
    return [[failure.reason for edge in o.edges.values() for failure in edge.failures] for o in outcomes]


def losses(outcomes):
    return [update.metrics for o in outcomes for edge in o.edges.values() for update in edge.updates]


@pytest.mark.parametrize(
    ("kind", "cut", "options"),
    [
        (SplitFedV1, lambda node_id: 2, {}),
        (SplitFedV1, lambda node_id: 1 + node_id % 3, {"label_policy": "labels"}),
        (SplitFedV1, lambda node_id: 1, {"frozen": ArrayRecord(HEAD)}),
        (SplitFedV2, 2, {"order": "one-by-one"}),
        (SplitFedV2, 1, {}),
        (Relay, 3, {"participation": 0.5}),
    ],
)
def test_weights_losses_and_counted_bytes_are_those_of_messages(kind, cut, options):
    federation = Federation()
    by_messages, sent = run(federation, kind, cut, **options)
    fused, counted = run(federation, kind, cut, lanes=Lanes(), **options)
    assert same(weights(fused[-1]), weights(by_messages[-1]))
    assert losses(fused) == losses(by_messages)
    assert counted == sent
    assert sent["uplink", "activations"] > 0


def test_a_round_is_one_message_to_each_client():
    federation, lanes, seen = Federation(), Lanes(), []
    app = make_client_app(federation.load, durable=False, lanes=lanes)

    def watched(message, context):
        seen.append(message.metadata.message_type)
        return app(message, context)

    edge = federation.split(SplitFedV1, lambda node_id: 2, transport=FusedTransport(lanes))
    federation.run(edge, grid=federation.grid(watched))
    assert [kind for kind in seen if kind.startswith("train")] == [SPLIT_FUSED] * 8  # 4 clients, 2 rounds


class Spoilt(torch.nn.Module):
    """Inputs of the second mini-batch are NaN, or can't be read."""

    def __init__(self, raises):
        super().__init__()
        self.raises, self.calls = raises, 0

    def forward(self, inputs):
        self.calls += 1
        if self.calls != 2:
            return inputs.double()
        if self.raises:
            raise OSError("the disk is gone")
        return torch.full_like(inputs.double(), float("nan"))


@pytest.mark.parametrize("raises", [False, True])
@pytest.mark.parametrize(("kind", "cut"), [(SplitFedV1, lambda node_id: 2), (Relay, 2)])
def test_who_fails_in_the_middle_is_left_out_as_by_messages(kind, cut, raises):
    def spoilt():
        federation = Federation()
        federation.tasks[1] = replace(federation.tasks[1], prepare=Spoilt(raises))
        return federation

    by_messages, _ = run(spoilt(), kind, cut, rounds=1)
    fused, _ = run(spoilt(), kind, cut, lanes=Lanes(), rounds=1)
    assert same(weights(fused[-1]), weights(by_messages[-1]))
    assert failed(fused) == failed(by_messages)
    assert len(failed(fused)[0]) == 1


def test_without_an_edge_in_the_process_a_client_says_so():
    federation = Federation(sizes=(16,))
    outcome = federation.run(
        federation.split(SplitFedV1, lambda node_id: 2, transport=FusedTransport(Lanes())), rounds=1
    )[0]
    (failure,) = outcome.edges["edge-0"].failures
    assert "no edge in this process waits for its mini-batches" in failure.reason


def stacked(federation, size=3, guard=None, rounds=2, **options):
    """Run rounds of SFL-V1 whose clients train side by side, `size` at a time."""
    lanes = Lanes()
    app = make_client_app(federation.load, durable=False, lanes=lanes)
    together = TrainingStack(federation.load, size, lanes, PLAIN)
    grid = InProcessGrid(app, len(federation.sizes), stack=together)
    edge = federation.split(SplitFedV1, transport=FusedTransport(lanes), **options)
    return federation.run(edge, grid=grid, guard=guard, rounds=rounds)


@pytest.mark.parametrize("training", [{}, {"optimizer": "adam", "local_epochs": 2}, {"momentum": 0.9}])
@pytest.mark.parametrize("cut", [lambda node_id: 1, lambda node_id: 1 + node_id % 3])
def test_clients_side_by_side_learn_what_each_learns_alone(cut, training):
    federation = Federation(**training)
    alone = federation.run(federation.split(SplitFedV1, cut))
    together = stacked(federation, cut=cut)
    assert_close(weights(together[-1]), weights(alone[-1]))
    assert not same(weights(together[-1]), weights(alone[-1]))


@pytest.mark.parametrize("raises", [False, True])
def test_who_fails_beside_others_fails_alone(raises):
    def spoilt():
        federation = Federation()
        federation.tasks[1] = replace(federation.tasks[1], prepare=Spoilt(raises))
        return federation

    federation = spoilt()
    alone = federation.run(federation.split(SplitFedV1, lambda node_id: 2))
    together = stacked(spoilt(), cut=lambda node_id: 2)
    assert_close(weights(together[0]), weights(alone[0]))
    assert failed(together) == failed(alone)
    assert [len(reasons) for reasons in failed(together)] == [1, 0]


class OneOfTwo(nn.Module):
    def __init__(self):
        super().__init__()
        self.used, self.unused = nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(1, 4, 3, padding=1)

    def forward(self, images):
        return self.used(images)


def test_who_cannot_make_a_backward_pass_beside_others_says_why():
    def model():
        whole = tiny_model()
        whole[0][0] = OneOfTwo()
        return whole

    for reasons in failed(stacked(Federation(model), 4, cut=lambda node_id: 2)):
        assert len(reasons) == 4
        assert all("appears to not have been used" in reason for reason in reasons)


@pytest.mark.parametrize("training", [{}, {"optimizer": "adam", "local_epochs": 2}, {"momentum": 0.9}])
def test_halves_side_by_side_on_both_sides_of_the_cut_learn_what_each_learns_alone(training):
    federation, server = Federation(**training), LocalTraining(learning_rate=0.05, **training)
    frozen = {"frozen": ArrayRecord(HEAD), "make_optimizer": partial(make_optimizer, training=server)}
    alone = federation.run(federation.split(SplitFedV1, lambda node_id: 1 + node_id % 3, **frozen))
    for size in (2, 4):
        servers = stacked_servers(server, cross_entropy)
        together = stacked(federation, size, cut=lambda node_id: 1 + node_id % 3, together=servers, **frozen)
        assert_close(weights(together[-1]), weights(alone[-1]))
        assert losses(together)[0].keys() == losses(alone)[0].keys()
        assert losses(together)[-1]["train_loss"] == pytest.approx(losses(alone)[-1]["train_loss"], rel=1e-9)


def test_what_clients_side_by_side_send_is_clipped_as_of_each_alone():
    def loud():
        def model():  # without BatchNorm, which would make long activations as long as others
            whole = tiny_model()
            whole[0][1] = nn.Identity()
            return whole

        federation = Federation(model)
        federation.tasks[1] = replace(federation.tasks[1], prepare=lambda images: 30 * images.double())
        return federation

    server = LocalTraining(learning_rate=0.01)
    options = {"cut": lambda node_id: 1, "make_optimizer": partial(make_optimizer, training=server)}
    clips, servers = Guard("clip", activation_norm=2.0), stacked_servers(server, cross_entropy)
    alone = loud().run(loud().split(SplitFedV1, **options), rounds=3, guard=clips)
    off = loud().run(loud().split(SplitFedV1, **options), rounds=3)
    together = stacked(loud(), 4, clips, rounds=3, together=servers, **options)
    assert_close(weights(together[-1]), weights(alone[-1]))
    with pytest.raises(AssertionError):
        assert_close(weights(off[-1]), weights(alone[-1]))


def test_whose_loss_is_not_finite_has_no_step_and_the_others_have():
    def loss(outputs, labels):
        value = cross_entropy(outputs, labels)
        return value / 0 if len(labels) == 6 else value  # the last mini-batch of the client with 14 examples

    federation, server = Federation(), LocalTraining(learning_rate=0.05)
    alone = federation.run(federation.split(SplitFedV1, lambda node_id: 2, loss=loss))
    together = stacked(federation, 4, cut=lambda node_id: 2, together=stacked_servers(server, loss))
    assert_close(weights(together[-1]), weights(alone[-1]))
    assert failed(together) == failed(alone)
    assert [len(reasons) for reasons in failed(together)] == [1, 1]


def test_what_is_drawn_to_prepare_halves_side_by_side_is_what_each_draws_alone():
    def noisy():
        federation = Federation()
        federation.tasks = [
            replace(task, prepare=lambda x: x.double() + torch.randn_like(x)) for task in federation.tasks
        ]
        return federation

    alone = noisy().run(noisy().split(SplitFedV1, lambda node_id: 2))
    assert_close(weights(stacked(noisy(), 4, cut=lambda node_id: 2)[-1]), weights(alone[-1]))


def test_a_mini_batch_that_batch_norm_cannot_take_costs_its_client_alone():
    def model():
        with torch.random.fork_rng([]):
            torch.manual_seed(0)
            first = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.ReLU())
            return nn.Sequential(OrderedDict(first=first, head=nn.Linear(8, 3)))

    federation = Federation(model, sizes=(20, 17, 14))  # of mini-batches of 8: the last of the second client is of one
    alone = federation.run(federation.split(SplitFedV1, lambda node_id: 1))
    together = stacked(federation, 3, cut=lambda node_id: 1)
    assert_close(weights(together[-1]), weights(alone[-1]))
    assert [len(reasons) for reasons in failed(together)] == [len(reasons) for reasons in failed(alone)] == [1, 1]
