"""Runs on a GPU: the same seed gives the same bits there, and the results are those of a CPU but for rounding."""

from contextlib import contextmanager

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from espalier.app.command_line import main
from espalier.app.config.parse import parse_config
from espalier.app.ground.errors import UserError
from espalier.app.tasks.recording import try_recording
from espalier.app.wiring.task_of_run import build_task
from tests.app.pictures import image_folder
from tests.app.runs import flwr_run, lines, run_app, same_weights, summary, weights

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no GPU")

SHORT = {"num_clients": 4, "batches_per_epoch": 3, "batch_size": 16, "local_epochs": 1, "device": "cuda"}
CACHING = {
    "dataset": "video-caching",
    "num_clients": 6,
    "num_edges": 2,
    "selected_per_edge": 2,
    "max_local_rounds": 3,
    "batches_per_epoch": 4,
    "learning_rate": 0.05,
    "device": "cuda",
}
RESNET = {
    "algorithm": "hsfl",
    "model": "resnet18",
    "dataset": "image-folder",
    "num_clients": 2,
    "num_edges": 1,
    "edge_rounds": 1,
    "partition": "iid",
    "batches_per_epoch": 2,
    "batch_size": 4,
    "min_samples": 1,
    "learning_rate": 0.01,
    "fine_tune_steps": 0,
}


@contextmanager
def replays():
    """Count what is replayed inside the block, in the list that is given."""
    made, replay = [], torch.cuda.CUDAGraph.replay
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(torch.cuda.CUDAGraph, "replay", lambda graph: made.append(replay(graph)))
        yield made


