"""Which client goes to which edge, by the cost of a global round of HFEL (2002.11343).

For an association, the best shares of bandwidth and CPU frequencies are the optimum of a convex problem, which is
solved here by multipliers: the round's time, in it the price of each edge's bandwidth, and in that each upload's time.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice

import numpy as np

STEPS = 30  # halvings of the logarithm of a bracket of times
MOST_STEPS = 100  # of prices, and for each of upload times, from those before
PRICES = 1e-6  # by which the logarithm of a client's may be off before Newton's last step, which squares that
SHARES = 1e-12  # by which those of an edge may miss 1
MOST_DOUBLINGS = 100
LESS = 1 - 1e-9  # of a cost that counts as lower
AT_ONCE = 2**22  # numbers of clients and edges over the associations that are solved together


@dataclass(frozen=True, eq=False, kw_only=True)
class Association:
    """N clients, K edges, and what a global round of `edge_rounds` edge rounds costs.

    Attributes
    ----------
    cycles : np.ndarray
        Shape (N,): CPU cycles of a client in an edge round, in all its local rounds.
    upload_seconds : np.ndarray
        Shape (N, K): of an upload to each edge with the whole of its bandwidth.
    power_watts, max_frequency_hz : np.ndarray
        Shape (N,): transmit power, and highest CPU frequency; there is no lowest one.
    capacitance : float
        zeta: computing takes ``capacitance / 2 * frequency_hz**2`` joules a cycle.
    edge_rounds : int
        Edge rounds of a global round, I.
    cloud_seconds, cloud_joules : np.ndarray
        Shape (K,): of an edge's upload to the cloud. An edge without clients has none.
    energy_weight, delay_weight : float
        Cost of a joule and of a second, above 0.
    """

    cycles: np.ndarray
    upload_seconds: np.ndarray
    power_watts: np.ndarray
    max_frequency_hz: np.ndarray
    capacitance: float
    edge_rounds: int
    cloud_seconds: np.ndarray
    cloud_joules: np.ndarray
    energy_weight: float
    delay_weight: float

    @property
    def clients(self) -> int:
        """N."""
        return len(self.cycles)

    @property
    def edges(self) -> int:
        """K."""
        return self.upload_seconds.shape[1]


@dataclass(frozen=True, eq=False)
class Optimum:
    """The least costs of A associations, and how they are reached.

    Attributes
    ----------
    cost, seconds : np.ndarray
        Shape (A,): cost of a global round, and its time.
    bandwidth, frequency_hz : np.ndarray
        Shape (A, N): each client's share of its edge's bandwidth, and its CPU frequency.
    """

    cost: np.ndarray
    seconds: np.ndarray
    bandwidth: np.ndarray
    frequency_hz: np.ndarray


def optimum(problem: Association, edges: np.ndarray) -> Optimum:
    """Return the least costs of associations: bandwidth and frequencies are chosen for each, all edges together.

    Parameters
    ----------
    problem : Association
        The clients and edges.
    edges : np.ndarray
        Shape (A, N): the edge of each client, from 0.

    Returns
    -------
    Optimum
        To about 1e-8 of the cost.
    """
    edges = np.asarray(edges)
    inside = edges[:, :, np.newaxis] == np.arange(problem.edges)
    upload = np.take_along_axis(problem.upload_seconds[np.newaxis], edges[:, :, np.newaxis], axis=2)[:, :, 0]
    cloud, least = problem.cloud_seconds[edges], problem.cycles / problem.max_frequency_hz

    def in_time(seconds: np.ndarray) -> InTime:
        return least_energy_in_time(problem, upload, inside, (seconds[:, np.newaxis] - cloud) / problem.edge_rounds)

    def is_short(seconds: np.ndarray) -> np.ndarray:
        return problem.energy_weight * in_time(seconds).saved > problem.delay_weight

    low = np.full(len(edges), 1e-3 * float(problem.edge_rounds * (least + problem.upload_seconds.min(axis=1)).min()))
    high = (cloud + 2 * problem.edge_rounds * (least + problem.clients * upload)).max(axis=1)
    for _ in range(MOST_DOUBLINGS):
        if not (short := is_short(high)).any():
            break
        high = np.where(short, 2 * high, high)
    for _ in range(STEPS):
        middle = np.sqrt(low * high)
        short = is_short(middle)
        low, high = np.where(short, middle, low), np.where(short, high, middle)
    best = in_time(high)
    joules = problem.edge_rounds * best.joules.sum(axis=1) + (inside.any(axis=1) * problem.cloud_joules).sum(axis=1)
    cost = problem.energy_weight * joules + problem.delay_weight * high
    return Optimum(cost, high, upload / best.uploading, best.frequency_hz)


@dataclass(frozen=True, eq=False)
class InTime:
    """Least energies in edge rounds of given lengths.

    Attributes
    ----------
    joules, frequency_hz, uploading : np.ndarray
        Shape (A, N): energy in an edge round, CPU frequency and upload time; 0 for a client that has no edge.
    saved : np.ndarray
        Shape (A,): joules of a global round that a second more of it would save; infinite where it does not suffice.
    """

    joules: np.ndarray
    frequency_hz: np.ndarray
    uploading: np.ndarray
    saved: np.ndarray


def least_energy_in_time(problem: Association, upload: np.ndarray, inside: np.ndarray, spare: np.ndarray) -> InTime:
    """Return the bandwidths and frequencies of least energy for clients that have a given time in an edge round.

    A client that uploads for tau of its D seconds computes in ``D - tau``. That takes ``k/2 W^3 / (D - tau)^2 + p tau``
    joules, and ``a / tau`` of the bandwidth. At the price mu of the bandwidth of its edge
    ``tau^2 (p + k W^3 / (D - tau)^3) = a mu``, or tau is the longest that the highest frequency allows. Prices come
    from Newton's method within brackets.

    Parameters
    ----------
    problem : Association
        The clients and edges.
    upload : np.ndarray
        Shape (A, N): upload time with the whole bandwidth, a.
    inside : np.ndarray
        Booleans of shape (A, N, K): whether a client is at an edge; clients of no edge are left out.
    spare : np.ndarray
        Shape (A, N): the time, D.
    """
    least = problem.cycles / problem.max_frequency_hz
    there = inside.any(axis=2)
    enough = spare > least + upload
    spare = np.where(enough, spare, least + 2 * upload)  # any time that suffices, where the given one does not
    longest = spare - least
    shortest = np.minimum(upload, longest)  # with all of the bandwidth
    suffices = (enough | ~there).all(axis=1) & (_sums(upload / longest, inside) <= 1).all(axis=1)
    k_w3 = problem.capacitance * problem.cycles**3

    def ln_price(tau: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return ln mu, and its derivative by ln tau."""
        compute = k_w3 / (spare - tau) ** 3
        value = 2 * np.log(tau) + np.log(problem.power_watts + compute) - np.log(upload)
        return value, 2 + 3 * compute * tau / ((spare - tau) * (problem.power_watts + compute))

    def at_edges(values: np.ndarray, otherwise: float) -> np.ndarray:
        return np.where(inside, values[:, :, np.newaxis], otherwise)

    low = np.where(inside.any(axis=1), at_edges(ln_price(shortest)[0], np.inf).min(axis=1), 0.0)
    high = np.where(inside.any(axis=1), at_edges(ln_price(longest)[0], -np.inf).max(axis=1), 0.0)
    # A single client has all of the bandwidth at the lowest price.
    middle = np.where(inside.sum(axis=1) == 1, low, (low + high) / 2)
    tau = np.minimum(longest, shortest * problem.clients)
    for _ in range(MOST_STEPS):
        price = _of_clients(middle, inside)
        for _ in range(MOST_STEPS):  # upwards the function is convex: after a step too far each is shorter
            value, slope = ln_price(tau)
            before, tau = tau, np.clip(tau * np.exp(np.clip((price - value) / slope, -3, 3)), shortest, longest)
            if ((np.abs(price - value) <= PRICES) | (tau == before)).all():
                break
        total = _sums(upload / tau, inside)
        found = (np.abs(total - 1) <= SHARES) | ~inside.any(axis=1)
        if found[suffices].all():
            break
        fall = _sums(np.where((tau < longest) & (tau > shortest), upload / tau / slope, 0.0), inside)
        low, high = np.where(total > 1, middle, low), np.where(total > 1, high, middle)
        with np.errstate(all="ignore"):
            newton = middle + total * np.log(total) / fall  # on the logarithm of the sum, which is nearly linear
        better = np.where((newton > low) & (newton < high), newton, (low + high) / 2)
        middle = np.where(found, middle, better)
    # The bandwidth that rounding leaves, or takes too much of.
    tau = np.clip(tau * _of_clients(_sums(upload / tau, inside), inside), shortest, longest)
    frequency = problem.cycles / (spare - tau)
    # What a second is worth to a client: where the frequency is the highest one, by the bandwidth that it gives back.
    by_bandwidth = np.exp(_of_clients(middle, inside)) * upload / tau**2 - problem.power_watts
    second = problem.capacitance * frequency**3
    second = np.where(tau >= longest * (1 - 1e-12), np.maximum(by_bandwidth, second), second)
    return InTime(
        there * (problem.capacitance / 2 * problem.cycles * frequency**2 + problem.power_watts * tau),
        there * frequency,
        there * tau,
        np.where(suffices, (there * second).sum(axis=1), np.inf),
    )


