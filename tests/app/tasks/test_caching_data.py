"""The caching task: from requests to examples, and what can be learned from them."""

from threading import Thread

import numpy as np
import pytest
import torch

from espalier.app.config.parse import parse_config
from espalier.app.tasks.caching_data import (
    caching_clients,
    caching_data,
    caching_mlp,
    num_slots,
    request_features,
    top_popular,
)
from espalier.app.wiring.task_of_run import build_task
from espalier.clients.shared.generators import kept_torch
from espalier.clients.task import LocalTraining
from espalier.clients.whole.evaluation import top_m_accuracies
from espalier.clients.whole.training import mini_batches
from espalier.clients.whole.unique_rows import unique_row_sgd
from espalier.sim.requests import Catalogue, Habits, Requests, draw_habits, make_catalogue, make_requests

TINY = Catalogue(
    similarity=np.array([[[1, 0.9, 0.8], [0.9, 1, 0.7], [0.8, 0.7, 1]], [[1, 0.1, 0.2], [0.1, 1, 0.3], [0.2, 0.3, 1]]]),
    most_popular=np.array([1, 5]),
)
HABITS = Habits(activity=0.5, genre_preference=np.array([0.75, 0.25]), exploitation=0.4)
REQUESTS = Requests(slots=np.array([1, 4, 5, 9, 10, 12, 20]), contents=np.array([1, 0, 1, 5, 1, 5, 4]))


def test_features_by_hand():
    features = request_features(TINY, HABITS, np.array([1, 5]))
    assert features.dtype == np.float32
    assert features == pytest.approx(
        np.array(
            [
                # v_u, p_u, g / G, similarities in the genre, c / C_g
                [0.4, 0.75, 0.25, 0.0, 0.9, 1.0, 0.7, 1 / 3],
                [0.4, 0.75, 0.25, 0.5, 0.2, 0.3, 1.0, 2 / 3],
            ],
            np.float32,
        )
    )
    assert request_features(make_catalogue(0), draw_habits(0, 0), np.arange(256)).shape == (256, 43)


def test_an_example_is_a_request_and_the_content_of_the_next_by_hand():
    data = caching_data(TINY, HABITS, REQUESTS, train_slots=11)
    assert data.table.numpy() == pytest.approx(request_features(TINY, HABITS, np.array([0, 1, 4, 5])))
    # Requests up to slot 10 are contents 1 0 1 5 1, those after it 5 4.
    assert data.train.inputs.tolist() == [1, 0, 1, 3]
    assert data.train.labels.tolist() == [0, 1, 5, 1]
    assert data.train_slots.tolist() == [4, 5, 9, 10]
    assert data.test.inputs.tolist() == [3]
    assert data.test.labels.tolist() == [4]


@pytest.mark.parametrize(("train_slots", "train", "test"), [(0, 0, 6), (1, 0, 6), (2, 0, 5), (12, 4, 1), (99, 6, 0)])
def test_no_request_is_in_both_sets(train_slots, train, test):
    data = caching_data(TINY, HABITS, REQUESTS, train_slots)
    assert (len(data.train), len(data.train_slots), len(data.test)) == (train, train, test)


def test_an_example_counts_once_its_label_has_been_asked_for():
    data = caching_data(TINY, HABITS, REQUESTS, train_slots=11)
    config = parse_config({"dataset": "video-caching", "caching.initial-slots": 3, "caching.slots-per-edge-round": 2})
    available = build_task(config).available(data.train_slots, edge_rounds_per_round=1)
    # The slots before 3, 5, 7, 9 and 11 have passed.
    assert [available(server_round) for server_round in range(1, 6)] == [0, 1, 2, 2, 4]
    two_at_a_time = build_task(config).available(data.train_slots, edge_rounds_per_round=2)
    assert [two_at_a_time(server_round) for server_round in range(1, 4)] == [0, 2, 4]
    assert num_slots(400, initial_slots=100, slots_per_edge_round=4) == num_slots(400) == 1700
    with pytest.raises(ValueError, match="edge_rounds = -1: allowed is an integer >= 0"):
        num_slots(-1)
    with pytest.raises(ValueError, match="slots_per_edge_round = -4: allowed is an integer >= 0"):
        num_slots(3, slots_per_edge_round=-4)


def test_a_clients_table_has_each_of_its_rows_once_and_all_its_requests_come_in_order():
    catalogue, own = make_catalogue(4), draw_habits(4, 1)
    requests = make_requests(4, 1, catalogue, own, 900)
    data = caching_clients(4, 2, 600, test_slots=300)[1]
    assert len(data.table) == len(torch.unique(data.table, dim=0)) == len(set(requests.contents))
    everything = torch.from_numpy(request_features(catalogue, own, requests.contents))
    before = int((requests.slots < 600).sum())
    assert torch.equal(data.table[data.train.inputs], everything[: before - 1])
    assert torch.equal(data.table[data.test.inputs], everything[before:-1])
    assert data.train.labels.tolist() == requests.contents[1:before].tolist()
    assert data.test.labels.tolist() == requests.contents[before + 1 :].tolist()
    assert data.train_slots.tolist() == requests.slots[1:before].tolist()


def test_a_client_depends_neither_on_the_number_of_clients_nor_on_later_slots():
    few, many = caching_clients(4, 2, 600, test_slots=300), caching_clients(4, 5, 900, test_slots=0)
    for one, other in zip(few, many, strict=False):
        count = len(one.train)
        assert torch.equal(one.table[one.train.inputs], other.table[other.train.inputs[:count]])
        assert torch.equal(one.train.labels, other.train.labels[:count])
        assert int((other.train_slots < 600).sum()) == count
    assert not torch.equal(few[0].table[0], few[1].table[0])


