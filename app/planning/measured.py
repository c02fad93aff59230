"""What plans are made for on real devices: the limits and speeds that clients have measured, not a simulated world."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from espalier.app.ground.errors import UserError, bad_value
from espalier.app.planning.limits import limits_of
from espalier.app.planning.plan_reports import end_energy_round, falls_short, report_of, rows_of
from espalier.app.planning.rule import PlanRule
from espalier.app.planning.work import Work
from espalier.app.planning.world import PlannedWorld
from espalier.app.settings.sections import Plans
from espalier.clients.messages.profile import key_of
from espalier.sim.radio import Radio, noise_watts
from espalier.strategies import DeviceProfile, Profile
from espalier.strategies.allocation import Plan, Problem

RADIO_HZ = Radio().bandwidth_hz
# A radio that sends more bits per second and hertz is rare, and the power for it grows exponentially.
MOST_BITS_PER_SECOND_PER_HZ = 6.0
LEARNED = 0.5  # share of what a result that was faster than planned shows, in the estimate after it
FORGOTTEN = 0.1  # share of what was learned that is forgotten in a round without the client
LEAST_SLOWNESS, MOST_SLOWNESS = 0.1, 1000.0
NEEDED = ("max_frequency_hz", "link_bits_per_second", "max_power_watts", "capacitance", "cycles_per_example")


class MeasuredWorld(PlannedWorld):
    """Cells with their clients' devices as these have measured themselves.

    Nothing is simulated, and the joules are those of the plans. With a clock the deadline is kept in real time, and how
    long clients take is learned as a client's *slowness*, by which its computing and its link are slower than measured.
    A result shows ``s t / t_expected``, with the s of its plan: the slowness becomes that where it is more, and goes
    half of the way to it where it is less; what is expected is the plan's computing, and sending at the highest power.
    It doubles when a result is late, until any result of the client comes, which counts as if it had not doubled. In a
    round without the client it goes a tenth of the way to 1.

    Parameters
    ----------
    cell_of : Mapping[int, int]
        Cell by client number.
    profiles : Sequence[Profile]
        The clients', measured.
    plan, rule, seed, topology, client_of, work, num_examples, clock, is_there
        As for `PlannedWorld`; the examples are in the profiles' order.

    Raises
    ------
    UserError
        If a profile lacks something, or holds what no plan can be made for.
    """

    def __init__(
        self,
        plan: Plans,
        rule: PlanRule,
        seed: int,
        topology: Mapping[str, Sequence[int]],
        client_of: Mapping[int, int],
        cell_of: Mapping[int, int],
        work: Work,
        profiles: Sequence[Profile],
        num_examples: Sequence[int],
        clock: Callable[[], float] | None = None,
        is_there: Callable[[int, int], bool] | None = None,
    ) -> None:
        self._devices = devices = checked_devices(plan, profiles)
        self._row_of = {profile.partition_id: row for row, profile in enumerate(profiles)}
        cells = np.array([cell_of[client] for client in self._row_of])
        super().__init__(plan, rule, seed, topology, client_of, cells, work, num_examples, clock, is_there)
        self._edge_of = {client_of[n]: edge for edge, members in topology.items() for n in members}
        self._max_power_watts = np.array([device.max_power_watts for device in devices])
        self._rates = np.array([device.link_bits_per_second for device in devices])
        self._bandwidth_hz = bandwidth_hz(self._rates)
        self._slowness = np.ones(len(devices))
        self._doubted: dict[int, float] = {}
        examples = np.array(num_examples, dtype=np.float64)[:, np.newaxis]
        self._cycles = examples * np.array([[device.cycles_per_example] for device in devices]) * work.share

    @property
    def everybody(self) -> np.ndarray:
        """Numbers of the clients in all cells."""
        return np.array(list(self._row_of))

    def problem(self, server_round: int, clients: np.ndarray, previous: np.ndarray | None, seed: int) -> Problem:
        """Return the problem of some clients, as slow as they have shown to be."""
        rows = self._rows(clients)
        slowness = self._slowness[rows]
        gain = link_gain(self._rates[rows] / slowness, self._max_power_watts[rows], self._bandwidth_hz)
        devices = [self._devices[row] for row in rows]
        return Problem(
            **limits_of(self._plan, self._cell[rows], previous, self._cell),
            gain=gain,
            max_frequency_hz=np.array([device.max_frequency_hz for device in devices]),
            max_power_watts=self._max_power_watts[rows],
            energy_budget_joules=np.array([device.energy_budget_joules for device in devices]),
            capacitance=devices[0].capacitance,
            cycles_per_local_round=self._cycles[rows] * slowness[:, np.newaxis],
            **{name: values[rows] for name, values in self._traffic.items()},
            cell=self._cell[rows],
            previous=previous,
            bandwidth_hz=self._bandwidth_hz,
            noise_watts=noise_watts(self._bandwidth_hz),
            min_frequency_hz=np.array(
                [max(self._plan.min_frequency_hz, device.min_frequency_hz) for device in devices]
            ),
            seed=seed,
        )

    def carry_out(self, edge: str, server_round: int, clients: np.ndarray, plan: Plan) -> dict[str, Any]:
        """Take note of a plan and return what is to be reported of it; its times and joules are as planned."""
        idle = self._rows(clients[~plan.selected])
        self._slowness[idle] += FORGOTTEN * (1 - self._slowness[idle])
        report, who = report_of(clients, plan), np.flatnonzero(plan.selected)
        compute_joules, upload_joules = plan.compute_joules[who], plan.upload_joules[who]
        report |= {
            "late": [],
            "compute_joules": compute_joules.tolist(),
            "upload_joules": upload_joules.tolist(),
            "seconds": float(plan.seconds[who].max(initial=0.0)),
            "short": falls_short(self._plan, self.rule, self._cell[self._rows(clients)], plan),
        }
        self.add_report(edge, report)
        return report

    def slowness(self, clients: np.ndarray) -> np.ndarray:
        """Return how slow plans take clients to be."""
        return self._slowness[self._rows(clients)]

    def took(self, client: int, expected_seconds: float, seconds: float) -> None:
        """Learn how slow a client is from how long it took."""
        row = self._row_of[client]
        before, shown = self._doubted.pop(client, self._slowness[row]), seconds / expected_seconds
        slowness = shown if shown > before else before + LEARNED * (shown - before)
        self._slowness[row] = np.clip(slowness, LEAST_SLOWNESS, MOST_SLOWNESS)

    def was_late(self, client: int) -> None:
        """Take a client for twice as slow, until its result shows how slow it is."""
        row = self._row_of[client]
        self._doubted.setdefault(client, float(self._slowness[row]))
        self._slowness[row] = min(2 * self._slowness[row], MOST_SLOWNESS)

    def state_dict(self) -> dict[str, Any]:
        """Return what must survive an interruption, and how slow clients are among it."""
        slowness = {client: float(self._slowness[row]) for client, row in self._row_of.items()}
        return {**super().state_dict(), "slowness": slowness, "doubted": dict(self._doubted)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what `state_dict` returned."""
        super().load_state_dict(state)
        slowness = state.get("slowness", {})  # older files have none
        self._slowness = np.array([slowness.get(client, 1.0) for client in self._row_of])
        self._doubted = dict(state.get("doubted", {}))

    def end_round(self) -> dict[str, Any]:
        """Close a global round and return its planned joules."""
        return {"energy_joules": end_energy_round(self.energy)}

    def describe(self) -> dict[str, Any]:
        """Return what the clients measured of themselves, as plain data.

        Returns
        -------
        dict
            ``resources`` is ``"measured"``; ``bandwidth_hz`` of the radio that stands for all links; ``clients`` in the
            order of their numbers, an energy budget without limit as None.
        """
        names = [field for field in DeviceProfile.__dataclass_fields__ if field != "energy_budget_joules"]
        columns = {name: np.array([getattr(device, name) for device in self._devices]) for name in names}
        gain = link_gain(self._rates, self._max_power_watts, self._bandwidth_hz)
        rows = rows_of({"client": self.everybody, "cell": self._cell, "gain": gain, **columns})
        for row, device in zip(rows, self._devices, strict=True):
            budget = device.energy_budget_joules
            row |= {"edge": self._edge_of[row["client"]], "energy_budget_joules": budget if budget < math.inf else None}
        return {"resources": "measured", "bandwidth_hz": self._bandwidth_hz, "clients": rows}

    def _rows(self, clients: np.ndarray) -> np.ndarray:
        return np.array([self._row_of[client] for client in clients.tolist()], dtype=int)


