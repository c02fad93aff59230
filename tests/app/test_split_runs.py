"""Split algorithms as whole runs of the app."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from espalier.app.command_line import main
from espalier.app.config.parse import parse_config
from espalier.app.tasks.node import ClientNode
from espalier.app.wiring.task_of_run import build_task
from tests.app.runs import lines, run_app, same_weights, summary, weights

MODELS_PAGE = Path(__file__).parents[2] / "docs" / "use-the-model.md"
SHORT = {"num_clients": 4, "batches_per_epoch": 2, "batch_size": 16}


def assert_close(left, right):
    a, b = weights(left), weights(right)
    for name in a:
        torch.testing.assert_close(a[name], b[name], rtol=1e-4, atol=1e-5, msg=lambda m, n=name: f"{n}: {m}")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Return runs of unsplit models by their algorithm."""
    folder = tmp_path_factory.mktemp("whole")
    return {name: run_app(folder / name, algorithm=name, **SHORT) for name in ("fedavg", "h-fedavg")}


@pytest.mark.parametrize("cut", [1, 3, "1,2,3"])
def test_sfl_v1_is_fedavg_and_hsfl_is_h_fedavg(tmp_path, whole, cut):
    flat = run_app(tmp_path / "sfl", algorithm="sfl-v1", cut_layer=cut, **SHORT)
    assert_close(flat, whole["fedavg"])
    nested = run_app(tmp_path / "hsfl", algorithm="hsfl", cut_layer=cut, **SHORT)
    assert_close(nested, whole["h-fedavg"])
    assert list(summary(flat)["bytes"]["uplink"]) == ["cloud"]
    assert sorted(summary(nested)["bytes"]["uplink"]) == ["cloud", "edge"]


OPTIMIZERS = {
    "sgd": {},
    "momentum-and-decay": {"momentum": 0.9, "weight_decay": 1e-3, "learning_rate": 0.02},
    "adam-with-decay": {"optimizer": "adam", "learning_rate": 0.003, "weight_decay": 1e-2},
    "cosine": {"momentum": 0.9, "learning_rate": 0.02, "schedule": "cosine"},
}


@pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_the_servers_blocks_train_as_the_clients_do(tmp_path, optimizer):
    settings = {"device": "cpu", **SHORT, **optimizer}
    for split, unsplit in (("sfl-v1", "fedavg"), ("hsfl", "h-fedavg")):
        whole = run_app(tmp_path / unsplit, algorithm=unsplit, **settings)
        assert same_weights(run_app(tmp_path / split, algorithm=split, cut_layer="1,2,3", **settings), whole)
        stacked = run_app(tmp_path / f"{split}-stacked", algorithm=split, cut_layer=2, stack=4, **settings)
        assert_close(stacked, whole)


@pytest.mark.parametrize(
    "optimizer", [OPTIMIZERS["momentum-and-decay"], OPTIMIZERS["adam-with-decay"]], ids=["sgd", "adam"]
)
def test_sfl_v1_is_fedavg_to_the_bit_at_every_cut(tmp_path, optimizer):
    settings = {**SHORT, "num_clients": 3, **optimizer}
    whole = run_app(tmp_path / "fedavg", algorithm="fedavg", **settings)
    for cut in (1, 2, 3):
        assert same_weights(run_app(tmp_path / f"cut-{cut}", algorithm="sfl-v1", cut_layer=cut, **settings), whole)


@pytest.mark.parametrize("algorithm", ["hsfl", "phsfl", "sl"])
def test_fused_runs_have_the_weights_and_the_metrics_of_messages(tmp_path, algorithm):
    def run(execution):
        return run_app(tmp_path / execution, algorithm=algorithm, split_execution=execution, **SHORT)

    def untimed(folder):
        every = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        return [{key: value for key, value in line.items() if "seconds" not in key} for line in every]

    fused, by_messages = run("fused"), run("messages")
    assert same_weights(fused, by_messages)
    assert untimed(fused) == untimed(by_messages)


