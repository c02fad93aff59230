"""Training on distinct rows against the plain loop over mini-batches."""

import copy
from itertools import pairwise

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from espalier.clients.randomness import client_generator
from espalier.clients.task import ClientTask, Examples, LocalTraining
from espalier.clients.whole.training import local_sgd, mini_batches
from espalier.clients.whole.unique_rows import unique_row_sgd

FEATURES, CLASSES = 6, 5
DEVICE = torch.device("cpu")


def network(*hidden, dtype=torch.float64, seed=0):
    torch.manual_seed(seed)
    widths = [FEATURES, *hidden]
    blocks = [nn.Sequential(nn.Linear(i, o), nn.ReLU()) for i, o in pairwise(widths)]
    return nn.Sequential(*blocks, nn.Linear(widths[-1], CLASSES)).to(dtype)


def examples(count, num_rows=7, dtype=torch.float64, seed=0):
    """Return a table and examples of it: rows that are alike, as those of one user are, and labels left to chance."""
    generator = torch.Generator().manual_seed(seed)
    table = torch.rand(FEATURES, generator=generator) + 0.2 * torch.rand(num_rows, FEATURES, generator=generator)
    rows = torch.randint(num_rows, (count,), generator=generator)
    return table.to(dtype), rows, torch.randint(CLASSES, (count,), generator=generator)


def differences(left, right):
    return [float((a - b).detach().abs().max()) for a, b in zip(left.parameters(), right.parameters(), strict=True)]


def plain_loop(model, table, rows, labels, batches, learning_rate):
    optimizer = torch.optim.SGD(model.parameters(), lr=learning_rate)
    losses, seen = 0.0, 0
    for batch in batches:
        optimizer.zero_grad()
        loss = cross_entropy(model(table[rows[batch]]), labels[batch])
        loss.backward()
        optimizer.step()
        losses, seen = losses + loss.item() * len(batch), seen + len(batch)
    return losses / seen


