"""MTGC: equal to plain PyTorch in two tiers; what it reduces to, and what its corrections add up to."""

import pytest
import torch
from flwr.app import ArrayRecord

from espalier.app.algorithms.algorithm import ONE_NODE
from espalier.app.algorithms.mtgc import EdgeCorrection
from espalier.app.ground.strategy_spec import PLAIN_MEAN
from espalier.app.wiring.task_of_run import build_task
from espalier.clients.shared.arrays import to_record
from espalier.strategies import Hierarchical
from tests.app.algorithms.plain import Clients, mtgc
from tests.app.algorithms.test_scaffold import edge_half_of, kept_by
from tests.app.assembling import config_of, engine_of, federation_of, site_of
from tests.app.runs import run_app, summary, weights

SMALL = {"num-clients": 4, "local-epochs": 1, "batches-per-epoch": 2, "global-rounds": 3, "alpha": 0.3}
TWO = {"num-edges": 2, "edge-rounds": 2}
EQUAL = {"train.weighting": "equal", "report_evaluate_every": 0}


@pytest.mark.parametrize("momentum", [0.0, 0.5])
@pytest.mark.parametrize("weighting", ["examples", "equal"])
def test_models_are_those_of_plain_pytorch(weighting, momentum, tmp_path):
    settings = {"algorithm": "mtgc", **SMALL, **TWO, "train.weighting": weighting, "train.momentum": momentum}
    settings["learning-rate"] = 0.05  # longer steps make more of a rounding
    folder = run_app(tmp_path / "run", **settings, report_evaluate_every=0)
    expected = mtgc(Clients(config_of(**settings)), [[0, 1], [2, 3]], 3, 2)
    torch.testing.assert_close(weights(folder), expected, rtol=0, atol=1e-6)
    assert summary(folder)["replies_left_out"] == 0


@pytest.mark.parametrize("tiers", [{"num-edges": 4, "edge-rounds": 1}, {}], ids=["a client per edge", "one tier"])
def test_with_one_tier_of_corrections_it_is_scaffold_with_all_clients(tiers, tmp_path):
    scaffold = run_app(tmp_path / "scaffold", algorithm="scaffold", **SMALL, **EQUAL)
    ours = run_app(tmp_path / "mtgc", algorithm="mtgc", **SMALL, **EQUAL, **tiers)
    torch.testing.assert_close(weights(ours), weights(scaffold), rtol=0, atol=1e-6)


def trained(**settings):
    """Return each edge's clients' records, by edge, with its half."""
    config = config_of(algorithm="mtgc", **SMALL, **settings, train_weighting="equal", engine="in-process")
    engine = engine_of(config)
    hierarchical = federation_of(config, engine.grid).hierarchical
    hierarchical.start(engine.grid, ArrayRecord(build_task(config).new_model().state_dict()), num_rounds=3)
    return [
        (edge_half_of(edge), [kept_by(engine.grid, node_id) for node_id in hierarchical.topology[name]])
        for name, edge in hierarchical.edges.items()
    ]


def test_corrections_add_up_to_nothing():
    edges = trained(**TWO)
    names = list(edges[0][0].y)
    largest = 0.0
    for half, clients in edges:
        for name in names:
            z = [own[f"drift/{name}"] - half.y[name] for own in clients]
            largest = max(largest, float(z[0].abs().max()))
            torch.testing.assert_close(sum(z), torch.zeros_like(z[0]), rtol=0, atol=1e-5)
    assert largest > 1e-2
    assert max(float(edges[0][0].y[name].abs().max()) for name in names) > 1e-2
    for name in names:
        total = sum(half.y[name] for half, _ in edges)
        torch.testing.assert_close(total, torch.zeros_like(total), rtol=0, atol=1e-5)


def test_a_client_that_is_alone_has_nothing_to_correct_within_its_edge():
    for half, (own,) in trained(num_edges=4, edge_rounds=2):
        for name, y in half.y.items():
            torch.testing.assert_close(own[f"drift/{name}"], y, rtol=0, atol=1e-6)


