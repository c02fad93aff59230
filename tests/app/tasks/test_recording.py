"""Where gradients can be recorded: it is tried before the run, and what does not give the same bits is refused."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from espalier.app.algorithms import centralised
from espalier.app.command_line import main
from espalier.app.config.parse import parse_config
from espalier.app.ground.errors import UserError
from espalier.app.tasks.recording import check_cuda_graph, gradients_of, try_recording
from espalier.app.wiring import clients
from espalier.app.wiring.task_of_run import build_task
from espalier.clients.gradients import RecordedGradients, compute_gradients
from tests.app.runs import run_app, same_weights
from tests.clients import tape

CPU = torch.device("cpu")


def digits_and(*layers):
    task = build_task(parse_config({"seed": 1, "batch-size": 16, "num-clients": 2}))
    torch.manual_seed(0)
    return task, nn.Sequential(nn.Flatten(), *layers, nn.Linear(64, 10))


@pytest.mark.parametrize("layers", [[], [nn.BatchNorm1d(64), nn.ReLU()], [nn.Dropout(0.5)]])
def test_what_gives_the_same_bits_is_allowed_and_stays_as_it_is(layers):
    task, model = digits_and(*layers)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    try_recording(task, model, CPU, tape.record)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert all(weights.grad is None for weights in model.parameters())


class Step(nn.Module):
    """Computes something else in each call, as Python counts them, or says what it may not be asked."""

    def __init__(self, kind):
        super().__init__()
        self.kind, self.calls = kind, 0

    def forward(self, inputs):
        self.calls += 1
        if self.kind == "counts":
            return inputs * self.calls
        if self.kind == "reads":
            return inputs * float(inputs.detach().mean())
        raise TypeError("no such inputs")


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("counts", "this model, whose recording computes something else"),
        ("reads", "this model, which can't be recorded (RuntimeError: a number can't be read while operations are"),
        ("fails", "this model, which can't be recorded (TypeError: no such inputs)"),
    ],
)
def test_what_does_not_is_refused(kind, why):
    with pytest.raises(UserError) as refused:
        try_recording(*digits_and(Step(kind)), CPU, tape.record)
    assert str(refused.value).startswith(f"train.cuda-graph = True: allowed is false for {why}")


def test_what_needs_a_gpu_is_refused_without_one():
    digits, caching, own = (
        build_task(parse_config({"num-clients": 2, **given}))
        for given in ({}, {"dataset": "video-caching"}, {"task": "tests.app.own_tasks:Steered"})
    )
    check_cuda_graph(digits, CPU, trains_here=False)  # who knows what clients have
    with pytest.raises(UserError, match="allowed is false where torch finds no GPU"):
        check_cuda_graph(digits, CPU, trains_here=True)
    with pytest.raises(UserError, match="allowed is false for dataset = 'video-caching'"):
        check_cuda_graph(caching, CPU, trains_here=False)
    with pytest.raises(UserError, match="allowed is false for a task with an optimizer of its own"):
        check_cuda_graph(own, CPU, trains_here=False)


@pytest.mark.skipif(torch.cuda.is_available(), reason="torch finds a GPU")
def test_a_run_without_a_gpu_ends_before_it_begins(tmp_path, capsys):
    assert main(["train.cuda-graph=true", f"output-dir={tmp_path}"]) == 2
    assert "train.cuda-graph = True: allowed is false where torch finds no GPU" in capsys.readouterr().err
    assert (
        main(["train.cuda-graph=true", "device=cpu", "num-clients=2", "global-rounds=1", f"output-dir={tmp_path}"]) == 0
    )


def test_gradients_are_recorded_on_a_gpu_alone_and_only_where_asked_for():
    asked, not_asked = (parse_config({"train.cuda-graph": given, "batch-size": 4}).train for given in (True, False))
    assert isinstance(gradients_of(asked, torch.device("cuda")), RecordedGradients)
    assert gradients_of(not_asked, torch.device("cuda")) is compute_gradients
    assert gradients_of(asked, CPU) is compute_gradients


def recorded_config(given):
    """Return a run config whose gradients are recorded, whatever the device."""
    config = parse_config(given).model_copy()
    config.__dict__["decided"] = replace(config.decided, records=True)
    return config


@pytest.mark.parametrize("settings", [{"momentum": 0.9}, {"optimizer": "adam", "learning_rate": 0.001}], ids=str)
@pytest.mark.parametrize("algorithm", ["fedavg", "h-fedavg", "centralised"])
def test_a_run_with_recorded_gradients_gives_the_same_bits(tmp_path, monkeypatch, algorithm, settings):
    settings |= {"num_clients": 4, "batches_per_epoch": 3, "batch_size": 16, "local_epochs": 1}
    settings |= {} if algorithm == "centralised" else {"workers": 1}  # as on a GPU, which computes for one at a time
    without = run_app(tmp_path / "without", algorithm=algorithm, **settings)
    recordings = []

    def record(compute):
        recordings.append(tape.record(compute))
        return recordings[-1]

    # As on a GPU. Tasks of clients that the process keeps are made anew.
    for module in (clients, centralised):
        monkeypatch.setattr(module, "gradients_of", lambda train, device: RecordedGradients(train.batch_size, record))
    monkeypatch.setattr(clients, "parse_config", recorded_config)
    clients._tasks.cache_clear()
    assert same_weights(run_app(tmp_path / "recorded", algorithm=algorithm, **settings), without)
    clients._tasks.cache_clear()
    assert len(recordings) == 1
