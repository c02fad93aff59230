"""What asynchronous tiers compute: against plain loops over events, and the synchronous rounds where they are these."""

import logging

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAdam, FedAvg, FedMedian

from espalier.sim.clock import EventClock
from espalier.sim.in_process_grid import InProcessGrid
from espalier.strategies import Hierarchical, ask_profiles
from espalier.strategies.asynchronous import (
    AsynchronousEdge,
    AsynchronousHierarchical,
    AsynchronousTier,
    FedAsync,
    FedBuff,
    SemiSynchronous,
    SimulatedClock,
    Taken,
    constant,
    hinge,
    polynomial,
)
from espalier.strategies.asynchronous.aggregation import as_one
from tests.strategies.guards.tight import tight
from tests.strategies.test_hostile import LIAR, telling
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


def over_edges(
    grid, mode, seconds, *, cloud=None, edge_rounds=1, concurrency=0, max_staleness=0, clock=None, **options
):
    """An asynchronous cloud; edge i takes ``seconds[i]`` for an edge round."""
    topology = toy_topology(grid, len(seconds))
    of = dict(zip(topology, seconds, strict=True))
    own = SimulatedClock(clock or EventClock())
    tier = AsynchronousTier(mode, own, len(of), "edges", concurrency=concurrency, max_staleness=max_staleness)
    return AsynchronousHierarchical(
        cloud or FedAvg(**ANY),
        lambda name, size: FedAvg(**ANY),
        topology,
        edge_rounds=edge_rounds,
        tier=tier,
        pace=lambda name, number, outcome: Taken(edge_rounds * of[name]),
        **options,
    )


def over_clients(grid, mode, seconds, *, strategy=None, concurrency=0, max_staleness=0, **options):
    """A flat federation; client i takes ``seconds[i]``."""
    ((name, nodes),) = toy_topology(grid, 1).items()
    of = dict(zip(nodes, seconds, strict=True))
    tier = AsynchronousTier(
        mode, SimulatedClock(EventClock()), len(nodes), "clients", concurrency=concurrency, max_staleness=max_staleness
    )
    edge = AsynchronousEdge(strategy or FedAvg(**ANY), nodes, tier, lambda node_id, number: of[node_id])
    return Hierarchical(FedAvg(**ANY), lambda name, size: edge, {name: nodes}, **options), tier


def edges_over_clients(grid, mode, seconds, num_edges, **options):
    """Edges that don't wait for their clients, under a cloud that waits for edges; client i takes ``seconds[i]``."""
    topology = toy_topology(grid, num_edges)
    of = dict(zip([n for nodes in topology.values() for n in nodes], seconds, strict=True))
    tiers = {
        name: AsynchronousTier(mode, SimulatedClock(EventClock()), len(nodes), "clients")
        for name, nodes in topology.items()
    }

    def make_edge(name, size):
        return AsynchronousEdge(FedAvg(**ANY), topology[name], tiers[name], lambda node_id, number: of[node_id])

    return Hierarchical(FedAvg(**ANY), make_edge, topology, **options), tiers


def models(strategy, grid, rounds):
    return [to_numpy(one.arrays) for one in strategy.rounds(grid, to_record(initial()), rounds)]


def assert_same_bits(left, right):
    assert len(left) == len(right)
    for one, other in zip(left, right, strict=True):
        for name in one:
            assert one[name].dtype == other[name].dtype
            np.testing.assert_array_equal(one[name], other[name])


