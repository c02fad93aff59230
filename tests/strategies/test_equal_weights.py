"""Equal weights in front of any edge."""

from functools import partial

import pytest
import torch
from flwr.app import ArrayRecord, MetricRecord
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAdam, FedAvg

from espalier.strategies import EqualWeights, Hierarchical, ResourceAware, StrategyEdge, ask_profiles, group_by_edge
from espalier.strategies.allocation import exact
from espalier.strategies.split import Relay, SplitFedV1, SplitFedV2
from tests.strategies.split.federation import ANY, Federation, assert_close, same, weights
from tests.strategies.test_resource_aware import Fixed

SIZES = (20, 33, 14, 40, 25)


def fedavg(name="", size=0):
    return StrategyEdge(FedAvg(**ANY))


def equal(make_edge):
    return lambda name, size: EqualWeights(make_edge(name, size))


def mean(models):
    """Return the plain mean, counters of BatchNorm rounded."""
    total = {name: sum(model[name].double() for model in models) / len(models) for name in models[0]}
    return {
        name: value if models[0][name].is_floating_point() else value.round().to(models[0][name].dtype)
        for name, value in total.items()
    }


def alone(federation, client, round_number=1, start=None):
    """Return the weights that one client trains to by itself."""
    grid = federation.grid()
    node_id = ask_profiles(grid)[client].node_id
    strategy = Hierarchical(FedAvg(**ANY), lambda name, size: FedAvg(**ANY), {"edge-0": [node_id]})
    arrays = ArrayRecord(start or federation.make_model().state_dict())
    (outcome,) = strategy.rounds(grid, arrays, round_number, first_round=round_number)
    return weights(outcome)


def test_two_tiers_are_the_mean_over_edges_of_the_means_over_clients():
    federation = Federation(sizes=SIZES)
    (outcome,) = federation.run(equal(fedavg), num_edges=2, rounds=1)
    clients = [alone(federation, i) for i in range(len(SIZES))]
    edges = [mean(clients[:3]), mean(clients[3:])]
    assert_close(weights(outcome), mean(edges), 1e-12)
    assert [edge.weight for edge in outcome.edges.values()] == [1, 1]
    (by_examples,) = federation.run(fedavg, num_edges=2, rounds=1)
    assert float((weights(by_examples)["head.weight"] - weights(outcome)["head.weight"]).abs().max()) > 1e-4


def test_clients_with_equal_data_and_edges_of_equal_size_weigh_the_same_anyway():
    federation = Federation(sizes=(24, 24, 24, 24))
    left = federation.run(equal(fedavg), num_edges=2, edge_rounds=2)
    right = federation.run(fedavg, num_edges=2, edge_rounds=2)
    assert_close(weights(left[-1]), weights(right[-1]), 1e-12)


@pytest.mark.parametrize("cut", [1, 2, 3])
def test_split_is_unsplit_with_equal_weights_too(cut):
    federation = Federation(sizes=SIZES)
    split = federation.run(equal(federation.split(SplitFedV1, lambda n: cut)), num_edges=2, edge_rounds=2)
    unsplit = federation.run(equal(fedavg), num_edges=2, edge_rounds=2)
    assert_close(weights(split[-1]), weights(unsplit[-1]))
    loss = [outcomes[-1].train_metrics["train_loss"] for outcomes in (split, unsplit)]
    assert loss[0] == pytest.approx(loss[1], rel=1e-6)


@pytest.mark.parametrize("kind", [SplitFedV2, Relay])
def test_edges_weigh_the_same_where_they_share_a_server_block(kind):
    federation = Federation(sizes=SIZES)
    make = federation.split(kind, 2)
    (both,) = federation.run(equal(make), num_edges=2, rounds=1)
    members = [profile.node_id for profile in ask_profiles(federation.grid())]
    ends = []
    for group in (members[:3], members[3:]):
        strategy = Hierarchical(FedAvg(**ANY), equal(make), {"edge-0": group})
        start = ArrayRecord(federation.make_model().state_dict())
        ends.append(weights(next(strategy.rounds(federation.grid(), start, 1))))
    assert_close(weights(both), mean(ends), 1e-12)


def claiming(federation, claims):
    """Return an app whose clients claim other numbers of examples."""
    inner, app = federation.app(), ClientApp()

    @app.train()
    def train(message, context):
        reply = inner(message, context)
        claim = claims.get(int(context.node_config["partition-id"]))
        if claim is not None:
            (metrics,) = reply.content.metric_records.values()
            metrics["num-examples"] = claim
        return reply

    app.evaluate()(partial(inner.__call__))
    app.query("profile")(partial(inner.__call__))
    return app


def test_what_a_client_claims_to_have_changes_nothing():
    federation = Federation(sizes=SIZES)
    honest = federation.run(equal(fedavg), num_edges=2)
    boast = federation.grid(claiming(federation, {1: 10**9}))
    assert same(weights(federation.run(equal(fedavg), num_edges=2, grid=boast)[-1]), weights(honest[-1]))


