"""`flwr run .` on Flower's simulation runtime, on a SuperLink of the test's own."""

import pytest

from tests.app.runs import flwr_run, lines, run_app, same_weights, summary

pytestmark = [pytest.mark.slow, pytest.mark.deploy]

# Flower hides GPUs from clients, so that "auto" would have them compute elsewhere than the in-process engine does.
CPU = {"device": "cpu"}


def test_flowers_simulation_gives_the_weights_of_the_in_process_engine(tmp_path):
    settings = CPU | {
        "cloud_strategy": "FedAdam(eta=0.05)",
        "participation": 0.5,
        "num_clients": 6,
        "global_rounds": 2,
        "seed": 5,
    }
    expected = run_app(tmp_path / "in-process", **settings)
    folder = tmp_path / "flower"
    # One client at a time; the tests of split and planned training have two.
    code, output = flwr_run("num-supernodes=6 client-resources-num-cpus=2", output_dir=str(folder), **settings)
    assert code == 0, output
    assert f"results: {folder}" in output
    assert same_weights(folder, expected)
    assert summary(folder)["global"] == summary(expected)["global"]
    assert summary(folder)["bytes"] == summary(expected)["bytes"]
    assert [line["participants"] for line in lines(folder, "edge")] == [
        line["participants"] for line in lines(expected, "edge")
    ]


@pytest.mark.parametrize("algorithm", ["phsfl", "sfl-v2"])
def test_split_training_over_flowers_messages_gives_the_same_weights(algorithm, tmp_path):
    settings = CPU | {
        "algorithm": algorithm,
        "num_clients": 4,
        "num_edges": 2,
        "global_rounds": 2,
        "batches_per_epoch": 2,
        "local_epochs": 1,
        "momentum": 0.5,
        "fine_tune_steps": 3,
    }
    expected = run_app(tmp_path / "in-process", **settings)
    folder = tmp_path / "flower"
    code, output = flwr_run("num-supernodes=4 client-resources-num-cpus=1", output_dir=str(folder), **settings)
    assert code == 0, output
    assert same_weights(folder, expected)
    assert summary(folder)["personalised"] == summary(expected)["personalised"]
    assert summary(folder)["bytes_by_kind"] == summary(expected)["bytes_by_kind"]


def test_planned_training_over_flowers_messages_gives_the_same_weights_and_joules(tmp_path):
    settings = CPU | {
        "algorithm": "rawhfl",
        "dataset": "video-caching",
        "exploitation": 0.3,
        "num_clients": 4,
        "num_edges": 2,
        "selected_per_edge": 1,
        "global_rounds": 2,
        "batches_per_epoch": 4,
        "max_local_rounds": 5,
        "deadline_seconds": 20.0,
        "planning_error_db": 3.0,
    }
    expected = run_app(tmp_path / "in-process", **settings)
    folder = tmp_path / "flower"
    code, output = flwr_run("num-supernodes=4 client-resources-num-cpus=1", output_dir=str(folder), **settings)
    assert code == 0, output
    assert same_weights(folder, expected)
    assert [line["plans"] for line in lines(folder, "edge")] == [line["plans"] for line in lines(expected, "edge")]
    for key in ("energy_joules", "simulated_seconds"):
        assert [line[key] for line in lines(folder, "global")] == [line[key] for line in lines(expected, "global")]


def test_too_few_supernodes_say_what_to_type(tmp_path):
    folder = tmp_path / "run"
    code, output = flwr_run("num-supernodes=2", output_dir=str(folder), wait_for_nodes=4)
    assert code == 1
    (line,) = [line for line in output.splitlines() if "num-clients = 8" in line]
    assert 'flwr run . --stream --federation-config "num-supernodes=8 client-resources-num-cpus=1"' in line
    assert "only 2 of 8 SuperNodes are connected: start the others" in line
    assert "(or set num-clients=2)" in line
    assert "Traceback" not in output
    assert not folder.exists()


@pytest.mark.parametrize("engine", ["in-process", "ray"])
def test_engines_of_its_own_need_no_supernodes(engine, tmp_path):
    folder = tmp_path / "run"
    code, output = flwr_run("num-supernodes=1", output_dir=str(folder), engine=engine, global_rounds=1)
    assert code == 0, output
    assert same_weights(folder, run_app(tmp_path / "direct", global_rounds=1))
