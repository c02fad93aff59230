import numpy as np
import pytest

from espalier.app.ground.errors import UserError
from espalier.app.tasks.partition import PARTITIONS, partition

TRAIN = np.repeat(np.arange(10), 500)
TEST = np.repeat(np.arange(10), 100)


def counts(clients, labels, pool):
    """Return the number of samples, clients by classes."""
    return np.array([np.bincount(labels[getattr(client, pool)], minlength=10) for client in clients])


def heterogeneity(clients):
    """Return the mean total variation distance between a client's classes and the pool's."""
    held = counts(clients, TRAIN, "train")
    return np.abs(held / held.sum(axis=1, keepdims=True) - 0.1).sum(axis=1).mean() / 2


@pytest.mark.parametrize("scheme", PARTITIONS)
@pytest.mark.parametrize("num_clients", [1, 7, 20, 100])
def test_every_sample_goes_to_exactly_one_client(scheme, num_clients):
    clients = partition(TRAIN, TEST, scheme=scheme, num_clients=num_clients, seed=3, alpha=0.1)
    assert len(clients) == num_clients
    for pool, labels in (("train", TRAIN), ("test", TEST)):
        indices = [getattr(client, pool) for client in clients]
        assert np.array_equal(np.sort(np.concatenate(indices)), np.arange(len(labels)))
        assert all(index.dtype == np.int64 and (np.diff(index) > 0).all() for index in indices)


@pytest.mark.parametrize("scheme", PARTITIONS)
def test_the_seed_decides_all(scheme):
    def draw(seed):
        clients = partition(TRAIN, TEST, scheme=scheme, num_clients=10, seed=seed)
        return [index.tolist() for client in clients for index in (client.train, client.test)]

    assert draw(1) == draw(1)
    assert draw(1) != draw(2)


def test_the_global_generator_neither_counts_nor_changes():
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    partition(TRAIN, TEST, scheme="dirichlet", num_clients=10, seed=0)
    assert np.array_equal(before, np.random.get_state()[1])  # noqa: NPY002


@pytest.mark.parametrize("scheme", PARTITIONS)
@pytest.mark.parametrize("seed", range(5))
def test_training_and_test_proportions_agree_within_one_sample_of_each_class(scheme, seed):
    clients = partition(TRAIN, TEST, scheme=scheme, num_clients=20, seed=seed)
    train, test = counts(clients, TRAIN, "train"), counts(clients, TEST, "test")
    assert train.sum(axis=1).min() > 10  # so that no sample had to be moved
    assert np.abs(test - train / 5).max() < 1
    assert (test[train == 0] == 0).all()