def bandwidth_hz(bits_per_second: np.ndarray) -> float:
    """Return the bandwidth of the radio that stands for all links: the simulated one's, or more for faster links.

    So much more that no link needs more than 6 bits per second and hertz, ``max(540 kHz, max(R) / 6)``.
    """
    return max(RADIO_HZ, float(np.max(bits_per_second)) / MOST_BITS_PER_SECOND_PER_HZ)


def link_gain(bits_per_second: np.ndarray, max_power_watts: np.ndarray, bandwidth_hz: float) -> np.ndarray:
    """Return the channel gains with which links at the highest power have the rates that were measured.

    The cost model's rate is ``R = w log2(1 + g P / N)``, so ``g = N / P_max (2^(R/w) - 1)`` with the thermal noise N of
    the bandwidth w. Less power than P_max then means a lower rate, as over that channel.

    Parameters
    ----------
    bits_per_second : np.ndarray
        Shape (U,): measured rates R, above 0.
    max_power_watts : np.ndarray
        Shape (U,): P_max.
    bandwidth_hz : float
        w, see `bandwidth_hz`.

    Returns
    -------
    np.ndarray
        Shape (U,), linear.
    """
    # expm1 keeps the digits of a rate that is tiny beside the bandwidth.
    snr = np.expm1(bits_per_second * (math.log(2) / bandwidth_hz))
    return noise_watts(bandwidth_hz) / max_power_watts * snr


