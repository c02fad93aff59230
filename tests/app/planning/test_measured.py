"""Plans made from what clients measured of themselves."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from espalier.app.command_line import main
from espalier.app.config.parse import parse_config
from espalier.app.ground.checkpoint import from_bytes, to_bytes
from espalier.app.ground.errors import UserError
from espalier.app.planning.edge_resources import seconds_at_full_power
from espalier.app.planning.limits import check_deadline
from espalier.app.planning.measured import bandwidth_hz, link_gain
from espalier.app.planning.solving import solver_for
from espalier.app.planning.work import split_work, whole_model_work
from espalier.app.reports.final import report_again, result_table
from espalier.app.reports.progress import LogProgress
from espalier.app.run.run import run
from espalier.app.wiring.task_of_run import build_task
from espalier.sim.radio import noise_watts
from espalier.strategies import DeviceProfile
from espalier.strategies.allocation import exact, violations
from espalier.strategies.allocation.costs import rate_bits_per_second
from tests.app.assembling import config_of, engine_of, make_world
from tests.app.runs import lines, run_app, same_weights, summary

DEVICE = DeviceProfile(
    cpu_count=4,
    min_frequency_hz=0.0,
    max_frequency_hz=1.5e9,
    memory_bytes=2**30,
    cycles_per_example=1e6,
    link_bits_per_second=20e6,
    energy_budget_joules=math.inf,
    max_power_watts=0.2,
    capacitance=2e-28,
)
FOUR = {"algorithm": "rawhfl", "plan.resources": "measured", "num-clients": 4, "plan.selected-per-edge": 2}
FOUR |= {"batches-per-epoch": 2, "batch-size": 16}


def world_with(devices=(DEVICE,) * 4, examples=(100,) * 4, clock=None, **settings):
    config = config_of(**FOUR | settings)
    ids = [10, 11, 12, 13]
    topology = {"cloud": ids} if config.is_flat else {"a": ids[:2], "b": ids[2:]}
    return config, make_world(config, topology, {n: n - 10 for n in ids}, examples, devices, clock)


def everybody(world, **changes):
    """Return the problem of all clients."""
    return replace(world.problem(1, world.everybody, None, 0), **changes)


# The cost model's inputs.


def test_at_the_highest_power_every_link_has_the_rate_that_was_measured():
    rates = np.logspace(3, 10, 57)
    power = np.geomspace(1e-3, 2.0, rates.size)
    for some in (rates, rates[:20], rates[-1:]):
        width = bandwidth_hz(some)
        channel = {"noise_watts": noise_watts(width), "bandwidth_hz": width}
        gain = link_gain(some, power[: some.size], width)
        again = rate_bits_per_second(power_watts=power[: some.size], gain=gain, **channel)
        np.testing.assert_allclose(again, some, rtol=1e-12)
        # A tenth of the power is a lower rate, and never less than a tenth of it.
        lower = rate_bits_per_second(power_watts=power[: some.size] / 10, gain=gain, **channel)
        assert ((lower < some) & (lower > some / 10 * (1 - 1e-9))).all()
        assert some.max() / width <= 6 * (1 + 1e-12)
    assert bandwidth_hz(rates[:1]) == 540e3
    assert bandwidth_hz(rates[-1:]) == pytest.approx(1e10 / 6)


@pytest.mark.parametrize("rates", [(1e3, 1e10), (1e3, 2e3), (1e10, 1e10)])
def test_extreme_links_have_plans_that_keep_all_limits(rates):
    slow, fast = (replace(DEVICE, link_bits_per_second=rate) for rate in rates)
    _, world = world_with([slow, fast, slow, fast], deadline_seconds=1e4, selected_per_edge=2)
    problem = everybody(world)
    plan = exact(problem)
    assert violations(problem, plan) == []
    assert plan.selected.all()
    assert (plan.power_watts > 0).all()
    assert np.isfinite(plan.joules).all()


def test_cycles_and_bits_are_those_of_the_work():
    config, world = world_with([replace(DEVICE, cycles_per_example=c * 1e6) for c in (1, 2, 3, 4)])
    problem = everybody(world)
    np.testing.assert_allclose(problem.cycles_per_local_round[:, 0], 2 * 16 * np.array([1e6, 2e6, 3e6, 4e6]))
    np.testing.assert_array_equal(problem.payload_bits, whole_model_work(build_task(config).new_model()).once_bits[0])
    assert problem.payload_bits_per_local_round.max() == problem.idle_seconds.max() == 0
    _, whole_sets = world_with(examples=(50, 60, 70, 80), batches_per_epoch=0, downlink_bits_per_second=1e6)
    problem = everybody(whole_sets)
    np.testing.assert_allclose(problem.cycles_per_local_round[:, 0], [50e6, 60e6, 70e6, 80e6])
    np.testing.assert_allclose(problem.idle_seconds, problem.payload_bits / 1e6)


def test_in_split_training_a_client_does_the_share_of_its_cut():
    split = {"algorithm": "hsfl", "selection": "resource-aware"}
    config, world = world_with(**split, cut_layer="best")
    model, shape = build_task(config).new_model(), build_task(config).example_input()
    work = split_work(model, shape, [1, 2, 3])
    problem = everybody(world)
    np.testing.assert_allclose(problem.cycles_per_local_round, np.broadcast_to(32e6 * work.share, (4, 3)))
    np.testing.assert_allclose(problem.payload_bits, np.broadcast_to(work.once_bits, (4, 3)))
    np.testing.assert_allclose(problem.payload_bits_per_local_round, np.broadcast_to(32 * work.example_bits, (4, 3)))
    _, fixed = world_with(**split, cut_layer=2)
    np.testing.assert_allclose(everybody(fixed).cycles_per_local_round[:, 0], problem.cycles_per_local_round[:, 1])


def test_limits_come_from_the_devices():
    own = [
        replace(DEVICE, min_frequency_hz=4e8, max_frequency_hz=1.5e9, energy_budget_joules=2.0),
        replace(DEVICE, min_frequency_hz=6e8, max_frequency_hz=2.5e9, max_power_watts=0.1),
    ]
    _, world = world_with(own * 2)
    problem = everybody(world)
    assert problem.max_frequency_hz.tolist() == [1.5e9, 2.5e9] * 2
    assert problem.max_power_watts.tolist() == [0.2, 0.1] * 2
    assert problem.energy_budget_joules.tolist() == [2.0, math.inf] * 2
    assert problem.min_frequency_hz.tolist() == [4e8, 6e8] * 2
    assert everybody(world_with(own * 2, min_frequency_hz=5e8)[1]).min_frequency_hz.tolist() == [5e8, 6e8] * 2
    assert problem.cell.tolist() == [0, 0, 1, 1]


# What plans make of it.


@pytest.mark.parametrize("deadline", [0.9, 2.0, 7.3])
def test_a_device_trains_for_the_rounds_that_fit_between_upload_and_deadline(deadline):
    slow = replace(DEVICE, cycles_per_example=5e6, link_bits_per_second=5e6)
    _, world = world_with([slow, DEVICE] * 2, deadline_seconds=deadline, theta=1.0, max_local_rounds=10**5)
    problem = everybody(world)
    plan = exact(problem)
    payload = problem.payload_bits[0, 0]
    expected = [
        math.floor((deadline - payload / device.link_bits_per_second) / (32 * device.cycles_per_example / 1.5e9))
        for device in (slow, DEVICE)
    ]
    assert plan.local_rounds.tolist() == expected * 2
    assert 0 < expected[0] < expected[1]


def test_a_frequency_that_nobody_sets_is_the_highest():
    fixed = replace(DEVICE, min_frequency_hz=1.5e9)
    problem = everybody(world_with([fixed, DEVICE] * 2, deadline_seconds=60.0)[1])
    plan = exact(problem)
    assert plan.selected.all()
    assert plan.frequency_hz[[0, 2]].tolist() == [1.5e9] * 2
    assert plan.frequency_hz[[1, 3]].max() < 1e9
    cycles = problem.cycles_per_local_round[0, 0] * plan.local_rounds[0]
    assert plan.compute_joules[0] == pytest.approx(1e-28 * 1.5e9**2 * cycles, rel=1e-12)
    assert violations(problem, plan) == []


def test_an_energy_budget_binds():
    # At 1.5 GHz a round of 32e6 cycles takes 7.2 mJ.
    poor = replace(DEVICE, energy_budget_joules=0.05)
    settings = {"deadline_seconds": 0.9, "theta": 1.0, "max_local_rounds": 10**5}
    problem = everybody(world_with([poor, DEVICE] * 2, **settings)[1])
    plan = exact(problem)
    assert 0 < plan.local_rounds[0] < plan.local_rounds[1]
    assert plan.joules[0] <= 0.05 < plan.joules[1]


@pytest.mark.parametrize("algorithm", ["h-fedavg-m1", "h-fedavg-m2"])
def test_the_weakest_client_of_all_edges_sets_the_rounds(algorithm):
    slow = replace(DEVICE, cycles_per_example=2e7)
    config, world = world_with(
        [DEVICE, DEVICE, DEVICE, slow], algorithm=algorithm, deadline_seconds=5.0, max_local_rounds=50
    )
    rounds = []
    for edge, members in (("a", [10, 11]), ("b", [12, 13])):
        problem = world.edges[edge].problem(1, members)
        rounds += solver_for(config.rule, config.plan.solver, world.edges[edge])(problem).local_rounds.tolist()
    payload = everybody(world).payload_bits[0, 0]
    assert rounds == [math.floor((5.0 - payload / 20e6) / (32 * 2e7 / 1.5e9))] * 4


def test_those_of_the_round_before_are_selected_again_only_as_often_as_allowed():
    _, world = world_with(selected_per_edge=1, max_overlap=0, algorithm="rawhfl")
    resources, chosen = world.edges["a"], []
    for server_round in range(1, 5):
        plan = exact(resources.problem(server_round, [10, 11]))
        outcome = resources.carry_out(server_round, [10, 11], plan)
        assert not outcome.late.any()
        chosen.append(np.flatnonzero(plan.selected).item())
    assert chosen in ([0, 1, 0, 1], [1, 0, 1, 0])
    reports = [report for _, report in resources.take_rounds()]
    assert [report["selected"] for report in reports] == [[client] for client in chosen]
    joules = world.end_round()["energy_joules"]
    assert joules["so_far"] == pytest.approx(sum(sum(r["compute_joules"]) + sum(r["upload_joules"]) for r in reports))


def test_what_was_spent_and_chosen_survives_an_interruption():
    settings = {"algorithm": "hsfl", "selection": "resource-aware", "cut_layer": "best"}
    worlds = [world_with(**settings)[1] for _ in range(2)]
    resources = worlds[0].edges["b"]
    resources.carry_out(1, [12, 13], exact(resources.problem(1, [12, 13])))
    worlds[1].load_state_dict(worlds[0].state_dict())
    assert worlds[1].options == worlds[0].options != {}
    assert worlds[1].end_round() == worlds[0].end_round()


def test_clients_of_one_edge_need_not_be_the_first():
    """An edge host's run has only its own clients."""
    config = config_of(**FOUR)
    world = make_world(config, {"b": [11, 13]}, {11: 1, 13: 3}, [100] * 2, [DEVICE] * 2)
    resources = world.edges["b"]
    resources.carry_out(1, [11, 13], exact(resources.problem(1, [11, 13])))
    ((_, report),) = resources.take_rounds()
    assert report["selected"] == [1, 3]
    assert [client["client"] for client in world.describe()["clients"]] == [1, 3]
    check_deadline(config.plan, world)


