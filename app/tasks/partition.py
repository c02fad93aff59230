"""Which samples each client holds.

A partition is first a table of counts, clients by classes, for the training pool. The schemes differ
only in how they fill it. The test pool's table follows from it: each class of the test pool is shared out
in proportion to the clients' training samples of that class. So a client is tested on what it trains on,
whatever the scheme, and both pools are used up exactly.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from espalier.app.ground.errors import FAULTS, UserError, bad_value
from espalier.app.ground.object_spec import FLOWER, ObjectSpec, error_line
from espalier.app.ground.registered import built_in, call_with, parse_registered
from espalier.app.settings.sections import OWN, Data
from espalier.app.tasks.flower_partition import flower_indices
from espalier.app.tasks.schemes import ALPHA, EDGE_ALPHA, MIN_SAMPLES, SCHEMES, SHARDS, Scheme, Terms

PARTITIONS = tuple(SCHEMES)
# What says how a pool is shared out.
SHARING_KEYS = ("partition", ALPHA, EDGE_ALPHA, SHARDS, MIN_SAMPLES)


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


def partition_of(
    section: Data,
    train_labels: np.ndarray,
    test_labels: np.ndarray,
    *,
    num_clients: int,
    num_edges: int,
    seed: int,
    columns: Mapping[str, np.ndarray] | None = None,
) -> list[ClientIndices]:
    """Share both pools out as the settings say; see `partition`."""
    return partition(
        train_labels,
        test_labels,
        scheme=section.partition,
        num_clients=num_clients,
        num_edges=num_edges,
        seed=seed,
        alpha=section.alpha,
        edge_alpha=section.edge_alpha,
        shards_per_client=section.shards_per_client,
        min_samples=section.min_samples,
        columns=columns,
    )


def scheme_named(spec: ObjectSpec) -> Scheme | None:
    """Return the scheme of a name, None for folders of the clients' own and for a function of a user's own.

    Raises
    ------
    UserError
        If there is none of the name.
    """
    return built_in(spec, {**SCHEMES, OWN: None})


def unused_by(spec: ObjectSpec) -> tuple[str, ...]:
    """Return those of `SHARING_KEYS` by which a partition does not go; UserError if there is none of the name."""
    known = scheme_named(spec)
    used = {"partition"} | ({*known.uses, MIN_SAMPLES} if known else set())
    return tuple(key for key in SHARING_KEYS if key not in used)


def goes_by_edges(spec: ObjectSpec) -> bool:
    """Return whether the number of edges may decide who gets which samples; UserError if there is none of the name."""
    known = scheme_named(spec)
    return known.by_edges if known else spec.is_own


def edges_of(num_clients: int, num_edges: int) -> list[range]:
    """Return the clients of each edge: blocks of numbers, whose sizes differ by one at most.

    Clients are grouped so wherever their node's config names no edge; an edge has at least one client.
    """
    begins = [-(-edge * num_clients // num_edges) for edge in range(num_edges + 1)]
    return [range(first, last) for first, last in pairwise(begins)]


def partition(
    train_labels: np.ndarray,
    test_labels: np.ndarray,
    *,
    scheme: ObjectSpec | str,
    num_clients: int,
    num_edges: int = 1,
    seed: int,
    alpha: float = 0.5,
    edge_alpha: float = 0.5,
    shards_per_client: int = 2,
    min_samples: int = 10,
    columns: Mapping[str, np.ndarray] | None = None,
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

    ``edge-dirichlet``
        As ``dirichlet``, twice: over the edges with `edge_alpha`, and what an edge gets over its clients with `alpha`.
    ``edge-iid``
        Each class is spread evenly over the edges, by their numbers of clients; within an edge as ``dirichlet``.
    ``iid-in-edges``
        Over the edges as ``dirichlet`` with `edge_alpha`; within an edge each class is spread evenly.
    ``package.module:function(...)``
        A user's own: of ``labels``, the training pool's, ``num_clients``, ``num_edges`` and ``seed`` it gets those that
        are its parameters, and returns the indices of each client's samples in the training pool.
    ``flwr:NAME(...)``
        A partitioner of Flower Datasets, see `espalier.app.tasks.flower_partition`. It may leave samples out.

    In all but ``shards`` a client's count of a class is the nearest to its fraction that whole samples allow
    (largest remainders). In all the same holds for the test pool, with the fractions of the
    training counts: ``|test[u, c] - n_test[c] * train[u, c] / n_train[c]| < 1`` for client u and class c.

    A client that ends below `min_samples` training samples, or without a test sample, is then given the
    missing ones, of the classes it has most of, by the clients that hold most of them and more than the
    minimum. Only there can a test count be off by more. Of edges that have shares, each gives to its own clients.

    Parameters
    ----------
    train_labels, test_labels : np.ndarray
        Integers from 0, shape ``(N,)``: the label of each sample of the two pools.
    scheme : ObjectSpec or str
        One of `PARTITIONS`, or a user's own.
    num_clients : int
        The number of clients.
    num_edges : int, default 1
        The number of edges, whose clients are `edges_of`.
    seed : int
        The only source of chance. Not negative.
    alpha : float, default 0.5
        The concentration over clients: towards 0 a client has ever fewer classes.
    edge_alpha : float, default 0.5
        The concentration over edges.
    shards_per_client : int, default 2
        For ``shards``: the shards of a client. A shard holds one class, or two where it spans a border.
    min_samples : int, default 10
        The least number of training samples of a client.
    columns : Mapping[str, np.ndarray], optional
        What else is known of each training sample, by which partitioners of a library's may go.

    Returns
    -------
    list[ClientIndices]
        One entry per client.

    Raises
    ------
    UserError
        A value is not allowed, the pools have too few samples for so many clients, or a user's own function fails or
        does not share out the pool.
    ValueError
        The test pool has a class that the training pool lacks.
    """
    train_labels, test_labels = np.asarray(train_labels), np.asarray(test_labels)
    spec = _spec_of(scheme)
    known = scheme_named(spec)
    _check_sizes(len(train_labels), len(test_labels), num_clients, min_samples if known else 1)
    rng = np.random.default_rng(seed)
    num_classes = 1 + max(train_labels.max(), test_labels.max())
    train_sizes = np.bincount(train_labels, minlength=num_classes)
    test_sizes = np.bincount(test_labels, minlength=num_classes)
    if (test_sizes[train_sizes == 0] > 0).any():
        raise ValueError("the test pool has a class that the training pool lacks")

    everybody = [range(num_clients)]
    if known is None:
        if spec.module == FLOWER:
            given: object = flower_indices(spec, train_labels, columns or {}, num_clients, seed)
        else:
            offered = {"labels": train_labels, "num_clients": num_clients, "num_edges": num_edges, "seed": seed}
            given = call_with(spec, offered)
        train = _own_indices(spec, given, len(train_labels), num_clients)
        train_counts = np.array([np.bincount(train_labels[held], minlength=num_classes) for held in train])
        edges = everybody
    else:
        _check_values(known, num_clients, num_edges, alpha, edge_alpha)
        edges = edges_of(num_clients, num_edges) if known.by_edges else everybody
        shares = known.draw(Terms(np.sort(train_labels), num_classes, edges, alpha, edge_alpha, shards_per_client, rng))
        of_edges = np.ones((1, num_classes)) if shares.edges is None else shares.edges
        edge_counts = _shared_out(train_sizes, of_edges, _least(edges, min_samples), of_edges * train_sizes)
        train_counts = np.concatenate(
            [
                _shared_out(sizes, own, min_samples, own * sizes)
                for sizes, own in zip(edge_counts, (shares.clients[e] for e in edges), strict=True)
            ]
        )
        train = _deal(train_labels, train_counts, rng)
    of_edges = np.array([train_counts[members].sum(axis=0) for members in edges])
    edge_counts = _shared_out(test_sizes, of_edges, _least(edges, 1), of_edges)
    test_counts = np.concatenate(
        [
            _shared_out(sizes, own, 1, own)
            for sizes, own in zip(edge_counts, (train_counts[e] for e in edges), strict=True)
        ]
    )
    test = _deal(test_labels, test_counts, rng)
    return [ClientIndices(*pools) for pools in zip(train, test, strict=True)]