def events_reference(seconds, rounds, size, place):
    """A plain loop: clients train all the time, and every `size` updates are averaged by their examples."""
    model, now = initial(), 0.0
    ends, began, number = {}, {}, dict.fromkeys(range(len(seconds)), 0)
    results, staleness = [], []

    def take_in(size):
        """Those who have ended by now, in their order; no more than are needed."""
        return sorted(i for i, end in ends.items() if end <= now)[:size]

    for version in range(rounds):
        buffer = []
        while True:
            for i in sorted(take_in(size - len(buffer)), key=lambda i: (ends[i], i)):
                old, was = began.pop(i)
                del ends[i]
                buffer.append((i, local_step(old, i, number[i]), old, version - was))
            if len(buffer) == size:
                break
            if idle := [i for i in range(len(seconds)) if i not in ends]:
                for i in idle:
                    number[i], began[i], ends[i] = number[i] + 1, (model, version), now + seconds[i]
            now = max(now, min(ends.values()))
        staleness.append([one[3] for one in buffer])
        by_client = {i: [one for one in buffer if one[0] == i] for i in sorted({one[0] for one in buffer})}
        placed = [[place(model, old, new, tau) for _, new, old, tau in own] for own in by_client.values()]
        merged = [average(own, [1.0] * len(own)) for own in placed]
        weights = [examples_of(i) * len(own) for i, own in by_client.items()]
        model = {k: v.astype(np.float32) for k, v in average(merged, weights).items()}
        results.append(model)
    return results, staleness, now


def buffered(model, old, new, tau):
    return new if tau == 0 else {k: model[k] + (new[k] - old[k]) / np.sqrt(1 + tau) for k in model}


def test_fedbuff_is_a_plain_loop_over_events():
    grid, seconds = toy_grid(5), [1.0, 1.7, 2.9, 4.1, 11.3]
    strategy, tier = over_clients(grid, FedBuff(3, polynomial(0.5)), seconds, evaluate_every=0)
    expected, staleness, now = events_reference(seconds, 12, 3, buffered)
    found, counts = [], []
    for one in strategy.rounds(grid, to_record(initial()), 12):
        found.append(to_numpy(one.arrays))
        counts.append(tier.take_report()["staleness"])
    for left, right in zip(found, expected, strict=True):
        for name in left:
            np.testing.assert_allclose(left[name], right[name], rtol=2e-6, atol=2e-6)
    assert counts == [{str(t): own.count(t) for t in sorted(set(own))} for own in staleness]
    assert tier.clock.now == pytest.approx(now)
    assert {t for own in staleness for t in own} >= {0, 1, 2}


def test_fedasync_mixes_one_update_at_a_time():
    def mixed(model, old, new, tau):
        share = 0.6 * (1.0 if tau <= 1 else 1 / (2.0 * (tau - 1) + 1))
        return {k: (1 - share) * model[k] + share * new[k] for k in model}

    grid, seconds = toy_grid(4), [1.0, 1.7, 2.9, 8.3]
    strategy, tier = over_clients(grid, FedAsync(0.6, hinge(2.0, 1.0)), seconds, evaluate_every=0)
    expected, staleness, now = events_reference(seconds, 15, 1, mixed)
    for left, right in zip(models(strategy, grid, 15), expected, strict=True):
        for name in left:
            np.testing.assert_allclose(left[name], right[name], rtol=5e-6, atol=5e-6)
    assert tier.clock.now == pytest.approx(now)
    assert max(max(own) for own in staleness) >= 3


@pytest.mark.parametrize("mode", [FedBuff(3, polynomial(0.5)), SemiSynchronous(np.inf, constant)])
@pytest.mark.parametrize("cloud", [FedAvg, FedAdam, FedMedian])
def test_equal_speeds_and_everybody_are_the_synchronous_rounds_to_the_bit(mode, cloud):
    grid = toy_grid(7)
    strategy = over_edges(grid, mode, [2.5, 2.5, 2.5], cloud=cloud(**ANY), edge_rounds=2)
    topology = toy_topology(grid, 3)
    plain = Hierarchical(cloud(**ANY), lambda name, size: FedAvg(**ANY), topology, edge_rounds=2)
    own, other = (list(one.rounds(grid, to_record(initial()), 4)) for one in (strategy, plain))
    assert_same_bits([to_numpy(one.arrays) for one in own], [to_numpy(one.arrays) for one in other])
    for left, right in zip(own, other, strict=True):
        assert left.train_metrics == right.train_metrics
        assert left.evaluate_metrics == right.evaluate_metrics
        assert {n: edge.updates for n, edge in left.edges.items()} == {
            n: edge.updates for n, edge in right.edges.items()
        }
    assert strategy.tier.clock.now == 4 * 2 * 2.5


