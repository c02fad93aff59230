"""Devices, rooms, sites and a cloud: a `Hierarchical` under a `Hierarchical`."""

import logging
import re
from pathlib import Path

import numpy as np
import pytest
from flwr.serverapp.exception import AggregationError
from flwr.serverapp.strategy import FedAdam, FedAvg, FedAvgM

from espalier.strategies import EqualWeights, Hierarchical, Observer, ResourceAware, ask_profiles
from tests.strategies.test_failures import Gated
from tests.strategies.toys import (
    average,
    examples_of,
    initial,
    local_step,
    to_numpy,
    to_record,
    toy_grid,
)

ANY = {"min_train_nodes": 1, "min_evaluate_nodes": 1, "min_available_nodes": 1}
# Clients by site and room, of unequal sizes; both sites have a room "a".
SITES = {"north": {"a": [0, 1, 2], "b": [3]}, "south": {"a": [4, 5], "c": [6], "d": [7, 8, 9]}}
EVEN = {"north": {"a": [0, 1, 2, 3]}, "south": {"a": [4, 5, 6, 7]}}


def fedavg(*_):
    return FedAvg(**ANY)


def build(
    grid, *, sites=SITES, cloud=None, site=fedavg, room=fedavg, site_rounds=1, room_rounds=1, front=None, **options
):
    """Return the three tiers; `site` and `room` make the strategies, `front` stands in front of a site."""
    node = [profile.node_id for profile in ask_profiles(grid)]
    place = {node_id: i for i, node_id in enumerate(node)}
    rooms = {name: {r: [node[i] for i in m] for r, m in of_site.items()} for name, of_site in sites.items()}

    def make_site(name, size):
        made = Hierarchical(site(name), lambda r, size: room(f"{name}/{r}"), rooms[name], edge_rounds=room_rounds)
        return front(made) if front else made

    return Hierarchical(
        cloud or FedAvg(**ANY),
        make_site,
        {name: [n for m in of_site.values() for n in m] for name, of_site in rooms.items()},
        edge_rounds=site_rounds,
        node_name=lambda n: f"client {place[n]}",
        **options,
    )


def run(grid, rounds=2, timeout=None, **options):
    return list(build(grid, **options).rounds(grid, to_record(initial()), rounds, timeout=timeout))


def reference(rounds, site_rounds=1, room_rounds=1, sites=SITES):
    """Three tiers of weighted averages, in plain loops."""

    def room(own, clients, first):
        for e in range(room_rounds):
            models = [local_step(own, i, first + e + 1) for i in clients]
            own = average(models, [examples_of(i) for i in clients])
        return own, sum(map(examples_of, clients))

    def site(own, rooms, first):
        for e in range(site_rounds):
            models, sizes = zip(*(room(own, m, (first + e) * room_rounds) for m in rooms if m), strict=True)
            own = average(list(models), list(sizes))
        return own, sum(sizes)

    weights = initial()
    for t in range(rounds):
        models, sizes = zip(*(site(weights, s.values(), t * site_rounds) for s in sites.values()), strict=True)
        weights = average(list(models), list(sizes))
    return weights


def without(*clients, sites=SITES):
    return {s: {r: [i for i in m if i not in clients] for r, m in rooms.items()} for s, rooms in sites.items()}


def assert_close(arrays, expected):
    for name, values in expected.items():
        np.testing.assert_allclose(arrays[name].numpy(), values, rtol=1e-6, atol=1e-6)


def assert_same_bits(left, right):
    for name in left:
        np.testing.assert_array_equal(left[name].numpy(), right[name].numpy())


@pytest.mark.parametrize(("site_rounds", "room_rounds"), [(1, 1), (1, 3), (2, 1), (3, 2)])
def test_three_tiers_are_weighted_averages_of_weighted_averages(site_rounds, room_rounds):
    outcomes = run(toy_grid(10), rounds=3, site_rounds=site_rounds, room_rounds=room_rounds)
    assert_close(outcomes[-1].arrays, reference(3, site_rounds, room_rounds))
    sizes = {name: sum(examples_of(i) for m in rooms.values() for i in m) for name, rooms in SITES.items()}
    assert {name: site.weight for name, site in outcomes[-1].edges.items()} == sizes
    expected = np.average(range(10), weights=[examples_of(i) for i in range(10)])
    assert outcomes[-1].train_metrics["train_loss"] == pytest.approx(expected)


