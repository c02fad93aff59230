"""Tiers that go by real time, on grids whose replies come when a clock of the test's says so; nobody sleeps."""

from itertools import islice

import numpy as np
import pytest
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp.strategy import FedAdam, FedAvg

from espalier.sim.in_process_grid import InProcessGrid
from espalier.strategies import Hierarchical
from espalier.strategies.asynchronous import (
    AsynchronousEdge,
    AsynchronousHierarchical,
    AsynchronousTier,
    FedAsync,
    FedBuff,
    SemiSynchronous,
    WallClock,
    constant,
    polynomial,
)
from espalier.strategies.equal_weights import EqualWeights
from espalier.strategies.exchange import Beside, Conversations, Until
from tests.strategies.toys import average, examples_of, initial, local_step, to_numpy, to_record, toy_app, toy_topology

ANY = {"min_train_nodes": 1, "min_evaluate_nodes": 1, "min_available_nodes": 1}


class Delayed(InProcessGrid):
    """A Grid with a clock of its own: every look takes a second, and a node's reply is there after its delay."""

    def __init__(self, num_nodes, faults=None):
        super().__init__(toy_app(faults), num_nodes)
        self.now, self.delays, self.due, self.asked = 0.0, {}, {}, []

    def seconds(self):
        return self.now

    def push_messages(self, messages):
        messages = list(messages)
        for message in messages:
            if message.metadata.message_type == "train":
                number = int(message.content["config"]["server-round"])
                self.asked.append((message.metadata.dst_node_id, number))
        ids = list(super().push_messages(messages))
        for message_id, message in zip(ids, messages, strict=True):
            is_train = message.metadata.message_type == "train"
            self.due[message_id] = self.now + is_train * self.delays.get(message.metadata.dst_node_id, 0.0)
        return ids

    def pull_messages(self, message_ids):
        self.now += 1.0
        return super().pull_messages([i for i in message_ids if self.due[i] <= self.now])


def over_edges(grid, mode, num_edges, *, cloud=None, edge_rounds=1, max_staleness=0):
    topology = toy_topology(grid, num_edges)
    tier = AsynchronousTier(mode, WallClock(grid.seconds), num_edges, "edges", max_staleness=max_staleness)
    return AsynchronousHierarchical(
        cloud or FedAvg(**ANY),
        lambda name, size: FedAvg(**ANY),
        topology,
        edge_rounds=edge_rounds,
        tier=tier,
        evaluate_every=0,
        poll_seconds=0.0,
    )


def over_clients(grid, mode, wrapped=lambda edge: edge, **options):
    ((name, nodes),) = toy_topology(grid, 1).items()
    tier = AsynchronousTier(mode, WallClock(grid.seconds), len(nodes), "clients", **options)
    edge = wrapped(AsynchronousEdge(FedAvg(**ANY), nodes, tier))
    strategy = Hierarchical(FedAvg(**ANY), lambda name, size: edge, {name: nodes}, evaluate_every=0, poll_seconds=0.0)
    return strategy, tier


def models(strategy, grid, rounds, **options):
    return [to_numpy(one.arrays) for one in strategy.rounds(grid, to_record(initial()), rounds, **options)]


def assert_same_bits(left, right):
    assert len(left) == len(right)
    for one, other in zip(left, right, strict=True):
        for name in one:
            np.testing.assert_array_equal(one[name], other[name])


@pytest.mark.parametrize("mode", [FedBuff(3, polynomial(0.5)), SemiSynchronous(np.inf, constant)])
@pytest.mark.parametrize("cloud", [FedAvg, FedAdam])
def test_all_at_once_and_everybody_are_the_synchronous_rounds_to_the_bit(mode, cloud):
    grid = Delayed(7)
    strategy = over_edges(grid, mode, 3, cloud=cloud(**ANY), edge_rounds=2)
    plain = Hierarchical(
        cloud(**ANY), lambda name, size: FedAvg(**ANY), toy_topology(grid, 3), edge_rounds=2, evaluate_every=0
    )
    assert_same_bits(models(strategy, grid, 4), models(plain, grid, 4))


