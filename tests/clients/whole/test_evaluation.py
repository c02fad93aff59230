from functools import partial

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss

from espalier.clients.task import Examples, Objective
from espalier.clients.whole.evaluation import figures_on

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


def root_of_mean_square(outputs, labels):
    return (outputs.argmax(1) - labels).float().square().mean().sqrt()


LOSSES = {
    "plain": cross_entropy,
    "weighted": partial(cross_entropy, weight=torch.tensor([0.05, 1.0, 20.0])),
    "ignores a class": partial(cross_entropy, ignore_index=0),
    "smoothed": partial(cross_entropy, label_smoothing=0.1, weight=torch.tensor([0.05, 1.0, 20.0])),
    "no mean": root_of_mean_square,
}


@pytest.mark.parametrize("has_metrics", [False, True])
@pytest.mark.parametrize("size", [1, 511, 512, 513, 1025])
@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
def test_the_loss_is_that_of_all_examples_at_once_whatever_the_batches(loss, size, has_metrics):
    generator = torch.Generator().manual_seed(size)
    inputs = torch.randn(size, 4, generator=generator)
    labels = (torch.arange(size) * 3) // size + (size == 1)  # sorted: slices have other classes than the whole
    model = nn.Linear(4, 3)
    objective = Objective(loss, (lambda outputs, labels: {}) if has_metrics else None)
    expected = float(loss(model(inputs).detach(), labels))
    for batch_size in (1, 7, 512, 2000):
        figures = figures_on(model, Examples(inputs, labels), nn.Identity(), CPU, objective, batch_size)
        assert figures["loss"] == pytest.approx(expected, rel=1e-6)
        assert ("accuracy" in figures) == (not has_metrics)


@pytest.mark.parametrize("ignored", [False, True])
def test_the_loss_of_labels_for_each_place_is_a_mean_over_places(ignored):
    generator = torch.Generator().manual_seed(0)
    scores, labels = torch.randn(9, 3, 5, generator=generator), torch.randint(3, (9, 5), generator=generator)
    if ignored:
        labels[:7, 1:] = -100
    objective = Objective(cross_entropy, lambda outputs, labels: {})
    figures = figures_on(nn.Identity(), Examples(scores, labels), nn.Identity(), CPU, objective, batch_size=4)
    assert figures["loss"] == pytest.approx(float(cross_entropy(scores, labels)), rel=1e-6)


def test_loss_and_metrics_see_the_labels_as_they_are():
    labels = torch.tensor([0, 1, 2])

    def spoils(outputs, labels):
        return cross_entropy(outputs, labels.fill_(0))

    seen = []
    objective = Objective(spoils, lambda outputs, labels: {"sum": float(seen.append(labels) or labels.sum())})
    figures = figures_on(nn.Identity(), Examples(torch.eye(3), labels), nn.Identity(), CPU, objective)
    assert figures["sum"] == 3
    assert labels.tolist() == [0, 1, 2]


def test_metrics_get_all_outputs_at_once_and_the_loss_is_a_mean_over_examples():
    values = torch.tensor([1.0, 2.0, 4.0])
    objective = Objective(mse_loss, lambda outputs, labels: {"range": float(outputs.max() - outputs.min())})
    figures = figures_on(nn.Identity(), Examples(values, torch.zeros(3)), nn.Identity(), CPU, objective, batch_size=2)
    assert figures == pytest.approx({"range": 3.0, "loss": 7.0})
    assert list(figures) == ["range", "loss"]
