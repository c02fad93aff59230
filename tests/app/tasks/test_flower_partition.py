"""Flower Datasets' partitioners: the library's own indices."""

import sys
import warnings

import numpy as np
import pytest

from espalier.app.ground.errors import UserError
from espalier.app.tasks.partition import partition

pytestmark = pytest.mark.usefixtures("partitioners")
LABELS = np.random.default_rng(0).integers(0, 4, 200)
WRITERS = np.array([f"w{i % 5}" for i in range(200)])


@pytest.fixture(scope="module")
def partitioners():
    return pytest.importorskip("flwr_datasets.partitioner")


def shared_out(text, clients=5):
    test = np.arange(40) % 4
    parts = partition(LABELS, test, scheme=text, num_clients=clients, seed=3, columns={"user": WRITERS})
    assert sorted(np.concatenate([part.test for part in parts])) == list(range(40))
    return [part.train for part in parts]


def own_indices(partitioner):
    """What the library deals out, of a set that has its rows' numbers, and is shuffled by the seed."""
    from datasets import Dataset

    columns = {"label": LABELS, "user": WRITERS, "row": np.arange(200)}
    order = np.random.default_rng(3).permutation(200)
    partitioner.dataset = Dataset.from_dict({name: values[order] for name, values in columns.items()})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return [sorted(partitioner.load_partition(i)["row"][:]) for i in range(partitioner.num_partitions)]


@pytest.mark.parametrize(
    ("text", "made"),
    [
        ("IidPartitioner", lambda p: p.IidPartitioner(5)),
        (
            "DirichletPartitioner(alpha=5)",
            lambda p: p.DirichletPartitioner(5, "label", 5, seed=3),
        ),
        (
            "DirichletPartitioner(alpha=1.0, min_partition_size=2, seed=9)",
            lambda p: p.DirichletPartitioner(5, "label", 1.0, min_partition_size=2, seed=9),
        ),
        (
            "PathologicalPartitioner(num_classes_per_partition=2)",
            lambda p: p.PathologicalPartitioner(5, "label", 2, seed=3),
        ),
        (
            "ShardPartitioner(num_shards_per_partition=2, shard_size=15)",  # which leaves samples out
            lambda p: p.ShardPartitioner(5, "label", 2, 15, seed=3),
        ),
        ("NaturalIdPartitioner(partition_by='user')", lambda p: p.NaturalIdPartitioner("user")),
        ("LinearPartitioner", lambda p: p.LinearPartitioner(5)),
    ],
)
def test_the_indices_are_the_librarys(text, made, partitioners):
    assert [part.tolist() for part in shared_out(f"flwr:{text}")] == own_indices(made(partitioners))


def test_samples_that_lie_sorted_by_class_are_iid_and_drawn_by_the_seed():
    labels = np.repeat(np.arange(4), 50)

    def held(seed):
        parts = partition(labels, labels, scheme="flwr:IidPartitioner", num_clients=4, seed=seed)
        return [part.train.tolist() for part in parts]

    assert all(np.bincount(labels[part], minlength=4).min() > 5 for part in held(0))
    assert held(0) == held(0) != held(1)


def test_a_partitioner_without_its_library_is_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "flwr_datasets", None)
    monkeypatch.delitem(sys.modules, "flwr_datasets.partitioner")
    with pytest.raises(UserError, match=r"it is not installed \(pip install 'espalier-fl\[flwr-datasets\]'\)"):
        shared_out("flwr:IidPartitioner")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("flwr:DirichletPartitioner", "what takes num_partitions, partition_by, seed and does not fail .*alpha"),
        ("flwr:DirichletPartitoner(alpha=1)", "did you mean 'DirichletPartitioner'"),
        ("flwr:NaturalIdPartitioner(partition_by='town')", "a partitioner that takes the columns label, user"),
        ("flwr:SizePartitioner(partition_sizes=[100, 100])", "makes num-clients = 5 partitions, not 2"),
    ],
)
def test_what_does_not_fit_is_one_line(text, said):
    with pytest.raises(UserError, match=said) as caught:
        shared_out(text)
    assert "\n" not in str(caught.value)