def test_iid_is_even_in_every_class_and_over_all():
    clients = partition(TRAIN, TEST, scheme="iid", num_clients=30, seed=0)
    for pool, labels in (("train", TRAIN), ("test", TEST)):
        held = counts(clients, labels, pool)
        assert set(np.ptp(held, axis=0)) <= {0, 1}
        # 5,000 = 30 * 166 + 20 and 1,000 = 30 * 33 + 10
        assert sorted(set(held.sum(axis=1))) == [len(labels) // 30, len(labels) // 30 + 1]


def test_a_smaller_alpha_means_fewer_classes_per_client():
    means = [
        np.mean(
            [
                heterogeneity(partition(TRAIN, TEST, scheme="dirichlet", num_clients=20, seed=seed, alpha=alpha))
                for seed in range(5)
            ]
        )
        for alpha in (0.01, 0.1, 0.5, 2.0, 10.0, 1000.0)
    ]
    assert means == sorted(means, reverse=True)
    assert means[0] > 0.75
    assert means[-1] < 0.02


def test_dirichlet_proportions_have_the_moments_of_the_dirichlet_distribution():
    # Var(p) of one class under Dir(alpha) over 10 classes: 0.1 * 0.9 / (10 * alpha + 1)
    alpha = 0.5
    train, test = np.repeat(np.arange(10), 20_000), np.repeat(np.arange(10), 2_000)
    clients = partition(train, test, scheme="dirichlet", num_clients=400, seed=0, alpha=alpha)
    held = counts(clients, train, "train")
    proportions = held / held.sum(axis=1, keepdims=True)
    assert proportions.var() == pytest.approx(0.09 / (10 * alpha + 1), rel=0.05)


def test_per_class_the_clients_shares_have_the_moments_of_the_dirichlet_distribution():
    # Var of a client's share of a class under Dir(alpha) over 100 clients: 0.01 * 0.99 / (100 * alpha + 1)
    train, test = np.repeat(np.arange(100), 2_000), np.repeat(np.arange(100), 200)
    clients = partition(train, test, scheme="dirichlet-per-class", num_clients=100, seed=0, alpha=0.1, min_samples=1)
    shares = np.array([np.bincount(train[client.train], minlength=100) for client in clients]) / 2_000
    assert shares.var() == pytest.approx(0.01 * 0.99 / (100 * 0.1 + 1), rel=0.05)


def test_per_class_the_sizes_of_clients_differ_as_in_the_cut_layer_paper():
    # CIFAR-10, 100 clients, Dir(0.1): the authors' one draw has a standard deviation of 435. Over draws it is
    # 5,000 * sqrt(10 * Var(share)) = 474.
    train, test = np.repeat(np.arange(10), 5_000), np.repeat(np.arange(10), 1_000)

    def deviations(scheme):
        draws = [partition(train, test, scheme=scheme, num_clients=100, seed=seed, alpha=0.1) for seed in range(10)]
        return [np.std([len(client.train) for client in clients]) for clients in draws]

    assert np.mean(deviations("dirichlet")) == pytest.approx(71, rel=0.1)
    per_class = deviations("dirichlet-per-class")
    assert np.mean(per_class) == pytest.approx(474, rel=0.12)
    assert min(per_class) < 435 < max(per_class)


def test_each_client_has_as_many_classes_as_shards():
    clients = partition(TRAIN, TEST, scheme="shards", num_clients=50, seed=0, shards_per_client=2)
    train, test = counts(clients, TRAIN, "train"), counts(clients, TEST, "test")
    assert (train.sum(axis=1) == 100).all()
    assert (test.sum(axis=1) == 20).all()
    assert set((train > 0).sum(axis=1)) == {1, 2}
    assert np.array_equal(train, 5 * test)


@pytest.mark.parametrize("alpha", [1e-6, 0.01, 0.1, 1.0, 1e9])
@pytest.mark.parametrize("min_samples", [1, 10, 50])
def test_every_client_has_the_minimum_and_a_test_of_what_it_trains_on(alpha, min_samples):
    for seed in range(3):
        clients = partition(
            TRAIN,
            TEST,
            scheme="dirichlet",
            num_clients=100,
            seed=seed,
            alpha=alpha,
            min_samples=min_samples,
        )
        train, test = counts(clients, TRAIN, "train"), counts(clients, TEST, "test")
        assert train.sum(axis=1).min() >= min_samples
        assert test.sum(axis=1).min() >= 1
        assert ((test > 0) & (train > 0)).any(axis=1).all()


def test_the_tightest_minimum_is_an_equal_split():
    clients = partition(TRAIN, TEST, scheme="dirichlet", num_clients=100, seed=0, alpha=0.1, min_samples=50)
    assert {len(client.train) for client in clients} == {50}
    clients = partition(TRAIN, TEST, scheme="dirichlet", num_clients=1000, seed=0, alpha=0.1, min_samples=5)
    assert {(len(client.train), len(client.test)) for client in clients} == {(5, 1)}


def test_unequal_classes_and_labels_in_any_order():
    rng = np.random.default_rng(0)
    train, test = rng.choice(4, 1500, p=[0.7, 0.2, 0.07, 0.03]), rng.choice(4, 400, p=[0.4, 0.3, 0.2, 0.1])
    clients = partition(train, test, scheme="dirichlet", num_clients=8, seed=0, alpha=1.0)
    held, tested = (counts(clients, train, "train")[:, :4], counts(clients, test, "test")[:, :4])
    assert np.abs(tested - held / held.sum(axis=0) * tested.sum(axis=0)).max() < 1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"scheme": "random"}, "partition = 'random': allowed is one of iid, dirichlet, dirichlet-per-class, shards"),
        ({"num_clients": 0}, "num-clients = 0: allowed is an integer >= 1"),
        ({"num_clients": 1001}, "num-clients = 1001: allowed is at most 1000, the number of test samples"),
        ({"num_clients": 5001}, "num-clients = 5001: allowed is at most 5000, the number of training samples"),
        ({"alpha": 0.0}, "alpha = 0.0: allowed is a number > 0"),
        ({"alpha": -1.0}, "alpha = -1.0: allowed is a number > 0"),
        ({"alpha": float("nan")}, "alpha = nan: allowed is a number > 0"),
        ({"min_samples": 0}, "data.min-samples = 0: allowed is an integer >= 1"),
        (
            {"num_clients": 600},
            "num-clients = 600 times data.min-samples = 10 is 6000: "
            "allowed is at most 5000, the number of training samples",
        ),
        (
            {"scheme": "shards", "shards_per_client": 0},
            "data.shards-per-client = 0: allowed is an integer from 1 to 500, or shards would be empty",
        ),
        (
            {"scheme": "shards", "shards_per_client": 501},
            "data.shards-per-client = 501: allowed is an integer from 1 to 500, or shards would be empty",
        ),
    ],
)
def test_what_is_not_allowed_is_named(settings, message):
    with pytest.raises(UserError) as caught:
        partition(TRAIN, TEST, **{"scheme": "dirichlet", "num_clients": 10, "seed": 0, **settings})
    assert str(caught.value) == message


def test_a_class_that_is_only_in_the_test_pool_is_an_error():
    with pytest.raises(ValueError, match="a class that the training pool lacks"):
        partition(TRAIN[TRAIN != 4], TEST, scheme="iid", num_clients=2, seed=0)
