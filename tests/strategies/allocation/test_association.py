"""Associations against CVXPY, against the best of all by the round's time as a parameter, and against HiGHS."""

from itertools import combinations

import numpy as np
import pytest

from benchmarks.association import instance
from espalier.sim.links import lasting_gains
from espalier.sim.radio import noise_watts, upload_seconds
from espalier.sim.world import make_world
from espalier.strategies.allocation.association import (
    Association,
    all_associations,
    balanced,
    cheapest,
    least_energy_in_time,
    nearest,
    optimum,
)


def by_cvxpy(problem: Association, edges: np.ndarray) -> np.ndarray:
    """Return the least costs of associations as a convex program states them, side by side; frequencies in GHz."""
    import cvxpy as cp

    inside = edges[:, :, np.newaxis] == np.arange(problem.edges)
    share, frequency, seconds = cp.Variable(edges.shape), cp.Variable(edges.shape), cp.Variable((len(edges), 1))
    upload = problem.upload_seconds[np.arange(problem.clients), edges]
    cycles = np.broadcast_to(problem.cycles, edges.shape)
    busy = cp.multiply(cycles / 1e9, cp.inv_pos(frequency)) + cp.multiply(upload, cp.inv_pos(share))
    computing = cp.multiply(problem.capacitance / 2 * cycles * 1e18, cp.square(frequency))
    joules = cp.sum(computing + cp.multiply(problem.power_watts * upload, cp.inv_pos(share)), axis=1)
    limits = [frequency <= np.broadcast_to(problem.max_frequency_hz / 1e9, edges.shape)]
    limits += [seconds @ np.ones((1, problem.clients)) >= problem.edge_rounds * busy + problem.cloud_seconds[edges]]
    limits += [cp.sum(cp.multiply(share, inside[:, :, edge]), axis=1) <= 1 for edge in range(problem.edges)]
    spent = problem.edge_rounds * joules + (inside.any(axis=1) * problem.cloud_joules).sum(axis=1)
    cost = problem.energy_weight * spent + problem.delay_weight * seconds[:, 0]
    cp.Problem(cp.Minimize(cp.sum(cost)), limits).solve(solver="CLARABEL")
    return np.asarray(cost.value)


@pytest.mark.parametrize("seed", range(5))
def test_bandwidth_and_frequencies_are_the_convex_optimum(seed):
    problem = instance(5, 3, seed)
    edges = np.random.default_rng(seed).integers(0, 3, 5)
    found = optimum(problem, edges[np.newaxis])
    assert found.cost[0] == pytest.approx(by_cvxpy(problem, edges[np.newaxis])[0], rel=2e-7)
    shares = np.bincount(edges, weights=found.bandwidth[0], minlength=3)
    np.testing.assert_allclose(shares[np.unique(edges)], 1, rtol=1e-6)
    assert (found.frequency_hz[0] <= problem.max_frequency_hz * (1 + 1e-9)).all()
    upload = problem.upload_seconds[np.arange(5), edges] / found.bandwidth[0]
    busy = problem.edge_rounds * (problem.cycles / found.frequency_hz[0] + upload) + problem.cloud_seconds[edges]
    np.testing.assert_allclose(busy, found.seconds[0], rtol=1e-6)  # nobody is done before the round is over


def far(radius_metres: float, seed: int) -> tuple[Association, np.ndarray]:
    """Return a problem of three cells of the radio world, in which uploads differ by orders, and who is in which."""
    world, bandwidth_hz = make_world([4] * 3, seed, radius_metres=radius_metres, redraw=False), 10e6
    devices, noise = world.devices, noise_watts(bandwidth_hz)
    power, gains = devices.max_power_watts, lasting_gains(world)
    problem = Association(
        cycles=np.full(12, 7e8),
        upload_seconds=upload_seconds(7.2e6, power[:, None], gains, bandwidth_hz=bandwidth_hz, noise_watts=noise),
        power_watts=power,
        max_frequency_hz=devices.max_frequency_hz,
        capacitance=2e-28,
        edge_rounds=4,
        cloud_seconds=np.zeros(3),
        cloud_joules=np.zeros(3),
        energy_weight=0.5,
        delay_weight=0.5,
    )
    return problem, world.cells.cell