@pytest.mark.parametrize("claim", [0, -1, float("nan")])
def test_a_weight_that_is_none_is_not_made_one(claim):
    federation = Federation(sizes=(20, 33, 14))
    grid = federation.grid(claiming(federation, {1: claim}))
    (outcome,) = federation.run(equal(fedavg), grid=grid, rounds=1)
    assert_close(weights(outcome), mean([alone(federation, 0), alone(federation, 2)]), 1e-12)


def test_the_weight_that_a_strategy_goes_by_is_the_one_replaced():
    class ByQuality(FedAvg):
        def __init__(self):
            super().__init__(**ANY, weighted_by_key="quality")

    federation = Federation(sizes=(20, 33, 14))
    inner, app = federation.app(), ClientApp()

    @app.train()
    def train(message, context):
        reply = inner(message, context)
        reply.content["metrics"] = MetricRecord({"quality": 1.0 + int(context.node_config["partition-id"])})
        return reply

    app.query("profile")(partial(inner.__call__))
    topology = group_by_edge(ask_profiles(grid := federation.grid(app)), 1)
    start = ArrayRecord(federation.make_model().state_dict())
    edge = equal(lambda name, size: StrategyEdge(ByQuality()))
    strategy = Hierarchical(FedAvg(**ANY, fraction_evaluate=0.0), edge, topology)
    (outcome,) = strategy.rounds(grid, start, 1)
    assert_close(weights(outcome), mean([alone(federation, i) for i in range(3)]), 1e-12)


def test_behind_and_in_front_of_plans_it_is_the_same():
    federation = Federation(sizes=(20, 33, 14, 40))
    outside = federation.run(lambda name, size: EqualWeights(ResourceAware(fedavg(), Fixed(), exact)))
    inside = federation.run(lambda name, size: ResourceAware(EqualWeights(fedavg()), Fixed(), exact))
    plain = federation.run(lambda name, size: ResourceAware(fedavg(), Fixed(), exact))
    assert same(weights(outside[-1]), weights(inside[-1]))
    assert not same(weights(outside[-1]), weights(plain[-1]))


def test_an_edge_whose_round_fails_keeps_its_model_and_weighs_nothing():
    federation = Federation(sizes=SIZES)
    grid = federation.grid(claiming(federation, {3: -1, 4: -1}))
    (outcome,) = federation.run(equal(fedavg), num_edges=2, grid=grid, rounds=1)
    assert outcome.edges["edge-1"].weight == 0
    assert_close(weights(outcome), mean([alone(federation, i) for i in range(3)]), 1e-12)


def test_an_attribute_edge_that_is_none_leads_nowhere():
    class Named(StrategyEdge):
        edge = "north"

        def __init__(self):
            super().__init__(FedAvg(**ANY, weighted_by_key="quality"))

    assert EqualWeights(Named())._weight_key == "quality"
    Hierarchical(FedAvg(**ANY), lambda name, size: Named(), {"a": [1], "b": [2]})


def test_strategies_behind_it_are_checked_and_draw_by_the_seed_as_plain_ones():
    fronts = [lambda s: s, StrategyEdge, EqualWeights, lambda s: EqualWeights(ResourceAware(s, Fixed(), exact))]
    seeds = []
    for front in fronts:
        with pytest.raises(ValueError, match="edge 'a' has 1 node\\(s\\) but its FedAvg needs 2"):
            Hierarchical(FedAvg(**ANY), lambda name, size, f=front: f(FedAvg()), {"a": [1], "b": [2]})
        edges = Hierarchical(FedAvg(**ANY), lambda n, s, f=front: f(FedAvg(**ANY)), {"a": [1], "b": [2]}, seed=5).edges
        seeds.append([edge.inner.seed for edge in edges.values()])
    assert seeds == [seeds[0]] * len(fronts)
    assert len(set(seeds[0])) == 2
    own = Hierarchical(FedAvg(**ANY), lambda name, size: StrategyEdge(FedAvg(**ANY), 7), {"a": [1]}).edges["a"]
    assert own.seed == 7


def test_the_state_is_the_edges_own():
    strategies = [FedAdam(**ANY), FedAdam(**ANY)]
    first, second = (EqualWeights(StrategyEdge(strategy)) for strategy in strategies)
    strategies[0].m_t = {"w": torch.ones(2).numpy()}
    second.load_state_dict(first.state_dict())
    assert strategies[1].m_t["w"].tolist() == [1, 1]


def test_a_strategy_that_two_edges_share_is_found_behind_it():
    shared = FedAvg(**ANY)
    with pytest.raises(ValueError, match="a new strategy for every edge"):
        Hierarchical(FedAvg(**ANY), lambda name, size: EqualWeights(StrategyEdge(shared)), {"a": [1], "b": [2]})
