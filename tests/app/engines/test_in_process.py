"""Clients in this process, side by side."""

import pytest
import torch

from espalier.app.command_line import main
from tests.app.runs import lines, run_app, summary, weights


def differences(left, right):
    a, b = weights(left), weights(right)
    return max(float((a[name] - b[name]).abs().max()) for name in a)


@pytest.mark.parametrize(
    "settings",
    [
        {"algorithm": "fedavg", "num-clients": 5},
        {"algorithm": "h-fedavg", "num-clients": 5, "edge-strategy": "FedProx(proximal_mu=0.1)", "optimizer": "adam"},
        {"algorithm": "rawhfl", "num-clients": 6},
        {"algorithm": "hsfl", "num-clients": 5, "cut-layer": "1,2"},
        {"algorithm": "phsfl", "num-clients": 5, "split.server-learning-rate": 0.02},
    ],
    ids=lambda settings: settings["algorithm"],
)
def test_clients_side_by_side_learn_what_each_learns_alone(settings, tmp_path):
    settings = settings | {"learning-rate": 0.01, "batches-per-epoch": 3, "batch-size": 10, "alpha": 0.3}
    alone = run_app(tmp_path / "alone", **settings)
    together = run_app(tmp_path / "together", **settings, stack=4)
    assert differences(alone, together) < 1e-5
    assert differences(alone, together) > 0  # it is another computation
    for scope in ("edge", "global"):
        for one, other in zip(lines(alone, scope), lines(together, scope), strict=True):
            assert one["bytes"] == other["bytes"]
            assert one["train_loss"] == pytest.approx(other["train_loss"], abs=1e-5)
    assert summary(alone).get("energy_joules") == summary(together).get("energy_joules")
    again = run_app(tmp_path / "again", **settings, stack=4)
    assert all(torch.equal(weights(again)[name], tensor) for name, tensor in weights(together).items())


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (["stack=-1"], "stack = -1"),
        (["stack=2", "dataset=video-caching"], "stack = 2: allowed is 0 for dataset = 'video-caching'"),
        (["stack=2", "task=tests.app.own_tasks:Points"], "stack = 2: allowed is 0 for this model: "),
    ],
)
def test_what_cannot_train_side_by_side_is_refused(settings, words, tmp_path, capsys):
    assert main([*settings, f"output-dir={tmp_path / 'run'}"]) == 2
    line = capsys.readouterr().err
    assert words in line
    assert line.count("\n") == 1
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "settings",
    [
        ["algorithm=sfl-v2"],
        ["algorithm=hsfl", "split.execution=messages"],
        ["algorithm=top-popular", "dataset=video-caching"],
    ],
)
def test_a_stack_without_effect_is_warned_of(settings, tmp_path, caplog):
    settings += ["stack=2", "global-rounds=1", "batches-per-epoch=1", f"output-dir={tmp_path}/run"]
    assert main([*settings, "num-clients=2"]) == 0
    assert "stack = 2 has no effect" in caplog.text