@pytest.mark.parametrize("seed", [2, 3, 4, 33])
@pytest.mark.parametrize("radius_metres", [1000, 2000, 5000])
def test_it_is_the_optimum_wherever_clients_are(radius_metres, seed):
    problem, cells = far(radius_metres, seed)
    associations = np.array([cells, nearest(problem)])
    found = optimum(problem, associations)
    np.testing.assert_allclose(found.cost, [by_cvxpy(problem, own[np.newaxis])[0] for own in associations], rtol=2e-6)
    for edges, shares in zip(associations, found.bandwidth, strict=True):
        assert np.bincount(edges, weights=shares).max() <= 1 + 1e-9


def test_highest_frequencies_bind_in_some_of_these():
    bound = [
        np.isclose(optimum(problem, edges[np.newaxis]).frequency_hz[0], problem.max_frequency_hz).any()
        for problem, edges in ((instance(5, 3, s), np.random.default_rng(s).integers(0, 3, 5)) for s in range(5))
    ]
    assert 0 < sum(bound) < 5


def joules_of_sets(problem: Association, seconds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return, of shape (G, 2^N, K), the joules of each set of clients at each edge in rounds of these times.

    Also what a second more would save of them.
    """
    sets = np.indices((2,) * problem.clients).reshape(problem.clients, -1).T.astype(bool)
    shape = (len(seconds), len(sets), problem.edges)
    time, member, edge = (index.ravel() for index in np.indices(shape))
    inside = sets[member][:, :, np.newaxis] & (np.arange(problem.edges) == edge[:, np.newaxis])[:, np.newaxis]
    spare = (seconds[time] - problem.cloud_seconds[edge]) / problem.edge_rounds
    spare = np.repeat(spare[:, np.newaxis], problem.clients, axis=1)
    found = least_energy_in_time(problem, problem.upload_seconds[:, edge].T, inside, spare)
    spent = problem.edge_rounds * found.joules.sum(axis=1) + problem.cloud_joules[edge] * sets[member].any(axis=1)
    return np.where(np.isfinite(found.saved), spent, np.inf).reshape(shape), found.saved.reshape(shape)


def by_the_rounds_time(problem: Association) -> tuple[float, np.ndarray]:
    """Return a lower bound of the cost, and the best association of two edges found, with the time as a parameter.

    A set has an energy of its own only for a given time, so the sets' own optima are no columns. Energies are convex in
    the time: between two times none is below the tangents at both.
    """
    times, best, lower = np.geomspace(0.05, 50, 9), (np.inf, 0), 0.0
    while lower < best[0] * (1 - 1e-4):
        joules, saved = joules_of_sets(problem, times)
        # Of a set at one edge and its complement at the other.
        both, slope = (values[:, :, 1] + values[:, ::-1, 0] for values in (joules, saved))
        cost = problem.energy_weight * both + problem.delay_weight * times[:, np.newaxis]
        slope = problem.delay_weight - problem.energy_weight * slope
        best = min(best, (float(cost.min()), int(cost.argmin()) % cost.shape[1]))
        step = np.diff(times)[:, np.newaxis]
        bounds = least_between(cost[:-1], slope[:-1], cost[1:], slope[1:], step).min(axis=1)
        lower, open_ = float(bounds.min()), np.flatnonzero(bounds <= best[0])
        times = np.unique([np.linspace(times[i], times[i + 1], 5) for i in open_])
    sets = np.indices((2,) * problem.clients).reshape(problem.clients, -1).T
    return lower, sets[best[1]]


def least_between(
    first: np.ndarray, slope: np.ndarray, second: np.ndarray, later_slope: np.ndarray, step: np.ndarray
) -> np.ndarray:
    """Return the least that convex functions with these values and slopes at both ends of a step can have inside."""
    with np.errstate(invalid="ignore"):
        crossing = first + slope * (second - first - later_slope * step) / (slope - later_slope)
        crossing = np.where(np.isinf(first), second - later_slope * step, crossing)
    least = np.where(slope >= 0, first, np.where(later_slope <= 0, second, crossing))
    return np.where(np.isinf(second), np.inf, least)


@pytest.mark.parametrize("first", range(0, 100, 25))
def test_the_best_of_all_is_what_the_rounds_time_as_a_parameter_gives(first):
    for seed in range(first, first + 25):
        problem = instance(4, 2, seed)
        costs = optimum(problem, all_associations(4, 2)).cost
        lower, edges = by_the_rounds_time(problem)
        assert lower <= costs.min() * (1 + 1e-7)
        assert lower >= costs.min() * (1 - 1.1e-4)
        assert costs[int("".join(map(str, edges)), 2)] == pytest.approx(costs.min(), rel=1e-5)


@pytest.mark.parametrize("seed", range(5))
def test_the_best_of_all_is_that_of_convex_programs(seed):
    problem, everything = instance(4, 2, seed), all_associations(4, 2)
    costs, expected = optimum(problem, everything).cost, by_cvxpy(problem, everything)
    np.testing.assert_allclose(costs, expected, rtol=1e-6)
    assert costs.argmin() == expected.argmin()


def costs_of(problem: Association, edges: np.ndarray, share: np.ndarray, frequency: np.ndarray) -> np.ndarray:
    """Return the costs of associations with these bandwidths and frequencies, by the formulas of the docs' page."""
    upload = problem.upload_seconds[np.arange(problem.clients), edges] / share
    t = problem.cycles / frequency + upload
    e = problem.capacitance / 2 * problem.cycles * frequency**2 + problem.power_watts * upload
    costs = []
    for one in range(len(edges)):
        joules, seconds = 0.0, []
        for edge in set(edges[one].tolist()):
            own = edges[one] == edge
            joules += problem.edge_rounds * e[one, own].sum() + problem.cloud_joules[edge]
            seconds.append(problem.edge_rounds * t[one, own].max() + problem.cloud_seconds[edge])
        costs.append(problem.energy_weight * joules + problem.delay_weight * max(seconds))
    return np.array(costs)


def by_highs(problem: Association, share: float, frequency: np.ndarray) -> tuple[float, np.ndarray]:
    """Return the least cost with one bandwidth for all clients and given frequencies, and its association."""
    import cvxpy as cp

    upload = problem.upload_seconds / share
    t = (problem.cycles / frequency)[:, np.newaxis] + upload
    e = (problem.capacitance / 2 * problem.cycles * frequency**2)[:, np.newaxis]
    e = e + problem.power_watts[:, np.newaxis] * upload
    x, used = cp.Variable(t.shape, boolean=True), cp.Variable(problem.edges)
    seconds = cp.Variable()
    limits = [cp.sum(x, axis=1) == 1, used >= cp.max(x, axis=0)]
    limits += [seconds >= cp.multiply(problem.edge_rounds * t + problem.cloud_seconds, x)]
    joules = problem.edge_rounds * cp.sum(cp.multiply(e, x)) + problem.cloud_joules @ used
    program = cp.Problem(cp.Minimize(problem.energy_weight * joules + problem.delay_weight * seconds), limits)
    return float(program.solve(solver="HIGHS")), x.value.argmax(axis=1)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("clients", "edges"), [(4, 2), (5, 3)])