def test_with_one_round_each_the_tree_does_not_matter():
    grid = toy_grid(10)
    flat = Hierarchical(fedavg(), fedavg, {"all": [profile.node_id for profile in ask_profiles(grid)]})
    (*_, expected) = flat.rounds(grid, to_record(initial()), 3)
    assert_close(run(toy_grid(10), rounds=3)[-1].arrays, to_numpy(expected.arrays))


def test_four_tiers_need_no_more_than_three():
    def nested(names, clients):
        if not names:
            return fedavg()
        halves = {f"{names[0]}-{i}": clients[i::2] for i in range(2)}
        return Hierarchical(fedavg(), lambda name, size: nested(names[1:], halves[name]), halves, edge_rounds=2)

    grid, seen = toy_grid(8), []

    class Seen(Observer):
        def on_edge_round(self, server_round, edge, update):
            seen.append((edge, server_round))

    nodes = [profile.node_id for profile in ask_profiles(grid)]
    strategy = Hierarchical(
        fedavg(), lambda name, size: nested(["site", "room"], nodes), {"land": nodes}, observers=[Seen()]
    )
    (outcome,) = strategy.rounds(grid, to_record(initial()), 1)
    weights = initial()
    for e in (1, 2):
        rooms = [[i, i + 4] for i in range(4)]  # halves of halves
        models, sizes = [], [sum(map(examples_of, m)) for m in rooms]
        for site in (0, 1):
            own = weights
            for f in (1, 2):
                r = 2 * (e - 1) + f
                of_site = [rooms[site], rooms[site + 2]]
                own = average(
                    [average([local_step(own, i, r) for i in m], [examples_of(i) for i in m]) for m in of_site],
                    [sum(map(examples_of, m)) for m in of_site],
                )
            models.append(own)
        weights = average(models, [sizes[0] + sizes[2], sizes[1] + sizes[3]])
    assert_close(outcome.arrays, weights)
    assert [r for edge, r in seen if edge == "land/site-1/room-0"] == [1, 2, 3, 4]
    assert [r for edge, r in seen if edge == "land/site-1"] == [1, 2]
    assert [r for edge, r in seen if edge == "land"] == [1]


def test_a_tree_may_be_deeper_on_one_side():
    grid = toy_grid(6)
    nodes = [profile.node_id for profile in ask_profiles(grid)]
    rooms = {"a": nodes[:2], "b": nodes[2:3]}

    def make(name, size):
        return Hierarchical(fedavg(), fedavg, rooms, edge_rounds=2) if name == "north" else fedavg()

    strategy = Hierarchical(fedavg(), make, {"north": nodes[:3], "yard": nodes[3:]})
    *_, last = strategy.rounds(grid, to_record(initial()), 2)
    weights = initial()
    for t in (0, 1):
        models, sizes = [], []
        for clients in ([0, 1], [2]):
            own = weights
            for r in (2 * t + 1, 2 * t + 2):
                own = average([local_step(own, i, r) for i in clients], [examples_of(i) for i in clients])
            models.append(own)
            sizes.append(sum(map(examples_of, clients)))
        yard = average([local_step(weights, i, t + 1) for i in (3, 4, 5)], [examples_of(i) for i in (3, 4, 5)])
        weights = average([average(models, sizes), yard], [sum(sizes), sum(map(examples_of, (3, 4, 5)))])
    assert_close(last.arrays, weights)
    assert last.edges["yard"].updates[0].edges == {}


