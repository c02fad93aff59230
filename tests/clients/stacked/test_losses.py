"""The losses of several mini-batches at once are those of each."""

import pytest
import torch
from torch.nn.functional import cross_entropy, mse_loss

from espalier.clients.stacked import losses as stacked_losses_module
from espalier.clients.stacked.losses import cross_entropies, stacked_losses


def mini_batches(*places, count=5):
    draw = torch.Generator().manual_seed(0)
    outputs = torch.randn((count, 8, 3, *places), generator=draw).requires_grad_()
    return outputs, torch.randint(3, (count, 8, *places), generator=draw)


@pytest.mark.parametrize("places", [(), (4, 4)], ids=["(n, B)", "(n, B, H, W)"])
def test_cross_entropies_have_the_values_and_gradients_of_each(places):
    outputs, labels = mini_batches(*places)
    labels[1, 2] = -100  # which cross-entropy leaves out of the mean
    found = cross_entropies(outputs, labels)
    alone = torch.stack([cross_entropy(*own) for own in zip(outputs, labels, strict=True)])
    torch.testing.assert_close(found, alone, rtol=0, atol=1e-6)
    gradients = [torch.autograd.grad(losses.sum(), outputs)[0] for losses in (found, alone)]
    torch.testing.assert_close(*gradients, rtol=0, atol=1e-6)


def test_on_another_device_they_are_those_of_all_at_once():
    outputs, labels = (tensor.to("meta") for tensor in mini_batches())
    with torch.profiler.profile() as made:
        assert stacked_losses([cross_entropy] * 5, outputs, list(labels)).shape == (5,)
    assert {event.key: event.count for event in made.key_averages()}["aten::_log_softmax"] == 1


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_a_loss_of_ones_own_is_called_for_each_with_what_is_its(device):
    seen = []

    def own(outputs, labels):
        seen.append((tuple(outputs.shape), outputs.requires_grad, outputs.detach()))
        return cross_entropy(outputs, labels)

    outputs, labels = mini_batches()
    losses = stacked_losses([own] * 5, outputs.to(device), list(labels.to(device)))
    assert losses.shape == (5,)
    assert [entry[:2] for entry in seen] == [((8, 3), True)] * 5
    assert all(type(kept) is torch.Tensor and kept.device.type == device for *_, kept in seen)


def test_labels_of_different_kinds():
    outputs, labels = mini_batches(count=3)
    kinds = [labels[0], torch.randn((8, 3)), torch.eye(3)[labels[2]]]
    functions = [cross_entropy, mse_loss, cross_entropy]
    losses = stacked_losses(functions, outputs, kinds)
    assert losses.tolist() == [function(*own).item() for function, *own in zip(functions, outputs, kinds, strict=True)]


def test_only_labels_of_one_kind_are_taken_at_once(monkeypatch):
    taken = []
    monkeypatch.setattr(stacked_losses_module, "cross_entropies", lambda outputs, labels: taken.append(labels.dtype))
    outputs, labels = (tensor.to("meta") for tensor in mini_batches())
    stacked_losses([cross_entropy] * 5, outputs, [*labels[:4], labels[4].to(torch.int32)])
    stacked_losses([cross_entropy] * 5, outputs, list(torch.rand((5, 8, 3), device="meta")))
    assert taken == []
    stacked_losses([cross_entropy] * 5, outputs, list(labels))
    assert taken == [torch.int64]


def test_labels_that_cross_entropy_does_not_take_are_refused():
    outputs, labels = mini_batches()
    with pytest.raises(RuntimeError, match="Int"):
        stacked_losses([cross_entropy] * 5, outputs, list(labels.to(torch.int32)))


def test_what_is_wrong_with_a_mini_batch_is_said():
    outputs, labels = mini_batches()
    labels[3, 0] = 7
    with pytest.raises(IndexError, match="Target 7 is out of bounds"):
        stacked_losses([cross_entropy] * 5, outputs, list(labels))