def test_edges_that_wait_for_nobody_are_the_synchronous_ones_where_clients_are_alike():
    grid = toy_grid(6)
    strategy, tiers = edges_over_clients(grid, SemiSynchronous(np.inf, constant), [2.5] * 6, 2, edge_rounds=3)
    plain = Hierarchical(FedAvg(**ANY), lambda name, size: FedAvg(**ANY), toy_topology(grid, 2), edge_rounds=3)
    assert_same_bits(models(strategy, grid, 4), models(plain, grid, 4))
    assert [tier.clock.now for tier in tiers.values()] == [4 * 3 * 2.5] * 2


def test_edges_under_a_cloud_do_not_wait_for_their_slowest_client():
    grid, seconds = toy_grid(6), [1.0, 1.7, 40.0, 1.0, 1.7, 2.9]
    mode = FedBuff(2, polynomial(0.5))
    strategy, tiers = edges_over_clients(grid, mode, seconds, 2, edge_rounds=5, evaluate_every=0)
    rounds = list(strategy.rounds(grid, to_record(initial()), 12))
    # In the first global round an edge does what it would do without the others.
    (first, second) = [one.arrays for one in rounds[0].edges.values()]
    expected, _, _ = events_reference(seconds[:3], 5, 2, buffered)
    np.testing.assert_allclose(to_numpy(first)["w"], expected[-1]["w"], rtol=2e-6, atol=2e-6)
    weights = [one.weight for one in rounds[0].edges.values()]
    np.testing.assert_allclose(
        to_numpy(rounds[0].arrays)["w"], average([to_numpy(first), to_numpy(second)], weights)["w"], rtol=2e-6
    )
    slow = toy_topology(grid, 2)["edge-0"][2]
    came = [
        (one.number, update_number)
        for one in rounds
        for update_number, update in enumerate(one.edges["edge-0"].updates, start=1)
        if slow in update.participants
    ]
    assert len(came) == 1  # in 60 aggregations, at 40 s
    assert came[0][0] > 1
    assert 40.0 <= tiers["edge-0"].clock.now < 80.0


def test_edges_that_wait_for_nobody_go_on_from_their_state_to_the_same_bits():
    grid = toy_grid(6)

    def new():
        seconds = [1.0, 1.7, 2.9, 8.3, 1.0, 2.2]
        return edges_over_clients(grid, FedBuff(2, polynomial(0.5)), seconds, 2, edge_rounds=2, evaluate_every=0)[0]

    whole = models(new(), grid, 6)
    first, second = new(), new()
    half = models(first, grid, 3)
    second.load_state_dict(first.state_dict())
    rest = [to_numpy(one.arrays) for one in second.rounds(grid, to_record(half[-1]), 6, first_round=4)]
    assert_same_bits(half + rest, whole)


def test_without_a_deadline_speeds_make_no_difference_to_semi_synchronous_rounds():
    grid = toy_grid(6)
    strategy, tier = over_clients(grid, SemiSynchronous(np.inf, constant), [3.0, 1.0, 2.0, 9.0, 1.0, 4.0])
    plain = Hierarchical(FedAvg(**ANY), lambda name, size: FedAvg(**ANY), toy_topology(grid, 1))
    assert_same_bits(models(strategy, grid, 3), models(plain, grid, 3))
    assert tier.clock.now == 27.0
    assert tier.take_report()["idle_share"] == {"clients": pytest.approx(1 - 20 / 54, abs=1e-6)}