# Whole runs.

NODE = {"max-frequency-hz": 1.5e9, "link-bits-per-second": 20e6}
LOOSE = {
    "partition": "iid",
    "plan.theta": 1.0,
    "plan.deadline-seconds": 1e6,
    "plan.max-local-rounds": 2,
    "global-rounds": 1,
}


def test_measured_devices_have_no_spare_ones():
    for settings in ({}, {"plan_spare": 1}):
        config, world = world_with(selected_per_edge=1, deadline_seconds=1e4, **settings)
        assert config.plan.asked_per_cell == world.clients_wanted == 1
        plan = exact(world.problem(1, np.arange(4), None, 0))
        assert plan.selected.sum() == world.results_wanted(np.flatnonzero(plan.selected)) == 2  # one of each cell


def run_measured(folder, node_configs=(NODE,) * 4, **settings):
    """Run the app on nodes with these configs and return its results folder."""
    config = config_of(**FOUR | LOOSE | settings, output_dir=str(folder), engine="in-process")
    return run(config, engine_of(config, node_configs), LogProgress(), folder.parent)


@pytest.mark.parametrize(
    "settings",
    [
        {"algorithm": "fedavg", "selection": "resource-aware"},
        {"algorithm": "rawhfl", "dataset": "video-caching"},
    ],
)
def test_with_the_same_plan_measuring_changes_no_bit(tmp_path, settings):
    measured = run_measured(tmp_path / "measured", **settings)
    values = {**FOUR, **LOOSE, **settings, "plan.resources": "simulated"}
    simulated = run_app(tmp_path / "simulated", **values)
    for folder in (measured, simulated):
        plans = [plan for line in lines(folder, "edge") for plan in line["plans"]]
        assert {tuple(plan["local_rounds"]) for plan in plans} <= {(2, 2), (2, 2, 2, 2)}
    assert same_weights(measured, simulated)