def test_clients_all_at_once_are_the_synchronous_rounds_to_the_bit():
    grid = Delayed(5)
    plain = Hierarchical(FedAvg(**ANY), lambda name, size: FedAvg(**ANY), toy_topology(grid, 1), evaluate_every=0)
    assert_same_bits(models(over_clients(grid, FedBuff(5, constant))[0], grid, 3), models(plain, grid, 3))


def test_rounds_go_on_without_a_slow_edge_and_take_its_late_update_with_its_staleness():
    grid = Delayed(3)
    fast, _, slow = (nodes[0] for nodes in toy_topology(grid, 3).values())
    strategy = over_edges(grid, FedBuff(2, polynomial(0.5)), 3)
    grid.delays, grid.now = {slow: 12.5}, 0.0
    before, arrivals = initial(), []
    for one in strategy.rounds(grid, to_record(initial()), 20):
        arrivals = strategy.tier.take_report()["arrivals"]
        if "edge-2" in one.edges:
            break
        assert [arrival["staleness"] for arrival in arrivals] == [0, 0]
        before = to_numpy(one.arrays)
    # Two fast edges come at every look, and the slow one at its thirteenth, of the model of twelve aggregations ago.
    assert one.number == 13
    assert arrivals == [
        {"who": "edge-2", "seconds": 13.0, "staleness": 12},
        {"who": "edge-0", "seconds": 13.0, "staleness": 0},
    ]
    assert [grid.asked.count((node, 1)) for node in (fast, slow)] == [1, 1]
    new = local_step(before, 0, 13)
    old = local_step(initial(), 2, 1)
    moved = {k: before[k] + (old[k] - initial()[k]) / np.sqrt(13) for k in before}
    expected = average([new, moved], [examples_of(0), examples_of(2)])
    for name, values in to_numpy(one.arrays).items():
        np.testing.assert_allclose(values, expected[name], rtol=2e-6, atol=2e-6)


def test_a_deadline_is_one_of_the_clock_and_late_updates_join_the_next():
    grid = Delayed(3)
    nodes = toy_topology(grid, 1)["edge-0"]
    strategy, tier = over_clients(grid, SemiSynchronous(10.0, polynomial(0.5)))
    grid.delays = {nodes[0]: 3.0, nodes[1]: 6.0, nodes[2]: 14.0}
    seen = []
    for _ in islice(strategy.rounds(grid, to_record(initial()), 9), 2):
        arrivals = tier.take_report()["arrivals"]
        seen.append((tier.clock.now, [(a["who"], a["seconds"], a["staleness"]) for a in arrivals]))
    names = [str(node) for node in nodes]
    assert [[(names.index(who), *rest) for who, *rest in own] for _, own in seen] == [
        [(0, 3.0, 0), (1, 6.0, 0)],
        [(0, 13.0, 0), (2, 14.0, 1), (1, 16.0, 0)],
    ]
    assert [now for now, _ in seen] == [10.0, 16.0]


def test_who_dies_is_a_failure_by_name_and_asked_again_when_it_is_back():
    grid = Delayed(3)
    nodes = toy_topology(grid, 1)["edge-0"]
    strategy, tier = over_clients(grid, FedBuff(2, constant))
    grid.delays = {nodes[2]: 3.0}
    failed, asked = [], []
    for one in strategy.rounds(grid, to_record(initial()), 9):
        (edge,) = one.edges.values()
        failed.append([failure.node_id for failure in edge.failures])
        asked.append(sum(node == nodes[2] for node, _ in grid.asked))
        if one.number == 1:
            grid.disconnect(nodes[2])
        if one.number == 6:
            grid.connect(nodes[2])
    (fails,) = (number for number, own in enumerate(failed, start=1) if own)
    assert failed[fails - 1] == [nodes[2]]
    assert fails <= 4
    assert asked[5] == 1
    assert asked[8] >= 2
    assert nodes[2] in one.edges["edge-0"].updates[0].participants or tier.clock.at_work