def test_one_edge_with_updates_one_at_a_time_is_fedavg():
    grid = toy_grid(4)
    plain = Hierarchical(FedAvg(**ANY), lambda name, size: FedAvg(**ANY), toy_topology(grid, 1), edge_rounds=2)
    for mode in (FedBuff(1, polynomial(0.5)), FedAsync(1.0, polynomial(0.5))):
        strategy = over_edges(grid, mode, [3.0], edge_rounds=2)
        assert_same_bits(models(strategy, grid, 3), models(plain, grid, 3))


def test_a_slow_edge_holds_nobody_back_and_comes_with_its_staleness():
    grid = toy_grid(6)
    strategy = over_edges(grid, FedBuff(1, polynomial(0.5)), [1.0, 1.5, 20.0], evaluate_every=0)
    staleness = []
    for one in strategy.rounds(grid, to_record(initial()), 40):
        report = strategy.tier.take_report()
        staleness.append(report["staleness"])
        if "edge-2" in one.edges:
            break
    assert one.number == 34
    assert strategy.tier.clock.now == 20.0
    assert staleness[-1] == {"33": 1}
    assert set(staleness[3]) <= {"0", "1", "2"}


def test_a_deadline_takes_what_is_in_and_late_updates_join_the_next():
    grid = toy_grid(3)
    strategy, tier = over_clients(grid, SemiSynchronous(2.0, polynomial(0.5)), [1.0, 1.5, 3.0])
    seen = []
    for one in strategy.rounds(grid, to_record(initial()), 4):
        seen.append(
            (tier.clock.now, len(one.edges["cloud" if "cloud" in one.edges else "edge-0"].updates[0].participants))
        )
        seen[-1] += (tier.take_report()["staleness"],)
    assert seen == [(2.0, 2, {"0": 2}), (3.5, 3, {"0": 2, "1": 1}), (5.5, 2, {"0": 2}), (7.0, 3, {"0": 2, "1": 1})]


def test_a_report_is_of_all_rounds_since_the_last():
    grid, seconds = toy_grid(3), [1.0, 1.5, 3.0]
    strategy, tier = over_clients(grid, SemiSynchronous(2.0, polynomial(0.5)), seconds)
    each = []
    for _ in strategy.rounds(grid, to_record(initial()), 4):
        each.append(tier.take_report())
    strategy, tier = over_clients(grid, SemiSynchronous(2.0, polynomial(0.5)), seconds)
    list(strategy.rounds(grid, to_record(initial()), 4))
    both = tier.take_report()
    assert both["staleness"] == {"0": 8, "1": 2}
    assert both["arrivals"] == [line for report in each for line in report["arrivals"]]
    lengths = [2.0, 1.5, 2.0, 1.5]
    idle = sum(report["idle_share"]["clients"] * own for report, own in zip(each, lengths, strict=True)) / 7.0
    assert both["idle_share"] == {"clients": pytest.approx(idle, abs=1e-6)}
    nothing = {"staleness": {}, "too_old": 0, "arrivals": [], "at_work": 0, "idle_share": {}}
    assert tier.take_report() == nothing


def test_a_round_ends_before_the_deadline_when_everybody_is_in_and_after_it_when_nobody_is():
    grid = toy_grid(2)
    strategy, tier = over_clients(grid, SemiSynchronous(5.0, constant), [1.0, 2.0])
    models(strategy, grid, 2)
    assert tier.clock.now == 4.0
    strategy, tier = over_clients(grid, SemiSynchronous(0.5, constant), [1.0, 2.0])
    models(strategy, grid, 1)
    assert tier.clock.now == 1.0