def test_rounds_count_on_at_every_tier():
    seen = {"cloud": [], "site": [], "room": []}

    class Watching(FedAvg):
        def __init__(self, tier):
            super().__init__(**ANY)
            self.tier = tier

        def configure_train(self, server_round, *what):
            seen[self.tier].append(server_round)
            return super().configure_train(server_round, *what)

        def configure_evaluate(self, server_round, *what):
            seen[self.tier].append(-server_round)
            return super().configure_evaluate(server_round, *what)

    one = {"north": {"a": [0, 1]}}
    tiers = {"cloud": Watching("cloud"), "site": lambda n: Watching("site"), "room": lambda n: Watching("room")}
    run(toy_grid(2), sites=one, site_rounds=3, room_rounds=2, **tiers)
    assert seen == {
        "cloud": [1, -1, 2, -2],
        "site": [1, 2, 3, -3, 4, 5, 6, -6],
        "room": [1, 2, 3, 4, 5, 6, -6, 7, 8, 9, 10, 11, 12, -12],
    }


@pytest.mark.parametrize("fault", ["raise", "nan", "no weight"])
def test_failing_nodes_are_left_out_of_their_room_logged_once_and_counted_up_to_the_top(fault, caplog):
    # A room of one (3) fails as a whole; of another (4, 5) one client does.
    grid = toy_grid(10, faults={3: fault, 5: fault})
    (outcome,) = run(grid, rounds=1, evaluate_every=0)
    assert_close(outcome.arrays, reference(1, sites=without(3, 5)))
    north, south = (site.updates[0] for site in outcome.edges.values())
    node = [profile.node_id for profile in ask_profiles(grid)]
    assert [north.participants, south.participants] == [[node[i] for i in m] for m in ([0, 1, 2], [4, 6, 7, 8, 9])]
    assert [[f.node_id for f in update.failures] for update in (north, south)] == [[node[3]], [node[5]]]
    assert {name: room.weight for name, room in south.edges.items()} == {
        "a": examples_of(4),
        "c": examples_of(6),
        "d": sum(map(examples_of, (7, 8, 9))),
    }
    lines = [r.getMessage() for r in caplog.records if r.name == "espalier"]
    assert [line for line in lines if "of south" in line and "client" in line] == [
        f"round 1 of south, edge round 1: client 5 of south/a left out: {south.failures[0].reason}"
    ]
    assert lines.count("round 1 of north: north/b left out: no edge round gave a model") == 1
    assert not [line for line in lines if "north left out" in line or "south left out" in line]


def test_a_site_without_a_model_is_left_out_by_the_cloud_and_none_at_all_leaves_the_model(caplog):
    (outcome,) = run(toy_grid(10, faults=dict.fromkeys(range(4), "raise")), rounds=1)
    assert_close(outcome.arrays, reference(1, sites={"south": SITES["south"]}))
    assert outcome.edges["north"].arrays is None
    assert caplog.text.count("round 1: north left out: no edge round gave a model") == 1
    (outcome,) = run(toy_grid(10, faults=dict.fromkeys(range(10), "raise")), rounds=1)
    assert_same_bits(outcome.arrays, to_record(initial()))
    assert "round 1: the cloud made no model, the global model stays as it is" in caplog.text


def test_a_site_that_refuses_its_replies_is_left_out_by_name(caplog):
    class Refusing(FedAvg):
        def aggregate_train(self, server_round, replies):
            raise AggregationError("not these")

        def aggregate_evaluate(self, server_round, replies):
            raise AggregationError("nor these")

    (outcome,) = run(toy_grid(10), rounds=1, site=lambda name: (Refusing if name == "north" else FedAvg)(**ANY))
    assert_close(outcome.arrays, reference(1, sites={"south": SITES["south"]}))
    lines = [r.getMessage() for r in caplog.records if "left out" in r.getMessage()]
    assert lines == [
        "round 1, edge round 1: north left out: Refusing: not these",
        "round 1, evaluation: north left out: Refusing: nor these",
    ]


def test_a_node_that_leaves_is_logged_once_under_its_room(caplog):
    caplog.set_level(logging.INFO, "espalier")
    strategy = build(grid := toy_grid(10))
    rounds = strategy.rounds(grid, to_record(initial()), 3)
    next(rounds)
    gone = strategy.topology["south"][0]
    grid.disconnect(gone)
    outcome = next(rounds)
    assert gone not in outcome.edges["south"].updates[0].participants
    grid.connect(gone)
    next(rounds)
    lines = [r.getMessage() for r in caplog.records if r.name == "espalier"]
    assert lines == ["client 4 of south/a left", "client 4 of south/a is back"]


