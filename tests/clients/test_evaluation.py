import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss

from espalier.clients.evaluation import figures_on
from espalier.clients.task import Examples, Objective

CPU = torch.device("cpu")


def test_figures_are_those_of_the_whole_set_whatever_the_batches():
    generator = torch.Generator().manual_seed(0)
    inputs, labels = torch.randn(7, 4, generator=generator), torch.randint(3, (7,), generator=generator)
    model, examples = nn.Linear(4, 3), Examples(inputs, labels)
    outputs = model(inputs).detach()
    expected = {
        "loss": float(cross_entropy(outputs, labels)),
        "accuracy": float((outputs.argmax(1) == labels).float().mean()),
    }
    for size in (2, 7, 512):
        assert figures_on(model, examples, nn.Identity(), CPU, Objective(), size) == pytest.approx(expected)
    empty = Examples(inputs[:0], labels[:0])
    assert figures_on(model, empty, nn.Identity(), CPU, Objective()) == {"loss": 0.0, "accuracy": 0.0}


def test_metrics_get_all_outputs_at_once_and_the_loss_is_a_mean_over_examples():
    values = torch.tensor([1.0, 2.0, 4.0])
    objective = Objective(mse_loss, lambda outputs, labels: {"range": float(outputs.max() - outputs.min())})
    figures = figures_on(nn.Identity(), Examples(values, torch.zeros(3)), nn.Identity(), CPU, objective, batch_size=2)
    assert figures == pytest.approx({"range": 3.0, "loss": 7.0})
    assert list(figures) == ["range", "loss"]