def test_what_is_too_old_is_left_out_and_named(caplog):
    grid = Delayed(3)
    nodes = toy_topology(grid, 3)
    strategy = over_edges(grid, FedAsync(0.6, constant), 3, max_staleness=2)
    grid.delays = {nodes["edge-2"][0]: 4.0}
    left_out = []
    for _ in strategy.rounds(grid, to_record(initial()), 12):
        left_out += [a for a in strategy.tier.take_report()["arrivals"] if "left_out" in a]
    assert {one["who"] for one in left_out} == {"edge-2"}
    assert "(async.max-staleness = 2)" in left_out[0]["left_out"]
    assert "edge-2 left out: its update began" in caplog.text
    assert "edge-2 still trains on the model of" in caplog.text


def test_what_was_in_flight_is_asked_anew_after_an_interruption():
    grid = Delayed(4)
    slow = toy_topology(grid, 2)["edge-1"]
    first, second = (over_edges(grid, FedBuff(1, constant), 2) for _ in range(2))
    grid.delays = dict.fromkeys(slow, 50.0)
    half = models(first, grid, 3)
    assert [number for node, number in grid.asked if node == slow[0]] == [1]
    state = first.state_dict()
    second.load_state_dict(state)
    assert second.tier.clock.now == first.tier.clock.now > 0
    grid.delays, grid.asked = {}, []
    rest = list(second.rounds(grid, to_record(half[-1]), 5, first_round=4))
    assert next(number for node, number in grid.asked if node == slow[0]) == 1
    assert next(number for node, number in grid.asked if node not in slow) == 4
    assert {name for one in rest for name in one.edges} == {"edge-0", "edge-1"}
    bad = state | {"tier": state["tier"] | {"clock": {"now": float("nan"), "ended": []}}}
    with pytest.raises(ValueError, match="now: must be"):
        second.load_state_dict(bad)


def test_what_stands_before_an_edge_answers_those_who_go_on_beside_it():
    grid = Delayed(4)
    ((name, nodes),) = toy_topology(grid, 1).items()
    plain = Hierarchical(FedAvg(**ANY), lambda name, size: EqualWeights(FedAvg(**ANY)), {name: nodes}, evaluate_every=0)
    strategy, _ = over_clients(grid, FedBuff(4, constant), wrapped=EqualWeights)
    assert_same_bits(models(strategy, grid, 2), models(plain, grid, 2))


def test_conversations_beside_others_go_on_from_one_run_to_the_next():
    grid, told = Delayed(2), []
    near, far = toy_topology(grid, 1)["edge-0"]
    grid.delays = {far: 5.0}

    def ask(node_id):
        (reply,) = yield [message_to(node_id)]
        told.append((node_id, reply.has_error(), grid.now))

    def beside():
        yield Beside([ask(far), ask(near)])
        yield Until(lambda: len(told) == 1)
        return list(told)

    def waiting():
        yield Until(lambda: len(told) == 2)
        return len(told)

    grid.now = 0.0
    paths = []
    runs = Conversations(grid, poll_seconds=0.0, on_message=lambda path, way, message: paths.append((path, way)))
    assert runs.run({"a": beside()}) == {"a": [(near, False, 1.0)]}
    assert runs.run({"b": waiting(), "c": waiting()}) == {"b": 2, "c": 2}
    assert told[1] == (far, False, 5.0)
    assert paths == [("a", "downlink")] * 2 + [("a", "uplink")] * 2


def message_to(node_id):
    content = RecordDict({"arrays": to_record(initial()), "config": ConfigRecord({"server-round": 1})})
    return Message(content, node_id, "train")