def test_with_bandwidth_and_frequencies_fixed_the_best_of_all_is_that_of_highs(clients, edges, seed):
    problem, everything = instance(clients, edges, seed), all_associations(clients, edges)
    share, frequency = 1 / clients, problem.max_frequency_hz
    fixed = costs_of(problem, everything, np.full(everything.shape, share), np.tile(frequency, (len(everything), 1)))
    cost, found = by_highs(problem, share, frequency)
    assert cost == pytest.approx(fixed.min(), rel=1e-6)
    assert found.tolist() == everything[fixed.argmin()].tolist()
    free = optimum(problem, everything)
    np.testing.assert_allclose(costs_of(problem, everything, free.bandwidth, free.frequency_hz), free.cost, rtol=1e-7)
    assert (free.cost <= fixed).all()  # the shares of all clients together are 1, so nobody has too much


@pytest.mark.parametrize("seed", range(4))
def test_with_the_best_time_highs_shares_clients_out_at_the_same_cost(seed):
    from scipy.optimize import Bounds, LinearConstraint, milp

    problem = instance(4, 3, seed)
    everything = optimum(problem, all_associations(4, 3))
    seconds = everything.seconds[everything.cost.argmin()]
    joules = joules_of_sets(problem, np.array([seconds * (1 + 1e-9)]))[0][0]
    allowed = np.isfinite(joules)
    sets = np.indices((2,) * 4).reshape(4, -1).T
    member, edge = np.nonzero(allowed)
    covers = LinearConstraint(sets[member].T, 1, 1)  # each client is in one set
    one_each = LinearConstraint((edge == np.arange(3)[:, np.newaxis]).astype(float), 1, 1)  # each edge has one set
    found = milp(joules[allowed], integrality=np.ones(len(edge)), bounds=Bounds(0, 1), constraints=[covers, one_each])
    cost = problem.energy_weight * found.fun + problem.delay_weight * seconds
    assert cost == pytest.approx(everything.cost.min(), rel=1e-6)