def test_too_old_updates_are_left_out_counted_and_said(caplog):
    grid = toy_grid(3)
    strategy, tier = over_clients(grid, FedBuff(1, constant), [1.0, 1.0, 4.5], max_staleness=3)
    with caplog.at_level(logging.WARNING, "espalier"):
        rounds = list(strategy.rounds(grid, to_record(initial()), 9))
    slow = toy_topology(grid, 1)["edge-0"][2]
    reasons = [f.reason for one in rounds for edge in one.edges.values() for f in edge.failures if f.node_id == slow]
    assert reasons == ["its update began 8 aggregations ago (async.max-staleness = 3)"]
    assert tier.take_report()["too_old"] == 1
    assert sum("still trains on the model of" in record.message for record in caplog.records) == 1


def test_no_more_are_at_work_than_may_be_and_by_the_seed():
    grid = toy_grid(6)

    def at_work(seed):
        strategy, tier = over_clients(
            grid, FedBuff(2, constant), [1.0, 2.0, 3.0, 4.0, 5.0, 6.0], concurrency=3, seed=seed
        )
        took = []
        for one in strategy.rounds(grid, to_record(initial()), 6):
            assert tier.take_report()["at_work"] <= 3
            took.append(list(one.edges["edge-0"].updates[0].participants))
        return took

    assert at_work(1) == at_work(1)
    assert at_work(1) != at_work(2)
    assert len({n for took in at_work(1) for n in took}) > 3


@pytest.mark.parametrize(
    "mode",
    [FedBuff(2, constant), FedAsync(0.6, constant), SemiSynchronous(2.0, constant)],
    ids=lambda m: type(m).__name__,
)
def test_who_takes_no_time_makes_no_rounds_pass(mode):
    strategy = over_edges(toy_grid(6), mode, [0.0, 1.0, 1.7], evaluate_every=0)
    times, idle = [], []
    for one in strategy.rounds(toy_grid(6), to_record(initial()), 5):
        times.append(strategy.tier.clock.now)
        idle.append(len(one.edges["edge-0"].updates))
    assert times == sorted({*times} - {0.0})
    assert idle == [1] * 5


def test_rounds_end_where_nobody_takes_time():
    strategy = over_edges(toy_grid(4), FedBuff(1, constant), [0.0, 0.0], evaluate_every=0)
    rounds = list(strategy.rounds(toy_grid(4), to_record(initial()), 3))
    assert [set(one.edges) for one in rounds] == [{"edge-0", "edge-1"}] * 3


def test_who_fails_is_left_out_and_nothing_stops():
    grid = toy_grid(4, faults={1: "raise", 2: "nan"})
    strategy, _ = over_clients(grid, FedBuff(3, constant), [1.0, 1.0, 1.0, 1.0])
    rounds = list(strategy.rounds(grid, to_record(initial()), 3))
    nodes = toy_topology(grid, 1)["edge-0"]
    for one in rounds:
        (edge,) = one.edges.values()
        assert list(edge.updates[0].participants) == [nodes[0], nodes[3]]
        assert {f.node_id for f in edge.failures} == {nodes[1], nodes[2]}
    grid = toy_grid(2, faults={0: "raise", 1: "raise"})
    strategy, _ = over_clients(grid, FedBuff(2, constant), [1.0, 2.0])
    (one,) = strategy.rounds(grid, to_record(initial()), 1)
    assert_same_bits([to_numpy(one.arrays)], [initial()])


def test_an_edge_without_a_model_is_left_out():
    grid = toy_grid(4, faults={2: "raise", 3: "raise"})
    strategy = over_edges(grid, FedBuff(1, constant), [1.0, 1.0])
    rounds = list(strategy.rounds(grid, to_record(initial()), 2))
    assert [name for name, edge in rounds[0].edges.items() if edge.arrays is not None] == ["edge-0"]
    assert {f.node_id for f in rounds[1].edges["edge-1"].failures} == set(toy_topology(grid, 2)["edge-1"])