def test_what_no_config_says_of_a_link_is_measured_over_a_stream_to_the_server(tmp_path):
    values = FOUR | LOOSE
    folder = run_app(tmp_path / "run", **values)
    clients = json.loads((folder / "world.json").read_text())["clients"]
    assert len({client["link_bits_per_second"] for client in clients}) == 4
    assert all(1e6 < client["link_bits_per_second"] < 1e12 for client in clients)
    assert same_weights(folder, run_app(tmp_path / "simulated", **values | {"plan.resources": "simulated"}))


def test_split_training_measures_too_whatever_carries_it(tmp_path, monkeypatch):
    values = FOUR | LOOSE | {"algorithm": "phsfl", "selection": "resource-aware"}
    values |= {"fine-tune.steps": 0, "edge-rounds": 1}
    stream = run_app(tmp_path / "stream", **values, split_transport="stream")
    monkeypatch.setattr(
        "espalier.strategies.split.stream.StreamServer.expect", None
    )  # none of the others trains by stream
    messages = run_app(tmp_path / "messages", **values)
    simulated = run_app(tmp_path / "simulated", **values | {"plan.resources": "simulated"})
    for folder in (stream, messages):
        assert summary(folder)["failures"] == 0
        assert same_weights(simulated, folder)


@pytest.mark.usefixtures("with_blank_pictures")
def test_reports_of_a_measured_run_say_that_joules_are_planned(tmp_path):
    folder = run_measured(tmp_path / "run", [NODE | {"energy-budget-joules": 5.0}] + [NODE] * 3)
    world = json.loads((folder / "world.json").read_text(), parse_constant=pytest.fail)
    assert world["resources"] == "measured"
    assert [client["energy_budget_joules"] for client in world["clients"]] == [5.0, None, None, None]
    assert [client["edge"] for client in world["clients"]] == ["edge-0", "edge-0", "edge-1", "edge-1"]
    assert {client["link_bits_per_second"] for client in world["clients"]} == {20e6}
    assert all(1e3 < client["cycles_per_example"] < 1e10 for client in world["clients"])
    final = summary(folder)
    assert "simulated_seconds" not in final
    plans = [plan for line in lines(folder, "edge") for plan in line["plans"]]
    joules = sum(sum(plan["compute_joules"]) + sum(plan["upload_joules"]) for plan in plans)
    assert final["energy_joules"]["total"] == pytest.approx(joules)
    assert lines(folder, "global")[-1]["energy_joules"]["so_far"] == pytest.approx(joules)
    assert f"energy as planned: {joules:.4g} J" in result_table(final)
    assert "simulated" not in result_table(final)
    plots = {"costs.png", "selections.png", "energy.png"}
    assert plots <= {path.name for path in folder.iterdir()}
    assert not (folder / "positions.png").exists()
    before = (folder / "summary.json").read_text()
    report_again(folder)
    assert (folder / "summary.json").read_text() == before


