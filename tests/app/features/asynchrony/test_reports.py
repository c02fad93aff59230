"""What is reported of asynchronous tiers, by hand."""

import pytest

from espalier.app.features.asynchrony.reports import asynchronous_summary


def test_idle_shares_are_means_over_the_rounds_that_have_one():
    shares = [(10.0, {"edges": 0.5, "clients": 0.2}), (40.0, {"edges": 0.1}), (40.0, {}), (50.0, {"clients": 0.6})]
    rounds = [
        {"simulated_seconds": end, "async": {"staleness": {"0": 1}, "too_old": 0, "idle_share": share}}
        for end, share in shares
    ]
    idle = asynchronous_summary(rounds)["async"]["idle_share"]
    assert idle == {"edges": pytest.approx((5 + 3) / 40), "clients": pytest.approx((2 + 6) / 20)}
