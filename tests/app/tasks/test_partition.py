import numpy as np
import pytest

from espalier.app.ground.errors import UserError
from espalier.app.tasks.partition import PARTITIONS, edges_of, partition
from espalier.clients.messages.profile import Profile
from espalier.strategies import group_by_edge

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
    num_edges = min(num_clients, 3)
    clients = partition(TRAIN, TEST, scheme=scheme, num_clients=num_clients, num_edges=num_edges, seed=3, alpha=0.1)
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
        (
            {"scheme": "random"},
            "partition = 'random': allowed is 'iid', 'dirichlet', 'dirichlet-per-class', 'shards', 'edge-dirichlet', "
            "'edge-iid', 'iid-in-edges', 'own', or package.module:NAME(argument=value, ...) of your own",
        ),
        (
            {"scheme": "edge-iid", "num_edges": 11},
            "num-edges = 11: allowed is 1 to num-clients = 10 for partition = 'edge-iid'",
        ),
        ({"scheme": "iid-in-edges", "edge_alpha": 0.0}, "edge-alpha = 0.0: allowed is a number > 0"),
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


def of_edges(clients, labels, pool, num_edges):
    """Return the number of samples, edges by classes."""
    held = counts(clients, labels, pool)
    return np.array([held[members].sum(axis=0) for members in edges_of(len(clients), num_edges)])


def same(left, right):
    pairs = zip(left, right, strict=True)
    return all(np.array_equal(a.train, b.train) and np.array_equal(a.test, b.test) for a, b in pairs)


@pytest.mark.parametrize(("num_clients", "num_edges"), [(20, 4), (10, 3), (7, 7), (5, 1)])
def test_the_clients_of_an_edge_are_those_that_a_run_puts_there(num_clients, num_edges):
    profiles = [Profile(i, i, "", 1, 1, ()) for i in range(num_clients)]
    there = group_by_edge(profiles, num_edges).values()
    assert [list(members) for members in edges_of(num_clients, num_edges)] == list(there)


@pytest.mark.parametrize("alpha", [0.01, 0.5, 100.0])
@pytest.mark.parametrize(("num_clients", "num_edges"), [(20, 4), (10, 3), (100, 8)])
@pytest.mark.parametrize("min_samples", [1, 40])
def test_edges_of_edge_iid_have_the_proportions_of_the_pool_to_rounding(num_clients, num_edges, alpha, min_samples):
    clients = partition(
        TRAIN,
        TEST,
        scheme="edge-iid",
        num_clients=num_clients,
        num_edges=num_edges,
        seed=0,
        alpha=alpha,
        min_samples=min_samples,
    )
    shares = np.array([len(members) for members in edges_of(num_clients, num_edges)])[:, None] / num_clients
    for pool, labels in (("train", TRAIN), ("test", TEST)):
        assert np.abs(of_edges(clients, labels, pool, num_edges) - shares * np.bincount(labels)).max() < 2
    assert np.abs(of_edges(clients, TRAIN, "train", num_edges) - shares * np.bincount(TRAIN)).max() < 1
    assert min(len(client.train) for client in clients) >= min_samples
    assert min(len(client.test) for client in clients) >= 1


def test_clients_of_edge_iid_differ_within_their_edge():
    clients = partition(TRAIN, TEST, scheme="edge-iid", num_clients=20, num_edges=4, seed=0, alpha=0.1)
    assert heterogeneity(clients) > 0.5


@pytest.mark.parametrize("edge_alpha", [0.1, 1.0])
def test_clients_of_iid_in_edges_have_the_same_of_each_class_as_their_edge_has(edge_alpha):
    clients = partition(TRAIN, TEST, scheme="iid-in-edges", num_clients=20, num_edges=4, seed=0, edge_alpha=edge_alpha)
    for pool, labels in (("train", TRAIN), ("test", TEST)):
        held = counts(clients, labels, pool)
        assert max(np.ptp(held[members], axis=0).max() for members in edges_of(20, 4)) <= 1
    assert heterogeneity(clients) > 0.2


def test_one_edge_that_is_iid_is_dirichlet_and_an_edge_for_each_client_is_dirichlet_over_edges():
    plain = partition(TRAIN, TEST, scheme="dirichlet", num_clients=20, seed=5, alpha=0.2)
    assert same(plain, partition(TRAIN, TEST, scheme="edge-iid", num_clients=20, num_edges=1, seed=5, alpha=0.2))
    over_edges = {"num_clients": 20, "num_edges": 20, "seed": 5, "edge_alpha": 0.2}
    assert same(plain, partition(TRAIN, TEST, scheme="iid-in-edges", **over_edges))


