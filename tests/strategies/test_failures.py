"""Hierarchical: what fails is left out, logged with its name and counted; nothing else stops."""

import logging
from dataclasses import replace

import numpy as np
import pytest
from flwr.app import Array
from flwr.serverapp.exception import AggregationError
from flwr.serverapp.strategy import FedAvg, FedTrimmedAvg, QFedAvg

from espalier.sim.in_process_grid import InProcessGrid
from espalier.strategies import Hierarchical, Observer, StrategyEdge
from tests.strategies.toys import (
    average,
    examples_of,
    initial,
    local_step,
    to_numpy,
    to_record,
    toy_app,
    toy_grid,
    toy_topology,
)

ANY = {"min_train_nodes": 1, "min_evaluate_nodes": 1, "min_available_nodes": 1}


def build(grid, num_edges=2, make_edge=lambda name, size: FedAvg(**ANY), cloud=None, **options):
    topology = toy_topology(grid, num_edges)
    place = {n: i for i, n in enumerate(n for members in topology.values() for n in members)}
    cloud = cloud or FedAvg(**ANY)
    return Hierarchical(cloud, make_edge, topology, node_name=lambda n: f"client {place[n]}", **options)


def one_round(grid, timeout=None, **options):
    return next(build(grid, **options).rounds(grid, to_record(initial()), 1, timeout=timeout))


def average_of(*edges):
    models = [average([local_step(initial(), i, 1) for i in m], [examples_of(i) for i in m]) for m in edges]
    return average(models, [sum(map(examples_of, m)) for m in edges])


def assert_is_average_of(arrays, *edges):
    for name, values in average_of(*edges).items():
        np.testing.assert_allclose(arrays[name].numpy(), values, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("raise", "the battery is empty"),
        ("nan", "array 'w' holds NaN or Inf"),
        ("inf", "array 'w' holds NaN or Inf"),
        ("shape", "array 'w' has shape (4,), expected (5,)"),
        ("missing", "array 'b' is missing"),
        ("extra", "array 'c' is not in the model"),
        ("dtype", "array 'w' has dtype complex64"),
        ("no weight", "metric 'num-examples' is None"),
        ("negative weight", "metric 'num-examples' is -1"),
        ("list", "its reply has no metric 'train_loss', which others have"),
        ("nan loss", "metric 'train_loss' is nan"),
        ("too large", "array 'w' holds NaN or Inf"),
        ("no arrays", "0 array records, expected 1"),
        ("two arrays", "2 array records, expected 1"),
    ],
)
def test_a_bad_client_is_left_out_logged_with_its_name_and_counted(fault, reason, caplog):
    caplog.set_level(logging.WARNING, "espalier")
    outcome = one_round(toy_grid(6, faults={4: fault}))
    assert_is_average_of(outcome.arrays, [0, 1, 2], [3, 5])
    first, second = (edge.updates[0] for edge in outcome.edges.values())
    assert first.failures == []
    assert [reason in failure.reason for failure in second.failures] == [True]
    assert "\n" not in second.failures[0].reason
    lines = [r.getMessage() for r in caplog.records if r.name == "espalier"]
    assert len([line for line in lines if "client 4 of edge-1 left out" in line and reason in line]) == 1


@pytest.mark.parametrize("client", [0, 1])
@pytest.mark.parametrize("habit", ["metrics", "renamed arrays", "renamed metrics"])
@pytest.mark.parametrize("size", [2, 3])
def test_what_nobody_asked_for_is_dropped_and_what_records_are_called_changes_nothing(habit, client, size):
    outcome = one_round(toy_grid(size, faults={client: habit}), num_edges=1)
    (update,) = outcome.edges["edge-0"].updates
    assert update.failures == []
    assert list(update.metrics) == ["train_loss"]
    assert_is_average_of(outcome.arrays, range(size))


def test_bad_clients_do_not_confuse_a_strategy_that_takes_replies_apart():
    outcome = one_round(
        toy_grid(8, faults={1: "nan"}), num_edges=1, make_edge=lambda n, s: FedTrimmedAvg(beta=0.2, **ANY)
    )
    values = np.sort(np.stack([local_step(initial(), i, 1)["w"] for i in (0, 2, 3, 4, 5, 6, 7)]), axis=0)
    np.testing.assert_allclose(outcome.arrays["w"].numpy(), values[1:-1].mean(0), rtol=1e-6)