def test_top_m_accuracies_by_hand():
    scores = torch.tensor([[3.0, 2.0, 1.0, 0.0], [0.0, 1.0, 2.0, 3.0], [5.0, 5.0, 0.0, 0.0]])
    # The labels are second, first and, as equal scores count against it, second.
    assert top_m_accuracies(scores, torch.tensor([1, 3, 0]), 4).tolist() == pytest.approx([1 / 3, 1, 1, 1])
    assert top_m_accuracies(scores, torch.tensor([2, 0, 2]), 3).tolist() == pytest.approx([0, 0, 1 / 3])
    assert top_m_accuracies(scores[0], torch.tensor([0, 0, 1, 3]), 2).tolist() == [0.5, 0.75]
    assert top_m_accuracies(torch.full((2, 4), torch.nan), torch.tensor([0, 1]), 3).tolist() == [0, 0, 0]
    assert top_m_accuracies(scores[:0], torch.tensor([], dtype=torch.int64), 2).tolist() == [0, 0]


def test_top_1_is_the_accuracy_of_the_largest_logit():
    scores = torch.randn(500, 20, generator=torch.Generator().manual_seed(0))
    labels = torch.randint(20, (500,), generator=torch.Generator().manual_seed(1))
    accuracies = top_m_accuracies(scores, labels, 20)
    assert accuracies[0] == (scores.argmax(1) == labels).double().mean()
    assert accuracies[-1] == 1
    assert (accuracies.diff() >= 0).all()


def test_top_popular_ranks_by_the_number_of_requests():
    scores = top_popular([torch.tensor([3, 3, 1]), torch.tensor([1, 3, 0])], num_contents=5)
    assert scores.argsort(descending=True).tolist() == [3, 1, 0, 2, 4]
    assert len(scores.unique()) == 5


@pytest.mark.parametrize(("exploitation", "expected"), [(0.3, 0.113), (0.7, 0.083)])
def test_top_popular_predicts_little(exploitation, expected):
    clients = caching_clients(0, 48, num_slots(400), exploitation=exploitation)
    scores = top_popular([client.train.labels for client in clients])
    mean = torch.stack([top_m_accuracies(scores, client.test.labels) for client in clients]).mean(0)
    assert mean[0] == pytest.approx(expected, abs=0.035)
    assert mean[9] < 0.85


def test_the_network_has_the_papers_size_and_can_be_cut_between_blocks():
    model = caching_mlp(0)
    assert sum(p.numel() for p in model.parameters()) == 219_648
    assert [name for name, _ in model.named_children()] == ["fc1", "fc2", "head"]
    assert type(model.head) is torch.nn.Linear
    x = torch.rand(3, 43)
    with torch.no_grad():
        shapes = [tuple(model[:cut](x).shape) for cut in (1, 2, 3)]
        assert torch.equal(model[2:](model[:2](x)), model(x))
    assert shapes == [(3, 512), (3, 256), (3, 256)]


def test_the_seed_decides_the_network_and_the_global_generator_is_left_alone():
    before = torch.random.get_rng_state()
    first, same, other = (caching_mlp(seed).state_dict() for seed in (1, 1, 2))
    assert torch.equal(before, torch.random.get_rng_state())
    assert all(torch.equal(first[name], same[name]) for name in first)
    assert not torch.equal(first["head.weight"], other["head.weight"])


def test_the_network_waits_for_who_has_the_generators():
    built = Thread(target=caching_mlp, args=(0,))
    with kept_torch(torch.device("cpu")):
        built.start()
        built.join(timeout=0.2)
        assert built.is_alive()
    built.join()


def train(model, data, *, epochs, seed):
    batches = mini_batches(
        len(data.train), LocalTraining(epochs, batches_per_epoch=10), torch.Generator().manual_seed(seed)
    )
    return unique_row_sgd(model, data.table, data.train.inputs, data.train.labels, batches, 0.1)


def accuracy(model, data, examples):
    with torch.no_grad():
        return float(top_m_accuracies(model(data.table)[examples.inputs], examples.labels, 1)[0])


def test_averaging_clients_models_learns_what_is_most_similar_and_so_is_right_as_often_as_they_exploit():
    clients, model = caching_clients(0, 3, 900, exploitation=0.7), caching_mlp(0)
    for turn in range(20):
        start, total = {name: w.clone() for name, w in model.state_dict().items()}, {}
        for i, data in enumerate(clients):
            model.load_state_dict(start)
            train(model, data, epochs=10, seed=3 * turn + i)
            total = {name: w / 3 + total.get(name, 0) for name, w in model.state_dict().items()}
        model.load_state_dict(total)
    accuracies = [accuracy(model, data, data.test) for data in clients]
    assert sum(accuracies) / 3 == pytest.approx(0.7, abs=0.03)


def test_clients_on_their_own_learn_their_preferences_as_well():
    accuracies, best = [], []
    for data in caching_clients(0, 3, 900, exploitation=0.3):
        model = caching_mlp(0)
        train(model, data, epochs=150, seed=0)
        accuracies.append(accuracy(model, data, data.test))
        # The best guess is the most similar content, or else the other genre that the client likes best.
        preference, genre = data.table[:, 1:9], (8 * data.table[:, 9]).long()
        others = preference.scatter(1, genre[:, None], 0)
        guess = torch.clamp(0.7 * others.amax(1) / others.sum(1), min=0.3)
        best.append(float(guess[data.test.inputs].mean()))
    print(best, accuracies)
    assert sum(best) / 3 > 0.35
    assert sum(accuracies) / 3 == pytest.approx(sum(best) / 3, abs=0.04)
