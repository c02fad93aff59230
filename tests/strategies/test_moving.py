"""Nodes that move between edges from one global round to the next."""

import logging

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAdam, FedAvg

from espalier.clients.device.profile import profile_reply
from espalier.sim.in_process_grid import InProcessGrid
from espalier.strategies import Hierarchical, ask_profiles, asking, group_by_edge, moving
from espalier.strategies.asynchronous import AsynchronousHierarchical
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


def of_any_size(name, size):
    return FedAvg(**ANY)


def of_starting_size(name, size):
    return FedAvg(min_train_nodes=size, min_evaluate_nodes=size, min_available_nodes=size)


class Moves:
    """Six clients, two edges, and moves ``(round, client, edge)``."""

    def __init__(self, *moves, make_edge=of_any_size, cloud=None, edge_rounds=1, **options):
        self.grid = toy_grid(6, **options)
        self.nodes = [profile.node_id for profile in ask_profiles(self.grid)]
        self.client = {node_id: i for i, node_id in enumerate(self.nodes)}
        start = toy_topology(self.grid, 2)
        self.strategy = Hierarchical(
            cloud or FedAvg(**ANY),
            make_edge,
            start,
            edge_rounds=edge_rounds,
            topology_of=moving(start, self.nodes, [(r, self.nodes[i], f"edge-{e}") for r, i, e in moves]),
        )

    def run(self, num_rounds, arrays=None, first_round=1):
        model = to_record(initial()) if arrays is None else arrays
        return list(self.strategy.rounds(self.grid, model, num_rounds, first_round=first_round))

    def took_part(self, outcome):
        """The clients of each edge round, by edge."""
        return {
            name: [[self.client[n] for n in update.participants] for update in edge.updates]
            for name, edge in outcome.edges.items()
        }

    def evaluated(self, outcome):
        return {name: sorted(self.client[n] for n in one.replies) for name, one in outcome.evaluations.items()}


def same(left, right):
    left, right = to_numpy(left), to_numpy(right)
    return left.keys() == right.keys() and all(np.array_equal(left[k], right[k]) for k in left)


def close(record, weights):
    return all(np.allclose(array, weights[k], rtol=1e-6, atol=1e-6) for k, array in to_numpy(record).items())


def test_where_nobody_moves_all_is_as_with_a_fixed_topology_to_the_bit():
    ours = Moves(make_edge=of_starting_size, edge_rounds=2)
    grid = toy_grid(6)
    fixed = Hierarchical(FedAvg(**ANY), of_starting_size, toy_topology(grid, 2), edge_rounds=2)
    for one, other in zip(ours.run(3), fixed.rounds(grid, to_record(initial()), 3), strict=True):
        assert same(one.arrays, other.arrays)
        assert dict(one.train_metrics) == dict(other.train_metrics)
        assert dict(one.evaluate_metrics) == dict(other.evaluate_metrics)


def test_who_moves_trains_and_evaluates_at_the_new_edge_alone():
    ours = Moves((2, 4, 0), (3, 0, 1), edge_rounds=2)
    rounds = ours.run(3)
    assert [ours.took_part(one) for one in rounds] == [
        {"edge-0": [[0, 1, 2]] * 2, "edge-1": [[3, 4, 5]] * 2},
        {"edge-0": [[0, 1, 2, 4]] * 2, "edge-1": [[3, 5]] * 2},
        {"edge-0": [[1, 2, 4]] * 2, "edge-1": [[0, 3, 5]] * 2},
    ]
    assert [ours.evaluated(one) for one in rounds] == [
        {"edge-0": [0, 1, 2], "edge-1": [3, 4, 5]},
        {"edge-0": [0, 1, 2, 4], "edge-1": [3, 5]},
        {"edge-0": [1, 2, 4], "edge-1": [0, 3, 5]},
    ]
    assert not any(update.failures for one in rounds for edge in one.edges.values() for update in edge.updates)