def test_edges_of_edge_dirichlet_have_the_moments_of_the_dirichlet_distribution_whatever_their_clients_have():
    train, test = np.repeat(np.arange(10), 20_000), np.repeat(np.arange(10), 2_000)
    edge_alpha = 0.5
    for alpha in (0.1, 1000.0):
        clients = partition(
            *(train, test), scheme="edge-dirichlet", num_clients=800, num_edges=400, seed=0, alpha=alpha, edge_alpha=0.5
        )
        held = of_edges(clients, train, "train", 400)
        proportions = held / held.sum(axis=1, keepdims=True)
        assert proportions.var() == pytest.approx(0.09 / (10 * edge_alpha + 1), rel=0.05)


def test_a_smaller_edge_alpha_means_fewer_classes_per_edge():
    def of(edge_alpha, seed):
        settings = {"num_clients": 20, "num_edges": 4, "seed": seed, "alpha": 1.0, "edge_alpha": edge_alpha}
        held = of_edges(partition(TRAIN, TEST, scheme="edge-dirichlet", **settings), TRAIN, "train", 4)
        return np.abs(held / held.sum(axis=1, keepdims=True) - 0.1).sum(axis=1).mean() / 2

    means = [np.mean([of(edge_alpha, seed) for seed in range(10)]) for edge_alpha in (0.1, 1.0, 10.0, 1000.0)]
    assert means == sorted(means, reverse=True)


@pytest.mark.parametrize("seed", range(20))
def test_minima_hold_within_edges_of_almost_one_class(seed):
    settings = {"num_clients": 60, "num_edges": 12, "seed": seed, "alpha": 0.01, "edge_alpha": 0.01, "min_samples": 60}
    clients = partition(TRAIN, TEST, scheme="edge-dirichlet", **settings)
    assert min(len(client.train) for client in clients) >= 60
    assert min(len(client.test) for client in clients) >= 1


def own_halves(labels, num_clients, seed):
    return np.array_split(np.random.default_rng(seed).permutation(len(labels)), num_clients)


def own_blocks(num_clients, num_edges, each):
    return [range(each * i, each * (i + 1)) for i in range(num_clients * num_edges // num_edges)]


def own_of_other_names(y, seed): ...


def own_leaky(labels, num_clients, what):
    held = [list(part) for part in np.array_split(np.arange(len(labels)), num_clients)]
    if what == "twice":
        held[1][0] = 0
    if what == "left out":
        held[1].pop(0)
    if what == "unknown":
        held[-1].append(len(labels))
    if what == "none":
        held[0] += held.pop(1)
        held.append([])
    if what == "few":
        held.pop()
    if what == "numbers":
        held[0] = [0.5]
    return held if what != "nothing" else None


def test_a_function_of_ones_own_shares_out_and_the_test_pool_follows():
    clients = partition(TRAIN, TEST, scheme=f"{__name__}:own_halves", num_clients=8, seed=4)
    assert [client.train.tolist() for client in clients] == [sorted(h) for h in own_halves(TRAIN, 8, 4)]
    train, test = counts(clients, TRAIN, "train"), counts(clients, TEST, "test")
    assert np.abs(test - train / 5).max() < 1
    assert test.sum() == len(TEST)
    blocks = partition(TRAIN, TEST, scheme=f"{__name__}:own_blocks(each=500)", num_clients=10, num_edges=2, seed=4)
    assert np.array_equal(counts(blocks, TEST, "test"), 100 * np.eye(10))


def test_a_function_whose_parameters_have_other_names_is_told_which_are_given():
    names = "'y'.*; parameters of these names are given: labels, num_clients, num_edges, seed"
    with pytest.raises(UserError, match=names):
        partition(TRAIN, TEST, scheme=f"{__name__}:own_of_other_names", num_clients=10, seed=0)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            "own_leaky(what='twice')",
            "a function that gives each of the samples 0 to 4999 to one client, and no",
        ),
        ("own_leaky(what='left out')", "a function that gives each of the samples 0 to 4999 to one client, and no"),
        (
            "own_leaky(what='unknown')",
            "a function that gives each of the samples 0 to 4999 to one client, and no",
        ),
        ("own_leaky(what='none')", "a function that gives each client a sample, and not none to 9"),
        (
            "own_leaky(what='few')",
            "a function that returns 10 arrays of indices, one for each client, not 9 of",
        ),
        ("own_leaky(what='numbers')", "a function that returns 10 arrays of indices, one for each client (TypeError: "),
        ("own_leaky(what='nothing')", "a function that returns 10 arrays of indices, one for each client (TypeError: "),
        ("own_leaky", "what takes labels, num_clients and does not fail (TypeError: "),
        ("nothing", "what can be imported (AttributeError: "),
    ],
)
def test_a_function_that_does_not_share_out_the_pool_is_named(call, message):
    scheme = f"{__name__}:{call}"
    with pytest.raises(UserError) as caught:
        partition(TRAIN, TEST, scheme=scheme, num_clients=10, seed=0)
    assert str(caught.value).startswith(f"partition = {scheme!r}: allowed is {message}")