# What stops a run in one line.


@pytest.fixture
def no_link(monkeypatch):
    """No client reaches the server to measure its link."""

    def unreachable(config):
        raise ConnectionError("stream to 192.0.2.1:7: UNAVAILABLE: no route")

    monkeypatch.setattr("espalier.clients.device.measuring.measure_link", unreachable)


def test_what_a_device_lacks_is_named_before_training(tmp_path, no_link, caplog):
    unknown = {"max-frequency-hz": 1.5e9}
    with pytest.raises(UserError) as caught:
        run_measured(tmp_path / "run", [NODE, NODE, unknown, NODE])
    line = str(caught.value)
    assert line.startswith("client 2: link-bits-per-second is unknown: set link-bits-per-second in the config of its")
    assert "(partition-id=2)" in line
    assert "\n" not in line
    assert caplog.text.count("192.0.2.1:7: UNAVAILABLE") == 1
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"max_frequency_hz": 0.0}, "client 1: max-frequency-hz is unknown: set max-frequency-hz in the config"),
        ({"cycles_per_example": 0.0}, "client 1: cycles-per-example is unknown: no training examples"),
        ({"cycles_per_example": math.nan}, "client 1: cycles-per-example = nan: allowed is a finite number above 0"),
        ({"link_bits_per_second": -1.0}, "client 1: link-bits-per-second = -1.0: allowed is a finite number above 0"),
        ({"max_power_watts": math.inf}, "client 1: max-power-watts = inf: allowed is a finite number above 0"),
        ({"energy_budget_joules": math.nan}, "client 1: energy-budget-joules = nan: allowed is a number above 0"),
        ({"min_frequency_hz": 2e9}, "client 1: min-frequency-hz = 2000000000.0: allowed is a number from 0 to"),
        ({"capacitance": 1e-28}, "client 1: capacitance = 1e-28: allowed is 2e-28 as on client 0"),
    ],
)
def test_devices_that_no_plan_can_be_made_for(change, message):
    with pytest.raises(UserError) as caught:
        world_with([DEVICE, replace(DEVICE, **change), DEVICE, DEVICE])
    assert str(caught.value).startswith(message)