def test_the_models_are_those_of_plain_loops():
    groups = [[[0, 1, 2], [3, 4, 5]], [[0, 1, 2, 4], [3, 5]], [[1, 2, 4], [0, 3, 5]]]
    weights = initial()
    rounds = Moves((2, 4, 0), (3, 0, 1), edge_rounds=2).run(3)
    for t, members in enumerate(groups):
        models, sizes = [], []
        for clients in members:
            own, examples = weights, [examples_of(i) for i in clients]
            for e in (1, 2):
                own = average([local_step(own, i, 2 * t + e) for i in clients], examples)
            models.append(own)
            sizes.append(sum(examples))
        weights = average(models, sizes)
        assert close(rounds[t].arrays, weights)


@pytest.mark.parametrize("make_edge", [of_any_size, of_starting_size])
def test_an_edge_that_all_leave_keeps_still_until_they_are_back(make_edge, caplog):
    away, back = [(2, i, 0) for i in (3, 4, 5)], [(4, i, 1) for i in (3, 4, 5)]
    ours = Moves(*away, *back, make_edge=make_edge, edge_rounds=2)
    with caplog.at_level(logging.INFO, logger="espalier"):
        rounds = ours.run(4)
    everybody, home = {"edge-0": [[*range(6)]] * 2, "edge-1": [[], []]}, {"edge-0": [[0, 1, 2]] * 2}
    assert [ours.took_part(one) for one in rounds] == [
        home | {"edge-1": [[3, 4, 5]] * 2},
        everybody,
        everybody,
        home | {"edge-1": [[3, 4, 5]] * 2},
    ]
    for one in rounds[1:3]:
        left = one.edges["edge-1"]
        assert left.arrays is None
        assert left.weight == 0
        assert [f.reason for f in left.failures] == ["all of its nodes are under other edges"] * 2
        assert same(one.arrays, one.edges["edge-0"].arrays)  # of one edge the average is that edge's model
        assert ours.evaluated(one) == {"edge-0": [*range(6)], "edge-1": []}
        assert not one.evaluations["edge-1"].failures
    assert f"round 2: {ours.nodes[3]} moves from edge-1 to edge-0" in caplog.messages


def test_limits_set_from_the_size_at_the_start_are_put_back():
    ours = Moves((1, 0, 1), (2, 0, 0), make_edge=of_starting_size)
    rounds = ours.run(2)
    assert [len(one.edges["edge-0"].updates[0].participants) for one in rounds] == [2, 3]
    strategy = ours.strategy.edges["edge-0"].strategy
    assert (strategy.min_available_nodes, strategy.min_train_nodes, strategy.min_evaluate_nodes) == (3, 3, 3)


def test_a_client_that_fails_after_its_move_fails_at_the_new_edge():
    ours = Moves((2, 4, 0), faults={4: "nan"})
    first, second = ours.run(2)
    assert [ours.client[f.node_id] for f in first.edges["edge-1"].failures] == [4]
    assert [ours.client[f.node_id] for f in second.edges["edge-0"].failures] == [4]
    assert not second.edges["edge-1"].failures


def test_a_resumed_run_gives_the_same_bits():
    def new():
        moves = [(2, 4, 0), (3, 5, 0), (3, 3, 0), (5, 4, 1)]
        return Moves(*moves, cloud=FedAdam(**ANY), make_edge=lambda name, size: FedAdam(**ANY), edge_rounds=2)

    whole = new().run(5)
    for cut in (1, 2, 3, 4):
        before, after = new(), new()
        arrays = before.run(cut)[-1].arrays
        after.strategy.load_state_dict(before.strategy.state_dict())
        rest = after.run(5, arrays, first_round=cut + 1)
        assert [one.number for one in rest] == list(range(cut + 1, 6))
        # An evaluation of the last round does not touch a model.
        assert all(same(one.arrays, other.arrays) for one, other in zip(rest, whole[cut:], strict=True))
        assert [after.took_part(one) for one in rest] == [after.took_part(one) for one in whole[cut:]]


