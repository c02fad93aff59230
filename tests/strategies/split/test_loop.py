"""The loop of split training alone: no grid, no streams, no threads."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch

from espalier.clients.messages.split import SplitResult
from espalier.clients.shared.arrays import to_record
from espalier.clients.shared.crossing import Crossing
from espalier.clients.shared.cut import Cut
from espalier.clients.split.session import Session
from espalier.strategies.split import SplitFedV1, SplitFedV2
from espalier.strategies.split.labels import Labels
from espalier.strategies.split.loop import SplitLoop, SplitOutcome, Terms
from espalier.strategies.split.server_block import ServerBlock
from tests.strategies.split.federation import SGD, Federation, same, tiny_model

CUT = Cut(2, 4)
SIZES = (20, 33, 14)  # 3, 5 and 2 mini-batches


def terms_of(model, count, **options):
    block = to_record(CUT.front(model).state_dict())
    return Terms(
        server_round=1,
        blocks=dict.fromkeys(range(count), block),
        cuts=dict.fromkeys(range(count), CUT),
        cut_shapes=dict.fromkeys(range(count), (96,)),
        dtype=torch.float64,
        labels=Labels("labels"),
        num_classes=3,
        **options,
    )


class Round:
    """Clients 0, 1, ... with a server block each, or one for all; the loop between them, carried by calls."""

    def __init__(self, sizes=SIZES, *, shared=False):
        self.federation, self.model = Federation(sizes=sizes), tiny_model().double()
        self.terms = terms_of(self.model, len(sizes))
        one = ServerBlock(self.model, CUT, SGD)
        self.servers = [one if shared else copy.deepcopy(one) for _ in sizes]
        self.sessions = [Session.begin(task, self.terms.begin(i)) for i, task in enumerate(self.federation.tasks)]
        self.served = []

    def serve(self, batches):
        yield from ()
        self.served.append([batch.node_id for batch in batches])
        return {b.node_id: self.servers[b.node_id].step(b.activations, b.labels)[0] for b in batches}

    def run(self, *, gone=(), order=lambda clients: clients):
        """Return the loop's end; `gone` holds (client, step) of who does not send that mini-batch."""
        loop = SplitLoop(range(len(self.sessions)), self.terms, self.serve)
        self.said = {i: [] for i in loop.active}
        while loop.active:
            for i in order(loop.active):
                if (i, loop.step) in gone:
                    loop.leave(i, ValueError("it is\ngone"))
                    continue
                sent = self.sessions[i].forward()
                loop.receive(i, sent.values.detach(), sent.numbers.astype(np.int64), sent.num_steps)
            for i, answer in loop.answers().items():
                self.sessions[i].backward(answer.values)
                self.said[i].append((answer.step, answer.is_last))
        for i in sorted(loop.trained):
            loop.conclude(i, self.sessions[i].result())
        return loop.outcome()

    def weights(self, outcome, i):
        return {**outcome.blocks[i], **self.servers[i].state_dict()}


def test_every_client_trains_as_by_messages():
    """With one client the average is that client's model."""
    for i, size in enumerate(SIZES):
        alone = Federation(sizes=SIZES)
        alone.sizes, alone.tasks = (size,), [alone.tasks[i]]
        (expected,) = alone.run(alone.split(SplitFedV1, lambda n: 2, label_policy="labels"), rounds=1)
        whole = Round()
        outcome = whole.run()
        assert same(whole.weights(outcome, i), expected.arrays.to_torch_state_dict())


def test_a_shared_server_block_takes_the_clients_in_turn_as_by_messages():
    federation = Federation(sizes=SIZES)
    edge = federation.split(SplitFedV2, 2, label_policy="labels")
    edges = []

    def in_client_order(name, size):
        edges.append(edge(name, size))
        edges[0].random_order = lambda items, *purpose: list(items)
        return edges[0]

    federation.run(in_client_order, rounds=1)
    together = Round(shared=True)
    together.run()
    assert same(together.servers[0].state_dict(), edges[0].server.state_dict())


def test_those_with_fewer_mini_batches_end_earlier():
    together = Round()
    outcome = together.run()
    assert together.served == [[0, 1, 2], [0, 1, 2], [0, 1], [1], [1]]
    assert together.said[2] == [(0, False), (1, True)]
    assert together.said[1] == [(0, False), (1, False), (2, False), (3, False), (4, True)]
    assert list(outcome.blocks) == [0, 1, 2]
    assert outcome.num_examples == {0: 20, 1: 33, 2: 14}
    assert outcome.failures == []


@pytest.mark.parametrize("step", [0, 1, 4])
def test_one_that_leaves_does_not_hold_up_the_others(step):
    whole, without = Round(), Round()
    everybody, others = whole.run(), without.run(gone={(1, step)})
    assert [(failure.node_id, failure.reason) for failure in others.failures] == [(1, "it is gone")]
    assert list(others.blocks) == [0, 2]
    for i in (0, 2):
        assert same(whole.weights(everybody, i), without.weights(others, i))
    assert all(1 not in batches for batches in without.served[step:])


def test_the_order_of_arrival_changes_nothing():
    forwards, backwards = Round(shared=True), Round(shared=True)
    first, second = forwards.run(), backwards.run(order=lambda clients: clients[::-1])
    assert forwards.served == backwards.served
    assert all(same(forwards.weights(first, i), backwards.weights(second, i)) for i in range(3))


