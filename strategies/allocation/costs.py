"""What computing and uploading cost in time and energy (RawHFL, eq. 10, 11, 12 and 14). All functions broadcast."""

import numpy as np

from .problem import Problem


def compute_seconds(*, cycles: np.ndarray, frequency_hz: np.ndarray) -> np.ndarray:
    """Return the time of `cycles` CPU cycles (eq. 10)."""
    return cycles / frequency_hz


def compute_joules(*, cycles: np.ndarray, frequency_hz: np.ndarray, capacitance: float) -> np.ndarray:
    """Return the energy of `cycles` CPU cycles (eq. 11 with the cycles of eq. 10)."""
    return capacitance / 2 * cycles * frequency_hz**2


def rate_bits_per_second(
    *, power_watts: np.ndarray, gain: np.ndarray, noise_watts: float, bandwidth_hz: float
) -> np.ndarray:
    """Return the rate of the uplink, ``w log2(1 + g P / N)``."""
    return bandwidth_hz * np.log1p(gain * power_watts / noise_watts) / np.log(2)


def upload_seconds(
    *, bits: np.ndarray, power_watts: np.ndarray, gain: np.ndarray, noise_watts: float, bandwidth_hz: float
) -> np.ndarray:
    """Return the time to upload `bits` at a transmit power above 0 (eq. 12)."""
    return bits / rate_bits_per_second(
        power_watts=power_watts, gain=gain, noise_watts=noise_watts, bandwidth_hz=bandwidth_hz
    )


def upload_joules(*, power_watts: np.ndarray, upload_seconds: np.ndarray) -> np.ndarray:
    """Return the energy of an upload of `upload_seconds` (eq. 14)."""
    return power_watts * upload_seconds


def client_costs(
    problem: Problem,
    client: np.ndarray,
    option: np.ndarray,
    local_rounds: np.ndarray,
    frequency_hz: np.ndarray,
    power_watts: np.ndarray,
) -> dict[str, np.ndarray]:
    """Return the times and energies of clients by the cost model; all arguments broadcast.

    Returns
    -------
    dict[str, np.ndarray]
        ``compute_seconds``, ``upload_seconds``, ``idle_seconds``, ``compute_joules`` and ``upload_joules``.
    """
    cycles = local_rounds * problem.cycles_per_local_round[client, option]
    uploading = upload_seconds(
        bits=problem.payload_bits[client, option] + local_rounds * problem.payload_bits_per_local_round[client, option],
        power_watts=power_watts,
        gain=problem.gain[client],
        noise_watts=problem.noise_watts,
        bandwidth_hz=problem.bandwidth_hz,
    )
    return {
        "compute_seconds": compute_seconds(cycles=cycles, frequency_hz=frequency_hz),
        "upload_seconds": uploading,
        "idle_seconds": problem.idle_seconds[client, option]
        + local_rounds * problem.idle_seconds_per_local_round[client, option],
        "compute_joules": compute_joules(cycles=cycles, frequency_hz=frequency_hz, capacitance=problem.capacitance),
        "upload_joules": upload_joules(power_watts=power_watts, upload_seconds=uploading),
    }
