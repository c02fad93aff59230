"""A run's model as ONNX, whole and a device's part."""

import json
import shutil
from importlib.util import find_spec

import numpy as np
import pytest
import torch
from torch import nn

from espalier.app.command_line import main
from espalier.app.reports.saved import saved_config
from espalier.app.run import export
from espalier.app.run.export import trained_model
from espalier.app.run.onnx_files import exported, largest_difference
from espalier.app.wiring.task_of_run import build_task

pytestmark = pytest.mark.skipif(None in map(find_spec, ("onnxscript", "onnxruntime")), reason="ONNX is not installed")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A split run whose head stays on the device, with models of the clients' own."""
    folder = tmp_path_factory.mktemp("run") / "one"
    given = [
        "algorithm=phsfl",
        "num-clients=2",
        "num-edges=1",
        "global-rounds=1",
        "edge-rounds=1",
        "batches-per-epoch=1",
    ]
    given += ["cut-layer=1,2", "tail-layer=head", "report.plots=false", f"output-dir={folder}"]
    assert main([*given, "engine=in-process"]) == 0
    return folder


def trained(run, client=None):
    task = build_task(saved_config(run))
    return task, trained_model(run, task, 2, client)


def computed(file, inputs):
    import onnxruntime

    session = onnxruntime.InferenceSession(str(file))
    return torch.from_numpy(session.run(None, {session.get_inputs()[0].name: inputs.numpy()})[0])


def test_the_whole_model_gives_what_the_runs_gives(run, tmp_path, capsys):
    assert main(["export", str(run), "--onnx", "--output", str(tmp_path)]) == 0
    assert "model.onnx: " in capsys.readouterr().out
    task, model = trained(run)
    pool = task.test_examples()
    inputs = task.normaliser()(pool.inputs[:50])  # more than it was recorded with
    with torch.no_grad():
        assert torch.allclose(computed(tmp_path / "model.onnx", inputs), model(inputs), atol=1e-5)
    about = json.loads((run / "data.json").read_text())
    assert np.allclose(task.data.mean, about["mean"])


@pytest.mark.deploy  # for its seconds
def test_a_devices_blocks_around_the_servers_are_its_model(run, tmp_path, capsys):
    command = ["export", str(run), "--onnx", "--blocks", "device", "--client", "1", "--output", str(tmp_path)]
    assert main(command) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["device-tail.onnx", "device.onnx"]
    task, model = trained(run, 1)
    inputs = task.normaliser()(task.test_examples().inputs[:5])
    with torch.no_grad():
        between = model[2](computed(tmp_path / "device.onnx", inputs))  # client 1 has two blocks, the server fc1
        assert torch.allclose(computed(tmp_path / "device-tail.onnx", between), model(inputs), atol=1e-5)


def test_a_run_of_an_algorithm_of_ones_own_is_cut_where_it_was(run, tmp_path, capsys):
    folder = tmp_path / "own"
    folder.mkdir()
    shutil.copy(run / "model.pt", folder)
    config = json.loads((run / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"algorithm": "espalier.app.algorithms.phsfl:PHSFL"}))
    assert main(["export", str(folder), "--onnx", "--blocks", "device"]) == 0
    assert {path.name for path in folder.glob("*.onnx")} == {"device-tail.onnx", "device.onnx"}


def test_what_can_not_be_exported_is_one_line(run, tmp_path, capsys):
    assert main(["export", str(run), "--onnx", "--client", "2"]) == 2
    assert capsys.readouterr().err == "error: --client = 2: allowed is 0 to 1\n"
    assert main(["export", str(tmp_path), "--onnx"]) == 2
    assert capsys.readouterr().err.startswith(f"error: {tmp_path}: holds no config.json: allowed is the results folder")


def test_a_run_that_is_prolonged_and_not_over_is_refused(run, tmp_path, capsys):
    folder = shutil.copytree(run, tmp_path / "run")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"global-rounds": 2}))
    assert main(["export", str(folder), "--onnx"]) == 2
    line = f"error: {folder}: its run is not over; allowed are folders of runs that are\n"
    assert capsys.readouterr().err == line
    assert not (folder / "model.onnx").exists()


def test_what_fails_leaves_the_file_that_was_there(run, tmp_path, capsys):
    (tmp_path / "model.onnx").write_text("before")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(export, "TOLERANCE", -1.0)
        assert main(["export", str(run), "--onnx", "--output", str(tmp_path)]) == 2
    assert "would differ by" in capsys.readouterr().err
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("model.onnx", "before")]
    assert main(["export", "~nosuchuser/x", "--onnx"]) == 2
    assert capsys.readouterr().err.startswith("error: FOLDER = '~nosuchuser/x'")
    (run / "heads.pt").unlink(missing_ok=True)
    assert main(["export", str(run), "--onnx", "--client", "1"]) == 2
    assert capsys.readouterr().err == "error: --client = 1: allowed is left out: the run has saved no heads.pt\n"


def test_a_clients_own_head_takes_the_place_of_the_common_one(run, tmp_path):
    torch.save({0: {}, 1: {"head.bias": torch.arange(10.0)}}, run / "heads.pt")
    biases = [trained(run, client)[1].head.bias.tolist() for client in (None, 0, 1)]
    assert biases[0] == biases[1]
    assert biases[2] == list(range(10))


def test_a_model_that_was_copied_with_its_config_is_enough(run, tmp_path):
    for name in ("config.json", "model.pt"):
        shutil.copy(run / name, tmp_path)
    assert main(["export", str(tmp_path), "--onnx"]) == 0
    assert (tmp_path / "model.onnx").is_file()


class OfTwo(nn.Module):
    """Takes a dict of tensors."""

    def __init__(self):
        super().__init__()
        self.left, self.right = nn.Linear(3, 2), nn.Linear(4, 2)

    def forward(self, parts):
        return self.left(parts["left"]) * self.right(parts["right"])


def test_a_model_of_a_dict_is_exported_too():
    model, inputs = OfTwo().eval(), {"left": torch.randn(5, 3), "right": torch.randn(5, 4)}
    assert largest_difference(exported(model, inputs, 2), inputs, model(inputs)) < 1e-5