def test_a_device_that_did_not_measure_is_named():
    with pytest.raises(UserError, match="client 3 sent no measurements"):
        world_with([DEVICE] * 3 + [None])


def test_a_lowest_frequency_that_a_device_can_not_reach():
    message = r"plan.min-frequency-hz = 1000000000.0: allowed is at most 8e\+08, the highest of client 2"
    with pytest.raises(UserError, match=message):
        world_with([DEVICE, DEVICE, replace(DEVICE, max_frequency_hz=8e8), DEVICE], min_frequency_hz=1e9)


def test_a_deadline_that_nobody_can_keep():
    config, world = world_with(deadline_seconds=0.02)
    with pytest.raises(UserError, match=r"plan.deadline-seconds = 0.02: allowed is more: the fastest client needs"):
        check_deadline(config.plan, world)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"algorithm": "h-fedavg"},
            "plan.resources = 'measured': allowed is 'simulated', or selection = 'resource-aware'",
        ),
        ({"algorithm": "fedavg"}, "plan.resources = 'measured': allowed is 'simulated'"),
        ({"algorithm": "rawhfl", "plan.resources": "guessed"}, "plan.resources = 'guessed': allowed is"),
    ],
)
def test_settings_that_do_not_go_together(settings, message):
    with pytest.raises(UserError) as caught:
        parse_config({"plan.resources": "measured", **settings})
    assert str(caught.value).startswith(message)