def assert_close(left, right, atol):
    a, b = weights(left), weights(right)
    for name in a:
        torch.testing.assert_close(a[name], b[name], rtol=0, atol=atol, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize(
    "settings",
    [{"algorithm": name, **SHORT} for name in ("fedavg", "h-fedavg", "sl", "sfl-v1", "sfl-v2", "hsfl", "centralised")]
    + [{"algorithm": name, **CACHING} for name in ("rawhfl", "h-fedavg-ub", "centralised", "top-popular")]
    + [
        {"algorithm": "phsfl", "optimizer": "adam", "learning_rate": 0.001, **SHORT},
        {"algorithm": "hsfl", "split_transport": "stream", **SHORT},
        {"algorithm": "rawhfl", **SHORT, "num_clients": 6, "selected_per_edge": 2, "max_local_rounds": 2},
    ],
    ids=lambda s: "-".join(str(s[key]) for key in ("algorithm", "dataset", "optimizer", "split_transport") if key in s),
)
def test_the_same_seed_gives_the_same_bits_and_what_a_cpu_gives(tmp_path, settings):
    first = run_app(tmp_path / "1", **settings)
    assert same_weights(first, run_app(tmp_path / "2", **settings))
    on_cpu = run_app(tmp_path / "cpu", **settings | {"device": "cpu"})
    assert_close(first, on_cpu, atol=1e-4)
    assert summary(first)["failures"] == summary(on_cpu)["failures"] == 0
    (*_, found), (*_, expected) = lines(first, "global"), lines(on_cpu, "global")
    assert found["accuracy"]["mean"] == pytest.approx(expected["accuracy"]["mean"], abs=0.02)


def test_batch_normalisation_gives_the_same_bits_and_what_a_cpu_gives(tmp_path):
    folder, generator = image_folder(tmp_path / "images"), np.random.default_rng(0)
    for picture in folder.rglob("*.png"):
        Image.fromarray(generator.integers(0, 256, (16, 16, 3), dtype=np.uint8)).save(picture)
    settings = RESNET | {"data_dir": str(folder)}
    first = run_app(tmp_path / "1", **settings, device="cuda")
    assert same_weights(first, run_app(tmp_path / "2", **settings, device="cuda"))
    # Of one step: with so few values in a channel, training magnifies what rounding changes.
    step = settings | {"global_rounds": 1, "batches_per_epoch": 1, "num_clients": 1, "batch_size": 16}
    on_gpu, on_cpu = (run_app(tmp_path / device, **step, device=device) for device in ("cuda", "cpu"))
    assert_close(on_gpu, on_cpu, atol=1e-4)


@pytest.mark.parametrize("cut", [1, 2, "1,2,3"])
def test_split_is_unsplit(tmp_path, cut):
    split = run_app(tmp_path / "split", algorithm="hsfl", cut_layer=cut, **SHORT)
    assert_close(split, run_app(tmp_path / "unsplit", algorithm="h-fedavg", **SHORT), atol=1e-5)


@pytest.mark.parametrize("algorithm", ["fedavg", "h-fedavg", "sfl-v1", "hsfl", "phsfl"])
def test_clients_side_by_side_learn_what_each_learns_alone(tmp_path, algorithm):
    alone = run_app(tmp_path / "alone", algorithm=algorithm, **SHORT)
    together = run_app(tmp_path / "together", algorithm=algorithm, **SHORT, stack=4)
    assert_close(together, alone, atol=1e-5)
    assert same_weights(together, run_app(tmp_path / "again", algorithm=algorithm, **SHORT, stack=4))


@pytest.mark.parametrize("settings", [{}, {"momentum": 0.9}, {"optimizer": "adam", "learning_rate": 0.001}], ids=str)
@pytest.mark.parametrize("algorithm", ["fedavg", "h-fedavg", "centralised"])
def test_recorded_gradients_are_those_without_a_recording(tmp_path, algorithm, settings):
    without = run_app(tmp_path / "without", algorithm=algorithm, **SHORT, **settings)
    with replays() as made:
        recorded = run_app(tmp_path / "recorded", algorithm=algorithm, **SHORT, **settings, cuda_graph=True)
    assert same_weights(recorded, without)
    assert len(made) > 12


def test_recorded_gradients_are_those_without_a_recording_with_batch_normalisation_and_fedprox(tmp_path):
    settings = RESNET | {"algorithm": "h-fedavg", "edge_strategy": "FedProx(proximal_mu=0.1)", "device": "cuda"}
    settings["data_dir"] = str(image_folder(tmp_path / "images"))
    without = run_app(tmp_path / "without", **settings)
    with replays() as made:
        assert same_weights(run_app(tmp_path / "recorded", **settings, cuda_graph=True), without)
    assert len(made) > 4


def test_a_model_that_reads_a_number_is_refused_with_the_reason_and_others_go_on():
    class Reads(nn.Linear):
        def forward(self, inputs):
            return super().forward(inputs) * float(inputs.detach().mean())

    task, device = build_task(parse_config({"device": "cuda"})), torch.device("cuda")
    stream = torch.cuda.current_stream()
    with pytest.raises(UserError, match=r"allowed is false for this model, which can't be recorded .*capturing"):
        try_recording(task, nn.Sequential(nn.Flatten(), Reads(64, 10)), device)
    assert torch.cuda.current_stream() == stream
    try_recording(task, nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(64, 10)), device)


@pytest.mark.parametrize("algorithm", ["h-fedavg", "sfl-v2", "phsfl"])
def test_a_run_resumes_to_the_same_bits(tmp_path, algorithm):
    settings = {"algorithm": algorithm, "optimizer": "adam", "learning_rate": 0.01, **SHORT}
    whole = run_app(tmp_path / "whole", **settings | {"global_rounds": 4})
    folder = run_app(tmp_path / "run", **settings | {"global_rounds": 2})
    assert main([f"resume={folder}", "global-rounds=4"]) == 0
    assert same_weights(folder, whole)


@pytest.mark.slow
def test_clients_of_flowers_simulation_take_their_share_of_the_gpu(tmp_path):
    settings = {"algorithm": "phsfl", "fine_tune_steps": 3, **SHORT}
    folder, shares = tmp_path / "flower", "client-resources-num-gpus=0.25 init-args-num-gpus=1"
    code, output = flwr_run(f"num-supernodes=4 {shares}", output_dir=str(folder), global_rounds=2, **settings)
    assert code == 0, output
    expected = run_app(tmp_path / "in-process", **settings)
    assert same_weights(folder, expected)
    assert summary(folder)["personalised"] == summary(expected)["personalised"]
