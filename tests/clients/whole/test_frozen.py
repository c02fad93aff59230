"""Frozen weights stay out of what travels."""

import copy

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from espalier.clients.shared.arrays import to_record, to_weights
from espalier.clients.shared.cut import copied
from espalier.clients.shared.head import fine_tuned
from espalier.clients.whole.frozen import without_frozen


def model(seed=0):
    torch.manual_seed(seed)
    blocks = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2)))
    blocks[0].requires_grad_(False)
    blocks[2][0].weight.requires_grad_(False)
    return without_frozen(blocks)


TRAVELS = {"1.weight", "1.bias", "1.running_mean", "1.running_var", "1.num_batches_tracked", "2.0.bias"}
TRAVELS |= {"2.1.weight", "2.1.bias"}


def test_what_does_not_train_is_in_no_state_and_is_not_waited_for():
    one, other = model(0), model(1)
    frozen = other[0].weight.clone(), other[2][0].weight.clone()
    assert set(one.state_dict()) == TRAVELS
    other.load_state_dict(to_weights(to_record(one.state_dict())))
    assert torch.equal(other[2][1].weight, one[2][1].weight)
    assert torch.equal(other[0].weight, frozen[0])
    assert torch.equal(other[2][0].weight, frozen[1])
    assert len(list(one.parameters())) == 8


def test_copies_and_parts_are_alike():
    for twin in (copied(model()), copy.deepcopy(model())):
        assert set(twin.state_dict()) == TRAVELS
        twin.load_state_dict(model(1).state_dict())
        assert set(twin[2:].state_dict()) == {"2.0.bias", "2.1.weight", "2.1.bias"}


def test_what_is_frozen_later_travels():
    whole = model()
    whole[2][1].requires_grad_(False)
    assert set(whole.state_dict()) == TRAVELS


def test_a_whole_model_can_be_loaded():
    whole = {name: weight + 1 for name, weight in model().named_parameters()}
    one = model()
    one.load_state_dict({**one.state_dict(), **whole})
    assert torch.equal(one[0].weight, whole["0.weight"])


def test_a_head_is_fine_tuned_without_them_and_stays_as_it_is_where_all_of_it_is_frozen():
    head = model()[2]
    tuned = fine_tuned(head, [(torch.ones(2, 4), torch.tensor([0, 1]))], 0.5, cross_entropy)
    assert torch.equal(tuned[0].weight, head[0].weight)
    moved = {name for name, weight in tuned.state_dict().items() if not torch.equal(weight, head.state_dict()[name])}
    assert moved == {"0.bias", "1.weight", "1.bias"}
    head.requires_grad_(False)
    still = fine_tuned(head, [(torch.ones(2, 4), torch.tensor([0, 1]))], 0.5, cross_entropy)
    assert all(torch.equal(weight, head.state_dict()[name]) for name, weight in still.state_dict().items())
