"""Which samples each client holds.

A partition is first a table of counts, clients by classes, for the training pool. The schemes differ
only in how they fill it. The test pool's table follows from it: each class of the test pool is shared out
in proportion to the clients' training samples of that class. So a client is tested on what it trains on,
whatever the scheme, and both pools are used up exactly.
"""

from dataclasses import dataclass

import numpy as np

from espalier.app.ground.errors import UserError, bad_value

PARTITIONS = ("iid", "dirichlet", "dirichlet-per-class", "shards")


@dataclass(frozen=True)
class ClientIndices:
    """The samples of one client.

    Attributes
    ----------
    train, test : np.ndarray
        ``int64``, sorted: indices into the training pool and into the test pool.
    """

    train: np.ndarray
    test: np.ndarray


def partition(
    train_labels: np.ndarray,
    test_labels: np.ndarray,
    *,
    scheme: str,
    num_clients: int,
    seed: int,
    alpha: float = 0.5,
    shards_per_client: int = 2,
    min_samples: int = 10,
) -> list[ClientIndices]:
    """Share both pools out among the clients: every sample goes to exactly one of them.

    ``iid``
        Each class is spread evenly; what is left over goes to the clients that hold least.
    ``dirichlet``
        Each client draws class proportions from the symmetric ``Dir(alpha)`` over the classes, and each
        class is cut in proportion to what the clients want of it, so that all data are used. This
        normalisation pulls a client's proportions towards those of the pool; with many clients it fades
        (as it must in any division of a whole pool). The sizes of the clients vary with it.
    ``dirichlet-per-class``
        Each class is cut in proportion to shares drawn from the symmetric ``Dir(alpha)`` over the clients. So the sizes
        of the clients vary much more.
    ``shards``
        The training pool, sorted by label, is cut into ``num_clients * shards_per_client`` equal runs;
        each client gets ``shards_per_client`` of them at random.

    In all but the last a client's count of a class is the nearest to its fraction that whole samples allow
    (largest remainders). In all the same holds for the test pool, with the fractions of the
    training counts: ``|test[u, c] - n_test[c] * train[u, c] / n_train[c]| < 1`` for client u and class c.

    A client that ends below `min_samples` training samples, or without a test sample, is then given the
    missing ones, of the classes it has most of, by the clients that hold most of them and more than the
    minimum. Only there can a test count be off by more.

    Parameters
    ----------
    train_labels, test_labels : np.ndarray
        Integers from 0, shape ``(N,)``: the label of each sample of the two pools.
    scheme : str
        One of `PARTITIONS`.
    num_clients : int
        The number of clients.
    seed : int
        The only source of chance. Not negative.
    alpha : float, default 0.5
        The concentration for both Dirichlet schemes: towards 0 a client has ever fewer classes.
    shards_per_client : int, default 2
        For ``shards``: the shards of a client. A shard holds one class, or two where it spans a border.
    min_samples : int, default 10
        The least number of training samples of a client.

    Returns
    -------
    list[ClientIndices]
        One entry per client.

    Raises
    ------
    UserError
        A value is not allowed, or the pools have too few samples for so many clients.
    ValueError
        The test pool has a class that the training pool lacks.
    """
    train_labels, test_labels = np.asarray(train_labels), np.asarray(test_labels)
    _check(len(train_labels), len(test_labels), scheme, num_clients, alpha, shards_per_client, min_samples)
    rng = np.random.default_rng(seed)
    num_classes = 1 + max(train_labels.max(), test_labels.max())
    train_sizes = np.bincount(train_labels, minlength=num_classes)
    test_sizes = np.bincount(test_labels, minlength=num_classes)
    if (test_sizes[train_sizes == 0] > 0).any():
        raise ValueError("the test pool has a class that the training pool lacks")

    if scheme == "shards":
        shares = _draw_shards(np.sort(train_labels), num_classes, num_clients, shards_per_client, rng)
    elif scheme == "dirichlet":
        # The tiny addition stands in for a class that no client wants.
        shares = rng.dirichlet(np.full(num_classes, alpha), size=num_clients) + 1e-12
    elif scheme == "dirichlet-per-class":
        shares = rng.dirichlet(np.full(num_clients, alpha), size=num_classes).T + 1e-12
    else:
        shares = np.ones((num_clients, num_classes))
    train_counts = _apportion(train_sizes, shares)
    _raise_to_minimum(train_counts, min_samples, preference=shares * train_sizes)
    test_counts = _apportion(test_sizes, train_counts)
    _raise_to_minimum(test_counts, 1, preference=train_counts)

    train = _deal(train_labels, train_counts, rng)
    test = _deal(test_labels, test_counts, rng)
    return [ClientIndices(*pools) for pools in zip(train, test, strict=True)]


