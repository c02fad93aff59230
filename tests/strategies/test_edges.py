"""What is asked of an edge beside its rounds has a default, and goes through decorators."""

import pytest
from flwr.app import ArrayRecord
from flwr.serverapp.strategy import FedAvg

from espalier.strategies import (
    AccumulatedGradients,
    Edge,
    EdgeDecorator,
    EqualWeights,
    Evaluation,
    Guard,
    Hierarchical,
    StrategyEdge,
    Update,
)
from espalier.strategies.edges import edge_of, idle


class Rounds:
    """The methods of EdgeRounds, and no base."""

    def train_round(self, server_round, arrays, config, grid):
        yield from ()
        return Update(arrays, weight=2.0)

    def evaluate_round(self, server_round, arrays, config, grid):
        yield from ()
        return Evaluation()

    def state_dict(self):
        return {"a": 1}

    def load_state_dict(self, state):
        self.loaded = state


def test_an_object_with_the_rounds_gets_the_defaults_of_edges():
    rounds = Rounds()
    edge = edge_of(rounds)
    assert isinstance(edge, Edge)
    assert (edge.weight_key, edge.weight_if_idle, edge.guard, edge.strategy, edge.labels) == (
        "num-examples",
        0.0,
        None,
        None,
        None,
    )
    assert edge.state_dict() == {"a": 1}
    edge.load_state_dict({"a": 2})
    assert rounds.loaded == {"a": 2}
    with pytest.raises(NotImplementedError, match="EdgeOfRounds has no heads"):
        edge.personalise(ArrayRecord(), None, None)


def test_one_object_can_not_be_two_edges():
    rounds = Rounds()
    with pytest.raises(ValueError, match="make_edge must return a new strategy for every edge"):
        Hierarchical(FedAvg(), lambda name, size: rounds, {"a": [2], "b": [3]})


def test_decorators_show_what_is_inside():
    inside = AccumulatedGradients(0.1, StrategyEdge(FedAvg()))
    edge = EqualWeights(EdgeDecorator(inside))
    assert edge.inner is inside
    assert inside.inner is inside
    assert idle(edge, ArrayRecord(), "nobody").weight == 1.0
    assert idle(edge_of(FedAvg()), ArrayRecord(), "nobody").arrays is None


def test_a_guard_is_for_those_that_are_guarded_and_have_none():
    plain, rounds = StrategyEdge(FedAvg()), Rounds()
    edges = iter([EdgeDecorator(plain), rounds])
    tier = Hierarchical(FedAvg(), lambda name, size: next(edges), {"a": [2, 3], "b": [4]}, guard=Guard("warn"))
    assert plain.guard.guard.mode == "warn"
    assert tier.edges["b"].guard is None
