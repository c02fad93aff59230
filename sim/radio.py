"""The radio channel: 3GPP's urban macro model (TR 38.901, Section 7.4), and what an upload over it costs.

Small-scale fading is left out, as in the RawHFL paper (Section II-A): a link is path loss and log-normal shadowing.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

_LIGHT_METRES_PER_SECOND = 3e8  # as TR 38.901 has it
_ENVIRONMENT_HEIGHT_METRES = 1.0


@dataclass(frozen=True)
class Radio:
    """Parameters of the links between clients and base stations; the defaults are the RawHFL paper's.

    Parameters
    ----------
    carrier_hz : float (default: 2.4e9)
        Carrier frequency, from 0.5e9 to 100e9.
    station_height_metres : float (default: 25)
        Height of the base stations' antennas, more than 1. The model was fitted at 25.
    client_height_metres : float (default: 1.5)
        Height of the clients' antennas, from 1.5 to 13. Above, 3GPP's environment height is random and the chance of a
        line of sight depends on the height; neither is done here.
    bandwidth_hz : float (default: 540e3)
        Bandwidth of a client's resource block: 3 x 180 kHz.
    noise_figure_db : float (default: 0)
        Noise figure of the receiver.
    shadowing_los_db, shadowing_nlos_db : float (default: 4 and 6)
        Standard deviation of the shadowing with and without a line of sight.

    Raises
    ------
    ValueError
        If a value is not allowed.
    """

    carrier_hz: float = 2.4e9
    station_height_metres: float = 25.0
    client_height_metres: float = 1.5
    bandwidth_hz: float = 540e3
    noise_figure_db: float = 0.0
    shadowing_los_db: float = 4.0
    shadowing_nlos_db: float = 6.0

    def __post_init__(self) -> None:
        if not 0.5e9 <= self.carrier_hz <= 100e9:
            raise ValueError(f"carrier_hz = {self.carrier_hz}: must be from 0.5e9 to 100e9")
        if not 1 < self.station_height_metres < np.inf:
            raise ValueError(f"station_height_metres = {self.station_height_metres}: must be a finite number > 1")
        if not 1.5 <= self.client_height_metres <= 13:
            raise ValueError(f"client_height_metres = {self.client_height_metres}: must be from 1.5 to 13")
        if not 0 < self.bandwidth_hz < np.inf:
            raise ValueError(f"bandwidth_hz = {self.bandwidth_hz}: must be a finite number > 0")
        if not np.isfinite(self.noise_figure_db):
            raise ValueError(f"noise_figure_db = {self.noise_figure_db}: must be a finite number")
        for name in ("shadowing_los_db", "shadowing_nlos_db"):
            if not 0 <= getattr(self, name) < np.inf:
                raise ValueError(f"{name} = {getattr(self, name)}: must be a finite number >= 0")

    @property
    def noise_watts(self) -> float:
        """The noise power in a resource block."""
        return noise_watts(self.bandwidth_hz, self.noise_figure_db)

    @property
    def breakpoint_metres(self) -> float:
        """Distance d'_BP from which the loss along a line of sight grows with the fourth power."""
        heights = (self.station_height_metres - _ENVIRONMENT_HEIGHT_METRES) * (
            self.client_height_metres - _ENVIRONMENT_HEIGHT_METRES
        )
        return 4 * heights * self.carrier_hz / _LIGHT_METRES_PER_SECOND


def watts_from_dbm(power_dbm: ArrayLike) -> np.ndarray:
    """Return a power in watts; 30 dBm are 1 W."""
    return 10 ** ((np.asarray(power_dbm) - 30) / 10)


def noise_watts(bandwidth_hz: float, noise_figure_db: float = 0.0) -> float:
    """Return the thermal noise power, -174 dBm per hertz and the receiver's noise figure (default: 0 dB)."""
    return float(watts_from_dbm(-174 + noise_figure_db)) * bandwidth_hz


def los_probability(distance_metres: ArrayLike) -> np.ndarray:
    """Return the probability of a line of sight at a distance on the ground (TR 38.901, Table 7.4.2-1, UMa)."""
    distance = np.maximum(distance_metres, 18.0)
    return 18 / distance + np.exp(-distance / 63) * (1 - 18 / distance)


def path_loss_los_db(distance_metres: ArrayLike, radio: Radio) -> np.ndarray:
    """Return the path loss along a line of sight (TR 38.901, Table 7.4.1-1, UMa LOS).

    Parameters
    ----------
    distance_metres : ArrayLike
        Distances on the ground; the model is meant for 10 m to 5 km.
    radio : Radio
        Carrier and antenna heights.
    """
    distance = np.asarray(distance_metres)
    log_distance_3d = np.log10(_distance_3d_metres(distance, radio))
    height_difference = radio.station_height_metres - radio.client_height_metres
    near = 22 * log_distance_3d
    far = 40 * log_distance_3d - 9 * np.log10(radio.breakpoint_metres**2 + height_difference**2)
    return 28 + 20 * np.log10(radio.carrier_hz / 1e9) + np.where(distance <= radio.breakpoint_metres, near, far)