def _check(
    num_train: int,
    num_test: int,
    scheme: str,
    num_clients: int,
    alpha: float,
    shards_per_client: int,
    min_samples: int,
) -> None:
    """Raise `UserError` for settings that no partition can meet."""
    if scheme not in PARTITIONS:
        raise bad_value("partition", scheme, "one of " + ", ".join(PARTITIONS))
    if num_clients < 1:
        raise bad_value("num-clients", num_clients, "an integer >= 1")
    for pool, samples in (("training", num_train), ("test", num_test)):
        if num_clients > samples:
            allowed = f"at most {samples}, the number of {pool} samples"
            raise bad_value("num-clients", num_clients, allowed)
    if min_samples < 1:
        raise bad_value("data.min-samples", min_samples, "an integer >= 1")
    if num_clients * min_samples > num_train:
        raise UserError(
            f"num-clients = {num_clients} times data.min-samples = {min_samples} is "
            f"{num_clients * min_samples}: allowed is at most {num_train}, the number of training samples"
        )
    if scheme.startswith("dirichlet") and not 0 < alpha < np.inf:
        raise bad_value("alpha", alpha, "a number > 0")
    if scheme == "shards" and not 1 <= shards_per_client <= num_train // num_clients:
        allowed = f"an integer from 1 to {num_train // num_clients}, or shards would be empty"
        raise bad_value("data.shards-per-client", shards_per_client, allowed)


def _draw_shards(
    sorted_labels: np.ndarray, num_classes: int, num_clients: int, each: int, rng: np.random.Generator
) -> np.ndarray:
    """Return the counts, clients by classes, when each client gets `each` runs of the sorted labels."""
    shards = np.array_split(sorted_labels, num_clients * each)
    counts = np.array([np.bincount(shard, minlength=num_classes) for shard in shards])
    return counts[rng.permutation(len(shards))].reshape(num_clients, each, num_classes).sum(axis=1)


def _apportion(sizes: np.ndarray, shares: np.ndarray) -> np.ndarray:
    """Return whole counts, clients by classes, that add up to `sizes` and follow `shares`.

    The method of largest remainders. Among equal remainders the client that holds least so far comes
    first; otherwise the first clients would get the odd sample of every class.

    Parameters
    ----------
    sizes : np.ndarray
        Shape ``(classes,)``: the number of samples of each class.
    shares : np.ndarray
        Shape ``(clients, classes)``, not negative, of any scale: the clients' shares in each class. A
        share of 0 gets nothing.
    """
    counts = np.zeros(shares.shape, dtype=np.int64)
    for label in np.flatnonzero(sizes):
        # Multiplied first: with whole shares all steps but the division are exact, and so are ties.
        exact = sizes[label] * shares[:, label] / shares[:, label].sum()
        held = counts.sum(axis=1)
        counts[:, label] = np.floor(exact)
        remainder = exact - counts[:, label]
        left_over = sizes[label] - counts[:, label].sum()
        counts[np.lexsort((held, -remainder))[:left_over], label] += 1
    return counts


def _raise_to_minimum(counts: np.ndarray, minimum: int, *, preference: np.ndarray) -> None:
    """Move samples, in place, until every client holds at least `minimum`.

    Every move lowers what is missing in all, and while something is missing a client with more than the
    minimum exists: so it ends.

    Parameters
    ----------
    counts : np.ndarray
        Shape ``(clients, classes)``, with a sum of at least ``clients * minimum``.
    minimum : int
        The least sum of a row.
    preference : np.ndarray
        Shape ``(clients, classes)``: a client takes the class with the highest value that can be had,
        and among equal ones that with most to spare.
    """
    for client in range(len(counts)):
        while (missing := minimum - counts[client].sum()) > 0:
            surplus = counts.sum(axis=1) - minimum
            spare = np.minimum(counts, np.maximum(surplus, 0)[:, None])
            available = spare.sum(axis=0)
            order = np.lexsort((-available, -preference[client]))
            label = next(label for label in order if available[label])
            donor = spare[:, label].argmax()
            moved = min(missing, spare[donor, label])
            counts[donor, label] -= moved
            counts[client, label] += moved


def _deal(labels: np.ndarray, counts: np.ndarray, rng: np.random.Generator) -> list[np.ndarray]:
    """Return each client's sorted indices into `labels`, drawn at random within each class."""
    hands: list[list[np.ndarray]] = [[] for _ in counts]
    for label, per_client in enumerate(counts.T):
        shuffled = rng.permutation(np.flatnonzero(labels == label))
        for hand, samples in zip(hands, np.split(shuffled, np.cumsum(per_client)[:-1]), strict=True):
            hand.append(samples)
    return [np.sort(np.concatenate(hand)) for hand in hands]