def test_the_command_line_names_the_key_to_set(capsys, tmp_path, no_link):
    values = FOUR | {"output-dir": str(tmp_path / "run")}
    assert main([f"{key}={json.dumps(value)}" for key, value in values.items()]) == 2
    error = capsys.readouterr().err
    assert "error: client 0: link-bits-per-second is unknown" in error
    assert error.splitlines()[-1].startswith("error: ")
    assert "Traceback" not in error


# How long devices really take.


class Slow:
    """The times of devices that are slower than measured, by client number, and a reference of what is learned."""

    def __init__(self, factors):
        self.factors, self.slowness, self.doubted = factors, dict.fromkeys(range(4), 1.0), {}

    def learn(self, client, ratio):
        before = self.doubted.pop(client, self.slowness[client])
        self.slowness[client] = min(max(before * (ratio if ratio > 1 else 0.5 + 0.5 * ratio), 0.1), 1000.0)

    def late(self, client):
        self.doubted.setdefault(client, self.slowness[client])
        self.slowness[client] *= 2

    def forget(self, client):
        self.slowness[client] += 0.1 * (1 - self.slowness[client])


def carried_out_by(world, slow, server_round):
    """Plan and carry out a round of edge a, whose devices take their true times; return the plan and who was late."""
    edge, nodes = world.edges["a"], [10, 11]
    problem = edge.problem(server_round, nodes)
    plan = exact(problem)
    edge.carry_out(server_round, nodes, plan)
    for client in (0, 1):
        if not plan.selected[client]:
            slow.forget(client)
    who = np.flatnonzero(plan.selected).tolist()
    bits, devices = problem.payload_bits[:, 0], world._devices
    expected = [
        plan.compute_seconds[client] + bits[client] / devices[client].link_bits_per_second * slow.slowness[client]
        for client in (0, 1)
    ]
    true = {client: expected[client] * slow.factors[client] / slow.slowness[client] for client in who}
    late = [client for client in who if true[client] > edge.deadline.seconds]
    edge.delivered([nodes[client] for client in late])
    for client in late:
        slow.late(client)
        assert world._slowness[client] == slow.slowness[client]
    for client in who:  # of those who were late after the round
        edge.deadline._on_taken(nodes[client], true[client])
        slow.learn(client, true[client] / expected[client])
    return plan, late


def test_a_device_that_is_slower_than_measured_is_late_once_and_then_planned_by_its_true_time():
    limits = {"deadline_seconds": 2.0, "theta": 1.0, "max_local_rounds": 10**5, "plan.margin": 0.01}
    _, world = world_with(clock=lambda: 0.0, **limits)
    slow, rounds, lates = Slow({0: 3.0, 1: 1.0}), [], []
    first = everybody(world)
    for server_round in range(1, 9):
        plan, late = carried_out_by(world, slow, server_round)
        rounds.append(plan.local_rounds[0])
        lates.append(late)
        np.testing.assert_allclose(world._slowness[:2], [slow.slowness[0], slow.slowness[1]], rtol=1e-12)
    assert lates == [[0]] + [[]] * 7
    assert world._slowness[1] == pytest.approx(1.0, rel=1e-9)
    # The plan takes a third of the local rounds, and of the bits per second.
    last = everybody(world)
    assert world._slowness[0] == pytest.approx(3.0, rel=1e-9)
    np.testing.assert_allclose(last.cycles_per_local_round[0], first.cycles_per_local_round[0] * world._slowness[0])
    rates = [
        rate_bits_per_second(
            power_watts=p.max_power_watts, gain=p.gain, noise_watts=p.noise_watts, bandwidth_hz=p.bandwidth_hz
        )[0]
        for p in (first, last)
    ]
    assert rates[1] == pytest.approx(rates[0] / world._slowness[0], rel=1e-9)
    assert rounds[-1] < rounds[0] / 2.5
    reports = [report for _, report in world.edges["a"].take_rounds()]
    assert [report["late"] for report in reports] == lates