def test_after_the_last_round_a_resumed_run_knows_where_everybody_is():
    ours = Moves((2, 4, 0))
    assert ours.run(2, first_round=3) == []
    assert [ours.client[n] for n in ours.strategy.topology["edge-0"]] == [0, 1, 2, 4]


def double_grid(num_clients):
    """Clients in float64: each goes half way to a point of its own and the round's."""
    app = ClientApp()

    @app.query("profile")
    def profile(message, context):
        i = int(context.node_config["partition-id"])
        return profile_reply(message, partition_id=i, num_train_examples=examples_of(i))

    @app.train()
    def train(message, context):
        i, config = int(context.node_config["partition-id"]), message.content["config"]
        own = message.content["arrays"]["w"].numpy()
        new = own + 0.5 * (np.sin(3 * i + int(config["server-round"])) - own)
        metrics = MetricRecord({"num-examples": examples_of(i)})
        return Message(RecordDict({"arrays": ArrayRecord({"w": Array(new)}), "metrics": metrics}), reply_to=message)

    return InProcessGrid(app, num_clients)


def test_with_one_edge_round_of_fedavg_the_model_is_the_flat_average_whatever_the_groups():
    grid, rng = double_grid(9), np.random.default_rng(3)
    nodes = [profile.node_id for profile in ask_profiles(grid)]
    start = {f"edge-{e}": nodes[3 * e : 3 * e + 3] for e in range(3)}
    moves = [(r, node_id, f"edge-{rng.integers(3)}") for r in range(1, 7) for node_id in nodes]
    strategy = Hierarchical(
        FedAvg(fraction_evaluate=0.0, **ANY),
        lambda name, size: FedAvg(fraction_evaluate=0.0, **ANY),
        start,
        topology_of=moving(start, nodes, moves),
    )
    weights = np.arange(9) * 7.0 + 10
    flat = np.linspace(-2, 2, 4)
    groups = set()
    for one in strategy.rounds(grid, ArrayRecord({"w": Array(flat)}), 6):
        steps = [flat + 0.5 * (np.sin(3 * i + one.number) - flat) for i in range(9)]
        flat = np.average(steps, axis=0, weights=weights)
        np.testing.assert_allclose(one.arrays["w"].numpy(), flat, rtol=0, atol=1e-12)
        groups.add(tuple(strategy.topology.values()))
    assert len(groups) == 6


def test_moving_is_a_function_of_the_round():
    topology_of = moving({"a": [7, 8], "b": [5]}, [7, 5, 8], [(3, 8, "b"), (2, 7, "b"), (3, 8, "a"), (3, 5, "a")])
    assert [topology_of(r) for r in (3, 1, 2, 9)] == [
        {"a": [5, 8], "b": [7]},
        {"a": [7, 8], "b": [5]},
        {"a": [8], "b": [7, 5]},
        {"a": [5, 8], "b": [7]},
    ]


def test_nodes_that_are_asked_move_as_they_say_to_the_bit(caplog):
    named = {}
    app = toy_app()

    def naming(message, context):
        i = int(context.node_config["partition-id"])
        if message.metadata.message_type != "query.profile":
            return app(message, context)
        if named.get(i) == "silent":
            raise RuntimeError("it can't be asked")
        number = 5 if named.get(i) == "another" else i
        edge = "edge-0" if number != i else named.get(i, "")
        return profile_reply(message, partition_id=number, num_train_examples=examples_of(i), edge_name=edge)

    ours = Moves((2, 4, 0), (4, 0, 1), (4, 4, 1))
    expected = ours.run(5)
    grid = InProcessGrid(naming, 6)
    profiles = ask_profiles(grid)
    start = group_by_edge(profiles, 2)
    strategy = Hierarchical(
        FedAvg(**ANY), of_any_size, start, topology_of=asking(grid, start, profiles, timeout_seconds=None)
    )
    # What they name from a round on. Who is silent, calls itself another or names no edge of the run stays.
    names = {2: {4: "edge-0"}, 3: {4: "", 3: "silent"}, 4: {0: "edge-1", 4: "edge-1", 3: "another", 1: "far"}}
    with caplog.at_level(logging.INFO, logger="espalier"):
        rounds = strategy.rounds(grid, to_record(initial()), 5)
        for number in range(1, 6):
            named |= names.get(number, {})
            assert same(next(rounds).arrays, expected[number - 1].arrays)
    assert [ours.client[n] for n in ours.strategy.topology["edge-1"]] == [0, 3, 4, 5]
    node = {profile.partition_id: profile.node_id for profile in profiles}
    far = f"node {node[1]} stays under edge-0: it names the edge 'far', and this run has edge-0, edge-1"
    assert caplog.messages.count(far) == 1
    other = f"node {node[3]} stays under edge-1: its partition-id is 5, and was 3"
    assert caplog.messages.count(other) == 1
    assert f"round 2: {node[4]} moves from edge-1 to edge-0" in caplog.messages