def test_a_step_that_can_not_be_made_is_its_clients_failure():
    together = Round()
    serve = together.serve

    def refusing(batches):
        gradients = yield from serve(batches)
        return {n: ValueError("too large") if n == 0 else gradient for n, gradient in gradients.items()}

    together.serve = refusing
    outcome = together.run()
    assert [(failure.node_id, failure.reason) for failure in outcome.failures] == [(0, "too large")]
    assert list(outcome.blocks) == [1, 2]


def loop_of_one(**options):
    return SplitLoop([0], terms_of(tiny_model().double(), 1, **options), lambda batches: {})


GOOD = {"activations": torch.ones(4, 96).double(), "numbers": np.array([0, 1, 2, 0]), "num_steps": 3}


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        ({"num_steps": 0}, "num-steps is 0, expected a whole number from 1 on"),
        ({"numbers": np.array([0, 1, 3, 0])}, "a label is out of range, there are 3 classes"),
        ({"numbers": np.array([0, 1])}, "2 labels for 4 activations"),
        ({"activations": torch.ones(4, 95).double()}, r"activations have shape \(4, 95\), expected \(N, 96\)"),
        ({"activations": torch.ones(4, 96)}, r"activations have dtype torch.float32, expected torch.float64"),
        ({"activations": torch.full((4, 96), torch.nan).double()}, "activations hold NaN or Inf"),
    ],
)
def test_a_mini_batch_that_does_not_fit_is_refused(bad, reason):
    loop = loop_of_one()
    with pytest.raises(ValueError, match=reason):
        loop.receive(0, **(GOOD | bad))
    loop.receive(0, **GOOD)


SEQUENCES = {"activations": torch.ones(3, 2, 5).double(), "num_steps": 1, "lengths": np.array([2, 1, 2])}
SEQUENCES |= {"numbers": np.array([[0, 1], [2, -100], [-100, -100]])}


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        ({"numbers": np.array([0, 1, 2])}, r"a sample has labels of shape \(\), expected \(2,\)"),
        ({"numbers": np.array([[0, 1], [2, -1], [0, 0]])}, "a label is out of range, there are 3 classes"),
        ({"numbers": np.array([[0, 1], [2, 3], [0, 0]])}, "a label is out of range, there are 3 classes"),
        ({"lengths": None}, "activations come without lengths"),
        (
            {"lengths": np.array([2, 1])},
            r"lengths are torch.int64 of shape \(2,\) for activations of shape \(3, 2, 5\)",
        ),
        ({"lengths": np.array([2, 0, 2])}, "a length is out of range, allowed is 1 to 2"),
        ({"lengths": np.array([2, 3, 2])}, "a length is out of range, allowed is 1 to 2"),
    ],
)
def test_labels_and_lengths_of_sequences_that_do_not_fit_are_refused(bad, reason):
    options = {
        "cut_shapes": {0: (2, 5)},
        "labels": Labels("labels", (2,)),
        "crossings": {0: Crossing(has_lengths=True)},
    }
    loop = SplitLoop([0], replace(terms_of(tiny_model().double(), 1), **options), lambda batches: {})
    with pytest.raises(ValueError, match=reason):
        loop.receive(0, **(SEQUENCES | bad))
    loop.receive(0, **SEQUENCES)


def test_lengths_that_nobody_asked_for_are_refused():
    with pytest.raises(ValueError, match="activations come with lengths"):
        loop_of_one().receive(0, **GOOD, lengths=np.array([1, 1, 1, 1]))


def test_a_block_other_than_the_one_that_was_sent_is_refused():
    loop = loop_of_one()
    block = to_record({"first.0.weight": torch.ones(3)})
    with pytest.raises(ValueError, match=r"array 'first\.0\.bias' is missing"):
        loop.conclude(0, SplitResult(block, 20, 2))


def test_all_who_are_active_are_waited_for():
    with pytest.raises(KeyError):
        loop_of_one().answers()


def test_an_outcome_is_in_the_order_of_the_clients():
    outcome = SplitOutcome(blocks={3: {}, 1: {}, 2: {}}, num_examples={3: 30, 1: 10, 2: 20})
    outcome.sort([1, 2, 3, 4])
    assert list(outcome.blocks) == [1, 2, 3]
    assert list(outcome.num_examples.items()) == [(1, 10), (2, 20), (3, 30)]


@pytest.mark.parametrize("measures", [False, True])
def test_activations_measured_together_have_the_magnitudes_that_each_has(measures):
    terms = terms_of(tiny_model().double(), 6, measures=measures)
    draw = torch.Generator().manual_seed(0)
    sent = {n: torch.randn((count, 96), generator=draw, dtype=torch.float64) for n, count in enumerate((8, 8, 3, 8))}
    sent[1][2, 3] = torch.nan
    odd = {4: torch.randn((8, 95), dtype=torch.float64), 5: torch.zeros((0, 96), dtype=torch.float64)}
    found = terms.magnitudes({**sent, **odd})
    assert found.keys() == sent.keys()
    np.testing.assert_allclose(list(found.values()), [terms.magnitude(sent[n]) for n in found], rtol=1e-12)
    labels = np.zeros(8, np.int64)
    batch = terms.mini_batch(0, sent[0], labels, found[0])
    assert batch.length == (found[0] if measures else 0.0)
    with pytest.raises(ValueError, match="NaN or Inf"):
        terms.mini_batch(1, sent[1], labels, found[1])