def test_hsfl_with_one_edge_and_one_edge_round_is_sfl_v1(tmp_path):
    nested = run_app(tmp_path / "hsfl", algorithm="hsfl", num_edges=1, edge_rounds=1, **SHORT)
    assert same_weights(nested, run_app(tmp_path / "sfl", algorithm="sfl-v1", **SHORT))


@pytest.mark.parametrize("algorithm", ["sl", "sfl-v1", "sfl-v2"])
def test_flat_split_algorithms_can_be_nested(tmp_path, algorithm):
    folder = run_app(tmp_path / "run", algorithm=algorithm, num_edges=2, **SHORT)
    assert {line["edge"] for line in lines(folder, "edge")} == {"edge-0", "edge-1"}
    assert summary(folder)["failures"] == 0
    assert not same_weights(folder, run_app(tmp_path / "flat", algorithm=algorithm, **SHORT))


def test_with_one_client_v1_v2_and_sl_are_local_training(tmp_path):
    settings = {"num_clients": 1, "global_rounds": 2, "batches_per_epoch": 4}
    local = run_app(tmp_path / "fedavg", algorithm="fedavg", **settings)
    for algorithm in ("sl", "sfl-v1", "sfl-v2", "centralised"):
        assert_close(run_app(tmp_path / algorithm, algorithm=algorithm, **settings), local)


def test_halves_leave_out_the_same_mini_batches_as_the_whole_model(tmp_path):
    settings = {"num_clients": 3, "global_rounds": 2, "batches_per_epoch": 0, "batch_size": 100, "drop_last": True}
    local = run_app(tmp_path / "fedavg", algorithm="fedavg", **settings)
    assert_close(run_app(tmp_path / "sfl-v1", algorithm="sfl-v1", **settings), local)
    every = run_app(tmp_path / "every", algorithm="fedavg", **settings | {"drop_last": False})
    assert not same_weights(local, every)


def test_halves_are_trained_on_the_same_changed_images_as_the_whole_model(tmp_path):
    settings = {"num_clients": 3, "global_rounds": 2, "batches_per_epoch": 3, "augmentation": "crop,flip,rotation"}
    local = run_app(tmp_path / "fedavg", algorithm="fedavg", **settings)
    split = run_app(tmp_path / "sfl-v1", algorithm="sfl-v1", **settings)
    assert same_weights(split, local)
    messages = run_app(tmp_path / "messages", algorithm="sfl-v1", split_execution="messages", **settings)
    assert same_weights(messages, split)
    assert same_weights(run_app(tmp_path / "u", algorithm="sfl-v1", tail_layer="head", **settings), local)
    assert_close(run_app(tmp_path / "stack", algorithm="sfl-v1", stack=3, **settings), local)
    assert_close(run_app(tmp_path / "stack-of-whole", algorithm="fedavg", stack=3, **settings), local)
    assert not same_weights(
        local, run_app(tmp_path / "as-they-are", algorithm="fedavg", **settings | {"augmentation": ""})
    )


@pytest.mark.usefixtures("with_png")
def test_phsfl_freezes_the_head_and_fine_tunes_nothing_else(tmp_path):
    folder = run_app(tmp_path / "run", algorithm="phsfl", alpha=0.1, global_rounds=3, report_plots=True)
    start = build_task(parse_config(json.loads((folder / "config.json").read_text()))).new_model().state_dict()
    trained, heads = weights(folder), torch.load(folder / "heads.pt", weights_only=True)
    assert torch.equal(trained["head.weight"], start["head.weight"])
    assert not torch.equal(trained["conv1.0.weight"], start["conv1.0.weight"])
    assert list(heads) == list(range(8))
    assert all(set(head) == {"head.weight", "head.bias"} for head in heads.values())
    assert len({head["head.weight"].numpy().tobytes() for head in heads.values()} | {b""}) == 9
    final = summary(folder)
    assert final["personalised"]["accuracy"]["mean"] > final["global"]["accuracy"]["mean"]
    assert final["personalised"]["loss"]["mean"] < final["global"]["loss"]["mean"]
    (line,) = lines(folder, "personalised")
    own = [client["accuracy"] for client in line["clients"].values()]
    assert final["personalised"]["accuracy"]["mean"] == pytest.approx(np.mean(own))
    assert (folder / "personalised.png").stat().st_size > 10_000


