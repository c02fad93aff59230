"""Server optimizers over models with BatchNorm: they move weights, and nobody's evaluation fails for a variance."""

import pytest
import torch

from tests.app.runs import lines, run_app, weights

NEAR = {
    "task": "tests.app.own_tasks:Near",
    "num_clients": 4,
    "num_edges": 2,
    "edge_rounds": 1,
    "batches_per_epoch": 2,
    "batch_size": 8,
}
OPTIMIZERS = "FedAdam", "FedYogi", "FedAdagrad", "FedAvgM(server_learning_rate=3.0)"
TIERS = "edge_strategy", "cloud_strategy"
WHOLE_AND_CUT = "h-fedavg", "sfl-v1", "hsfl", "phsfl"


@pytest.mark.parametrize("algorithm", WHOLE_AND_CUT)
def test_statistics_and_counters_are_those_of_fedavg(tmp_path, algorithm):
    def after_a_round(strategy):
        folder, tiers = tmp_path / strategy, dict.fromkeys(TIERS, strategy)
        return weights(run_app(folder, **NEAR, **tiers, algorithm=algorithm, global_rounds=1))

    averaged = after_a_round("FedAvg")
    beside = [name for name in averaged if "running" in name or "tracked" in name]
    assert len(beside) == 3
    for optimizer in OPTIMIZERS:
        made = after_a_round(optimizer)
        for name in beside:
            torch.testing.assert_close(made[name], averaged[name], rtol=1e-6, atol=0)
        assert not torch.allclose(made["join.1.weight"], averaged["join.1.weight"], rtol=1e-3)


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("algorithm", WHOLE_AND_CUT)
def test_no_client_is_left_out(tmp_path, algorithm, tier):
    settings = {"algorithm": algorithm, tier: "FedAvgM(server_momentum=0.9)", "global_rounds": 8}
    folder = run_app(tmp_path / "run", **NEAR, **settings)
    assert [len(line["clients"]) for line in lines(folder, "global")] == [4] * 8
    assert (weights(folder)["body.1.running_var"] > 0).all()
