"""Epsilon is the library's, and noise that is found keeps within a budget."""

import math

import pytest

from espalier.app.features.privacy.accounting import ORDERS, PRECISION, epsilon_of, noise_within
from espalier.app.features.privacy.releases import Release

DELTA = 1e-5


@pytest.fixture(scope="module")
def dp():
    """The library, whose import takes seconds."""
    import dp_accounting

    return dp_accounting


def composed(dp, relation, *events, orders=ORDERS):
    accountant = dp.rdp.RdpAccountant(orders, dp.NeighboringRelation[relation])
    for event, count in events:
        accountant.compose(event, count)
    return accountant.get_epsilon(DELTA)


@pytest.mark.parametrize(("noise", "count"), [(0.5, 1), (2.0, 10), (9.0, 200)])
def test_of_everybody_it_is_that_of_the_exact_gaussian(dp, noise, count):
    """Another update moves the sum by up to twice the longest; many releases are one of less noise."""
    found = epsilon_of({Release(noise): count}, DELTA)
    assert found == pytest.approx(dp.get_epsilon_gaussian(noise / 2 / math.sqrt(count), DELTA), abs=1e-6)
    # Which doubles how far the sum moves by itself.
    accountant = dp.pld.PLDAccountant(dp.NeighboringRelation.REPLACE_ONE, 1e-3)
    accountant.compose(dp.GaussianDpEvent(noise), count)
    assert found == pytest.approx(accountant.get_epsilon(DELTA), rel=2e-3)


def test_of_a_fixed_number_it_is_that_of_samples_without_replacement(dp):
    releases = {Release(4.0, 5, 100): 30, Release(6.0, 10, 90): 5, Release(30.0): 2}
    sample, gaussian = dp.SampledWithoutReplacementDpEvent, dp.GaussianDpEvent
    events = [(sample(100, 5, gaussian(2.0)), 30), (sample(90, 10, gaussian(3.0)), 5), (gaussian(15.0), 2)]
    assert epsilon_of(releases, DELTA) == pytest.approx(composed(dp, "REPLACE_ONE", *events), abs=1e-6)


@pytest.mark.parametrize(("noise", "share"), [(1.0, 0.01), (0.8, 0.05), (2.0, 0.3)])
def test_of_poisson_samples_it_is_that_of_dp_sgd(dp, noise, share):
    found = epsilon_of({Release(noise, round(share * 1000), 1000, poisson=True): 100}, DELTA)
    event = dp.PoissonSampledDpEvent(share, dp.GaussianDpEvent(noise))
    assert found == pytest.approx(composed(dp, "REPLACE_SPECIAL", (event, 100)), abs=1e-6)
    assert found >= composed(dp, "REPLACE_SPECIAL", (event, 100), orders=None) * 0.999
    assert found <= composed(dp, "REPLACE_SPECIAL", (event, 100), orders=None) * 1.06


def test_a_sample_is_never_worth_less_than_nothing():
    """The bound of samples without replacement can be above that of everybody; the lower of the two holds."""
    everybody = epsilon_of({Release(8.0, 100, 100): 20}, DELTA)
    assert [epsilon_of({Release(8.0, asked, 100): 20}, DELTA) <= everybody for asked in (1, 50, 99)] == [True] * 3
    assert epsilon_of({Release(8.0, 99, 100): 20}, DELTA) == everybody


def test_none_is_nothing_and_no_noise_is_infinite():
    assert epsilon_of({}, DELTA) == epsilon_of({Release(0.0): 0}, DELTA) == 0.0
    assert epsilon_of({Release(0.0): 1, Release(5.0): 3}, DELTA) == math.inf


@pytest.mark.parametrize("epsilon", [0.5, 8.0])
@pytest.mark.parametrize("one", [Release(0.0), Release(0.0, 2, 10), Release(0.0, 32, 1000, poisson=True)])
def test_the_noise_that_is_found_is_the_least_within_the_budget(epsilon, one):
    noise = noise_within(epsilon, DELTA, one, 20)

    def spent(multiplier):
        return epsilon_of({Release(multiplier, one.asked, one.of, one.poisson): 20}, DELTA)

    assert spent(noise) <= epsilon < spent(noise * (1 - 2 * PRECISION))


def test_where_no_noise_is_enough_that_is_said():
    with pytest.raises(ValueError, match="no noise multiplier up to 1e"):
        noise_within(1e-9, 1e-12, Release(0.0), 10**6)