def test_the_models_can_be_used_as_the_page_on_them_says(tmp_path, capsys):
    folder = run_app(tmp_path / "run", algorithm="phsfl", alpha=0.1, device="cpu", **SHORT)
    section = MODELS_PAGE.read_text(encoding="utf-8").split("## With the run's data")[1]
    (snippet,) = re.findall(r"```python\n(.*?heads\.pt.*?)```", section, re.DOTALL)
    used = {}
    capsys.readouterr()
    exec(snippet.replace("results/20260101-120000-phsfl-digits-seed0", str(folder)), used)  # the page's own
    printed = float(re.search(r"0\.\d+", capsys.readouterr().out)[0])
    assert printed == pytest.approx(summary(folder)["test"]["accuracy"], abs=1e-4)
    test = build_task(used["config"]).new_client_task(used["model"], ClientNode(partition_id=3)).test
    with torch.inference_mode():
        hits = used["model"](used["prepare"](test.inputs)).argmax(1) == test.labels
    (line,) = lines(folder, "personalised")
    assert float(hits.float().mean()) == pytest.approx(line["clients"]["3"]["accuracy"])


def test_no_fine_tuning_steps_no_personalisation(tmp_path):
    folder = run_app(tmp_path / "run", algorithm="hsfl", fine_tune_steps=0, **SHORT)
    assert "personalised" not in summary(folder)
    assert not (folder / "heads.pt").exists()


@pytest.mark.parametrize("algorithm", ["phsfl", "sfl-v2"])
def test_split_runs_resume_to_the_same_bits(tmp_path, algorithm):
    settings = {"algorithm": algorithm, "server_momentum": 0.5, "num_edges": 2, "participation": 0.5, **SHORT}
    whole = run_app(tmp_path / "whole", global_rounds=4, **settings)
    folder = run_app(tmp_path / "run", global_rounds=2, **settings)
    assert main([f"resume={folder}", "global-rounds=4"]) == 0
    assert same_weights(folder, whole)
    for scope in ("edge", "global", "personalised"):
        # Clients register their labels again, so bytes differ.
        found, expected = (
            [{k: v for k, v in line.items() if k != "bytes" and "seconds" not in k} for line in lines(f, scope)]
            for f in (folder, whole)
        )
        assert found == expected


def test_bytes_by_kind_are_those_of_the_steps(tmp_path):
    folder = run_app(tmp_path / "run", algorithm="hsfl", global_rounds=2, edge_rounds=1, **SHORT)
    kinds = summary(folder)["bytes_by_kind"]["edge"]
    # 2 rounds x 4 clients x 2 steps of 16 samples: activations of 16x4x4 float32 values and their gradients.
    values = 2 * 4 * 2 * 16 * 16 * 4 * 4 * 4
    assert values <= kinds["uplink"]["activations"] <= values + 2 * 4 * 2 * 200
    assert values <= kinds["downlink"]["cut-gradient"] <= values + 2 * 4 * 2 * 200
    assert kinds["uplink"]["client-block"] == kinds["downlink"]["client-block"]
    assert 2 * 4 * 2 * 16 * 4 <= kinds["uplink"]["indices"] <= 2 * 4 * 2 * (16 * 4 + 200)
    assert "model" not in kinds["uplink"]
    # Beside it the closed form: 33 bits a value, 2 x 2 x 16 x 256 values and the block of 160 twice, and indices.
    closed = summary(folder)["closed_form"]
    floats = 33 * (2 * 2 * 16 * 256 + 2 * 160)
    assert floats + 32 * 5 <= closed["phi_phsfl"] <= floats + 32 * 12
    assert closed["phi_hfl"] == 2 * 33 * 13_706
    # Labels are registered once: 4 bytes for each of the 1,437 training samples.
    assert 1437 * 4 <= kinds["uplink"]["labels"] <= 1437 * 4 + 4 * 200
