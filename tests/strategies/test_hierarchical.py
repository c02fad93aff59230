"""Hierarchical: what it computes."""

import random
import re
from dataclasses import replace
from inspect import signature

import numpy as np
import pytest
from flwr import serverapp
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import (
    Bulyan,
    DifferentialPrivacyClientSideAdaptiveClipping,
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideFixedClipping,
    FedAdam,
    FedAvg,
    FedAvgM,
    FedMedian,
    FedProx,
    FedXgbBagging,
    FedXgbCyclic,
    Krum,
    Strategy,
)

from espalier.sim.in_process_grid import InProcessGrid
from espalier.strategies import EdgeOutcome, Hierarchical, StrategyEdge, Update, ask_profiles
from espalier.strategies.edge_laws import plain_client
from espalier.strategies.exchange import Beside, Until
from espalier.strategies.views import MemberGrid
from tests.strategies.toys import (
    FedAdamReference,
    FedAvgMReference,
    FedAvgReference,
    FedMedianReference,
    KrumReference,
    average,
    examples_of,
    initial,
    local_step,
    lock_step,
    to_numpy,
    to_record,
    toy_grid,
    toy_topology,
)

ANY = {"min_train_nodes": 1, "min_evaluate_nodes": 1, "min_available_nodes": 1}


def run(grid, *, cloud=None, make_edge=None, num_edges=2, rounds=2, **options):
    strategy = Hierarchical(
        cloud or FedAvg(**ANY),
        make_edge or (lambda name, size: FedAvg(**ANY)),
        toy_topology(grid, num_edges),
        **options,
    )
    return list(strategy.rounds(grid, to_record(initial()), rounds))


def final(grid, **options):
    return to_numpy(run(grid, **options)[-1].arrays)


def assert_same_bits(left, right):
    assert left.keys() == right.keys()
    for name in left:
        assert left[name].dtype == right[name].dtype
        np.testing.assert_array_equal(left[name], right[name])