def _spec_of(scheme: ObjectSpec | str) -> ObjectSpec:
    try:
        return parse_registered("partition", scheme)
    except ValueError as error:
        raise bad_value("partition", scheme, str(error)) from None


def _check_sizes(num_train: int, num_test: int, num_clients: int, min_samples: int) -> None:
    """Raise `UserError` for numbers that no partition of such pools can meet."""
    if num_clients < 1:
        raise bad_value("num-clients", num_clients, "an integer >= 1")
    for pool, samples in (("training", num_train), ("test", num_test)):
        if num_clients > samples:
            allowed = f"at most {samples}, the number of {pool} samples"
            raise bad_value("num-clients", num_clients, allowed)
    if min_samples < 1:
        raise bad_value(MIN_SAMPLES, min_samples, "an integer >= 1")
    if num_clients * min_samples > num_train:
        raise UserError(
            f"num-clients = {num_clients} times data.min-samples = {min_samples} is "
            f"{num_clients * min_samples}: allowed is at most {num_train}, the number of training samples"
        )


def _check_values(scheme: Scheme, num_clients: int, num_edges: int, alpha: float, edge_alpha: float) -> None:
    """Raise `UserError` for values that a scheme goes by and can't meet."""
    for key, value in ((ALPHA, alpha), (EDGE_ALPHA, edge_alpha)):
        if key in scheme.uses and not 0 < value < np.inf:
            raise bad_value(key, value, "a number > 0")
    if scheme.by_edges and not 1 <= num_edges <= num_clients:
        raise bad_value("num-edges", num_edges, f"1 to num-clients = {num_clients} for partition = {scheme.name!r}")