@pytest.mark.parametrize(("dtype", "allowed"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
@pytest.mark.parametrize("hidden", [(), (40,), (30, 20), (24, 16, 12)])
@pytest.mark.parametrize(
    "training",
    [
        {"local_epochs": 3, "batch_size": 16},  # 50 = 3 * 16 + 2: the last is smaller
        {"local_epochs": 10, "batches_per_epoch": 4, "batch_size": 32},  # goes round again after 2
        {"local_epochs": 1, "batch_size": 1},
        {"local_epochs": 20, "batch_size": 64},  # all of it at once
    ],
)
def test_weights_and_loss_are_those_of_local_sgd(dtype, allowed, hidden, training):
    settings = LocalTraining(learning_rate=0.2, **training)
    table, rows, labels = examples(50, dtype=dtype)
    ours, reference = (network(*hidden, dtype=dtype) for _ in range(2))
    start = copy.deepcopy(ours)
    task = ClientTask(
        reference, Examples(rows, labels), Examples(rows, labels), table.__getitem__, settings, 3, 1, (), DEVICE
    )
    expected = local_sgd(task, server_round=5)
    batches = mini_batches(50, settings, client_generator(3, 1, 5, "batches"))
    loss = unique_row_sgd(ours, table, rows, labels, batches, 0.2)
    assert max(differences(ours, reference)) < allowed
    assert min(differences(ours, start)) > 1e-3
    assert loss == pytest.approx(expected, rel=1e-5)


def test_the_loss_is_each_mini_batchs_with_the_weights_of_its_turn():
    table, rows, labels = examples(50)
    batches = list(torch.arange(50).split(12))
    ours, reference = network(20), network(20)
    loss = unique_row_sgd(ours, table, rows, labels, batches, 0.5)
    assert loss == pytest.approx(plain_loop(reference, table, rows, labels, batches, 0.5), rel=1e-12)


def test_examples_with_one_row_count_as_one_row_with_a_soft_label():
    table, *_ = examples(1)
    rows, labels = torch.tensor([2, 2, 2, 2, 5, 5]), torch.tensor([0, 1, 1, 4, 3, 3])
    soft = torch.tensor([[0.25, 0.5, 0, 0, 0.25], [0, 0, 0, 1, 0]], dtype=torch.float64)
    ours, reference = network(20), network(20)
    loss = unique_row_sgd(ours, table, rows, labels, [torch.arange(6)], 0.1)
    each = -(soft * reference(table[[2, 5]]).log_softmax(1)).sum(1)
    weighted = (4 * each[0] + 2 * each[1]) / 6
    weighted.backward()
    with torch.no_grad():
        for parameter in reference.parameters():
            parameter -= 0.1 * parameter.grad
    assert max(differences(ours, reference)) < 1e-14
    assert loss == pytest.approx(weighted.item(), rel=1e-14)


def test_it_does_not_matter_which_row_of_several_equal_ones_an_example_has():
    table, rows, labels = examples(60)
    batches = list(mini_batches(60, LocalTraining(local_epochs=4, batch_size=16), torch.Generator().manual_seed(0)))
    ours, spread = network(30, 20), network(30, 20)
    loss = unique_row_sgd(ours, table, rows, labels, batches, 0.2)
    assert unique_row_sgd(spread, table[rows], torch.arange(60), labels, batches, 0.2) == pytest.approx(loss, rel=1e-12)
    assert max(differences(ours, spread)) < 1e-12


def outputs_of_hidden_layers(model, table):
    with torch.no_grad():
        return [model[: i + 1](table) for i in range(len(model) - 1)]


def test_units_that_come_on_on_the_way_are_trained_from_then_on():
    table, rows, labels = examples(50)
    batches = list(mini_batches(50, LocalTraining(local_epochs=40, batch_size=16), torch.Generator().manual_seed(0)))
    ours, reference = network(30, 40), network(30, 40)
    off_before = [(h <= 0).all(0) for h in outputs_of_hidden_layers(ours, table)]
    start = copy.deepcopy(ours)
    unique_row_sgd(ours, table, rows, labels, batches, 0.3)
    plain_loop(reference, table, rows, labels, batches, 0.3)
    off_after = [(h <= 0).all(0) for h in outputs_of_hidden_layers(ours, table)]
    assert off_before[1].sum() >= 5
    assert (off_before[1] & ~off_after[1]).any()
    assert max(differences(ours, reference)) < 1e-12
    # Nothing can bring a unit of the first layer back: its inputs never change.
    off = off_before[0]
    assert off.any()
    assert torch.equal(ours[0][0].weight[off], start[0][0].weight[off])
    assert torch.equal(ours[0][0].bias[off], start[0][0].bias[off])


@pytest.mark.parametrize(("seed", "learning_rate"), [(0, 1.0), (5, 2.0)])
def test_units_of_a_layer_in_the_middle_that_come_on_are_too(seed, learning_rate):
    table, rows, labels = examples(64, seed=seed)
    table = table - 0.5
    batches = list(mini_batches(64, LocalTraining(local_epochs=25, batch_size=16), torch.Generator().manual_seed(seed)))
    ours, reference = (network(20, 15, 12, seed=seed) for _ in range(2))
    off_before = (outputs_of_hidden_layers(ours, table)[1] <= 0).all(0)
    unique_row_sgd(ours, table, rows, labels, batches, learning_rate)
    plain_loop(reference, table, rows, labels, batches, learning_rate)
    assert (off_before & (outputs_of_hidden_layers(reference, table)[1] > 0).any(0)).any()
    assert max(differences(ours, reference)) < 1e-12


def test_with_all_units_off_only_the_last_bias_is_trained():
    table, rows, labels = examples(50)
    batches = [torch.arange(20)] * 3
    ours = network(8, 6)
    with torch.no_grad():
        ours[1][0].bias.fill_(-100)
    reference, start = copy.deepcopy(ours), copy.deepcopy(ours)
    unique_row_sgd(ours, table, rows, labels, batches, 0.3)
    plain_loop(reference, table, rows, labels, batches, 0.3)
    assert max(differences(ours, reference)) < 1e-14
    assert [change > 0 for change in differences(ours, start)] == [False] * 5 + [True]


def test_gradients_are_left_alone_and_the_model_can_be_trained_otherwise_afterwards():
    table, rows, labels = examples(50)
    model = network(20)
    cross_entropy(model(table[rows]), labels).backward()
    before = [p.grad.clone() for p in model.parameters()]
    unique_row_sgd(model, table, rows, labels, [torch.arange(30)], 0.1)
    assert all(torch.equal(p.grad, g) for p, g in zip(model.parameters(), before, strict=True))
    assert all(p.requires_grad for p in model.parameters())
    start = copy.deepcopy(model)
    plain_loop(model, table, rows, labels, [torch.arange(30)], 0.1)
    assert min(differences(model, start)) > 0


def test_no_examples_change_nothing():
    table, rows, labels = examples(50)
    model, start = network(20), network(20)
    assert unique_row_sgd(model, table, rows, labels, [], 0.1) == 0
    assert unique_row_sgd(model, table, rows[:0], labels[:0], [torch.arange(0)] * 2, 0.1) == 0
    assert max(differences(model, start)) == 0
    plain_loop(start, table, rows, labels, [torch.arange(9)], 0.1)
    unique_row_sgd(model, table, rows, labels, [torch.arange(0), torch.arange(9), torch.arange(0)], 0.1)
    assert max(differences(model, start)) < 1e-14


def test_a_model_that_goes_astray_has_a_loss_that_is_not_a_number():
    table, rows, labels = examples(50)
    loss = unique_row_sgd(network(20, 10), table, rows, labels, [torch.arange(50)] * 40, 1e30)
    assert not torch.tensor(loss).isfinite()


@pytest.mark.parametrize(
    "model",
    [
        nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 5)),
        nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 5)),
        nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Dropout(), nn.Linear(8, 5)),
        nn.Sequential(nn.Linear(6, 8), nn.ReLU()),
        nn.Sequential(nn.Linear(6, 8, bias=False), nn.ReLU(), nn.Linear(8, 5)),
        nn.Sequential(nn.ReLU(), nn.Linear(6, 5), nn.ReLU()),
    ],
)
def test_other_models_are_refused(model):
    with pytest.raises(ValueError, match=r"model = (Linear|ReLU).*: allowed are linear layers with bias and a ReLU"):
        unique_row_sgd(model, *examples(5, dtype=torch.float32), [torch.arange(5)], 0.1)


def test_rows_and_labels_that_do_not_exist_are_refused():
    table, rows, labels = examples(5)
    for wrong in (7, -1):
        with pytest.raises(ValueError, match=r"row_of_example = .*: allowed is 0 \.\.\. 6"):
            unique_row_sgd(network(4), table, rows.clone().fill_(wrong), labels, [torch.arange(5)], 0.1)
        with pytest.raises(ValueError, match=r"labels = .*: allowed is 0 \.\.\. 4"):
            unique_row_sgd(network(4), table, rows, labels.clone().fill_(wrong), [torch.arange(5)], 0.1)