def assert_close(left, right, tolerance=1e-6):
    assert left.keys() == right.keys()
    for name in left:
        np.testing.assert_allclose(left[name], right[name], rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("rounds", [1, 3])
def test_what_goes_on_beside_the_rounds_ends_with_them(rounds):
    """Also where whoever iterates stops before the last."""
    ended = []

    def goes_on(server_round):
        try:
            yield Until(lambda: False)
        finally:
            ended.append(server_round)

    class GoingOn(StrategyEdge):
        def train_round(self, server_round, arrays, config, grid):
            yield Beside([goes_on(server_round)])
            return (yield from super().train_round(server_round, arrays, config, grid))

    grid = toy_grid(2)
    strategy = Hierarchical(FedAvg(**ANY), lambda name, size: GoingOn(FedAvg(**ANY)), toy_topology(grid, 1))
    for outcome in strategy.rounds(grid, to_record(initial()), 3):
        assert not ended
        if outcome.number == rounds:
            break
    assert sorted(ended) == list(range(1, rounds + 1))


def blocks(num_clients, num_edges):
    return [[i for i in range(num_clients) if i * num_edges // num_clients == b] for b in range(num_edges)]


def test_one_edge_and_one_edge_round_is_flowers_fedavg_to_the_bit(monkeypatch):
    # FedAvg on its own averages its clients in the order in which it happened to draw them: fix it to client order.
    monkeypatch.setattr(random, "sample", lambda population, k: population[:k])
    grid = toy_grid(5)
    members = [profile.node_id for profile in ask_profiles(grid)]
    flat = FedAvg().start(MemberGrid(grid, members), to_record(initial()), num_rounds=3)
    ours = Hierarchical(FedAvg(**ANY), lambda name, size: FedAvg(), toy_topology(grid, 1)).start(
        grid, to_record(initial()), num_rounds=3
    )
    assert_same_bits(to_numpy(ours.arrays), to_numpy(flat.arrays))
    for number in (1, 2, 3):
        assert dict(ours.train_metrics_clientapp[number]) == dict(flat.train_metrics_clientapp[number])
        assert dict(ours.evaluate_metrics_clientapp[number]) == dict(flat.evaluate_metrics_clientapp[number])


def test_four_edges_and_two_edge_rounds_match_ten_lines_of_numpy():
    weights = initial()
    for t in range(3):
        edge_models, edge_sizes = [], []
        for clients in blocks(10, 4):
            sizes = [examples_of(i) for i in clients]
            own = weights
            for e in (1, 2):
                own = average([local_step(own, i, 2 * t + e) for i in clients], sizes)
            edge_models.append(own)
            edge_sizes.append(sum(sizes))
        weights = average(edge_models, edge_sizes)
    assert_close(final(toy_grid(10), num_edges=4, rounds=3, edge_rounds=2), weights)


@pytest.mark.parametrize(
    ("cloud", "make_edge", "cloud_reference", "edge_reference", "mu"),
    [
        (FedAdam(**ANY), lambda n, s: FedProx(proximal_mu=0.3, **ANY), FedAdamReference(), FedAvgReference, 0.3),
        (FedMedian(**ANY), lambda n, s: FedAdam(**ANY), FedMedianReference(), FedAdamReference, 0),
        (FedMedian(**ANY), lambda n, s: Krum(**ANY), FedMedianReference(), KrumReference, 0),
        (
            FedAvgM(server_learning_rate=0.7, server_momentum=0.5, **ANY),
            lambda n, s: FedAvgM(server_learning_rate=0.9, server_momentum=0.4, **ANY),
            FedAvgMReference(0.7, 0.5),
            lambda: FedAvgMReference(0.9, 0.4),
            0,
        ),
        (FedProx(proximal_mu=0.2, **ANY), lambda n, s: FedAvg(**ANY), FedAvgReference(), FedAvgReference, 0.2),
    ],
    ids=["FedAdam/FedProx", "FedMedian/FedAdam", "FedMedian/Krum", "FedAvgM/FedAvgM", "FedProx/FedAvg"],
)
def test_any_flower_strategy_at_either_tier_matches_a_lock_step_reference(
    cloud, make_edge, cloud_reference, edge_reference, mu
):
    ours = final(toy_grid(12), cloud=cloud, make_edge=make_edge, num_edges=3, rounds=3, edge_rounds=2)
    expected = lock_step(
        cloud_reference, [edge_reference() for _ in range(3)], members=blocks(12, 3), rounds=3, edge_rounds=2, mu=mu
    )
    assert_close(ours, expected, 2e-5)


def test_node_ids_and_the_order_of_arrival_change_nothing():
    def backwards(grid):
        pull = grid.pull_messages
        grid.pull_messages = lambda ids: list(pull(ids))[::-1]
        return grid

    first = final(toy_grid(7, seed=1), edge_rounds=2)
    assert_same_bits(first, final(toy_grid(7, seed=2), edge_rounds=2))
    assert_same_bits(first, final(backwards(toy_grid(7, seed=1)), edge_rounds=2))


def test_sampling_follows_the_seed_and_leaves_the_global_generators_alone():
    def sampled(seed, grid_seed):
        edge = lambda name, size: FedAvg(fraction_train=0.5, **ANY)  # noqa: E731
        outcomes = run(grid := toy_grid(12, seed=grid_seed), make_edge=edge, edge_rounds=2, seed=seed, rounds=3)
        place = {node_id: i for i, node_id in enumerate(n for m in toy_topology(grid, 2).values() for n in m)}
        chosen = [[place[n] for n in u.participants] for o in outcomes for e in o.edges.values() for u in e.updates]
        return chosen, to_numpy(outcomes[-1].arrays)

    random.seed(3)
    before = random.getstate(), np.random.get_state()[1].tolist()  # noqa: NPY002
    chosen, weights = sampled(seed=5, grid_seed=1)
    assert before == (random.getstate(), np.random.get_state()[1].tolist())  # noqa: NPY002
    random.seed(4)
    again, same_weights = sampled(seed=5, grid_seed=2)
    assert chosen == again
    assert_same_bits(weights, same_weights)
    assert all(len(clients) == 3 and clients == sorted(clients) for clients in chosen)
    assert len({tuple(clients) for clients in chosen[::2]}) > 1  # another sample in another round
    assert sampled(seed=6, grid_seed=1)[0] != chosen


def test_weights_come_from_those_who_took_part():
    # 6 clients on 2 edges; the last client of the second edge fails in every round.
    expected, members = initial(), [[0, 1, 2], [3, 4]]
    models = [average([local_step(expected, i, 1) for i in m], [examples_of(i) for i in m]) for m in members]
    expected = average(models, [sum(examples_of(i) for i in m) for m in members])
    (outcome,) = run(toy_grid(6, faults={5: "raise"}), rounds=1)
    assert_close(to_numpy(outcome.arrays), expected)
    assert [edge.weight for edge in outcome.edges.values()] == [sum(map(examples_of, m)) for m in members]


def test_an_edge_weighs_the_mean_of_its_edge_rounds_that_gave_a_model():
    arrays = to_record(initial())
    updates = [Update(arrays, weight=30.0), Update(), Update(arrays, weight=10.0)]
    assert EdgeOutcome(arrays, updates, 0.0).weight == 20.0


def test_integer_counters_keep_their_type_and_are_rounded():
    app = ClientApp()

    @app.train()
    def train(message, context):
        i = int(context.node_config["partition-id"])
        counter = np.asarray(message.content["arrays"]["counter"].numpy() + 3 + 2 * i)
        arrays = ArrayRecord({"counter": Array(counter), "w": message.content["arrays"]["w"]})
        return Message(RecordDict({"arrays": arrays, "metrics": MetricRecord({"num-examples": 1})}), reply_to=message)

    grid = InProcessGrid(app, 4)
    start = ArrayRecord({"counter": Array(np.array(10, np.int64)), "w": Array(np.ones(2, np.float32))})
    ids = list(grid.get_node_ids())
    for kind in (FedAvg, FedAdam):
        strategy = Hierarchical(FedAvg(**ANY), lambda n, s, kind=kind: kind(**ANY), {"a": ids[:2], "b": ids[2:]})
        arrays = to_numpy(next(strategy.rounds(grid, start, 1)).arrays)
        assert arrays["counter"].dtype == np.int64
        assert arrays["counter"].shape == ()
        assert arrays["w"].dtype == np.float32
    flat = next(Hierarchical(FedAvg(**ANY), lambda n, s: FedAvg(**ANY), {"a": ids}).rounds(grid, start, 1))
    assert to_numpy(flat.arrays)["counter"] == 16  # 10 + mean(3, 5, 7, 9)


def test_evaluation_is_weighted_over_edges_and_kept_per_node():
    outcomes = run(toy_grid(5), rounds=3, evaluate_every=2)
    assert [bool(outcome.evaluations) for outcome in outcomes] == [False, True, True]
    last = outcomes[-1]
    size = float(np.abs(to_numpy(last.arrays)["w"]).sum())
    own = [float(m["loss"]) for e in last.evaluations.values() for m in e.replies.values()]
    np.testing.assert_allclose(own, [size + i for i in range(5)], rtol=1e-6)
    weights = [examples_of(i) for i in range(5)]
    np.testing.assert_allclose(last.evaluate_metrics["loss"], np.average(own, weights=weights), rtol=1e-9)


def test_an_evaluation_has_the_number_of_the_edge_round_before_it():
    seen = []

    class Watching(FedAvg):
        def configure_evaluate(self, server_round, arrays, config, grid):
            seen.append(server_round)
            return super().configure_evaluate(server_round, arrays, config, grid)

    run(toy_grid(4), make_edge=lambda n, s: Watching(**ANY), num_edges=1, rounds=2, edge_rounds=3)
    assert seen == [3, 6]


def test_an_edge_without_metrics_of_its_own_leaves_the_mean_over_the_others_as_it_is():
    class Idle(StrategyEdge):
        def train_round(self, server_round, arrays, config, grid):
            update = yield from super().train_round(server_round, arrays, config, grid)
            return replace(update, metrics=None) if tuple(grid.get_node_ids()) == topology["edge-2"] else update

    grid = toy_grid(6)
    topology = {name: tuple(members) for name, members in toy_topology(grid, 3).items()}
    strategy = Hierarchical(FedAvg(**ANY), lambda n, s: Idle(FedAvg(**ANY)), topology)
    (outcome,) = strategy.rounds(grid, to_record(initial()), 1)
    expected = np.average(range(4), weights=[examples_of(i) for i in range(4)])
    assert outcome.train_metrics["train_loss"] == pytest.approx(expected)


def test_each_edge_has_the_clouds_config_and_what_it_made_of_it_itself():
    seen = {}

    class Watching(FedAvg):
        def configure_train(self, server_round, arrays, config, grid):
            seen.setdefault(tuple(grid.get_node_ids()), []).append(dict(config))
            config["mine"] = server_round
            return super().configure_train(server_round, arrays, config, grid)

    grid = toy_grid(4)
    strategy = Hierarchical(FedAvg(**ANY), lambda n, s: Watching(**ANY), toy_topology(grid, 2), edge_rounds=2)
    config = ConfigRecord({"rate": 0.5})
    list(strategy.rounds(grid, to_record(initial()), 2, train_config=config))
    assert dict(config) == {"rate": 0.5}
    expected = [(0.5, t, mine) for t, mine in ((1, None), (1, 1), (2, 2), (2, 3))]
    assert [[(c["rate"], c["server-round"], c.get("mine")) for c in own] for own in seen.values()] == [expected] * 2


class Halving(FedAvg):
    """As Flower's guide to configuring clients has it."""

    def __init__(self, seen):
        super().__init__(**ANY)
        self.see = seen.append

    def configure_train(self, server_round, arrays, config, grid):
        if server_round % 2 == 0:
            config["lr"] *= 0.5
        self.see(config["lr"])
        return super().configure_train(server_round, arrays, config, grid)


@pytest.mark.parametrize("tier", ["edge", "cloud"])
def test_what_a_strategy_makes_of_its_config_adds_up_as_in_flower_and_in_a_resumed_run(tier):
    def build(grid, seen):
        cloud = Halving(seen) if tier == "cloud" else FedAvg(**ANY)
        return Hierarchical(
            cloud, lambda n, s: Halving(seen) if tier == "edge" else FedAvg(**ANY), toy_topology(grid, 1)
        )

    flat, nested, resumed = [], [], []
    told = {"lr": 0.8}
    Halving(flat).start(toy_grid(2), to_record(initial()), num_rounds=6, train_config=ConfigRecord(told))
    list(build(grid := toy_grid(2), nested).rounds(grid, to_record(initial()), 6, train_config=ConfigRecord(told)))
    assert nested == flat == [0.8, 0.4, 0.4, 0.2, 0.2, 0.1]
    first = build(grid := toy_grid(2), resumed)
    list(first.rounds(grid, to_record(initial()), 3, train_config=ConfigRecord(told)))
    second = build(grid := toy_grid(2), resumed)
    second.load_state_dict(first.state_dict())
    list(second.rounds(grid, to_record(initial()), 6, first_round=4, train_config=ConfigRecord(told)))
    assert resumed == flat


def test_a_second_run_begins_with_its_own_config_and_what_is_taken_out_stays_out():
    seen = []

    class Warming(FedAvg):
        def configure_train(self, server_round, arrays, config, grid):
            seen.append(("warm" in config, list(config["rates"])))
            config.pop("warm", None)
            config["rates"][0] *= 0.5
            return super().configure_train(server_round, arrays, config, grid)

    grid = toy_grid(4)
    strategy = Hierarchical(FedAvg(**ANY), lambda n, s: Warming(**ANY), toy_topology(grid, 2))
    told = ConfigRecord({"warm": 1, "rates": [0.8]})
    for _ in range(2):
        list(strategy.rounds(grid, to_record(initial()), 3, train_config=told))
    one_run = [(True, [0.8])] * 2 + [(False, [0.4])] * 2 + [(False, [0.2])] * 2
    assert seen == one_run * 2
    assert dict(told) == {"warm": 1, "rates": [0.8]}


def test_another_value_from_above_replaces_what_a_strategy_made_of_the_one_before():
    seen = []

    class Warming(FedAvg):
        def configure_train(self, server_round, arrays, config, grid):
            config["lr"] = 0.1 if server_round < 3 else 0.8
            return super().configure_train(server_round, arrays, config, grid)

    grid = toy_grid(2)
    strategy = Hierarchical(Warming(**ANY), lambda n, s: Halving(seen), toy_topology(grid, 1))
    list(strategy.rounds(grid, to_record(initial()), 4))
    assert seen == [0.1, 0.05, 0.8, 0.4]


def test_a_figure_that_one_edge_does_not_count_costs_it_nothing():
    class Counting(StrategyEdge):
        def train_round(self, server_round, arrays, config, grid):
            update = yield from super().train_round(server_round, arrays, config, grid)
            if tuple(grid.get_node_ids()) == topology["edge-2"]:
                return update
            return replace(update, metrics=MetricRecord({**update.metrics, "clipped": 1.0 + update.weight}))

    grid = toy_grid(6)
    topology = {name: tuple(members) for name, members in toy_topology(grid, 3).items()}
    plain = Hierarchical(FedAvg(**ANY), lambda n, s: FedAvg(**ANY), topology)
    (expected,) = plain.rounds(toy_grid(6), to_record(initial()), 1)
    strategy = Hierarchical(FedAvg(**ANY), lambda n, s: Counting(FedAvg(**ANY)), topology)
    (outcome,) = strategy.rounds(grid, to_record(initial()), 1)
    assert_same_bits(to_numpy(outcome.arrays), to_numpy(expected.arrays))
    weights = [outcome.edges[name].weight for name in ("edge-0", "edge-1")]
    assert outcome.train_metrics["clipped"] == pytest.approx(np.average([1 + w for w in weights], weights=weights))


def test_state_of_both_tiers_resumes_to_the_same_bits():
    def build(grid):
        return Hierarchical(
            FedAdam(**ANY),
            lambda n, s: FedAvgM(server_learning_rate=0.9, server_momentum=0.4, fraction_train=0.5, **ANY),
            toy_topology(grid, 2),
            edge_rounds=2,
            seed=3,
        )

    grid = toy_grid(8)
    whole = list(build(grid).rounds(grid, to_record(initial()), 4))[-1].arrays
    first = build(grid := toy_grid(8, seed=9))
    half = list(first.rounds(grid, to_record(initial()), 2))[-1].arrays
    second = build(grid := toy_grid(8, seed=10))
    second.load_state_dict(first.state_dict())
    resumed = list(second.rounds(grid, half, 4, first_round=3))[-1].arrays
    assert_same_bits(to_numpy(resumed), to_numpy(whole))
    fresh = build(grid := toy_grid(8))
    assert not np.array_equal(
        to_numpy(list(fresh.rounds(grid, half, 4, first_round=3))[-1].arrays)["w"], to_numpy(whole)["w"]
    )


def test_start_returns_flowers_result_with_the_servers_own_evaluation():
    grid = toy_grid(4)
    strategy = Hierarchical(FedAvg(**ANY), lambda n, s: FedAvg(**ANY), toy_topology(grid, 2))
    result = strategy.start(
        grid,
        to_record(initial()),
        num_rounds=2,
        evaluate_fn=lambda t, a: MetricRecord({"sum": float(a["w"].numpy().sum())}),
    )
    assert sorted(result.evaluate_metrics_serverapp) == [0, 1, 2]
    assert result.evaluate_metrics_serverapp[0]["sum"] == pytest.approx(float(initial()["w"].sum()))
    assert result.evaluate_metrics_serverapp[2]["sum"] == pytest.approx(float(result.arrays["w"].numpy().sum()))
    assert sorted(result.train_metrics_clientapp) == [1, 2]


def assert_same_results(left, right):
    assert_same_bits(to_numpy(left.arrays), to_numpy(right.arrays))
    for name in ("train_metrics_clientapp", "evaluate_metrics_clientapp", "evaluate_metrics_serverapp"):
        assert {n: dict(m) for n, m in getattr(left, name).items()} == {
            n: dict(m) for n, m in getattr(right, name).items()
        }


@pytest.mark.parametrize("evaluate_every", [0, 1, 2])
@pytest.mark.parametrize("last", [1, 3, 4])
def test_stopped_after_a_round_it_is_a_run_of_so_many_rounds_to_the_bit(last, evaluate_every):
    def start(num_rounds, **options):
        grid = toy_grid(8)
        strategy = Hierarchical(
            FedAdam(**ANY),
            lambda n, s: FedAvgM(server_learning_rate=0.9, server_momentum=0.4, fraction_evaluate=0.5, **ANY),
            toy_topology(grid, 2),
            edge_rounds=2,
            seed=3,
            evaluate_every=evaluate_every,
        )
        result = strategy.start(
            grid,
            to_record(initial()),
            num_rounds,
            evaluate_fn=lambda number, arrays: MetricRecord({"sum": float(arrays["w"].numpy().sum())}),
            **options,
        )
        return result, strategy.state_dict()

    whole, state = start(last)
    stopped, left = start(4, should_stop=lambda number, result: number == last)
    assert max(stopped.evaluate_metrics_clientapp) == last
    assert_same_results(stopped, whole)
    np.testing.assert_equal(left, state)


def test_a_run_is_asked_to_stop_when_flower_asks():
    """At the end of each round, the last one too, with its number and all that is known by then."""
    asked = []

    def should_stop(number, result):
        so_far = result.train_metrics_clientapp, result.evaluate_metrics_clientapp, result.evaluate_metrics_serverapp
        asked.append((number, *map(sorted, so_far)))
        return False

    def start(strategy, grid):
        asked.clear()
        strategy.start(
            grid,
            to_record(initial()),
            num_rounds=2,
            evaluate_fn=lambda number, arrays: MetricRecord({"number": number}),
            should_stop=should_stop,
        )
        return list(asked)

    grid = toy_grid(4)
    ours = start(Hierarchical(FedAvg(**ANY), lambda n, s: FedAvg(**ANY), toy_topology(grid, 2)), grid)
    assert ours == [(1, [1], [1], [0, 1]), (2, [1, 2], [1, 2], [0, 1, 2])]
    if "should_stop" in signature(Strategy.start).parameters:  # from 1.43 on
        assert start(FedAvg(**ANY), grid) == ours


@pytest.mark.parametrize(
    ("topology", "make_edge", "options", "message"),
    [
        ({}, FedAvg, {}, "no edges"),
        ({"a": []}, FedAvg, {}, "edge 'a' has no nodes"),
        ({"a": [1, 2], "b": [2, 3]}, FedAvg, {}, "node 2 is in edge 'a' and in edge 'b'"),
        ({"a": [1]}, FedAvg, {}, "edge 'a' has 1 node(s) but its FedAvg needs 2"),
        ({"a": [1, 2]}, FedAvg, {"edge_rounds": 0}, "edge_rounds is 0"),
        ({"a": [1, 2]}, FedAvg, {"edge_rounds": 1.5}, "edge_rounds is 1.5: it must be a whole number of 1 or more"),
        ({"a": [1, 2]}, FedAvg, {"evaluate_every": -1}, "evaluate_every is -1: it must be a whole number of 0 or more"),
        ({"a": [1, 2]}, FedAvg, {"guard": 10}, "guard is 10: it must be an espalier.strategies.Guard"),
        ({"a": [1, 2]}, FedAvg, {"seed": 1.5}, "seed is 1.5: it must be a whole number, or None"),
        ({"a": [1, 2]}, FedAvg, {"poll_seconds": -1}, "poll_seconds is -1: it must be a number of 0 or more"),
        ({"a": [1, 2]}, FedAvg, {"node_name": {}}, "node_name is {}: it must be a function of a node id"),
        (
            {"a": [1, 2]},
            FedAvg,
            {"uplinks": "int8"},
            "uplinks is 'int8': it must be an espalier.strategies.compression",
        ),
        ([1, 2], FedAvg, {}, "the topology is a list: it must be node ids by the names of edges"),
        (
            {"a": [1, 2]},
            lambda: None,
            {},
            "an edge is a NoneType without train_round: it must be a Flower strategy, or",
        ),
        ({"a": [1, 2], "b": [3]}, lambda: 5, {}, "an edge is a int without train_round"),
    ],
)
def test_what_cannot_work_is_refused(topology, make_edge, options, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        Hierarchical(FedAvg(**ANY), lambda name, size: make_edge(), topology, **options)


def test_a_model_that_is_no_record_is_refused():
    hierarchical = Hierarchical(FedAvg(**ANY), lambda name, size: FedAvg(**ANY), {"a": [1, 2]})
    for begin in (hierarchical.start, lambda *what: next(hierarchical.rounds(*what, num_rounds=1))):
        with pytest.raises(ValueError, match="initial_arrays is a dict: it must be an ArrayRecord, such as"):
            begin(InProcessGrid(plain_client, 2), {})


@pytest.mark.parametrize(
    ("make_edge", "message"),
    [
        (FedAvg(), "make_edge is a FedAvg: it must"),
        (FedAvg, "make_edge is the class FedAvg: it"),
        (type("Mine", (FedAvg,), {}), "make_edge is the class Mine: it"),
    ],
)
def test_what_makes_no_edges_is_refused(make_edge, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        Hierarchical(FedAvg(**ANY), make_edge, {"a": [1, 2]})


def test_the_state_of_other_edges_is_refused():
    ours, other = (Hierarchical(FedAvg(**ANY), lambda n, s: FedAvg(**ANY), {name: [1, 2]}) for name in "ab")
    with pytest.raises(ValueError, match="the state is of the edges b, and here are a"):
        ours.load_state_dict(other.state_dict())


def test_a_name_is_no_strategy():
    with pytest.raises(ValueError, match="the cloud's strategy is a str: it must be a Flower strategy"):
        Hierarchical("FedAvg", lambda name, size: FedAvg(**ANY), {"a": [1, 2]})


@pytest.mark.parametrize(
    ("strategy", "needed"),
    [
        (lambda: FedAvg(fraction_train=2.0, **ANY), 6),
        (lambda: FedAvg(min_available_nodes=5), 5),
        (lambda: Bulyan(num_malicious_nodes=0, **ANY), 3),
        (lambda: Bulyan(num_malicious_nodes=1, **ANY), 7),
        (lambda: private(FedAvg(min_train_nodes=4)), 4),
    ],
)
def test_an_edge_too_small_for_its_strategy_is_refused(strategy, needed):
    with pytest.raises(ValueError, match=f"edge 'a' has [23] node.s. but its .* needs {needed}"):
        Hierarchical(FedAvg(**ANY), lambda name, size: strategy(), {"a": [1, 2, 3] if needed != 3 else [1, 2]})


def private(strategy, noise=0.0, clip=1e9, sampled=2):
    return DifferentialPrivacyServerSideFixedClipping(strategy, noise, clip, sampled)


def test_privacy_wrappers_work_at_either_tier():
    # Without noise and clipping they change nothing, FedAvgM's base included.
    def momentum(name, size):
        return FedAvgM(server_learning_rate=0.9, server_momentum=0.4, **ANY)

    plain = final(toy_grid(6), cloud=FedAdam(**ANY), make_edge=momentum, rounds=3, edge_rounds=2)
    wrapped = final(
        toy_grid(6),
        cloud=private(FedAdam(**ANY)),
        make_edge=lambda n, s: private(momentum(n, s)),
        rounds=3,
        edge_rounds=2,
    )
    assert_close(plain, wrapped, 1e-5)


def test_privacy_noise_follows_the_seed():
    def noisy(seed):
        return final(toy_grid(6), make_edge=lambda n, s: private(FedAvg(**ANY), 0.5, 1.0, 3), seed=seed)

    assert_same_bits(noisy(1), noisy(1))
    assert not np.array_equal(noisy(1)["w"], noisy(2)["w"])


def test_privacy_noise_without_a_seed_can_not_be_foretold():
    # Sampling without a seed still follows 0.
    def noisy(noise, **tier):
        return final(toy_grid(6), **{name: make(noise) for name, make in tier.items()})

    def edges(noise):
        return lambda n, s: private(FedAvg(fraction_train=0.5, **ANY), noise, 1.0, 3)

    def in_a_middle_tier(noise):
        def site(name, size):
            grid = toy_grid(6)
            members = list(toy_topology(grid, 2)[name])
            return Hierarchical(private(FedAvg(**ANY), noise, 1.0, 3), lambda n, s: FedAvg(**ANY), {"room": members})

        return site

    for tier in (
        {"make_edge": edges},
        {"cloud": lambda noise: private(FedAvg(**ANY), noise, 1.0, 3)},
        {"make_edge": in_a_middle_tier},
    ):
        assert_same_bits(noisy(0.0, **tier), noisy(0.0, **tier))
        assert not np.array_equal(noisy(0.5, **tier)["w"], noisy(0.5, **tier)["w"])


def test_an_edge_of_two_tiers_in_turn_hides_its_noise_in_both():
    edge = StrategyEdge(private(FedAvg(**ANY), 0.5, 1.0, 3))
    for _ in range(2):
        Hierarchical(FedAvg(**ANY), lambda name, size: edge, {"a": [1, 2, 3]})
        assert edge.hides_noise
    Hierarchical(FedAvg(**ANY), lambda name, size: edge, {"a": [1, 2, 3]}, seed=5)
    assert not edge.hides_noise


def test_a_seed_of_its_own_keeps_an_edges_noise_foretellable():
    def noisy():
        return final(toy_grid(6), make_edge=lambda n, s: StrategyEdge(private(FedAvg(**ANY), 0.5, 1.0, 3), seed=5))

    assert_same_bits(noisy(), noisy())


class TwoMessages(FedAvg):
    """Sends every edge its message twice."""

    def configure_train(self, *arguments):
        messages = list(super().configure_train(*arguments))
        again = (Message(m.content, m.metadata.dst_node_id, m.metadata.message_type) for m in messages)
        return [*messages, *again]


def test_two_messages_to_one_edge_are_refused():
    with pytest.raises(ValueError, match="TwoMessages sends edge 'edge-0' two messages in a round: one is allowed"):
        final(toy_grid(4), cloud=TwoMessages(**ANY))


@pytest.mark.parametrize(
    ("topology", "why"),
    [
        ({1: [1, 2]}, "an edge is named 1: names are texts"),
        ({"": [1, 2]}, "an edge is named '': names are texts that are not empty"),
        ({"a": b"12"}, "the nodes of edge 'a' are b'12': they must be node ids"),
        ({"a": [True]}, "a node of edge 'a' is True: node ids are integers"),
        ({"a": iter(())}, "edge 'a' has no nodes"),
        ({"a": 3}, "the nodes of edge 'a' are 3: they must be node ids"),
        ({"a": "12"}, "the nodes of edge 'a' are '12': they must be node ids"),
        ({"a": ["1", "2"]}, "a node of edge 'a' is '1': node ids are integers"),
    ],
)
def test_a_topology_of_something_else_is_refused(topology, why):
    with pytest.raises(ValueError, match=re.escape(why)):
        Hierarchical(FedAvg(**ANY), lambda name, size: FedAvg(**ANY), topology)


def test_nodes_may_come_in_any_form():
    for members in (range(1, 4), iter([1, 2, 3]), np.array([1, 2, 3]), {1, 2, 3}):
        assert Hierarchical(FedAvg(**ANY), lambda n, s: FedAvg(**ANY), {"a": members}).topology == {"a": (1, 2, 3)}


def test_classes_and_strategies_for_trees_are_refused():
    topology = {"a": [1, 2], "b": [3, 4]}
    with pytest.raises(ValueError, match=r"an edge is the class FedAvg: it must be an object, FedAvg\(\.\.\.\)"):
        Hierarchical(FedAvg(), lambda name, size: FedAvg, topology)
    with pytest.raises(ValueError, match="the cloud's strategy is the class FedAvg: it must be an object"):
        Hierarchical(FedAvg, lambda name, size: FedAvg(), topology)
    for cloud, edge in ((FedAvg, FedXgbBagging), (FedXgbCyclic, FedAvg)):
        with pytest.raises(ValueError, match="is for trees that grow: here models are arrays that keep their shapes"):
            Hierarchical(cloud(), lambda name, size, edge=edge: edge(), topology)


def test_a_cloud_that_would_wait_for_more_edges_and_shared_strategies_are_refused():
    with pytest.raises(ValueError, match="the cloud has 1 edge"):
        Hierarchical(FedAvg(), lambda name, size: FedAvg(), {"a": [1, 2]})
    shared: Strategy = FedAvg()
    with pytest.raises(ValueError, match="a new strategy for every edge"):
        Hierarchical(FedAvg(), lambda name, size: shared, {"a": [1, 2], "b": [3, 4]})


def test_clipping_by_nodes_that_are_edges_is_refused():
    topology = {"a": [1, 2], "b": [3, 4]}
    fixed = DifferentialPrivacyClientSideFixedClipping(FedAvg(), 0.1, 1.0, 2)
    adaptive = DifferentialPrivacyServerSideFixedClipping(
        DifferentialPrivacyClientSideAdaptiveClipping(FedAvg(), 0.1, 2), 0.1, 1.0, 2
    )
    for cloud, name in ((fixed, "ClientSideFixed"), (adaptive, "ClientSideAdaptive")):
        with pytest.raises(ValueError, match=f"nodes are edges, which do not clip as .*{name}Clipping wants"):
            Hierarchical(cloud, lambda name, size: FedAvg(), topology)
    edges = Hierarchical(FedAvg(), lambda n, s: DifferentialPrivacyClientSideFixedClipping(FedAvg(), 0, 1, s), topology)
    assert len(edges.edges) == 2


def test_a_strategy_of_ones_own_is_not_asked_to_average_nothing_whatever_it_calls_its_attributes():
    class Accounting(FedAvg):
        accountant = "mine"

        def aggregate_train(self, server_round, replies):
            raise AssertionError("no model came")

    grid = toy_grid(2, faults={0: "raise", 1: "raise"})
    strategy = Hierarchical(FedAvg(**ANY), lambda n, s: Accounting(**ANY), toy_topology(grid, 1))
    (outcome,) = strategy.rounds(grid, to_record(initial()), 1)
    assert not outcome.is_new


def test_a_round_without_a_model_spends_no_privacy_and_the_run_can_be_saved():
    settings = serverapp.PrivacyConfig(
        1e-3, 2, serverapp.NeighboringRelation.ADD_OR_REMOVE_ONE, serverapp.SamplingMethod.NO_AMPLIFICATION
    )
    accountant = serverapp.RdpAccountant(settings)
    private = DifferentialPrivacyServerSideFixedClipping(FedAvg(**ANY), 1.0, 1.0, 2, accountant=accountant)
    grid = toy_grid(2, faults={0: "raise", 1: "raise"})
    strategy = Hierarchical(FedAvg(**ANY), lambda n, s: private, toy_topology(grid, 1))
    list(strategy.rounds(grid, to_record(initial()), 2))
    assert accountant.num_releases == 0
    assert strategy.state_dict()["edges"]["edge-0"]["_pending_events"] == {}