def test_an_edge_learns_its_correction_from_its_own_last_model():
    edge, told = EdgeCorrection(edge_rounds=2), {n: {"mtgc-path": torch.tensor(0.5)} for n in (7, 8)}

    def model(value):
        return {"w": torch.full((2,), value)}

    edge.begin(1, model(0.0))
    assert edge.sent(7)["w"].tolist() == [0, 0]
    edge.learn(model(1.0), told, 2)
    edge.begin(2, model(1.0))
    assert edge.sent(7) == {}
    assert edge.sent(9)["w"].tolist() == [0, 0]  # it was not in the first round
    edge.learn(model(3.0), told, 2)
    edge.begin(3, model(2.0))
    assert edge.sent(7)["w"].tolist() == [1, 1]  # (3 - 2) / (0.5 + 0.5)
    # In the rest of this global round nobody makes a model: the next one says nothing of this edge.
    edge.begin(4, model(2.0))
    edge.begin(5, model(9.0))
    assert edge.sent(7)["w"].tolist() == [1, 1]


def test_a_client_that_tells_a_path_backwards_makes_no_correction_larger():
    edge, told = EdgeCorrection(edge_rounds=1), {7: {"mtgc-path": torch.tensor(0.5)}, 8: {"mtgc-path": -0.4999999}}
    edge.begin(1, {"w": torch.zeros(2)})
    edge.learn({"w": torch.ones(2)}, told, 2)
    edge.begin(2, {"w": torch.zeros(2)})
    assert edge.sent(7)["w"].tolist() == [2, 2]  # (1 - 0) / 0.5


def test_one_group_has_no_correction_to_the_cloud():
    edge = EdgeCorrection(edge_rounds=2)
    start = {"w": torch.zeros(2)}
    for server_round in range(1, 7):
        edge.begin(server_round, start)
        start = {"w": start["w"] + server_round}
        edge.learn(start, {7: {"mtgc-path": torch.tensor(0.5)}}, 1)
        assert edge.y["w"].tolist() == [0, 0]


def test_the_only_edge_under_a_cloud_has_no_correction_of_its_own():
    config = config_of(algorithm="mtgc", **SMALL, **TWO)
    grid = engine_of(config).grid
    edge = config.algorithm.make_edge(site_of(config))
    hierarchical = Hierarchical(
        PLAIN_MEAN.build(ONE_NODE), lambda name, size: edge, {"edge": list(grid.get_node_ids())}, edge_rounds=2
    )
    hierarchical.start(grid, ArrayRecord(build_task(config).new_model().state_dict()), num_rounds=3)
    assert edge.half.global_round == 2
    own = [kept_by(grid, node_id) for node_id in grid.get_node_ids()]
    for name, y in edge.half.y.items():
        torch.testing.assert_close(y, torch.zeros_like(y), rtol=0, atol=1e-6)
        assert float(own[0][f"drift/{name}"].abs().max()) > 1e-3


def test_edge_and_cloud_exchange_models_alone(tmp_path):
    """And a client gets one vector more in a global round of two edge rounds."""
    ours, plain = (run_app(tmp_path / a, algorithm=a, **SMALL, **TWO, **EQUAL) for a in ("mtgc", "h-fedavg"))
    by_tier = [{tier: summary(f)["bytes_by_kind"][tier] for tier in ("cloud", "edge")} for f in (ours, plain)]
    assert by_tier[0]["cloud"] == by_tier[1]["cloud"]
    model = to_record(weights(plain))
    size = sum(len(array.data) for array in model.values())
    sent = [sum(of["edge"]["downlink"].values()) for of in by_tier]
    told = [sum(of["edge"]["uplink"].values()) for of in by_tier]
    assert 12 * size <= sent[0] - sent[1] < 12 * (size + 1000)  # 4 clients in 3 global rounds
    assert told[0] - told[1] < 24 * 1000


def test_clients_side_by_side_learn_what_each_learns_alone(tmp_path):
    every = {"algorithm": "mtgc", **SMALL, **TWO, **EQUAL}
    alone, stacked = run_app(tmp_path / "alone", **every), run_app(tmp_path / "stacked", **every, stack=4)
    torch.testing.assert_close(weights(stacked), weights(alone), rtol=0, atol=1e-5)
