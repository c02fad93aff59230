"""The cost model against values worked out by hand."""

import numpy as np
import pytest

from espalier.strategies.allocation import Problem, costs


def test_costs_by_hand():
    assert costs.compute_seconds(cycles=3e9, frequency_hz=1.5e9) == 2
    assert costs.compute_joules(cycles=3e9, frequency_hz=1.5e9, capacitance=2e-28) == pytest.approx(0.675)
    # An SNR of 7 gives 3 bits per second and hertz.
    channel = {"power_watts": 0.7, "gain": 1e-12, "noise_watts": 1e-13, "bandwidth_hz": 1e6}
    assert costs.rate_bits_per_second(**channel) == pytest.approx(3e6)
    assert costs.upload_seconds(bits=6e6, **channel) == pytest.approx(2)
    assert costs.upload_joules(power_watts=0.7, upload_seconds=2.0) == pytest.approx(1.4)


def test_costs_of_clients_with_options_by_hand():
    problem = Problem(
        gain=[1e-12, 3e-12], max_frequency_hz=2e9, max_power_watts=1.0, energy_budget_joules=1.0,
        cycles_per_local_round=[[1e8, 2e8], [3e8, 4e8]], payload_bits=[[6e6, 9e6]],
        payload_bits_per_local_round=[[1e6, 5e5]], idle_seconds=[[0.5, 0.25]], idle_seconds_per_local_round=0.125,
        clients_per_cell=1, deadline_seconds=9.0, max_local_rounds=9, bandwidth_hz=1e6, noise_watts=1e-13,
        capacitance=2e-28, theta=0.5,
    )  # fmt: skip
    spent = costs.client_costs(
        problem, np.array([0, 1]), np.array([1, 0]), np.array([2, 4]), np.array([1e9, 2e9]), np.array([0.7, 0.1])
    )
    assert spent["compute_seconds"] == pytest.approx([0.4, 0.6])
    assert spent["upload_seconds"] == pytest.approx([10e6 / 3e6, 10e6 / 2e6])
    assert spent["idle_seconds"] == pytest.approx([0.5, 1.0])
    assert spent["compute_joules"] == pytest.approx([0.04, 0.48])
    assert spent["upload_joules"] == pytest.approx([7 / 3, 0.5])