def test_an_edge_that_loses_all_its_clients_is_left_out_by_the_cloud(caplog):
    outcome = one_round(toy_grid(6, faults={3: "raise", 4: "nan", 5: "shape"}))
    assert_is_average_of(outcome.arrays, [0, 1, 2])
    assert outcome.edges["edge-1"].arrays is None
    assert outcome.edges["edge-1"].weight == 0
    assert "edge-1 left out: no edge round gave a model" in caplog.text


def test_an_edge_whose_model_weighs_nothing_is_left_out(caplog):
    class Weightless(StrategyEdge):
        def train_round(self, *what):
            return replace((yield from super().train_round(*what)), weight=0.0)

    outcome = one_round(
        toy_grid(6), make_edge=lambda n, s: (Weightless if n == "edge-1" else StrategyEdge)(FedAvg(**ANY))
    )
    assert_is_average_of(outcome.arrays, [0, 1, 2])
    assert "edge-1 left out: its model weighs 0.0: nothing can be averaged by that" in caplog.text


def test_an_edge_that_says_itself_why_it_failed_is_logged_once_a_phase(caplog):
    grid = toy_grid(4)
    strategy = build(
        grid, make_edge=lambda n, s: FedAvg(min_available_nodes=2, min_train_nodes=2, min_evaluate_nodes=2)
    )
    grid.disconnect(strategy.topology["edge-1"][0])
    next(strategy.rounds(grid, to_record(initial()), 1))
    lines = [r.getMessage() for r in caplog.records if r.name == "espalier" and "edge-1 left out" in r.getMessage()]
    reason = "edge-1 left out: 1 nodes connected, FedAvg needs 2"
    assert lines == [f"round 1, edge round 1: {reason}", f"round 1, evaluation: {reason}"]


def test_an_edge_keeps_its_model_over_an_edge_round_without_replies():
    # Edge 1 works in edge round 1 and loses everybody in edge round 2.
    grid = toy_grid(4, faults={2: "raise", 3: "raise"}, first_bad_round=2)
    (outcome,) = build(grid, edge_rounds=2).rounds(grid, to_record(initial()), 1)
    expected = average([local_step(initial(), i, 1) for i in (2, 3)], [examples_of(2), examples_of(3)])
    np.testing.assert_allclose(outcome.edges["edge-1"].arrays["w"].numpy(), expected["w"], rtol=1e-6)
    assert outcome.edges["edge-1"].weight == examples_of(2) + examples_of(3)
    assert [len(u.failures) for u in outcome.edges["edge-1"].updates] == [0, 2]


def test_without_a_single_good_reply_the_global_model_stays(caplog):
    outcome = one_round(toy_grid(3, faults=dict.fromkeys(range(3), "nan")), num_edges=1)
    for name, values in initial().items():
        np.testing.assert_array_equal(to_numpy(outcome.arrays)[name], values)
    assert "the global model stays as it is" in caplog.text


class Gated(InProcessGrid):
    """A Grid on which some nodes' replies are held back while `closed` says so."""

    def __init__(self, num_nodes, slow=(), closed=lambda grid: True):
        super().__init__(toy_app(), num_nodes)
        self.slow, self.closed, self.pushed, self.destination = set(slow), closed, [], {}

    def push_messages(self, messages):
        messages = list(messages)
        ids = list(super().push_messages(messages))
        self.destination |= dict(zip(ids, (m.metadata.dst_node_id for m in messages), strict=True))
        self.pushed += [m.metadata.dst_node_id for m in messages if m.metadata.message_type == "train"]
        return ids

    def pull_messages(self, message_ids):
        held = self.slow if self.closed(self) else set()
        return super().pull_messages([i for i in message_ids if self.destination[i] not in held])


def test_an_edge_does_not_wait_for_another():
    grid = Gated(4)
    topology = toy_topology(grid, 2)
    fast, slow = topology.values()
    # The slow edge answers only after the fast one was sent all of its three edge rounds.
    grid.slow, grid.closed = set(slow), lambda grid: grid.pushed.count(fast[0]) < 3
    strategy = Hierarchical(FedAvg(**ANY), lambda n, s: FedAvg(**ANY), topology, edge_rounds=3, poll_seconds=0.001)
    outcome = next(strategy.rounds(grid, to_record(initial()), 1, timeout=30))
    assert [len(edge.updates) for edge in outcome.edges.values()] == [3, 3]
    assert not [failure for edge in outcome.edges.values() for update in edge.updates for failure in update.failures]
    assert grid.pushed.index(slow[0], grid.pushed.index(slow[0]) + 1) > max(
        i for i, node_id in enumerate(grid.pushed) if node_id == fast[0]
    )


