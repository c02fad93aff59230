import pytest
import torch
from torch.nn.functional import log_softmax

from espalier.app.tasks import token_loss


def test_it_is_the_mean_over_all_places_that_count_and_has_the_gradient_of_these_alone():
    outputs = torch.randn(3, 4, 5, dtype=torch.float64, requires_grad=True)
    labels = torch.tensor([[0, 1, -100, -100], [4, -100, -100, -100], [2, 3, 1, 0]])
    loss = token_loss(outputs, labels)
    places = [(n, t) for n in range(3) for t in range(4) if labels[n, t] >= 0]
    logs = log_softmax(outputs.detach(), 2)
    assert loss.item() == pytest.approx(-sum(logs[n, t, labels[n, t]].item() for n, t in places) / 7)
    (gradient,) = torch.autograd.grad(loss, outputs)
    assert {tuple(place) for place in gradient.abs().sum(2).nonzero().tolist()} == set(places)


def test_where_no_place_counts_nothing_is_learned():
    outputs = torch.randn(2, 3, 4, requires_grad=True)
    loss = token_loss(outputs, torch.full((2, 3), -100))
    (gradient,) = torch.autograd.grad(loss, outputs)
    assert loss.item() == gradient.abs().max().item() == 0