def _sums(values: np.ndarray, inside: np.ndarray) -> np.ndarray:
    """Return the sums of values (A, N) by edge, (A, K)."""
    return np.einsum("an,ank->ak", values, inside)


def _of_clients(values: np.ndarray, inside: np.ndarray) -> np.ndarray:
    """Return the values of edges (A, K) by client, (A, N)."""
    return np.einsum("ak,ank->an", values, inside)


def nearest(problem: Association) -> np.ndarray:
    """Return each client's edge, shape (N,): the one to which an upload is the shortest."""
    return problem.upload_seconds.argmin(axis=1)


def balanced(problem: Association) -> np.ndarray:
    """Return edges of as many clients each, or one more: the shortest uploads in all, as an assignment problem."""
    from scipy.optimize import linear_sum_assignment  # which takes a while to import

    empty = -problem.clients % problem.edges
    places = np.arange(problem.clients + empty) % problem.edges
    # What stays empty is a last place of its edge: any edges have a client more.
    nobody = np.full((empty, len(places)), np.inf)
    nobody[:, -problem.edges :] = 0
    _, columns = linear_sum_assignment(np.concatenate([problem.upload_seconds[:, places], nobody]))
    return places[columns[: problem.clients]]


def cheapest(problem: Association) -> np.ndarray:
    """Return what HFEL's search finds from `nearest`: the best transfer or exchange, as long as the cost falls.

    A transfer gives a client to another edge; an exchange gives two clients of different edges to each other's. The
    result is a local optimum: no single one of them lowers the cost.
    """
    found = nearest(problem)
    cost = float(optimum(problem, found[np.newaxis]).cost[0])
    size = max(1, AT_ONCE // (problem.clients * problem.edges))
    while True:
        neighbours, better, least = _neighbours(found, problem.edges), found, cost * LESS
        while some := list(islice(neighbours, size)):
            costs = optimum(problem, np.array(some)).cost
            if (lowest := float(costs.min())) < least:
                better, least = some[int(costs.argmin())], lowest
        if better is found:
            return found
        found, cost = better, least


def _neighbours(edges: np.ndarray, num_edges: int) -> Iterator[np.ndarray]:
    for client, own in enumerate(edges.tolist()):
        for edge in range(num_edges):
            if edge != own:
                moved = edges.copy()
                moved[client] = edge
                yield moved
        for other in range(client):
            if edges[other] != own:
                moved = edges.copy()
                moved[[client, other]] = edges[[other, client]]
                yield moved


ASSOCIATIONS: Mapping[str, Callable[[Association], np.ndarray]] = {
    "nearest": nearest,
    "balanced": balanced,
    "cheapest": cheapest,
}


def all_associations(clients: int, edges: int) -> np.ndarray:
    """Return all ``edges^clients`` associations, shape (A, N)."""
    return np.indices((edges,) * clients).reshape(clients, -1).T