@pytest.mark.parametrize(
    ("nodes", "move", "message"),
    [
        ([7, 5], (1, 9, "a"), "round 1: there is no node 9 to move"),
        ([7, 5], (4, 7, "c"), "round 4: there is no edge 'c' to move to"),
        ([7], (1, 7, "b"), "the topology has other nodes than those in client order"),
    ],
)
def test_a_move_of_who_is_not_there_is_refused(nodes, move, message):
    with pytest.raises(ValueError, match=message):
        moving({"a": [7], "b": [5]}, nodes, [move])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: {"edge-0": [*t["edge-0"], *t["edge-1"]]}, "round 1: edge 'edge-1' is not in both"),
        (lambda t: t | {"edge-2": []}, "round 1: edge 'edge-2' is not in both"),
        (lambda t: t | {"edge-1": t["edge-1"][1:]}, "round 1: node [0-9]+ is not in both"),
        (lambda t: t | {"edge-1": [*t["edge-1"], 1]}, "round 1: node 1 is not in both"),
        (lambda t: t | {"edge-1": [*t["edge-1"], t["edge-0"][0]]}, "node [0-9]+ is in edge 'edge-0' and in edge"),
    ],
)
def test_a_topology_of_others_is_refused(change, message):
    grid = toy_grid(6)
    start = toy_topology(grid, 2)
    strategy = Hierarchical(FedAvg(**ANY), of_any_size, start, topology_of=lambda server_round: change(start))
    with pytest.raises(ValueError, match=message):
        next(strategy.rounds(grid, to_record(initial()), 1))


def test_nodes_move_between_rooms_of_a_site_and_not_between_sites():
    grid = toy_grid(6)
    nodes = [profile.node_id for profile in ask_profiles(grid)]
    rooms = {"room-0": nodes[:2], "room-1": nodes[2:4]}
    sites = {"site-0": nodes[:4], "site-1": nodes[4:]}

    def make_site(name, size):
        if name == "site-1":
            return FedAvg(**ANY)
        inside = moving(rooms, nodes[:4], [(2, nodes[0], "room-1")])
        return Hierarchical(FedAvg(**ANY), of_any_size, rooms, topology_of=inside)

    _, second = Hierarchical(FedAvg(**ANY), make_site, sites).rounds(grid, to_record(initial()), 2)
    inside = second.edges["site-0"].updates[0].edges
    assert [len(edge.updates[0].participants) for edge in inside.values()] == [1, 3]
    outside = moving(sites, nodes, [(2, nodes[0], "site-1")])
    strategy = Hierarchical(FedAvg(**ANY), make_site, sites, topology_of=outside)
    with pytest.raises(ValueError, match="must have the nodes of the Hierarchical under it"):
        list(strategy.rounds(grid, to_record(initial()), 2))


def test_edges_that_nobody_waits_for_have_fixed_nodes():
    with pytest.raises(ValueError, match="topology_of: nodes can't move between edges"):
        AsynchronousHierarchical(FedAvg(**ANY), of_any_size, {"a": [1]}, tier=None, topology_of=lambda r: {"a": [1]})