def test_a_late_client_is_left_out_at_the_deadline():
    grid = Gated(4)
    topology = toy_topology(grid, 2)
    grid.slow = {topology["edge-1"][0]}
    strategy = Hierarchical(FedAvg(**ANY), lambda n, s: FedAvg(**ANY), topology, evaluate_every=0, poll_seconds=0.001)
    outcome = next(strategy.rounds(grid, to_record(initial()), 2, timeout=0.05))
    assert_is_average_of(outcome.arrays, [0, 1], [3])
    (failure,) = outcome.edges["edge-1"].updates[0].failures
    assert failure.node_id == topology["edge-1"][0]
    assert failure.reason == "no reply before the deadline"


def test_a_node_that_left_is_not_asked_and_one_that_leaves_later_is_left_out():
    grid = toy_grid(4)
    strategy = build(grid, num_edges=1)
    rounds = strategy.rounds(grid, to_record(initial()), 2)
    next(rounds)
    grid.disconnect(strategy.topology["edge-0"][2])
    assert len(next(rounds).edges["edge-0"].updates[0].participants) == 3

    class Leaving(FedAvg):
        def configure_train(self, server_round, arrays, config, grid_):
            messages = super().configure_train(server_round, arrays, config, grid_)
            grid.disconnect(strategy.topology["edge-0"][1])
            return messages

    grid = toy_grid(4)
    strategy = build(grid, num_edges=1, make_edge=lambda n, s: Leaving(**ANY))
    outcome = next(strategy.rounds(grid, to_record(initial()), 1, timeout=5))
    assert [failure.reason for failure in outcome.edges["edge-0"].updates[0].failures] == ["the node is disconnected"]
    assert_is_average_of(outcome.arrays, [0, 2, 3])


def test_a_node_that_goes_while_a_strategy_looks_does_not_stop_the_run(monkeypatch):
    grid = toy_grid(4)
    strategy = build(grid, num_edges=1, make_edge=lambda n, s: FedAvg(min_available_nodes=4))
    everyone, looks = grid.get_node_ids(), []

    def shrinking(members):
        looks.append(1)
        return everyone if len(looks) < 2 else everyone[:-1]

    monkeypatch.setattr(grid, "connected_of", shrinking)
    first, second = strategy.rounds(grid, to_record(initial()), 2)
    assert len(first.edges["edge-0"].updates[0].participants) == 4
    assert [f.reason for f in second.edges["edge-0"].updates[0].failures] == ["3 nodes connected, FedAvg needs 4"]


@pytest.mark.parametrize("placeholder", [None, ""])
def test_a_message_that_could_not_be_pushed_is_a_failure_at_once(placeholder):
    class Refusing(InProcessGrid):
        """Marks what it can't push as Flower's deployed Grid does."""

        def push_messages(self, messages):
            ids = list(super().push_messages(messages))
            refused = [m.metadata.message_type == "train" and m.metadata.dst_node_id == bad for m in messages]
            return [placeholder if r else i for i, r in zip(ids, refused, strict=True)]

    grid = Refusing(toy_app(), 4)
    strategy = build(grid)
    bad = strategy.topology["edge-0"][1]
    outcome = next(strategy.rounds(grid, to_record(initial()), 1))
    assert [(f.node_id, f.reason) for f in outcome.edges["edge-0"].updates[0].failures] == [(bad, "unreachable")]
    assert_is_average_of(outcome.arrays, [0], [2, 3])


def test_a_strategy_that_makes_no_model_or_a_bad_one_leaves_its_edge_out(caplog):
    class Silent(FedAvg):
        def aggregate_train(self, server_round, replies):
            return None, None

    class Exploding(FedAvg):
        def aggregate_train(self, server_round, replies):
            arrays, metrics = super().aggregate_train(server_round, replies)
            arrays["w"] = Array(np.full(5, 1e200))
            return arrays, metrics

    for kind, reason in ((Silent, "Silent made no model of 2 replies"), (Exploding, "Exploding made holds NaN or Inf")):
        kinds = {"edge-0": FedAvg, "edge-1": kind}
        outcome = one_round(toy_grid(4), make_edge=lambda n, s, kinds=kinds: kinds[n](**ANY), edge_rounds=2)
        assert outcome.edges["edge-1"].arrays is None
        assert all(reason in update.failures[0].reason for update in outcome.edges["edge-1"].updates)
        assert f"edge-1 left out: {outcome.edges['edge-1'].updates[0].failures[0].reason}" in caplog.text
        np.testing.assert_array_equal(outcome.arrays["w"].numpy(), outcome.edges["edge-0"].arrays["w"].numpy())


