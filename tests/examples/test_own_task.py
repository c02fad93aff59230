import re
from pathlib import Path

import pytest
import torch

from espalier.app.command_line import main
from tests.app.runs import flwr_run, lines, run_app, same_weights, summary, weights

EXAMPLE = Path(__file__).parents[2] / "examples" / "own-task"
TOPICS = {"task": "own_task.text:Topics", "learning_rate": 1.0}
WHOLE = {"local_epochs": 2, "batches_per_epoch": 0}
FEW = {"num_clients": 4, "local_epochs": 1}
MODEL = {"model": "own_task.models:averaging_cnn(width=16)", "num_clients": 4, "batches_per_epoch": 2, "edge_rounds": 1}


@pytest.fixture(autouse=True)
def _importable(monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLE)
    monkeypatch.setenv("PYTHONPATH", str(EXAMPLE))


def test_patients_are_told_apart_and_the_same_each_time(tmp_path):
    folder = run_app(tmp_path / "1", task="own_task.tabular:BreastCancer", global_rounds=10)
    assert summary(folder)["test"]["accuracy"] > 0.9  # 63 % are of one class
    assert same_weights(folder, run_app(tmp_path / "2", task="own_task.tabular:BreastCancer", global_rounds=10))
    assert not same_weights(folder, run_app(tmp_path / "3", task="own_task.tabular:BreastCancer", seed=1))


@pytest.mark.usefixtures("with_blank_pictures")
def test_a_regression_explains_some_of_the_variance_and_reports_its_own_metrics(tmp_path):
    folder = run_app(
        tmp_path / "1",
        task="own_task.tabular:Diabetes(hidden=8)",
        learning_rate=0.03,
        global_rounds=10,
        report_plots=True,
    )
    final = summary(folder)
    assert final["test"]["r2"] > 0.2
    assert list(final["global"]) == ["mae", "r2", "loss"]
    assert final["global"]["mae"]["mean"] < 0.7
    assert {path.name for path in folder.glob("*.png")} == {"rounds.png", "clients.png", "bytes.png", "seconds.png"}
    again = run_app(tmp_path / "2", task="own_task.tabular:Diabetes(hidden=8)", learning_rate=0.03, global_rounds=10)
    assert same_weights(folder, again)


@pytest.mark.usefixtures("with_blank_pictures")
def test_topics_are_told_apart_by_a_split_model_and_the_same_each_time(tmp_path):
    folder = run_app(tmp_path / "1", algorithm="phsfl", global_rounds=10, report_plots=True, **TOPICS, **WHOLE)
    final = summary(folder)
    assert final["test"]["accuracy"] > 0.7  # four topics
    assert final["personalised"]["accuracy"]["mean"] > final["global"]["accuracy"]["mean"]
    names = {"rounds.png", "clients.png", "bytes.png", "seconds.png", "personalised.png", "partition.png"}
    assert {path.name for path in folder.glob("*.png")} == names
    # Each message is 16 numbers at the cut, and as many come back.
    sent = final["bytes_by_kind"]["edge"]
    assert sent["uplink"]["activations"] == pytest.approx(10 * 2 * 2 * 8 * 100 * 16 * 4, rel=0.1)
    assert same_weights(folder, run_app(tmp_path / "2", algorithm="phsfl", global_rounds=10, **TOPICS, **WHOLE))


@pytest.mark.parametrize("cut", ["1", "2", "1,2"])
def test_split_is_unsplit(tmp_path, cut):
    split = run_app(tmp_path / "split", algorithm="sfl-v1", cut_layer=cut, global_rounds=1, **TOPICS, **FEW)
    whole = run_app(tmp_path / "whole", algorithm="fedavg", global_rounds=1, **TOPICS, **FEW)
    for name, values in weights(whole).items():
        torch.testing.assert_close(weights(split)[name], values, rtol=0, atol=1e-6)


def test_streams_carry_the_same(tmp_path):
    messages = run_app(tmp_path / "messages", algorithm="phsfl", global_rounds=1, **TOPICS, **FEW)
    stream = run_app(tmp_path / "stream", algorithm="phsfl", split_transport="stream", global_rounds=1, **TOPICS, **FEW)
    assert same_weights(messages, stream)


@pytest.mark.parametrize("resources", ["simulated", "measured"])
def test_plans_are_made_for_it(tmp_path, resources):
    plans = {"selection": "resource-aware", "cut_layer": "best", "resources": resources, "selected_per_edge": 1}
    keys = (
        TOPICS | {"algorithm": "phsfl", "fine_tune_steps": 0, "deadline_seconds": 1e6, "batches_per_epoch": 2} | plans
    )
    folder = run_app(tmp_path / "run", global_rounds=1, **keys, **FEW)
    chosen = [option for line in lines(folder, "edge") for plan in line["plans"] for option in plan["option"]]
    assert chosen
    assert set(chosen) <= {0, 1}


def test_a_run_is_resumed_to_the_same_bits(tmp_path):
    settings = TOPICS | FEW | {"algorithm": "phsfl"}
    whole = run_app(tmp_path / "whole", global_rounds=2, **settings)
    folder = run_app(tmp_path / "run", global_rounds=1, **settings)
    assert main([f"resume={folder}", "global-rounds=2"]) == 0
    assert same_weights(whole, folder)


def test_the_page_and_the_readme_have_the_same_commands():
    pages = [(EXAMPLE / "README.md"), EXAMPLE.parents[1] / "docs" / "own-task.md"]
    first, second = (re.findall(r"```bash\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL) for page in pages)
    assert first == second


def test_the_model_for_images_can_be_cut(tmp_path):
    settings = MODEL | {"algorithm": "hsfl", "cut_layer": 2, "global_rounds": 1}
    assert weights(run_app(tmp_path / "run", **settings))["head.weight"].shape == (10, 16)


@pytest.mark.slow
@pytest.mark.deploy
@pytest.mark.parametrize("algorithm", ["h-fedavg", "hsfl"])
def test_flwr_run_trains_the_model_for_images_to_the_same_weights(tmp_path, algorithm):
    settings, folder = MODEL | {"algorithm": algorithm, "global_rounds": 1}, tmp_path / "flower"
    federation = "num-supernodes=4 client-resources-num-cpus=1 init-args-log-to-driver=false"
    code, output = flwr_run(federation, **settings, output_dir=str(folder))
    assert code == 0, output
    assert same_weights(folder, run_app(tmp_path / "here", **settings))


@pytest.mark.slow
@pytest.mark.deploy
def test_flwr_run_gives_the_same_weights(tmp_path):
    settings = TOPICS | {"algorithm": "phsfl", "num_clients": 4, "global_rounds": 1, "split_transport": "stream"}
    folder = tmp_path / "flower"
    federation = "num-supernodes=4 client-resources-num-cpus=1 init-args-log-to-driver=false"
    code, output = flwr_run(federation, **settings, output_dir=str(folder))
    assert code == 0, output
    assert same_weights(folder, run_app(tmp_path / "here", **settings))
