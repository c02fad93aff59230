"""The least energy with which a client can compute and upload in a given time."""

from dataclasses import dataclass

import numpy as np

# Below this y the closed form of h(y) / (y^2 e^y) loses digits to cancellation and its series is exact.
SERIES_BELOW = 0.03
# Newton's error after a step is of the order of the step's square.
LAST_STEP = 1e-9
# The bracket alone, halved, would be narrow enough after these.
MOST_STEPS = 100
# Who needs the whole of a limit, but for rounding, is within it.
ENOUGH = 1 + 4e-12


@dataclass(frozen=True, eq=False)
class OperatingPoint:
    """CPU frequency and transmit power, with the times and the energy they mean. All arrays have one shape.

    Attributes
    ----------
    frequency_hz, power_watts, compute_seconds, upload_seconds : np.ndarray
        0 where the time does not suffice.
    joules : np.ndarray
        Energy of computing and uploading; infinite where the time does not suffice.
    """

    frequency_hz: np.ndarray
    power_watts: np.ndarray
    compute_seconds: np.ndarray
    upload_seconds: np.ndarray
    joules: np.ndarray


def best_operating_point(
    *,
    cycles: np.ndarray,
    bits: np.ndarray,
    seconds: np.ndarray,
    gain: np.ndarray,
    noise_watts: float,
    bandwidth_hz: float,
    capacitance: float,
    max_frequency_hz: np.ndarray,
    max_power_watts: np.ndarray,
    min_frequency_hz: np.ndarray | float = 0.0,
) -> OperatingPoint:
    """Return the CPU frequency and transmit power that compute and upload within `seconds` with the least energy.

    Computing for t of the T seconds takes ``zeta/2 cycles^3 / t^2`` joules, uploading in the other ``tau = T - t``
    takes ``tau N/g expm1(bits ln2 / (w tau))``. Both are convex and decreasing, so the best t is where the sum's
    derivative changes its sign, or an end of the interval that the limits leave. Newton's method, safeguarded by
    bisection, finds it in ``ln(t / tau)``, which keeps full precision where either share is tiny.

    Parameters
    ----------
    cycles : np.ndarray
        CPU cycles to compute; infinite where it is impossible.
    bits : np.ndarray
        Bits to upload.
    seconds : np.ndarray
        Time for both together. Not positive: does not suffice.
    gain : np.ndarray
        Channel power gain, linear.
    noise_watts, bandwidth_hz : float
        Of the channel.
    capacitance : float
        zeta: computing takes ``capacitance / 2 * frequency_hz**2`` joules a cycle.
    max_frequency_hz, max_power_watts : np.ndarray
        Limits of the device.
    min_frequency_hz : np.ndarray (default: 0.0)
        Lowest CPU frequency. Where it binds, the upload takes the rest of the time.

    Returns
    -------
    OperatingPoint
        Of the shape that all arguments broadcast to.
    """
    given = (cycles, bits, seconds, gain, max_frequency_hz, max_power_watts, min_frequency_hz)
    cycles, bits, seconds, gain, max_frequency_hz, max_power_watts, min_frequency_hz = np.broadcast_arrays(
        *map(np.asarray, given)
    )
    nats_seconds = bits * (np.log(2) / bandwidth_hz)
    ln_noise_per_gain = np.log(noise_watts) - np.log(gain)
    least_compute = cycles / max_frequency_hz
    # log(1 + snr) that no extreme gain can overflow.
    least_upload = nats_seconds / np.logaddexp(0, np.log(max_power_watts) - ln_noise_per_gain)
    enough = least_compute + least_upload <= seconds * ENOUGH

    a, k, total, ln_n = cycles[enough], nats_seconds[enough], seconds[enough], ln_noise_per_gain[enough]
    first, least, slowest = least_compute[enough], least_upload[enough], min_frequency_hz[enough]
    last = np.maximum(total - least, first)
    last = np.minimum(last, np.divide(a, slowest, out=np.full(a.shape, np.inf), where=slowest > 0))
    compute_share, upload_share = _best_shares(
        ln_scale=np.log(capacitance) + 3 * np.log(a) - ln_n,
        nats_seconds=k,
        seconds=total,
        lowest=np.log(first / np.maximum(total - first, least)),
        highest=np.log(last / np.maximum(total - last, least)),
    )
    compute, upload = total * compute_share, total * upload_share
    frequency = np.clip(a / compute, slowest, max_frequency_hz[enough])
    y = k / upload
    power = np.minimum(np.exp(ln_n + y) * -np.expm1(-y), max_power_watts[enough])
    joules = capacitance / 2 * a * frequency**2 + power * upload

    def filled(values: np.ndarray, otherwise: float) -> np.ndarray:
        whole = np.full(enough.shape, otherwise)
        whole[enough] = values
        return whole

    frequency, power, compute, upload = (filled(values, 0.0) for values in (frequency, power, compute, upload))
    return OperatingPoint(frequency, power, compute, upload, filled(joules, np.inf))


def _best_shares(
    *, ln_scale: np.ndarray, nats_seconds: np.ndarray, seconds: np.ndarray, lowest: np.ndarray, highest: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return t/T and tau/T at the root of the derivative between ``ln(t/tau) = lowest`` and `highest`, or at an end."""
    k_per_total = nats_seconds / seconds
    ln_scale = ln_scale - 3 * np.log(seconds)

    def shares(u: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        # With exp(-|u|), neither overflow nor cancellation.
        e = np.exp(-np.abs(u))
        larger = 1 / (1 + e)
        smaller = e * larger
        return np.where(u >= 0, larger, smaller), np.where(u >= 0, smaller, larger)

    def derivative(u: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        t, tau = shares(u)
        y = k_per_total / tau
        ratio = _h_ratio(y)
        return ln_scale - 3 * np.log(t) - (y + 2 * np.log(y) + np.log(ratio)), -(3 * tau + t / ratio)

    at_lowest, at_highest = derivative(lowest)[0], derivative(highest)[0]
    highest = np.where(at_lowest <= 0, lowest, highest)
    lowest = np.where(at_highest >= 0, highest, lowest)
    u = np.clip(0.0, lowest, highest)
    moving = np.full(u.shape, True)
    for _ in range(MOST_STEPS):
        value, slope = derivative(u)
        lowest, highest = np.where(value > 0, u, lowest), np.where(value > 0, highest, u)
        newton = u - value / slope
        stepped = np.where((newton >= lowest) & (newton <= highest), newton, (lowest + highest) / 2)
        # Who has arrived stays: the result must not depend on how long the others take.
        u, moving = np.where(moving, stepped, u), moving & (np.abs(stepped - u) > LAST_STEP)
        if not moving.any():
            break
    return shares(u)


def _h_ratio(y: np.ndarray) -> np.ndarray:
    """Return ``h(y) / (y^2 e^y)`` where ``h(y) = (y - 1) e^y + 1``: 1/2 at 0, about 1/y for large y."""
    small = y < SERIES_BELOW
    if not small.any():
        return (y + np.expm1(-y)) / y**2
    large = np.where(small, 1.0, y)
    s = np.where(small, y, 0.0)
    series = 1 / 2 - s * (1 / 6 - s * (1 / 24 - s * (1 / 120 - s * (1 / 720 - s * (1 / 5040 - s / 40320)))))
    return np.where(small, series, (large + np.expm1(-large)) / large**2)
