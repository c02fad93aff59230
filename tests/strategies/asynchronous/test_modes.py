"""Where an update takes the model of a tier that does not wait: weights by its change, statistics towards its own."""

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord
from flwr.serverapp.strategy import FedAvg

from espalier.sim.clock import EventClock
from espalier.strategies import Hierarchical, ask_profiles
from espalier.strategies.asynchronous import (
    AsynchronousEdge,
    AsynchronousTier,
    FedBuff,
    SemiSynchronous,
    SimulatedClock,
    polynomial,
)
from tests.strategies.split.federation import ANY, Federation, weights

SQUARE_ROOT = polynomial(0.5)


def of_value(value):
    names = "norm.weight", "norm.running_mean", "norm.running_var"
    return ArrayRecord({name: Array(np.array([value])) for name in names})


@pytest.mark.parametrize("mode", [FedBuff(2, SQUARE_ROOT), SemiSynchronous(1.0, SQUARE_ROOT)])
@pytest.mark.parametrize("staleness", [1, 3, 8])
def test_weights_move_by_the_change_and_statistics_are_mixed(mode, staleness):
    placed = mode.applied(of_value(0.34), of_value(1.0), of_value(0.3), staleness)
    weight, mean, variance = (float(array.numpy()[0]) for array in placed.values())
    share = (1 + staleness) ** -0.5
    assert weight == pytest.approx(0.34 + share * (0.3 - 1.0), rel=1e-14)
    assert mean == variance == pytest.approx(0.34 + share * (0.3 - 0.34), rel=1e-14)


@pytest.mark.parametrize("size", [2, 4])
def test_variances_stay_variances_where_updates_are_stale(size):
    federation = Federation(sizes=(80, 64, 72, 96, 40, 56), local_epochs=2)
    grid = federation.grid()
    nodes = [profile.node_id for profile in ask_profiles(grid)]
    seconds = dict(zip(nodes, [1.0, 1.7, 2.9, 0.6, 4.1, 7.3], strict=True))
    tier = AsynchronousTier(FedBuff(size, SQUARE_ROOT), SimulatedClock(EventClock()), len(nodes), "clients")
    edge = AsynchronousEdge(FedAvg(**ANY), nodes, tier, lambda node_id, number: seconds[node_id])
    run = Hierarchical(FedAvg(**ANY), lambda name, size: edge, {"edge-0": nodes})
    stale = set()
    for outcome in run.rounds(grid, ArrayRecord(federation.make_model().state_dict()), 8):
        assert outcome.edges["edge-0"].failures == []
        assert float(weights(outcome)["first.1.running_var"].min()) > 0
        assert outcome.evaluate_metrics["loss"] < 5
        stale |= tier.take_report()["staleness"].keys() - {"0"}
    assert stale