def test_evaluation_is_weighted_over_all_tiers_and_kept_per_node():
    grid = toy_grid(10)
    (outcome,) = run(grid, rounds=1, site_rounds=2)
    size = float(np.abs(outcome.arrays["w"].numpy()).sum())
    node = [profile.node_id for profile in ask_profiles(grid)]
    replies = {n: float(m["loss"]) for site in outcome.evaluations.values() for n, m in site.replies.items()}
    assert list(replies) == node
    np.testing.assert_allclose(list(replies.values()), [size + i for i in range(10)], rtol=1e-6)
    weights = [examples_of(i) for i in range(10)]
    np.testing.assert_allclose(outcome.evaluate_metrics["loss"], np.average(list(replies.values()), weights=weights))
    assert {name: e.weight for name, e in outcome.evaluations["south"].edges.items()} == {
        name: sum(map(examples_of, m)) for name, m in SITES["south"].items()
    }


def sampling(*_):
    return FedAvg(fraction_train=0.5, **ANY)


def chosen(outcomes, strategy):
    """Return whom every round's rooms chose, by room and as places in it."""
    rooms = {}
    for outcome in outcomes:
        for name, site in outcome.edges.items():
            for update in site.updates:
                for room, of_room in update.edges.items():
                    members = strategy.edges[name].topology[room]
                    for inner in of_room.updates:
                        rooms.setdefault(f"{name}/{room}", []).append([members.index(n) for n in inner.participants])
    return rooms


def test_every_tier_draws_by_a_seed_of_its_own():
    def drawn(seed, grid_seed=0):
        strategy = build(grid := toy_grid(8, seed=grid_seed), sites=EVEN, room=sampling, room_rounds=8, seed=seed)
        return chosen(strategy.rounds(grid, to_record(initial()), 1), strategy)

    first = drawn(5)
    assert first["north/a"] != first["south/a"]  # rooms of the same name at different sites
    assert drawn(5, grid_seed=9) == first
    assert drawn(6) != first


def test_a_seed_given_to_a_site_is_its_own():
    def site(seed, own):
        inner = Hierarchical(fedavg(), fedavg, {"a": [1]}, seed=own)
        Hierarchical(fedavg(), lambda name, size: inner, {"north": [1]}, seed=seed)
        return inner.edges["a"].seed

    assert site(1, 7) == site(2, 7)
    assert site(1, None) != site(2, None)
    assert site(1, 7) == Hierarchical(fedavg(), fedavg, {"a": [1]}, seed=7).edges["a"].seed


def test_state_of_all_tiers_resumes_in_the_middle_to_the_same_bits():
    def three(grid):
        return build(
            grid,
            cloud=FedAdam(**ANY),
            site=lambda name: FedAvgM(server_learning_rate=0.9, server_momentum=0.4, **ANY),
            room=lambda name: FedAvgM(server_learning_rate=0.8, server_momentum=0.3, fraction_train=0.7, **ANY),
            site_rounds=2,
            room_rounds=2,
            seed=3,
        )

    whole = list(three(grid := toy_grid(10)).rounds(grid, to_record(initial()), 4))[-1].arrays
    first = three(grid := toy_grid(10, seed=9))
    half = list(first.rounds(grid, to_record(initial()), 2))[-1].arrays
    second = three(grid := toy_grid(10, seed=10))
    second.load_state_dict(first.state_dict())
    assert_same_bits(list(second.rounds(grid, half, 4, first_round=3))[-1].arrays, whole)
    fresh = list(three(grid := toy_grid(10)).rounds(grid, half, 4, first_round=3))[-1].arrays
    assert not np.array_equal(fresh["w"].numpy(), whole["w"].numpy())


def test_no_room_waits_for_another_site():
    # Somebody at the south answers only when the north was sent all its rounds.
    grid = Gated(8)
    strategy = build(grid, sites=EVEN, site_rounds=2, room_rounds=2, poll_seconds=0.001)
    fast, slow = strategy.topology["north"][0], strategy.topology["south"][0]
    grid.slow, grid.closed = {slow}, lambda grid: grid.pushed.count(fast) < 4
    outcome = next(strategy.rounds(grid, to_record(initial()), 1, timeout=30))
    assert_close(outcome.arrays, reference(1, 2, 2, sites=EVEN))
    assert grid.pushed.index(slow, grid.pushed.index(slow) + 1) > max(
        i for i, node_id in enumerate(grid.pushed) if node_id == fast
    )


