"""Each law of edges is broken by one edge at least, and that one breaks no other."""

import random
from dataclasses import replace

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message
from flwr.serverapp.strategy import FedAdam, FedAvg

from espalier.sim.in_process_grid import InProcessGrid
from espalier.strategies import EqualWeights, Failure, Hierarchical, StrategyEdge, Trial, check_edge, plain_client
from espalier.strategies.edge_laws import LAWS


def broken_by(make_edge):
    return [one.law for one in check_edge(lambda: Trial(make_edge(), InProcessGrid(plain_client, 4)))]


class Edge(StrategyEdge):
    """FedAvg, with what becomes of its updates changed."""

    change = staticmethod(lambda update, arrays, grid: update)

    def __init__(self):
        super().__init__(FedAvg())

    def train_round(self, server_round, arrays, config, grid):
        update = yield from super().train_round(server_round, arrays, config, grid)
        return self.change(update, arrays, grid)


def with_model(update, of):
    if update.arrays is None:
        return update
    values = {name: array.numpy() for name, array in update.arrays.items()}
    return replace(update, arrays=ArrayRecord({name: Array(np.asarray(of(v))) for name, v in values.items()}))


class InDoublePrecision(Edge):
    def change(self, update, arrays, grid):
        return with_model(update, lambda v: v.astype(np.float64))


class Weightless(Edge):
    def change(self, update, arrays, grid):
        return replace(update, weight=0.0)


class Backwards(Edge):
    def change(self, update, arrays, grid):
        return replace(update, participants=update.participants[::-1])


class InPlace(Edge):
    def change(self, update, arrays, grid):
        arrays["w"] = Array(np.zeros(5, np.float32))
        return update


class Silent(Edge):
    def change(self, update, arrays, grid):
        return replace(update, failures=()) if update.arrays is not None else update


class Stubborn(Edge):
    """Makes a model whether somebody answered or not."""

    def change(self, update, arrays, grid):
        return replace(update, arrays=update.arrays or ArrayRecord(dict.fromkeys(arrays, arrays["b"])), weight=1.0)


class Noisy(Edge):
    def change(self, update, arrays, grid):
        return with_model(update, lambda v: (v + random.gauss(0, 1)).astype(v.dtype))


class Forgetful(Edge):
    """Its steps become shorter, by a count that is not saved."""

    rounds = 0

    def change(self, update, arrays, grid):
        self.rounds += 1
        return with_model(update, lambda v: (v / self.rounds).astype(v.dtype))


class FlatEvaluation(Edge):
    def evaluate_round(self, server_round, arrays, config, grid):
        evaluation = yield from super().evaluate_round(server_round, arrays, config, grid)
        return replace(evaluation, weight=1.0 if evaluation.weight else 0.0)


class AsksStrangers(Edge):
    def train_round(self, server_round, arrays, config, grid):
        messages, _ = self.instructions(server_round, arrays, config, grid)
        *replies, _ = yield [*messages, Message(messages[0].content, dst_node_id=7, message_type="train")]
        screened, failures = self.screened(messages, replies)
        return self.aggregated(server_round, arrays, messages, screened, failures)


class Believes(Edge):
    """Takes replies as they are."""

    def screened(self, messages, replies):
        pairs = zip(messages, replies, strict=True)
        return list(replies), [Failure(m.metadata.dst_node_id, "it failed") for m, r in pairs if r.has_error()]


ONE = StrategyEdge(FedAvg())


class SendsByItself(Edge):
    def train_round(self, server_round, arrays, config, grid):
        grid.send_and_receive(self.instructions(server_round, arrays, config, grid)[0])
        yield []


class NotAGenerator(Edge):
    def train_round(self, server_round, arrays, config, grid):
        return None


BREAKING = {
    "an edge has rounds": [SendsByItself, NotAGenerator, lambda: object()],
    "every edge is an object of its own": [lambda: ONE],
    "messages go to the edge's own clients": [AsksStrangers],
    "a model keeps its names, shapes and data types": [InDoublePrecision],
    "a model has a weight above 0": [Weightless],
    "participants are clients, in client order": [Backwards],
    "what an edge is given stays as it is": [InPlace],
    "a client that fails is left out, and the others' model stands": [Silent],
    "a client that sends NaN is left out like one that fails": [Believes],
    "without a good reply there is no model, and a failure says why": [Stubborn],
    "the same seed gives the same bits": [Noisy],
    "an edge goes on from its state to the bit": [Forgetful],
    "an evaluation weighs those who answered": [FlatEvaluation],
}


@pytest.mark.parametrize(("law", "make_edge"), [(law, one) for law, every in BREAKING.items() for one in every])
def test_a_broken_law_is_named_and_no_other(law, make_edge):
    assert broken_by(make_edge) == [law]


class Fails(FedAvg):
    def aggregate_train(self, server_round, replies):
        raise KeyError("lr")


@pytest.mark.parametrize(
    ("make_edge", "advice"),
    [
        (SendsByItself, "train_round and evaluate_round are generators: they yield lists of messages, get the replies"),
        (Fails, "let a round give a model where every client answers"),
        (lambda: object(), "let a round give a model where every client answers"),
        (lambda: {}["edge"], "let a round give a model where every client answers"),
    ],
)
def test_only_who_wrote_rounds_is_told_how_rounds_are_written(make_edge, advice):
    (broken,) = check_edge(lambda: Trial(make_edge(), InProcessGrid(plain_client, 4)))
    assert broken.law == "an edge has rounds"
    assert broken.advice.startswith(advice)


def test_every_law_is_there():
    assert [law.says for law in LAWS] == list(BREAKING)


@pytest.mark.parametrize(
    "make_edge",
    [
        FedAvg,
        FedAdam,
        lambda: FedAvg(fraction_train=0.5),
        lambda: EqualWeights(StrategyEdge(FedAvg())),
    ],
)
def test_edges_that_are_right_break_none(make_edge):
    assert broken_by(make_edge) == []


def test_a_tier_is_an_edge():
    def new_trial():
        grid = InProcessGrid(plain_client, 4)
        nodes = list(grid.get_node_ids())
        rooms = {"hall": nodes[:2], "attic": nodes[2:]}
        return Trial(Hierarchical(FedAvg(), lambda name, size: FedAvg(min_available_nodes=1), rooms), grid, nodes)

    assert check_edge(new_trial) == []
