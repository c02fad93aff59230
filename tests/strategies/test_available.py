import pytest
from flwr.app import ArrayRecord
from flwr.serverapp.strategy import FedAvg

from espalier.strategies import (
    AccumulatedGradients,
    Available,
    Hierarchical,
    ResourceAware,
    StrategyEdge,
    ask_profiles,
)
from espalier.strategies.allocation import exact
from espalier.strategies.edges import EVERYBODY
from tests.strategies.split.federation import ANY, Federation, same, weights
from tests.strategies.test_resource_aware import Fixed

SIZES = (24, 16, 8, 32)


def _run(is_there, drops_out, rounds=2):
    federation = Federation(sizes=SIZES)
    nodes = [profile.node_id for profile in ask_profiles(federation.grid())]
    client = {node_id: i for i, node_id in enumerate(nodes)}

    def make_edge(name, size):
        return Available(FedAvg(**ANY), lambda n, e: is_there(client[n], e), lambda n, e: drops_out(client[n], e))

    outcomes = federation.run(make_edge, rounds=rounds)
    updates = [update for outcome in outcomes for update in outcome.edges["edge-0"].updates]
    return [[client[n] for n in one.participants] for one in updates], updates, weights(outcomes[-1]), client


def _never(client, edge_round):
    return False


def test_with_everybody_there_the_weights_are_those_without_it():
    _, _, ours, _ = _run(lambda c, e: True, _never)
    plain = Federation(sizes=SIZES).run(lambda name, size: FedAvg(**ANY), rounds=2)
    assert same(ours, weights(plain[-1]))


def test_who_is_away_is_not_asked_and_no_failure():
    took_part, updates, _, _ = _run(lambda c, e: c != e, _never)
    assert took_part == [[c for c in range(4) if c != e] for e in range(1, len(updates) + 1)]
    assert not any(update.failures for update in updates)


def test_who_drops_out_is_a_failure_and_the_model_is_that_of_the_others():
    took_part, updates, dropped, client = _run(lambda c, e: True, lambda c, e: c == 2)
    assert took_part == [[0, 1, 3]] * len(updates)
    assert all([client[f.node_id] for f in update.failures] == [2] for update in updates)
    assert all("it dropped out before it answered" in update.failures[0].reason for update in updates)
    _, _, away, _ = _run(lambda c, e: c != 2, _never)
    assert same(dropped, away)


def test_an_edge_without_an_available_client_sits_out():
    took_part, updates, _, _ = _run(lambda c, e: e > 1, _never)
    assert took_part[0] == []
    assert [(f.node_id, f.reason) for f in updates[0].failures] == [(EVERYBODY, "no client is available")]
    assert updates[0].arrays is None
    assert isinstance(updates[-1].arrays, ArrayRecord)


def test_one_without_an_available_client_keeps_its_model_and_its_weight_where_all_edges_weigh_the_same():
    federation, whole = Federation(sizes=SIZES), StrategyEdge(FedAvg(**ANY))

    def outcome_of(edge):
        return federation.run(lambda name, size: Available(edge, lambda n, e: False, _never), rounds=1)[0]

    outcome = outcome_of(AccumulatedGradients(0.05, whole))
    assert outcome.edges["edge-0"].weight == 1
    for update in outcome.edges["edge-0"].updates:
        assert [f.reason for f in update.failures] == ["no client is available"]
    assert same(weights(outcome), federation.make_model().state_dict())
    assert outcome_of(whole).edges["edge-0"].arrays is None


def test_it_stands_in_front_of_devices_only():
    inside = Hierarchical(FedAvg(**ANY), lambda name, size: FedAvg(**ANY), {"a": [1], "b": [2]})
    with pytest.raises(ValueError, match="put Available in front of the edges inside"):
        Available(inside, _never, _never)


def test_no_plan_is_made_for_who_is_away():
    resources = Fixed(z=3)
    federation = Federation(sizes=SIZES)
    away = ask_profiles(federation.grid())[3].node_id

    def make_edge(name, size):
        return Available(ResourceAware(FedAvg(**ANY), resources, exact), lambda n, e: n != away, _never)

    outcomes = federation.run(make_edge, rounds=1)
    assert [plan.selected.shape for plan in resources.plans] == [(3,)] * len(outcomes[0].edges["edge-0"].updates)