def _own_indices(spec: ObjectSpec, given: object, num_samples: int, num_clients: int) -> list[np.ndarray]:
    """Return the indices that a user's own function gave, sorted; UserError unless they share out the pool."""
    wanted = f"a function that returns {num_clients} arrays of indices, one for each client"
    try:
        arrays = [np.asarray(indices) for indices in given]  # type: ignore[attr-defined]
        held = [np.sort(one.astype(np.int64, casting="same_kind" if one.size else "unsafe")) for one in arrays]
        shapes = {indices.ndim for indices in held}
    except FAULTS as error:  # what it returned is foreign code, too
        raise bad_value(spec.key, spec.text, f"{wanted} ({error_line(error)})") from None
    if len(held) != num_clients or shapes != {1}:
        raise bad_value(spec.key, spec.text, f"{wanted}, not {len(held)} of {sorted(shapes)} dimensions")
    if empty := [client for client, indices in enumerate(held) if not len(indices)]:
        raise bad_value(spec.key, spec.text, f"a function that gives each client a sample, and not none to {empty[0]}")
    every = np.sort(np.concatenate(held))
    everything = np.arange(num_samples) if spec.is_own else np.unique(every.clip(0, num_samples - 1))
    if not np.array_equal(every, everything):
        allowed = f"a function that gives each of the samples 0 to {num_samples - 1} to one client, and no other"
        raise bad_value(spec.key, spec.text, f"{allowed}: {_first_fault(every, num_samples)}")
    return held


def _first_fault(every: np.ndarray, num_samples: int) -> str:
    """Return what is wrong with sorted indices that are not all samples, each once."""
    if every[0] < 0 or every[-1] >= num_samples:
        return f"there is no sample {every[0] if every[0] < 0 else every[-1]}"
    counts = np.bincount(every, minlength=num_samples)
    if (counts > 1).any():
        return f"{int(counts.argmax())} is given {counts.max()} times"
    return f"{int(counts.argmin())} is left out"


def _least(edges: Sequence[range], each: int) -> np.ndarray:
    """Return how many samples each edge needs, so that its clients have some each."""
    return np.array([each * len(members) for members in edges])


def _shared_out(sizes: np.ndarray, shares: np.ndarray, least: np.ndarray | int, preference: np.ndarray) -> np.ndarray:
    """Return whole counts that add up to `sizes`, follow `shares`, and give every row at least `least`."""
    # What was moved to an edge for want of others may be of a class that its clients have no share of.
    unwanted = (shares.sum(axis=0) == 0) & (sizes > 0)
    counts = _apportion(sizes, np.where(unwanted, 1, shares))
    _raise_to_minimum(counts, least, preference=preference)
    return counts


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


def _raise_to_minimum(counts: np.ndarray, minimum: np.ndarray | int, *, preference: np.ndarray) -> None:
    """Move samples, in place, until every client holds at least `minimum`, one for all or one for each.

    Every move lowers what is missing in all, and while something is missing a client with more than the
    minimum exists: so it ends.

    Parameters
    ----------
    counts : np.ndarray
        Shape ``(clients, classes)``, with a sum of at least that of all minima.
    minimum : np.ndarray or int
        The least sum of a row, of shape ``(clients,)`` or one for all.
    preference : np.ndarray
        Shape ``(clients, classes)``: a client takes the class with the highest value that can be had,
        and among equal ones that with most to spare.
    """
    minimum = np.broadcast_to(minimum, len(counts))
    for client in range(len(counts)):
        while (missing := minimum[client] - counts[client].sum()) > 0:
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