class Refusing(FedAvg):
    def aggregate_train(self, server_round, replies):
        raise AggregationError("not\nthese")

    def aggregate_evaluate(self, server_round, replies):
        raise AggregationError("nor these")


def test_replies_that_a_strategy_cannot_use_stop_nothing(caplog):
    kinds = {"edge-0": FedAvg, "edge-1": Refusing}
    outcome = one_round(toy_grid(4), make_edge=lambda n, s: kinds[n](**ANY))
    assert_is_average_of(outcome.arrays, [0, 1])
    assert "round 1, edge round 1: edge-1 left out: Refusing: not these" in caplog.text
    assert "round 1, evaluation: edge-1 left out: Refusing: nor these" in caplog.text
    caplog.clear()
    outcome = one_round(toy_grid(4), cloud=Refusing(**ANY))
    np.testing.assert_array_equal(outcome.arrays["w"].numpy(), initial()["w"])
    assert outcome.evaluate_metrics is None
    assert "round 1: the cloud: not these" in caplog.text
    assert "round 1, evaluation: the cloud: nor these" in caplog.text


def test_qfedavg_leaves_out_who_has_no_loss(caplog):
    def fair():
        return QFedAvg(client_learning_rate=0.1, **ANY)

    # The first of two: there is no majority that could say what a reply has to be like.
    with_liar = one_round(toy_grid(2, faults={0: "no loss"}), num_edges=1, make_edge=lambda n, s: fair())
    alone = one_round(toy_grid(2, faults={0: "raise"}), num_edges=1, make_edge=lambda n, s: fair())
    assert "client 0 of edge-0 left out: metric 'train_loss' is None, expected a number >= 0" in caplog.text
    np.testing.assert_array_equal(with_liar.arrays["w"].numpy(), alone.arrays["w"].numpy())
    assert not np.array_equal(alone.arrays["w"].numpy(), initial()["w"])
    caplog.clear()
    outcome = one_round(toy_grid(4, faults=dict.fromkeys(range(4), "no loss")), cloud=fair())
    np.testing.assert_array_equal(outcome.arrays["w"].numpy(), initial()["w"])
    assert "edge-1 left out: metric 'train_loss' is None, expected a number >= 0" in caplog.text


def test_too_few_connected_nodes_skip_the_edge_round_instead_of_waiting_for_ever():
    grid = toy_grid(4)
    strategy = build(grid, make_edge=lambda n, s: FedAvg())  # waits for two nodes
    grid.disconnect(strategy.topology["edge-1"][0])
    outcome = next(strategy.rounds(grid, to_record(initial()), 1))
    assert [f.reason for f in outcome.edges["edge-1"].updates[0].failures] == ["1 nodes connected, FedAvg needs 2"]
    assert_is_average_of(outcome.arrays, [0, 1])


def test_observers_see_every_message_of_both_tiers():
    class Counting(Observer):
        def __init__(self):
            self.messages, self.edge_rounds = [], []

        def on_message(self, tier, edge, direction, message):
            self.messages.append((tier, edge, direction, message.metadata.message_type, message.has_error()))

        def on_edge_round(self, server_round, edge, update):
            self.edge_rounds.append((edge, server_round, len(update.participants)))

    counting, grid = Counting(), toy_grid(5, faults={4: "raise"})
    list(build(grid, observers=[counting], edge_rounds=2).rounds(grid, to_record(initial()), 1))
    for edge, size, bad in (("edge-0", 3, 0), ("edge-1", 2, 1)):
        for direction in ("downlink", "uplink"):
            own = [m[3:] for m in counting.messages if m[:3] == ("edge", edge, direction)]
            failed = bad if direction == "uplink" else 0
            assert own.count(("train", False)) == 2 * (size - failed)
            assert own.count(("train", True)) == 2 * failed
            assert own.count(("evaluate", False)) == size
            cloud = [m[3:] for m in counting.messages if m[:3] == ("cloud", edge, direction)]
            assert sorted(cloud) == [("evaluate", False), ("train", False)]
    assert sorted(counting.edge_rounds) == [("edge-0", 1, 3), ("edge-0", 2, 3), ("edge-1", 1, 1), ("edge-1", 2, 1)]