def path_loss_nlos_db(distance_metres: ArrayLike, radio: Radio) -> np.ndarray:
    """Return the path loss without a line of sight, never below that with one (TR 38.901, Table 7.4.1-1, UMa NLOS).

    Parameters
    ----------
    distance_metres : ArrayLike
        Distances on the ground; the model is meant for 10 m to 5 km.
    radio : Radio
        Carrier and antenna heights.
    """
    blocked = (
        13.54
        + 39.08 * np.log10(_distance_3d_metres(distance_metres, radio))
        + 20 * np.log10(radio.carrier_hz / 1e9)
        - 0.6 * (radio.client_height_metres - 1.5)
    )
    return np.maximum(path_loss_los_db(distance_metres, radio), blocked)


def mean_path_loss_db(distance_metres: ArrayLike, radio: Radio) -> np.ndarray:
    """Return the mean over lines of sight and shadowing of what a link at a distance on the ground loses, in dB."""
    los = los_probability(distance_metres)
    return los * path_loss_los_db(distance_metres, radio) + (1 - los) * path_loss_nlos_db(distance_metres, radio)


def draw_gains(
    distance_metres: np.ndarray,
    radio: Radio,
    *,
    los_rng: np.random.Generator,
    shadowing_rng: np.random.Generator,
) -> np.ndarray:
    """Draw each link's line of sight and shadowing and return its gain: received over transmitted power.

    Parameters
    ----------
    distance_metres : np.ndarray
        ``(U,)``: distances on the ground.
    radio : Radio
        Carrier, antenna heights and shadowing.
    los_rng, shadowing_rng : np.random.Generator
        Give one number for each link and quantity. Two, so that the draws of a link depend neither on how many
        links follow it nor on the parameters.

    Returns
    -------
    np.ndarray
        ``(U,)``: linear power gains.
    """
    los = los_rng.random(len(distance_metres)) < los_probability(distance_metres)
    path_loss_db = np.where(los, path_loss_los_db(distance_metres, radio), path_loss_nlos_db(distance_metres, radio))
    sigma_db = np.where(los, radio.shadowing_los_db, radio.shadowing_nlos_db)
    shadowing_db = sigma_db * shadowing_rng.standard_normal(len(distance_metres))
    return 10 ** (-(path_loss_db + shadowing_db) / 10)


def rate_bits_per_second(
    power_watts: ArrayLike, gains: ArrayLike, *, bandwidth_hz: float, noise_watts: float
) -> np.ndarray:
    """Return the rate of a link, its capacity (RawHFL paper, eqs. 12 and 13).

    Parameters
    ----------
    power_watts : ArrayLike
        Transmit powers, not negative.
    gains : ArrayLike
        Linear power gains, positive.
    bandwidth_hz : float
        Bandwidth of a link.
    noise_watts : float
        Noise power in that bandwidth.
    """
    # log1p keeps its digits where the signal is far below the noise.
    return bandwidth_hz / np.log(2) * np.log1p(np.multiply(gains, power_watts) / noise_watts)


def upload_seconds(
    bits: ArrayLike, power_watts: ArrayLike, gains: ArrayLike, *, bandwidth_hz: float, noise_watts: float
) -> np.ndarray:
    """Return the time of an upload (RawHFL paper, eq. 12): 0 for no bits, infinite for bits without power.

    Parameters
    ----------
    bits : ArrayLike
        Sizes of the uploads, not negative.
    power_watts, gains : ArrayLike
        As in `rate_bits_per_second`.
    bandwidth_hz, noise_watts : float
        As in `rate_bits_per_second`.
    """
    rate = rate_bits_per_second(power_watts, gains, bandwidth_hz=bandwidth_hz, noise_watts=noise_watts)
    bits, rate = np.broadcast_arrays(np.asarray(bits, dtype=float), rate)
    return np.divide(bits, rate, out=np.where(bits > 0, np.inf, 0.0), where=rate > 0)


def upload_joules(power_watts: ArrayLike, seconds: ArrayLike) -> np.ndarray:
    """Return the energy of transmitting for some time (RawHFL paper, eq. 14): 0 without power, however long."""
    return np.multiply(power_watts, np.where(np.asarray(power_watts) > 0, seconds, 0.0))


def _distance_3d_metres(distance_metres: ArrayLike, radio: Radio) -> np.ndarray:
    return np.hypot(distance_metres, radio.station_height_metres - radio.client_height_metres)