def test_a_guard_judges_updates_before_they_are_weighed_by_staleness():
    grid, seconds = toy_grid(6), [1.0, 9.0, 9.0, 9.0, 9.0, 9.0]
    strategy, tier = over_clients(grid, FedBuff(3, hinge(1e6, 0.0)), seconds, evaluate_every=0, guard=tight())
    rounds = list(strategy.rounds(grid, to_record(initial()), 8))
    assert [f for one in rounds for edge in one.edges.values() for f in edge.failures] == []
    assert max(int(t) for t in tier.take_report()["staleness"]) >= 1


@pytest.mark.parametrize("mode", ["leave-out", "clip"])
def test_a_guard_judges_every_update_of_a_fast_node(mode):
    def lie(message, reply):
        huge = {name: np.full(array.shape, 1e6) for name, array in to_numpy(reply.content["arrays"]).items()}
        reply.content["arrays"] = to_record(huge)

    grid = InProcessGrid(telling(toy_app(), lie), 5)
    fast = toy_topology(grid, 1)["edge-0"][LIAR]
    seconds = [2.0] * 5
    seconds[LIAR] = 1.0
    strategy, _ = over_clients(grid, FedBuff(6, constant), seconds, evaluate_every=0, guard=tight(mode))
    (one,) = strategy.rounds(grid, to_record(initial()), 1)
    (edge,) = one.edges.values()
    assert [f.node_id for f in edge.failures] == ([fast, fast] if mode == "leave-out" else [])
    assert (fast in edge.updates[0].participants) == (mode == "clip")
    assert np.abs(to_numpy(one.arrays)["w"]).max() < 10


def test_a_bad_reply_fills_no_buffer_and_its_client_waits():
    grid = toy_grid(5, faults={0: "too large"})
    strategy, _ = over_clients(grid, FedBuff(6, constant), [1.0, 2.0, 2.0, 3.0, 3.0], evaluate_every=0)
    (one,) = strategy.rounds(grid, to_record(initial()), 1)
    (edge,) = one.edges.values()
    bad, *good = toy_topology(grid, 1)["edge-0"]
    assert [(f.node_id, f.reason) for f in edge.failures] == [(bad, "array 'w' holds NaN or Inf")]
    assert edge.updates[0].participants == good  # six updates of four clients
    assert one.edges["edge-0"].updates[0].weight == 2 * examples_of(1) + 2 * examples_of(2) + examples_of(
        3
    ) + examples_of(4)


def test_a_guard_sees_what_an_update_does():
    grid = toy_grid(5, faults={4: "too large"})
    strategy, _ = over_clients(grid, FedBuff(5, constant), [1.0] * 5, guard=tight())
    (one,) = strategy.rounds(grid, to_record(initial()), 1)
    (edge,) = one.edges.values()
    assert [f.node_id for f in edge.failures] == [toy_topology(grid, 1)["edge-0"][4]]


@pytest.mark.parametrize(
    "mode", [FedBuff(2, polynomial(0.5)), FedAsync(0.6, polynomial(0.5)), SemiSynchronous(2.0, constant)]
)
def test_a_run_goes_on_from_its_state_to_the_same_bits(mode):
    grid = toy_grid(4)

    def new():
        return over_edges(grid, mode, [1.0, 2.3, 3.1], cloud=FedAdam(**ANY), edge_rounds=2, evaluate_every=0)

    whole = models(new(), grid, 7)
    first, second = new(), new()
    half = models(first, grid, 3)
    second.load_state_dict(first.state_dict())
    rest = [to_numpy(one.arrays) for one in second.rounds(grid, to_record(half[-1]), 7, first_round=4)]
    assert_same_bits(half + rest, whole)