@pytest.mark.parametrize("downlink", [0.0, 5e4], ids=["nothing-to-wait-for", "a-slow-downlink"])
@pytest.mark.parametrize("comes", [True, False], ids=["after-the-next-plan", "never"])
def test_a_late_result_counts_once_for_the_plan_that_was_made_meanwhile(comes, downlink):
    limits = {"deadline_seconds": 120.0, "selected_per_edge": 2, "max_overlap": 2}
    _, world = world_with(clock=lambda: 0.0, downlink_bits_per_second=downlink, **limits)
    edge, results = world.edges["a"], []
    for server_round, planned_for in ((1, 1), (2, 2)):
        problem = edge.problem(server_round, [10, 11])
        plan = exact(problem)
        edge.carry_out(server_round, [10, 11], plan)
        assert world._slowness[0] == planned_for
        # The device is five times as slow as measured, whatever plans take it for.
        seconds = plan.idle_seconds[0] + 5 * seconds_at_full_power(problem, plan)[0] / planned_for
        results.append((edge.deadline._on_taken, seconds))
        edge.delivered([10] if server_round == 1 else [])
    for on_taken, seconds in results if comes else results[1:]:
        on_taken(10, seconds)
        assert world._slowness[0] == pytest.approx(5.0)


def test_a_device_that_is_fast_again_comes_back():
    devices = [DEVICE, replace(DEVICE, cycles_per_example=4e6, link_bits_per_second=5e6)] * 2
    _, world = world_with(devices, clock=lambda: 0.0, deadline_seconds=60.0, selected_per_edge=1, max_overlap=1)
    world.took(0, 1.0, 10.0)
    assert world._slowness[0] == 10.0
    slow = Slow({0: 1.0, 1: 1.0})
    slow.slowness[0] = 10.0
    chosen = [np.flatnonzero(carried_out_by(world, slow, n)[0].selected).tolist() for n in range(1, 31)]
    back = chosen.index([0])
    assert chosen == [[1]] * back + [[0]] * (30 - back)
    assert 5 < back < 25
    assert world._slowness[0] == pytest.approx(1.0, abs=0.01)


def test_how_slow_a_device_is_survives_with_the_rest_of_the_state():
    _, world = world_with(clock=lambda: 0.0)
    start = world.state_dict()
    world.took(0, 1.0, 3.0)
    world.was_late(2)
    state = from_bytes(to_bytes(world.state_dict()))
    _, other = world_with(clock=lambda: 0.0)
    other.load_state_dict(state)
    for name, expected in vars(everybody(world)).items():
        np.testing.assert_array_equal(getattr(everybody(other), name), expected)
    for one in (world, other):  # doubted: what a late result shows counts from before it was late
        one.took(2, 1.0, 1.5)
        np.testing.assert_array_equal(one._slowness, [3.0, 1.0, 1.5, 1.0])
    for before in (start, {name: start[name] for name in ("energy", "options")}):  # as older files have it
        other.was_late(1)
        other.load_state_dict(before)
        other.took(1, 1.0, 1.5)
        np.testing.assert_array_equal(other._slowness, [1.0, 1.5, 1.0, 1.0])


def test_without_a_clock_times_are_those_of_the_plans():
    _, world = world_with()
    assert world.edges["a"].deadline is None
    _, unlimited = world_with(clock=lambda: 0.0, algorithm="h-fedavg-ub")
    assert unlimited.edges["a"].deadline is None