def test_observers_see_messages_of_all_tiers_by_path():
    class Seen(Observer):
        def __init__(self):
            self.messages, self.edge_rounds = [], []

        def on_message(self, tier, edge, direction, message):
            self.messages.append((tier, edge, direction, message.metadata.message_type))

        def on_edge_round(self, server_round, edge, update):
            self.edge_rounds.append((edge, server_round, len(update.participants)))

    seen = Seen()
    run(toy_grid(10), rounds=1, site_rounds=2, observers=[seen])
    for direction in ("downlink", "uplink"):
        for name, rooms in SITES.items():
            assert seen.messages.count(("cloud", name, direction, "train")) == 1
            assert seen.messages.count(("cloud", name, direction, "evaluate")) == 1
            for room, members in rooms.items():
                assert seen.messages.count(("middle", f"{name}/{room}", direction, "train")) == 2
                assert seen.messages.count(("middle", f"{name}/{room}", direction, "evaluate")) == 1
                assert seen.messages.count(("edge", f"{name}/{room}", direction, "train")) == 2 * len(members)
                assert seen.messages.count(("edge", f"{name}/{room}", direction, "evaluate")) == len(members)
    assert len(seen.messages) == 2 * (2 * 2 + 3 * 5 + 3 * 10)
    assert sorted(seen.edge_rounds) == sorted(
        (path, e, size)
        for e in (1, 2)
        for path, size in (
            [(name, sum(map(len, rooms.values()))) for name, rooms in SITES.items()]
            + [(f"{name}/{room}", len(m)) for name, rooms in SITES.items() for room, m in rooms.items()]
        )
    )


def test_equal_weights_at_every_tier():
    (outcome,) = run(toy_grid(10), rounds=1, room=lambda name: EqualWeights(fedavg()), front=EqualWeights)
    sites = []
    for rooms in SITES.values():
        models = [average([local_step(initial(), i, 1) for i in m], [1] * len(m)) for m in rooms.values()]
        sites.append(average(models, [1] * len(models)))
    assert_close(outcome.arrays, average(sites, [1, 1]))


@pytest.mark.parametrize(
    ("nodes", "node"),
    [([1], 2), ([1, 2, 3], 3)],
)
def test_a_site_has_the_nodes_of_its_rooms_and_no_others(nodes, node):
    message = f"edge 'north' must have the nodes of the Hierarchical under it: node {node} is in one of them only"
    with pytest.raises(ValueError, match=re.escape(message)):
        Hierarchical(fedavg(), lambda n, s: Hierarchical(fedavg(), fedavg, {"a": nodes}), {"north": [1, 2]})


def test_what_cannot_work_in_three_tiers_is_refused():
    shared = FedAvg(**ANY)
    sites = {"north": [1], "south": [2]}
    with pytest.raises(ValueError, match="a new strategy for every edge"):
        Hierarchical(fedavg(), lambda n, s: Hierarchical(fedavg(), lambda r, s: shared, {"a": sites[n]}), sites)
    with pytest.raises(ValueError, match="a new strategy for every edge"):
        Hierarchical(shared, lambda n, s: Hierarchical(shared, fedavg, {"a": sites[n]}), sites)
    with pytest.raises(ValueError, match="put ResourceAware in front of the edges inside"):
        ResourceAware(Hierarchical(fedavg(), fedavg, {"a": [1]}), resources=None, solve=None)


def test_the_example_of_the_docs_runs():
    page = (Path(__file__).parents[2] / "docs/own-strategy.md").read_text()
    (example,) = re.findall(r"## Three tiers.*?```python\n(.*?)```", page, re.DOTALL)
    names = {"grid": toy_grid(7), "arrays": to_record(initial())}
    exec(example, names)
    sites = {"north": {"hall": [0, 1, 2], "attic": [3]}, "south": {"hall": [4, 5, 6]}}
    assert_close(names["result"].arrays, reference(3, 2, 2, sites))