@pytest.mark.parametrize("evaluate_every", [0, 1])
@pytest.mark.parametrize("mode", [FedBuff(2, polynomial(0.5)), SemiSynchronous(2.0, constant)])
def test_stopped_after_an_aggregation_it_is_a_run_of_so_many_to_the_bit(mode, evaluate_every):
    def start(num_rounds, **options):
        strategy = over_edges(
            grid := toy_grid(4), mode, [1.0, 2.3, 3.1], cloud=FedAdam(**ANY), evaluate_every=evaluate_every
        )
        return strategy.start(grid, to_record(initial()), num_rounds, **options)

    whole, stopped = start(4), start(7, should_stop=lambda number, result: number == 4)
    assert_same_bits([to_numpy(stopped.arrays)], [to_numpy(whole.arrays)])
    of_stopped, of_whole = stopped.evaluate_metrics_clientapp, whole.evaluate_metrics_clientapp
    assert {n: dict(m) for n, m in of_stopped.items()} == {n: dict(m) for n, m in of_whole.items()}
    assert max(of_stopped) == 4


def test_flat_runs_go_on_from_their_state_too():
    grid = toy_grid(4)

    def new():
        return over_clients(grid, FedBuff(2, polynomial(0.5)), [1.0, 1.7, 2.9, 8.3], evaluate_every=0)[0]

    whole = models(new(), grid, 7)
    first, second = new(), new()
    half = models(first, grid, 3)
    second.load_state_dict(first.state_dict())
    rest = [to_numpy(one.arrays) for one in second.rounds(grid, to_record(half[-1]), 7, first_round=4)]
    assert_same_bits(half + rest, whole)


def test_simulated_time_needs_a_pace():
    tier = AsynchronousTier(FedBuff(2, constant), SimulatedClock(EventClock()), 2, "clients")
    topology = {"edge-0": [1], "edge-1": [2]}
    with pytest.raises(ValueError, match="pace: a SimulatedClock does not show how long"):
        AsynchronousEdge(FedAvg(**ANY), [1, 2], tier)
    with pytest.raises(ValueError, match="pace: a SimulatedClock does not show how long"):
        AsynchronousHierarchical(FedAvg(**ANY), lambda name, size: FedAvg(**ANY), topology, edge_rounds=1, tier=tier)


def test_a_bad_reply_is_judged_before_it_is_kept():
    """It waits for its turn in the state of the run, which could not be saved with it."""

    def lie(message, reply):
        strange = {
            name: Array("float32", array.shape, "strange", b"x") for name, array in reply.content["arrays"].items()
        }
        reply.content["arrays"] = ArrayRecord(strange)
        reply.content["more"] = ConfigRecord({"much": b"x" * 1000})

    grid = InProcessGrid(telling(toy_app(), lie), 4)
    liar = ask_profiles(grid)[LIAR].node_id
    seconds = [1.0] * 4
    seconds[LIAR] = 1.5  # it has replied, and is taken in the second round
    strategy, tier = over_clients(grid, FedBuff(3, constant), seconds, evaluate_every=0)
    rounds = strategy.rounds(grid, to_record(initial()), 2)
    next(rounds)
    kept = {flight["node"]: flight for flight in tier.state_dict({})["flights"]}
    assert kept[LIAR]["content"] is None
    assert "strange" in kept[LIAR]["fault"]
    (failure,) = next(rounds).edges["edge-0"].updates[0].failures
    assert (failure.node_id, failure.reason) == (liar, kept[LIAR]["fault"])


def test_of_a_node_that_comes_twice_its_last_words_count():
    grid = InProcessGrid(toy_app(), 1)
    (node,) = grid.get_node_ids()
    asked = Message(RecordDict(), dst_node_id=node, message_type="train")

    def reply(examples, who):
        metrics = MetricRecord({"num-examples": examples, "train_loss": float(examples)})
        records = {"arrays": to_record(initial()), "metrics": metrics, "about": ConfigRecord({"who": who})}
        return Message(RecordDict(records), reply_to=asked)

    one = as_one(asked, [reply(1, "first"), reply(3, "last")], "num-examples").content
    assert dict(one["about"]) == {"who": "last"}
    assert dict(one["metrics"]) == {"num-examples": 4.0, "train_loss": 2.5}
