"""A deadline in real time, on a grid whose replies come when a clock of the test's says so; nobody sleeps."""

import numpy as np
import pytest
from flwr.serverapp.strategy import FedAvg

from espalier.strategies import Hierarchical, ResourceAware
from espalier.strategies.allocation import exact
from espalier.strategies.deadline import Deadline
from espalier.strategies.equal_weights import EqualWeights
from tests.strategies.asynchronous.test_wall_clock import ANY, Delayed, assert_same_bits
from tests.strategies.test_resource_aware import Fixed
from tests.strategies.toys import average, examples_of, initial, local_step, to_numpy, to_record, toy_topology


class Timed(Fixed):
    """Resources whose clients keep a deadline in real time; it keeps what it is told."""

    def __init__(self, deadline, **options):
        super().__init__(z=4, deadline_seconds=1e6, **options)
        self.deadline, self.took, self.lates = deadline, [], []

    def carry_out(self, server_round, clients, plan):
        self.deadline.begin(lambda node_id, seconds: self.took.append((server_round, node_id, seconds)))
        return super().carry_out(server_round, clients, plan)

    def delivered(self, late):
        self.lates.append(set(late))


def federation(grid, seconds, wrapped=lambda edge: edge):
    ((name, nodes),) = toy_topology(grid, 1).items()
    resources = Timed(Deadline(seconds, grid.seconds))

    def make_edge(name, size):
        return wrapped(ResourceAware(FedAvg(**ANY), resources, exact))

    strategy = Hierarchical(FedAvg(**ANY), make_edge, {name: nodes}, evaluate_every=0, poll_seconds=0.0)
    return strategy, resources, nodes


def test_who_is_in_time_changes_no_bit():
    grid = Delayed(4)
    strategy, resources, nodes = federation(grid, 10.0)
    plain = Hierarchical(FedAvg(**ANY), lambda name, size: FedAvg(**ANY), toy_topology(grid, 1), evaluate_every=0)
    rounds = [list(one.rounds(grid, to_record(initial()), 3)) for one in (strategy, plain)]
    assert_same_bits(*([to_numpy(one.arrays) for one in own] for own in rounds))
    assert resources.lates == [set()] * 3
    assert [(n, node) for n, node, _ in resources.took] == [(n, node) for n in (1, 2, 3) for node in nodes]


@pytest.mark.parametrize("wrapped", [lambda edge: edge, EqualWeights], ids=["alone", "in a wrapper"])
def test_who_is_late_is_left_out_and_its_true_time_is_known_when_it_comes(wrapped):
    grid = Delayed(4)
    strategy, resources, nodes = federation(grid, 5.0, wrapped)
    grid.delays = {nodes[1]: 12.0}
    rounds = strategy.rounds(grid, to_record(initial()), 12)
    first = next(rounds)
    (update,) = first.edges["edge-0"].updates
    assert list(update.participants) == [nodes[0], nodes[2], nodes[3]]
    assert [(f.node_id, f.reason) for f in update.failures] == [(nodes[1], "no result within the deadline of 5 s")]
    assert resources.lates == [{nodes[1]}]
    weights = [1.0] * 3 if wrapped is EqualWeights else [examples_of(i) for i in (0, 2, 3)]
    expected = average([local_step(initial(), i, 1) for i in (0, 2, 3)], weights)
    np.testing.assert_allclose(to_numpy(first.arrays)["w"], expected["w"], rtol=2e-6)
    assert 5.0 <= grid.now <= 7.0
    assert {node for n, node, _ in resources.took} == {nodes[0], nodes[2], nodes[3]}
    # Its result comes while a later round runs, and is nobody's but for its time.
    grid.delays = {}
    list(rounds)
    assert resources.lates[1:] == [set()] * 11
    own = {n: seconds for n, node, seconds in resources.took if node == nodes[1]}
    assert sorted(own) == list(range(1, 13))
    assert 12.0 <= own.pop(1) <= 14.0
    assert max(own.values()) <= 2.0


def test_rounds_do_not_wait_longer_than_the_deadline_for_anybody():
    grid = Delayed(4)
    strategy, resources, nodes = federation(grid, 5.0)
    grid.delays = dict.fromkeys(nodes, 1e6)
    rounds = list(strategy.rounds(grid, to_record(initial()), 3))
    assert resources.lates == [set(nodes)] * 3
    assert grid.now <= 3 * 7.0
    assert_same_bits([to_numpy(one.arrays) for one in rounds], [initial()] * 3)


def test_the_time_of_a_client_that_fails_is_no_time():
    grid = Delayed(4, faults={2: "raise"})
    strategy, resources, nodes = federation(grid, 5.0)
    list(strategy.rounds(grid, to_record(initial()), 2))
    assert resources.lates == [set()] * 2  # it has failed, and is not late
    assert [(n, node) for n, node, _ in resources.took] == [(n, nodes[i]) for n in (1, 2) for i in (0, 1, 3)]