def checked_devices(plan: Plans, profiles: Sequence[Profile]) -> list[DeviceProfile]:
    """Return the clients' devices.

    Raises
    ------
    UserError
        One line that names the client, and the key of its node's config to set, for the first client whose device has
        not told something, or something that no plan can be made for.
    """
    devices = [_checked(profile) for profile in profiles]
    for profile, device in zip(profiles, devices, strict=True):
        if device.capacitance != devices[0].capacitance:
            # The optimizer has one for all clients.
            allowed = f"{devices[0].capacitance:g} as on client {profiles[0].partition_id}: all must have the same"
            raise UserError(
                f"client {profile.partition_id}: capacitance = {device.capacitance:g}: allowed is {allowed}"
            )
        if plan.min_frequency_hz > device.max_frequency_hz:
            allowed = f"at most {device.max_frequency_hz:g}, the highest of client {profile.partition_id}"
            raise bad_value("plan.min-frequency-hz", plan.min_frequency_hz, allowed)
    return devices


def _checked(profile: Profile) -> DeviceProfile:
    device, client = profile.device, f"client {profile.partition_id}"
    if device is None:
        raise UserError(f"{client} sent no measurements: plan.resources = 'measured' needs a ClientApp that measures")
    for field in NEEDED:
        key, value = key_of(field), getattr(device, field)
        if value == 0:
            why = "no training examples" if field == "cycles_per_example" else f"set {key} in the config of its node"
            raise UserError(f"{client}: {key} is unknown: {why} (partition-id={profile.partition_id})")
        if not 0 < value < math.inf:
            raise UserError(f"{client}: {key} = {value}: allowed is a finite number above 0")
    if not device.energy_budget_joules > 0:
        raise UserError(f"{client}: energy-budget-joules = {device.energy_budget_joules}: allowed is a number above 0")
    if not 0 <= device.min_frequency_hz <= device.max_frequency_hz:
        allowed = f"a number from 0 to max-frequency-hz = {device.max_frequency_hz:g}"
        raise UserError(f"{client}: min-frequency-hz = {device.min_frequency_hz}: allowed is {allowed}")
    return device