@pytest.mark.parametrize("seed", range(3))
def test_no_transfer_or_exchange_makes_the_cheapest_cheaper(seed):
    problem = instance(5, 3, seed)
    edges = cheapest(problem)
    cost = optimum(problem, np.array([edges, nearest(problem)])).cost
    assert cost[0] <= cost[1]
    others = [np.where(np.arange(5) == i, k, edges) for i in range(5) for k in range(3)]
    for i, j in combinations(range(5), 2):
        others.append(edges.copy())
        others[-1][[i, j]] = edges[[j, i]]
    assert optimum(problem, np.array(others)).cost.min() >= cost[0] * (1 - 1e-7)


@pytest.mark.parametrize(("clients", "edges"), [(5, 2), (6, 2), (6, 3), (5, 3), (6, 4), (2, 4)])
@pytest.mark.parametrize("seed", range(5))
def test_nearest_and_balanced_are_the_shortest_uploads(seed, clients, edges):
    problem = instance(clients, edges, seed)
    everything = all_associations(clients, edges)
    total = problem.upload_seconds[np.arange(clients), everything].sum(axis=1)
    assert nearest(problem).tolist() == everything[total.argmin()].tolist()
    sizes = np.array([np.bincount(one, minlength=edges) for one in everything])
    even = np.where(np.ptp(sizes, axis=1) <= 1, total, np.inf)
    assert balanced(problem).tolist() == everything[even.argmin()].tolist()


def test_a_client_and_an_edge_by_hand():
    # One client with an edge of its own: f minimises l_e I k/2 W f^2 + l_t I W / f, so f = (l_t / (l_e k))^(1/3).
    problem = Association(
        cycles=np.array([1e9]), upload_seconds=np.array([[0.5]]), power_watts=np.array([0.2]),
        max_frequency_hz=np.array([1e10]), capacitance=2e-28, edge_rounds=5, cloud_seconds=np.array([0.25]),
        cloud_joules=np.array([0.1]), energy_weight=0.5, delay_weight=0.1,
    )  # fmt: skip
    found, frequency = optimum(problem, np.array([[0]])), (0.1 / (0.5 * 2e-28)) ** (1 / 3)
    seconds = 5 * (1e9 / frequency + 0.5) + 0.25
    joules = 5 * (1e-28 * 1e9 * frequency**2 + 0.2 * 0.5) + 0.1
    assert found.frequency_hz[0, 0] == pytest.approx(frequency, rel=1e-6)
    assert found.seconds[0] == pytest.approx(seconds, rel=1e-6)
    assert found.cost[0] == pytest.approx(0.5 * joules + 0.1 * seconds, rel=1e-8)
