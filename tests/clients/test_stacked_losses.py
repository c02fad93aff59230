"""The losses of several mini-batches at once are those of each."""

import pytest
import torch
from torch.nn.functional import cross_entropy, mse_loss

from espalier.clients.stacked_losses import stacked_losses

CALLS = []


def counted(outputs, labels):
    CALLS.append(tuple(outputs.shape))
    return cross_entropy(outputs, labels)


def reads_a_number(outputs, labels):
    return cross_entropy(outputs, labels) * (2 if float(outputs.detach().sum()) > 0 else 3)


def draws(outputs, labels):
    return cross_entropy(outputs + torch.randn(outputs.shape), labels)


def mini_batches(count=5):
    draw = torch.Generator().manual_seed(0)
    outputs = torch.randn((count, 8, 3), generator=draw).requires_grad_()
    labels = torch.randint(3, (count, 8), generator=draw)
    labels[1][2] = -100  # which cross-entropy leaves out of the mean
    return outputs, labels


def assert_same(losses, outputs, labels, function):
    expected = torch.stack([function(*own) for own in zip(outputs, labels, strict=True)])
    torch.testing.assert_close(losses, expected, rtol=0, atol=1e-6)
    found, alone = (torch.autograd.grad(values.sum(), outputs)[0] for values in (losses, expected))
    torch.testing.assert_close(found, alone, rtol=0, atol=1e-6)


@pytest.mark.parametrize("function", [cross_entropy, reads_a_number])
def test_they_have_the_values_and_gradients_of_each(function):
    outputs, labels = mini_batches()
    assert_same(stacked_losses([function] * 5, outputs, labels), outputs, labels, function)


def test_one_function_is_called_once():
    outputs, labels = mini_batches()
    CALLS.clear()
    stacked_losses([counted] * 5, outputs, labels)
    assert CALLS == [(8, 3)]


def test_labels_that_are_numbers_with_a_row_for_each_example():
    outputs, _ = mini_batches()
    labels = torch.randn((5, 8, 3))
    assert_same(stacked_losses([mse_loss] * 5, outputs, labels), outputs, labels, mse_loss)


def test_functions_of_their_own_are_called_for_each():
    outputs, labels = mini_batches()
    functions = [cross_entropy, counted, cross_entropy, cross_entropy, reads_a_number]
    losses = stacked_losses(functions, outputs, labels)
    assert losses.tolist() == [f(*own).item() for f, *own in zip(functions, outputs, labels, strict=True)]


def test_what_a_loss_draws_is_what_each_draws_in_turn():
    outputs, labels = mini_batches()
    torch.manual_seed(1)
    losses = stacked_losses([draws] * 5, outputs, labels)
    torch.manual_seed(1)
    assert losses.tolist() == [draws(*own).item() for own in zip(outputs, labels, strict=True)]


def test_what_is_wrong_with_a_mini_batch_is_said():
    outputs, labels = mini_batches()
    labels[3][0] = 7
    with pytest.raises(IndexError, match="Target 7 is out of bounds"):
        stacked_losses([cross_entropy] * 5, outputs, labels)
