"""Resource-aware algorithms as whole runs of the app, and the world they run in."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord
from torch import nn

from espalier.app.algorithms.registry import algorithm_named
from espalier.app.algorithms.split_edges import head_weights
from espalier.app.command_line import main
from espalier.app.ground.errors import UserError
from espalier.app.planning.build import examples_of_local_rounds
from espalier.app.planning.limits import check_cell_size, check_deadline
from espalier.app.planning.plan_reports import falls_short
from espalier.app.planning.solving import solver_for
from espalier.app.planning.work import Work, forward_flops, split_work, traffic_of, whole_model_work
from espalier.app.reports.final import result_table
from espalier.app.settings.sections import TrainSettings
from espalier.app.tasks.caching_data import top_popular
from espalier.app.wiring.planning import work_of
from espalier.app.wiring.task_of_run import build_task
from espalier.clients.randomness import client_generator
from espalier.clients.shared.cut import Cut
from espalier.clients.task import LocalTraining
from espalier.clients.whole.evaluation import top_m_accuracies
from espalier.clients.whole.training import mini_batches
from espalier.strategies.allocation import (
    SCA,
    SOLVERS,
    SolverKind,
    eligible_at_full_power,
    exact,
    get_solver,
    violations,
)
from espalier.strategies.allocation.feasibility import least_seconds
from tests.app.assembling import config_of, engine_of, federation_of, make_world
from tests.app.cut_tasks import View
from tests.app.runs import key_of, lines, run_app, same_weights, summary, weights

CACHING = {
    "dataset": "video-caching",
    "num_clients": 6,
    "num_edges": 2,
    "edge_rounds": 2,
    "selected_per_edge": 2,
    "max_local_rounds": 3,
    "batches_per_epoch": 4,
    "learning_rate": 0.05,
    "report_evaluate_every": 0,  # of the last round alone: most of the time of such a run
}

SPLIT = {"algorithm": "hsfl", "selection": "resource-aware", "label_policy": "labels"}


def world_of(config):
    topology = {f"edge-{e}": list(range(e * 3, e * 3 + 3)) for e in range(config.cells)}
    return make_world(
        config, topology, {n: n for n in range(config.federation.num_clients)}, [100] * config.federation.num_clients
    )


# The cost model's inputs.


@pytest.mark.parametrize("batches", [0, 1, 3, 7, 20])
@pytest.mark.parametrize("drop_last", [False, True])
def test_a_local_round_counts_the_examples_of_its_mini_batches(batches, drop_last):
    train = TrainSettings(batches_per_epoch=batches, batch_size=8, drop_last=drop_last)
    training = LocalTraining(batches_per_epoch=batches, batch_size=8, drop_last=drop_last)
    sizes = [1, 5, 8, 9, 16, 50]
    counted = [sum(map(len, mini_batches(n, training, client_generator(0, 0, 1, "batches")))) for n in sizes]
    assert examples_of_local_rounds(train, False, sizes) == counted
    assert examples_of_local_rounds(train, True, sizes) == ([8 * batches] * len(sizes) if batches else counted)


def test_the_papers_payload_and_cycles():
    world = world_of(config_of(**CACHING | {"batches_per_epoch": 10}, algorithm="rawhfl"))
    problem = world.problem(1, np.arange(6), None, 0)
    np.testing.assert_array_equal(problem.payload_bits, 7_248_384)
    np.testing.assert_allclose(
        problem.cycles_per_local_round[:, 0], 10 * 32 * 1376 * world.world.devices.cycles_per_bit, rtol=1e-12
    )
    assert problem.payload_bits_per_local_round.max() == 0
    assert problem.noise_watts == pytest.approx(10 ** ((-174 - 30) / 10) * 540e3)


def test_the_work_of_a_cut_is_counted_by_hand():
    model = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.Flatten(), nn.Linear(32, 4))
    work = split_work(model, (1, 4, 4), [1, 2])
    convolution, linear = 2 * 16 * 2 * 9, 2 * 32 * 4  # two operations for each product
    np.testing.assert_allclose(work.share, convolution / (convolution + linear))
    np.testing.assert_array_equal(work.once_bits, 33 * 20)
    np.testing.assert_array_equal(work.example_bits, 33 * 32)
    np.testing.assert_array_equal(whole_model_work(model).once_bits, 33 * (20 + 132))
    assert forward_flops(model, (1, 4, 4)) == convolution + linear
    viewed = nn.Sequential(View(), nn.Linear(18, 2))  # takes images as they lie in memory where it is trained
    assert forward_flops(viewed, (2, 3, 3)) == 2 * 18 * 2
    assert all(module.training for module in model.modules())


def test_the_work_of_both_parts_of_a_client_is_counted_by_hand():
    model = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.Flatten(), nn.Linear(32, 4), nn.Linear(4, 3))
    work = split_work(model, (1, 4, 4), [Cut(1, 2), Cut(1, 3), 1], payload="int8")
    convolution, middle, head = 2 * 16 * 2 * 9, 2 * 32 * 4, 2 * 4 * 3
    own = np.array([convolution + middle + head, convolution + head, convolution])
    np.testing.assert_allclose(work.share, own / (convolution + middle + head))
    np.testing.assert_array_equal(work.once_bits, [33 * (20 + 132 + 15), 33 * (20 + 15), 33 * 20])
    np.testing.assert_array_equal(work.once_down_bits, work.once_bits)
    np.testing.assert_array_equal(work.example_bits, [9 * 64 + 2 * 33, 9 * 36 + 2 * 33, 9 * 32 + 33])


@pytest.mark.parametrize(
    ("algorithm", "values"),
    [("h-fedavg", 128), ("fedper", 29), ("fedrep", 29), ("fedbabu", 29), ("local", 1), ("scaffold", 128 + 123)],
)
def test_plans_count_what_clients_of_whole_models_send(algorithm, values):
    model = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(32, 3))
    work = whole_model_work(model, algorithm_named(algorithm).client)
    np.testing.assert_array_equal([work.once_bits, work.once_down_bits], 33 * values)


def test_a_plan_has_the_cycles_of_all_that_a_client_trains():
    (plain, *others) = (
        world_of(config_of(algorithm=name, **settings, selection="resource-aware", num_clients=6, num_edges=2))
        for name, settings in (("h-fedavg", {}), ("ditto", {}), ("apfl", {}), ("pfedme", {"pfedme.steps": 7}))
    )
    cycles = plain.problem(1, np.arange(6), None, 0).cycles_per_local_round
    for world, passes in zip(others, (2, 2, 7), strict=True):
        np.testing.assert_array_equal(world.problem(1, np.arange(6), None, 0).cycles_per_local_round, passes * cycles)


def test_an_algorithm_without_a_pass_is_refused():
    config = config_of()
    task, ditto = build_task(config), replace(algorithm_named("ditto"), passes=lambda own: 0)
    with pytest.raises(UserError, match=r"^algorithm = 'ditto': allowed is one whose passes\(\) is 1 or more, not 0$"):
        work_of(ditto, None, config.split, config.stream, task, task.new_model())


def test_plans_count_the_control_variates_of_clients_blocks():
    model = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(32, 3))
    work = split_work(model, (1, 4, 4), [2], half=algorithm_named("hsfl-scaffold").client)
    np.testing.assert_array_equal([work.once_bits, work.once_down_bits], 33 * (20 + 9 + 20 + 4))


def test_a_frozen_head_comes_down_and_does_not_go_up():
    model = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.Flatten(), nn.Linear(32, 4), nn.Linear(4, 3))
    cuts = [Cut(1, 2), Cut(1, 3), 1]
    work, trained = split_work(model, (1, 4, 4), cuts, frozen=head_weights(model)), split_work(model, (1, 4, 4), cuts)
    np.testing.assert_array_equal(work.once_bits, [33 * (20 + 132), 33 * 20, 33 * 20])
    np.testing.assert_array_equal(work.once_down_bits, [33 * (20 + 132 + 15), 33 * (20 + 15), 33 * 20])
    np.testing.assert_array_equal(work.example_bits, trained.example_bits)
    np.testing.assert_array_equal(work.share, trained.share)


@pytest.mark.parametrize(("tail", "stays"), [("head", 650), (2, 650), ("none", 0)])
def test_a_plan_of_phsfl_counts_no_upload_of_the_head(tail, stays):
    def problem(algorithm):
        settings = SPLIT | {"algorithm": algorithm, "cut_layer": 1, "tail_layer": tail, "num_clients": 6}
        config = config_of(**settings, selected_per_edge=2, downlink_bits_per_second=1e6)
        return world_of(config).problem(1, np.arange(6), None, 0)

    frozen, trained = problem("phsfl"), problem("hsfl")
    np.testing.assert_array_equal(trained.payload_bits - frozen.payload_bits, 33 * stays)
    np.testing.assert_array_equal(trained.idle_seconds, frozen.idle_seconds)


def test_traffic_by_hand():
    work = Work(
        np.array([0.5, 1.0]),
        once_bits=np.array([10.0, 20.0]),
        example_bits=np.array([3.0, 0.0]),
        once_down_bits=np.array([15.0, 20.0]),
    )
    traffic = traffic_of(work, [2, 4], 5.0)
    assert {name: values.tolist() for name, values in traffic.items()} == {
        "payload_bits": [[10, 20], [10, 20]],
        "payload_bits_per_local_round": [[6, 0], [12, 0]],
        "idle_seconds": [[3, 4], [3, 4]],
        "idle_seconds_per_local_round": [[1.2, 0], [2.4, 0]],
    }
    ignored = traffic_of(work, [2, 4], 0.0)
    assert not ignored["idle_seconds"].any()
    assert not ignored["idle_seconds_per_local_round"].any()


def test_in_split_training_a_client_computes_the_share_of_its_cut():
    def cycles(**settings):
        return (
            world_of(config_of(num_clients=6, selected_per_edge=2, **settings))
            .problem(1, np.arange(6), None, 0)
            .cycles_per_local_round
        )

    whole, split = cycles(algorithm="h-fedavg", selection="resource-aware"), cycles(**SPLIT, cut_layer="best")
    config = config_of(**SPLIT)
    share = split_work(build_task(config).new_model(), build_task(config).example_input(), [1, 2, 3]).share
    assert share.max() < 1
    np.testing.assert_allclose(split, whole * share)


@pytest.mark.parametrize(
    ("settings", "limit"),
    [
        ({}, 1),
        ({"selected_per_edge": 1}, 0),
        ({"max_overlap": 0}, 0),
        ({"max_overlap": 2}, 2),
        ({"selected_per_edge": 4}, 4),  # with all 4 selected, all come twice
    ],
)
def test_the_overlap_is_limited_to_half_of_the_selected_or_as_the_config_says(settings, limit):
    config = config_of(**CACHING | {"num_clients": 8} | settings, algorithm="rawhfl")
    world = make_world(config, {"a": range(4), "b": range(4, 8)}, {n: n for n in range(8)}, [100] * 8)
    selected = np.arange(8) % 4 < world.clients_wanted
    assert world.problem(2, np.arange(8), selected, 0).max_overlap == limit


def test_clients_are_in_the_cell_of_their_edge_whatever_their_order():
    config = config_of(**CACHING, algorithm="rawhfl")
    ids = {10: 0, 11: 1, 12: 2, 13: 3, 14: 4, 15: 5}
    mixed = make_world(config, {"a": [10, 12, 14], "b": [11, 13, 15]}, ids, [100] * 6)
    sizes = mixed.problem(1, np.arange(6), None, 0).cell
    assert sizes.tolist() == [0, 1, 0, 1, 0, 1]
    straight = world_of(config)
    # The world's first three clients are those of the first cell.
    gains = mixed.problem(1, np.array([0, 2, 4]), None, 0).gain
    np.testing.assert_array_equal(gains, straight.problem(1, np.array([0, 1, 2]), None, 0).gain)


# What becomes of plans.


@pytest.mark.parametrize(
    "settings",
    [
        *({"algorithm": algorithm} for algorithm in ("rawhfl", "h-fedavg-m1", "h-fedavg-m2", "h-fedavg-ub")),
        SPLIT | {"downlink_bits_per_second": 2e7, "cut_layer": "best", "deadline_seconds": 20.0},
    ],
)
def test_plans_cost_what_was_planned_when_the_channel_is_as_seen(settings):
    config = config_of(**CACHING | {"deadline_seconds": 4.0} | settings)
    world, clients = world_of(config), np.arange(3)
    resources = world.edges["edge-0"]
    solve = solver_for(config.rule, config.plan.solver, resources)
    for server_round in range(1, 9):
        problem = resources.problem(server_round, clients)
        plan = solve(problem)
        assert config.rule.solver or not violations(problem, plan)
        before = world.clock.edge_now("edge-0")
        report = world.carry_out("edge-0", server_round, clients, plan)
        who = plan.selected
        assert report["late"] == []
        np.testing.assert_allclose(report["compute_joules"], plan.compute_joules[who], rtol=1e-9)
        np.testing.assert_allclose(report["upload_joules"], plan.upload_joules[who], rtol=1e-9)
        assert world.clock.edge_now("edge-0") - before == pytest.approx(plan.seconds.max(), abs=1e-6)
    joules = world.energy.total_joules
    assert joules[:3].sum() > 0
    assert joules[3:].sum() == 0


def test_a_channel_worse_than_planned_makes_late_clients_who_are_left_out_and_counted(tmp_path):
    settings = CACHING | {"algorithm": "rawhfl", "deadline_seconds": 20.0}
    sure = run_app(tmp_path / "sure", **settings)
    unsure = run_app(tmp_path / "unsure", planning_error_db=6.0, **settings)

    def late(folder):
        return [client for line in lines(folder, "edge") for plan in line["plans"] for client in plan["late"]]

    failures = [f for line in lines(unsure, "edge") for f in line["failures"]]
    assert late(sure) == []
    assert summary(sure)["failures"] == 0
    assert 0 < len(late(unsure)) < 2 * 2 * 2 * 2
    assert sorted(f["client"] for f in failures if f["reason"] == "its result arrived after the deadline") == sorted(
        late(unsure)
    )


def test_a_round_with_late_clients_lasts_until_the_deadline():
    config = config_of(**CACHING, algorithm="rawhfl", deadline_seconds=20.0, planning_error_db=6.0)
    world, clients, late = world_of(config), np.arange(3), 0
    for server_round in range(1, 20):
        report = world.carry_out("edge-0", server_round, clients, exact(world.problem(server_round, clients, None, 0)))
        late += bool(report["late"])
        assert report["seconds"] == 20.0 if report["late"] else report["seconds"] <= 20.0
    assert 0 < late < 19


@pytest.mark.parametrize(("error_db", "solver"), [(0.1, "exact"), (1.0, "exact"), (3.0, "exact"), (3.0, "random")])
@pytest.mark.parametrize("deadline", [3.0, 150.0])
def test_as_many_results_are_late_as_asked_for(error_db, solver, deadline):
    settings = {"num_clients": 200, "selected_per_edge": 25, "plan_deadline_seconds": deadline}
    config = config_of(
        **CACHING | settings, algorithm="rawhfl", planning_error_db=error_db, late_share=0.05, plan_solver=solver
    )
    world = make_world(
        config,
        {f"edge-{e}": list(range(e * 100, e * 100 + 100)) for e in range(2)},
        {n: n for n in range(200)},
        [100] * 200,
    )
    for server_round in range(1, 41):
        for edge, resources in enumerate(world.edges.values()):
            clients = list(range(edge * 100, edge * 100 + 100))
            resources.carry_out(server_round, clients, get_solver(solver)(resources.problem(server_round, clients)))
    shares = world.end_round()["late_share"]
    assert shares["asked"] == 0.05
    # 2000 results: four standard deviations.
    assert shares["so_far"] == pytest.approx(0.05, abs=0.02)


def test_plans_that_did_not_converge_are_said_once_and_counted(tmp_path, monkeypatch, caplog):
    settings = CACHING | {"algorithm": "rawhfl", "plan_solver": "sca", "global_rounds": 1}
    whole = run_app(tmp_path / "whole", **settings)
    assert summary(whole)["edge_rounds_unconverged"] == 0
    assert "converged" not in caplog.text
    monkeypatch.setitem(SOLVERS, "sca", SolverKind(lambda: SCA(max_iterations=2)))
    folder = run_app(tmp_path / "short", **settings)
    assert summary(folder)["edge_rounds_unconverged"] == 4  # two edges, two edge rounds
    assert [plan["converged"] for line in lines(folder, "edge") for plan in line["plans"]] == [False] * 4
    said = [record.getMessage() for record in caplog.records if "before it converged" in record.getMessage()]
    assert len(said) == 1
    assert said[0].startswith("edge round 1: edge-0: the solver stopped before it converged: the plan keeps all limits")


def test_steps_stay_as_long_as_if_all_results_arrived_and_go_on_so(tmp_path):
    settings = CACHING | {"algorithm": "rawhfl", "planning_error_db": 1.0, "global_rounds": 3}
    plain = run_app(tmp_path / "plain", **settings)
    whole = run_app(tmp_path / "whole", **settings, divide_by_arrived=True)
    assert 0 < summary(whole)["late"] == summary(plain)["late"]
    assert not same_weights(plain, whole)
    half = run_app(tmp_path / "half", **settings | {"global_rounds": 1}, divide_by_arrived=True)
    assert main([f"resume={half}", "global-rounds=3"]) == 0
    assert same_weights(whole, half)


def test_plans_keep_back_a_margin_of_the_deadline_and_clients_have_all_of_it():
    settings = CACHING | {"algorithm": "rawhfl", "plan_deadline_seconds": 20.0, "planning_error_db": 1.0}
    worlds = [world_of(config_of(**settings, plan_margin=margin)) for margin in (0.0, 0.25)]
    late, clients = [0, 0], np.arange(3)
    for server_round in range(1, 31):
        for i, (world, seconds) in enumerate(zip(worlds, (20.0, 15.0), strict=True)):
            plan = exact(world.problem(server_round, clients, None, 0))
            np.testing.assert_allclose(plan.seconds[plan.selected], seconds, rtol=1e-9)
            report = world.carry_out("edge-0", server_round, clients, plan)
            late[i] += len(report["late"])
            assert report["seconds"] == 20.0 if report["late"] else report["seconds"] < 20.0
    assert late[0] > 15
    assert late[1] < 4


def test_the_share_of_late_results_is_told_beside_the_one_asked_for(tmp_path, capsys):
    settings = CACHING | {"algorithm": "rawhfl", "deadline_seconds": 20.0, "planning_error_db": 6.0, "late_share": 0.3}
    folder = run_app(tmp_path / "run", **settings)
    plans = [[plan for line in lines(folder, "edge")[: 2 * r] for plan in line["plans"]] for r in (1, 2)]
    counts = [(sum(len(p["late"]) for p in own), sum(len(p["selected"]) for p in own)) for own in plans]
    assert [line["late_share"] for line in lines(folder, "global")] == [
        {"asked": 0.3, "so_far": late / results} for late, results in counts
    ]
    late, results = counts[-1]
    assert 0 < late < results
    assert summary(folder)["late_share"] == {"asked": 0.3, "observed": late / results}
    assert f"{late} late ({late / results:.1%} of the results, 30.0% asked for)" in capsys.readouterr().out


def test_without_a_share_asked_for_none_is_reported(tmp_path):
    folder = run_app(tmp_path / "run", **CACHING, algorithm="rawhfl", global_rounds=1)
    assert "late_share" not in summary(folder)
    assert all("late_share" not in line for line in lines(folder, "global"))


@pytest.mark.parametrize("algorithm", ["h-fedavg-ub", "fedavg-ub"])
def test_without_limits_nobody_is_late(algorithm):
    config = config_of(**CACHING, algorithm=algorithm, deadline_seconds=0.01)
    world, clients = world_of(config), np.arange(6)
    name = next(iter(world.edges))
    plan = get_solver("h-fedavg-ub")(world.problem(1, clients, None, 0))
    report = world.carry_out(name, 1, clients, plan)
    assert report["late"] == []
    assert report["selected"] == clients.tolist()
    assert report["seconds"] == pytest.approx(plan.seconds.max())
    assert report["seconds"] > 0.01


def test_the_keys_of_the_radio_world_reach_the_problem():
    def problem(server_round=1, **settings):
        return world_of(config_of(**CACHING, algorithm="rawhfl", **settings)).problem(
            server_round, np.arange(6), None, 0
        )

    plain = problem()
    assert (problem(min_frequency_hz=5e8).min_frequency_hz == 5e8).all()
    wide = problem(bandwidth_hz=20e6)
    assert (wide.bandwidth_hz, wide.noise_watts) == (20e6, pytest.approx(plain.noise_watts * 20e6 / 540e3))
    assert problem(noise_figure_db=7.0).noise_watts == pytest.approx(plain.noise_watts * 10**0.7)
    assert (problem(cell_radius_metres=2000.0).gain != plain.gain).all()
    assert (problem(2).gain != plain.gain).all()
    np.testing.assert_array_equal(problem(2, fading="static").gain, problem(1, fading="static").gain)


def test_costs_are_those_of_an_edges_own_clients_whoever_they_are():
    config = config_of(**CACHING, algorithm="rawhfl", deadline_seconds=4.0)
    ids = {10 + client: client for client in range(6)}
    world = make_world(config, {"a": [10, 12, 14], "b": [11, 13, 15]}, ids, [100] * 6)
    for name, clients in (("a", np.array([0, 2, 4])), ("b", np.array([1, 3, 5]))):
        plan = get_solver("exact")(world.problem(1, clients, None, 0))
        report = world.carry_out(name, 1, clients, plan)
        assert report["late"] == []
        np.testing.assert_allclose(report["upload_joules"], plan.upload_joules[plan.selected], rtol=1e-9)


def test_the_cuts_that_plans_chose_survive_an_interruption():
    config = config_of(num_clients=6, num_edges=2, selected_per_edge=3, **SPLIT | {"cut_layer": "best"})
    world, restored, clients = world_of(config), world_of(config), np.arange(3)
    plan = get_solver("exact")(world.problem(1, clients, None, 0))
    world.carry_out("edge-0", 1, clients, plan)
    assert [world.option_of(client) for client in clients] == plan.option.tolist() != [0, 0, 0]
    restored.load_state_dict(world.state_dict())
    assert [restored.option_of(client) for client in clients] == plan.option.tolist()
    other = get_solver("exact")(world.problem(1, clients + 3, None, 0))
    world.carry_out("edge-1", 1, clients + 3, other)
    assert [world.option_of(client) for client in range(6)] == [*plan.option.tolist(), *other.option.tolist()]


def test_every_edge_and_round_draws_plans_of_its_own():
    world = world_of(config_of(**CACHING, algorithm="rawhfl"))
    members = {"edge-0": [0, 1, 2], "edge-1": [3, 4, 5]}
    seeds = {world.edges[name].problem(t, clients).seed for t in (1, 2, 3) for name, clients in members.items()}
    assert len(seeds) == 6


def test_the_keys_of_devices_reach_the_problem():
    def problem(**settings):
        return world_of(config_of(**CACHING, algorithm="rawhfl", **settings)).problem(1, np.arange(6), None, 0)

    plain = problem()
    ranges = {"max_frequency_hz": (1.2e9, 2e9), "max_power_watts": (0.1, 1.0), "energy_budget_joules": (0.8, 1.5)}
    for name, (lowest, highest) in ranges.items():
        assert ((lowest <= getattr(plain, name)) & (getattr(plain, name) <= highest)).all()
    np.testing.assert_array_equal(problem(max_frequency_hz="1e9-1e9").max_frequency_hz, 1e9)
    np.testing.assert_allclose(problem(max_power_dbm="-10").max_power_watts, 1e-4)
    np.testing.assert_allclose(problem(cycles_per_bit="50-80").cycles_per_local_round, 2 * plain.cycles_per_local_round)
    poorer = problem(energy_budget_joules="0.08-0.15")
    np.testing.assert_allclose(poorer.energy_budget_joules, plain.energy_budget_joules / 10)
    np.testing.assert_array_equal(poorer.gain, plain.gain)


def test_an_energy_budget_limits_the_local_rounds():
    def plan(budget):
        limits = {"energy_budget_joules": budget, "deadline_seconds": 2.0, "max_local_rounds": 50}
        config = config_of(**CACHING | limits, algorithm="rawhfl", theta=1.0)
        return get_solver("exact")(world_of(config).problem(1, np.arange(6), None, 0))

    rich, least = plan(1e3), plan(1e3).joules[plan(1e3).selected].min()
    poor = plan(float(least / 2))
    assert poor.local_rounds[poor.selected].sum() < rich.local_rounds[rich.selected].sum()
    assert (poor.joules <= least / 2 * (1 + 1e-9)).all()
    assert not plan(1e-9).selected.any()


@pytest.mark.parametrize(
    ("transport", "payload", "bits", "scale"),
    [
        ("messages", "int8", 33, 0),
        ("stream", "float32", 33, 0),
        ("stream", "bfloat16", 17, 0),
        ("stream", "top-25%", 49 / 4, 0),
        ("stream", "int8", 9, 33),
    ],
)
def test_plans_count_activations_as_they_travel(transport, payload, bits, scale):
    settings = SPLIT | {"split_transport": transport, "stream_payload": payload, "batches_per_epoch": 2}
    config = config_of(num_clients=6, batch_size=16, selected_per_edge=2, **settings)
    world = make_world(config, {"a": [0, 1, 2], "b": [3, 4, 5]}, {n: n for n in range(6)}, [100] * 6)
    values = 16 * 4 * 4  # behind the first block of small-cnn
    problem = world.problem(1, np.arange(6), None, 0)
    np.testing.assert_array_equal(problem.payload_bits_per_local_round, 2 * 16 * (bits * values + scale))


def test_clients_that_chose_their_edges_are_counted_as_they_are(tmp_path, capsys):
    config = config_of(**CACHING | {"selected_per_edge": 2}, algorithm="rawhfl")
    world = make_world(config, {"a": [0, 1, 2, 3, 4], "b": [5]}, {n: n for n in range(6)}, [100] * 6)
    for name, clients in (("a", np.arange(5)), ("b", np.array([5]))):
        plan = exact(world.problem(1, clients, None, 0))
        assert world.carry_out(name, 1, clients, plan)["short"] == (plan.selected.sum() < 2)
    with pytest.raises(UserError, match=r"plan\.selected-per-edge = 2: allowed is 1 to 1, the clients of the smallest"):
        check_cell_size(config.plan, config.rule, 1)
    unlimited = config_of(**CACHING, algorithm="h-fedavg-ub")
    check_cell_size(unlimited.plan, unlimited.rule, 1)


def test_the_weakest_client_of_all_cells_sets_the_rounds_of_h_fedavg_m1_and_m2():
    for algorithm, everybody in (("h-fedavg-m1", True), ("h-fedavg-m2", False)):
        config = config_of(**CACHING | {"max_local_rounds": 50}, algorithm=algorithm, deadline_seconds=4.0)
        world, idle = world_of(config), 0
        for server_round in range(1, 30):
            plans = []
            for name, members in (("edge-0", [0, 1, 2]), ("edge-1", [3, 4, 5])):
                resources = world.edges[name]
                resources.problem(server_round, members)
                plans.append(solver_for(config.rule, config.plan.solver, resources)(None))
            rounds = np.concatenate([plan.local_rounds for plan in plans])
            whole = get_solver(algorithm)(world.problem(server_round, np.arange(6), None, 0))
            np.testing.assert_array_equal(rounds, whole.local_rounds)
            assert len(set(rounds[rounds > 0].tolist())) <= 1
            idle += not rounds.all()
            assert not everybody or rounds.all() or not rounds.any()
        assert 0 < idle < 29


def test_who_is_away_sets_nobodys_rounds_in_h_fedavg_m1(tmp_path):
    settings = CACHING | {"algorithm": "h-fedavg-m1", "seed": 2, "edge_rounds": 8}
    settings |= {"max_local_rounds": 50, "deadline_seconds": 4.0}
    (tmp_path / "trace.csv").write_text("client,from,to\n0,9,10\n")  # away until then
    away = {"availability_mode": "trace", "availability_trace": str(tmp_path / "trace.csv")}
    folder = run_app(tmp_path / "run", **settings | away, global_rounds=1)
    world, there = world_of(config_of(**settings)), np.arange(1, 6)
    plans = {line["edge"]: line["plans"] for line in lines(folder, "edge")}
    spared = 0
    for number in range(1, 9):
        expected = get_solver("h-fedavg-m1")(world.problem(number, there, None, 0)).local_rounds
        found = [one for edge in ("edge-0", "edge-1") for one in plans[edge][number - 1]["local_rounds"]]
        assert found == expected[expected > 0].tolist()
        whole = get_solver("h-fedavg-m1")(world.problem(number, np.arange(6), None, 0)).local_rounds
        spared += whole.max() < expected.max()
    assert spared == 5  # rounds that this client alone would have made impossible


def test_an_edge_that_nobody_can_train_for_keeps_its_model_and_its_weight(tmp_path):
    """Eq. 17: w = sum_b w_b / B over all edges, those that skipped their rounds too."""
    settings = CACHING | {"algorithm": "rawhfl", "edge_rounds": 1, "global_rounds": 1, "num_clients": 2}
    settings |= {"selected_per_edge": 1, "max_overlap": 1}
    for seed in range(40):
        config = config_of(**settings, seed=seed, deadline_seconds=2.0)
        topology = {"edge-0": [0], "edge-1": [1]}
        world = make_world(config, topology, {0: 0, 1: 1}, [100, 100])
        able = exact(world.problem(1, np.arange(2), None, 0)).eligible
        if able.tolist() == [True, False]:
            break
    both = run_app(tmp_path / "both", **settings, seed=seed, deadline_seconds=2.0)
    (line,) = lines(both, "global")
    assert [edge["trained"] for edge in lines(both, "edge")] == [True, False]
    assert line["edges_left_out"] == []
    assert line["train_loss"] == pytest.approx(lines(both, "edge")[0]["train_loss"])
    start = build_task(config).new_model().state_dict()
    grid = engine_of(config := config_of(**settings, seed=seed, deadline_seconds=2.0, engine="in-process")).grid
    hierarchical = federation_of(config, grid).hierarchical
    edges = next(hierarchical.rounds(grid, ArrayRecord(start), 1)).edges
    trained = edges["edge-0"].arrays.to_torch_state_dict()
    for name, after in weights(both).items():
        assert torch.equal(edges["edge-1"].arrays.to_torch_state_dict()[name], start[name])
        torch.testing.assert_close(after, (trained[name] + start[name]) / 2, rtol=1e-5, atol=1e-6)


def test_a_flat_strategy_gets_the_clients_of_all_cells(tmp_path):
    settings = CACHING | {"algorithm": "fedavg", "selection": "resource-aware", "global_rounds": 1}
    folder = run_app(tmp_path / "run", **settings, cloud_strategy="FedAvg(min_train_nodes=4)")
    assert [len(clients) for line in lines(folder, "edge") for clients in line["participants"]] == [4]


def test_a_run_in_which_nobody_can_train_is_a_result(tmp_path):
    settings = CACHING | {"num_clients": 24, "num_edges": 2, "global_rounds": 1, "deadline_seconds": 2.0}
    folder = run_app(tmp_path / "run", algorithm="h-fedavg-m1", **settings)
    assert summary(folder)["energy_joules"]["total"] == 0
    assert summary(folder)["edge_rounds_without_anybody"] == 4
    assert (summary(folder)["failures"], summary(folder)["replies_left_out"]) == (4, 0)
    assert "left out: 0 replies; failures without one: 4; wall time" in result_table(summary(folder))


def test_a_cell_with_too_few_clients_is_reported(tmp_path, caplog):
    folder = run_app(tmp_path / "run", algorithm="rawhfl", deadline_seconds=2.0, **CACHING | {"global_rounds": 4})
    plans = [plan for line in lines(folder, "edge") for plan in line["plans"]]
    short = [plan for plan in plans if len(plan["selected"]) == 1]
    assert short
    assert [plan["short"] for plan in plans] == [len(plan["selected"]) == 1 for plan in plans]
    assert sum("1 clients, not 2 in each cell" in message for message in caplog.messages) == len(short)
    assert summary(folder)["edge_rounds_short"] == len(short)
    assert all(set(plan["eligible_at_full_power"]) <= set(plan["eligible"]) for plan in plans)


def test_the_clock_waits_for_the_slowest_edge_and_energy_adds_up(tmp_path):
    folder = run_app(tmp_path / "run", algorithm="h-fedavg-ub", **CACHING)
    so_far = clock = 0.0
    for number, line in enumerate(lines(folder, "global"), start=1):
        edges = [edge for edge in lines(folder, "edge") if edge["round"] == number]
        clock += max(sum(plan["seconds"] for plan in edge["plans"]) for edge in edges)
        so_far += sum(
            sum(plan["compute_joules"]) + sum(plan["upload_joules"]) for edge in edges for plan in edge["plans"]
        )
        assert line["simulated_seconds"] == pytest.approx(clock)
        assert line["energy_joules"]["so_far"] == pytest.approx(so_far)
        assert [len(plan["selected"]) for edge in edges for plan in edge["plans"]] == [3] * 4


def test_a_plan_falls_short_by_cell_and_only_where_somebody_is_selected():
    plan = exact(world_of(config_of(**CACHING, algorithm="rawhfl")).problem(1, np.arange(6), None, 0))

    def short(*selected, algorithm="rawhfl"):
        config, taken = config_of(**CACHING, algorithm=algorithm), np.isin(np.arange(6), selected)
        return falls_short(config.plan, config.rule, np.repeat([0, 1], 3), replace(plan, selected=taken))

    assert not short(0, 1, 3, 4)
    assert short(0, 1, 2, 3)
    assert short(0, 3)
    assert not short()
    assert not short(0, 3, algorithm="h-fedavg-m2")


def test_a_report_is_the_plan_in_the_clients_numbers():
    config = config_of(**CACHING | {"deadline_seconds": 4.0, "energy_budget_joules": 0.3}, algorithm="rawhfl")
    world, nodes, fewer = world_of(config), [3, 4, 5], 0
    resources = world.edges["edge-1"]
    for server_round in range(1, 9):
        problem = resources.problem(server_round, nodes)
        plan, able = exact(problem), eligible_at_full_power(problem)
        resources.carry_out(server_round, nodes, plan)
        ((_, report),) = resources.take_rounds()
        who = np.flatnonzero(plan.selected)
        assert report["selected"] == (3 + who).tolist()
        assert report["eligible"] == (3 + np.flatnonzero(plan.eligible)).tolist()
        assert report["eligible_at_full_power"] == (3 + np.flatnonzero(able)).tolist()
        for name in ("local_rounds", "option", "frequency_hz", "power_watts"):
            assert report[name] == getattr(plan, name)[who].tolist()
        fewer += able.sum() < plan.eligible.sum()
    assert fewer > 0


def test_the_deadline_is_refused_only_where_it_is_too_short_for_the_fastest():
    def check(deadline, algorithm="rawhfl", **settings):
        config = config_of(**CACHING | {"deadline_seconds": deadline, "seed": 4}, algorithm=algorithm, **settings)
        check_deadline(config.plan, world_of(config))

    def seconds(edge_round, **settings):
        world = world_of(config_of(**CACHING, algorithm="rawhfl", seed=4, **settings))
        return np.sort(least_seconds(world.problem(edge_round, np.arange(6), None, 0)))

    first, of_all = seconds(1), min(seconds(number)[0] for number in range(1, 21))
    assert of_all < 0.6 * first[0]
    check(float(first[:2].mean()))
    check(float(first[0]) * 0.9)  # nobody in the first round, but in a later one
    check(float(of_all) * 1.01)
    with pytest.raises(UserError, match="the fastest client needs"):
        check(float(of_all) * 0.99)
    static = {"radio_fading": "static"}
    with pytest.raises(UserError, match="the fastest client needs"):
        check(float(seconds(1, **static)[0]) * 0.99, **static)
    check(1e-3, "h-fedavg-ub")


def test_a_round_is_whole_with_z_results_of_each_cell_or_all_it_has():
    settings = CACHING | {"num_clients": 9, "num_edges": 3, "algorithm": "rawhfl", "selected_per_edge": 1}
    spare = world_of(config_of(**settings, plan_spare=1))
    for selected, wanted in (([0, 1], 1), ([0, 1, 3], 2), ([0, 1, 3, 4, 8], 3), ([4], 1), ([], 0)):
        assert spare.results_wanted(np.array(selected, dtype=int)) == wanted
    everybody = world_of(config_of(**settings | {"algorithm": "h-fedavg-ub"}))
    assert everybody.results_wanted(np.arange(5)) == 5


def test_the_key_solver_and_the_seed_of_the_run_decide_the_draw():
    def edge(**settings):
        config = config_of(**CACHING, algorithm="rawhfl", **settings)
        resources = world_of(config).edges["edge-0"]
        return solver_for(config.rule, config.plan.solver, resources), resources.problem(1, [0, 1, 2]).seed

    assert [edge(solver=name)[0] for name in ("exact", "random")] == [get_solver("exact"), get_solver("random")]
    assert edge(seed=1)[1] != edge(seed=2)[1]


# Equations between algorithms.


def test_with_everybody_and_no_limits_rawhfl_is_h_fedavg_ub(tmp_path):
    loose = CACHING | {"selected_per_edge": 3, "deadline_seconds": 1e6}
    rawhfl = run_app(tmp_path / "rawhfl", algorithm="rawhfl", **loose)
    assert same_weights(rawhfl, run_app(tmp_path / "ub", algorithm="h-fedavg-ub", **loose))


def test_one_cell_and_one_edge_round_is_flowers_fedavg_with_the_same_plan(tmp_path):
    # IID digits for three, so that clients have as many examples, 479, and FedAvg's weights are equal.
    settings = {"num_edges": 1, "edge_rounds": 1, "partition": "iid", "num_clients": 3, "batches_per_epoch": 2}
    settings |= {"max_local_rounds": 2, "selected_per_edge": 3, "deadline_seconds": 1e6}
    ub = run_app(tmp_path / "fedavg-ub", algorithm="fedavg-ub", **settings)
    a, b = weights(ub), weights(run_app(tmp_path / "fedavg", algorithm="fedavg", local_epochs=2, **settings))
    c = weights(run_app(tmp_path / "rawhfl", algorithm="rawhfl", **settings))
    for name in a:
        torch.testing.assert_close(a[name], b[name], rtol=0, atol=1e-6)
        assert torch.equal(a[name], c[name])


def test_selection_in_front_of_split_training_is_the_same_as_in_front_of_the_whole_model(tmp_path):
    settings = {"selection": "resource-aware", "selected_per_edge": 2, "solver": "random", "max_local_rounds": 2}
    short = {"batches_per_epoch": 2, "batch_size": 16, "deadline_seconds": 1e6, "theta": 1.0}
    split = run_app(tmp_path / "hsfl", algorithm="hsfl", fine_tune_steps=0, **settings, **short)
    whole = run_app(tmp_path / "h-fedavg", algorithm="h-fedavg", **settings, **short)
    chosen = [
        [(p["selected"], p["local_rounds"]) for line in lines(f, "edge") for p in line["plans"]] for f in (split, whole)
    ]
    assert chosen[0] == chosen[1]
    a, b = weights(split), weights(whole)
    for name in a:
        torch.testing.assert_close(a[name], b[name], rtol=1e-4, atol=1e-5)


def test_the_best_cut_never_takes_more_energy_than_any_fixed_one(tmp_path):
    settings = {"algorithm": "hsfl", "selection": "resource-aware", "deadline_seconds": 60.0, "theta": 0.0}
    settings |= {"num_clients": 6, "max_local_rounds": 2, "selected_per_edge": 3, "max_overlap": 3}
    values = {}
    for cut in (1, 2, 3, "best"):
        config = config_of(**settings, cut_layer=cut)
        world, clients = world_of(config), np.arange(6)
        plans = [exact(world.problem(t, clients, None, 0)) for t in range(1, 6)]
        assert all(plan.selected.all() for plan in plans)
        values[cut] = sum(plan.joules.sum() for plan in plans)
    assert values["best"] <= min(values[1], values[2], values[3]) * (1 + 1e-9)
    folder = run_app(
        tmp_path / "run", **settings, cut_layer="best", batches_per_epoch=2, batch_size=16, global_rounds=1
    )
    assert summary(folder)["failures"] == 0


def test_top_popular_counts_requests(tmp_path):
    folder = run_app(tmp_path / "run", algorithm="top-popular", **CACHING)
    config = config_of(**CACHING, algorithm="top-popular", global_rounds=2)
    clients = build_task(config).clients
    seen = [int((data.train_slots < 100 + 4 * 4).sum()) for data in clients]
    scores = top_popular([data.train.labels[:n] for data, n in zip(clients, seen, strict=True)])
    expected = np.mean([top_m_accuracies(scores, data.test.labels).tolist() for data in clients], axis=0)
    assert summary(folder)["global"]["accuracy"]["mean"] == pytest.approx(expected[0])
    top_m = {m: figures["mean"] for m, figures in summary(folder)["top_m"].items()}
    assert top_m == {str(m): pytest.approx(share) for m, share in enumerate(expected, start=1)}
    assert summary(folder)["test"] is None


# Runs that are stopped, or can't start.


@pytest.mark.parametrize("settings", [{"algorithm": "rawhfl"}, {"algorithm": "rawhfl", "late_share": 0.2}, SPLIT])
def test_runs_resume_to_the_same_bits_and_the_same_figures(tmp_path, settings):
    settings = CACHING | settings | {"deadline_seconds": 20.0, "planning_error_db": 3.0}
    whole = run_app(tmp_path / "whole", **settings)
    first = run_app(tmp_path / "first", **settings | {"global_rounds": 1})
    # A longer run tests on later requests, so only what training does can be compared.
    assert main([f"resume={first}", "global-rounds=2"]) == 0
    assert same_weights(whole, first)
    a, b = (lines(folder, "global")[-1] for folder in (whole, first))
    assert (a["energy_joules"], a["simulated_seconds"]) == (b["energy_joules"], b["simulated_seconds"])
    assert a.get("late_share") == b.get("late_share")
    assert [line["plans"] for line in lines(whole, "edge")] == [line["plans"] for line in lines(first, "edge")]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"selected_per_edge": 4}, "plan.selected-per-edge = 4: allowed is 1 to 3, the clients of the smallest cell"),
        ({"max_overlap": 0}, "plan.max-overlap = 0: allowed is at least 1 with 2 of 3 clients selected in every round"),
        ({"deadline_seconds": 1e-3}, "plan.deadline-seconds = 0.001: allowed is more: the fastest client needs"),
        ({"deadline_seconds": 0.0}, "plan.deadline-seconds = 0.0: allowed is greater than 0"),
        ({"margin": 1.0}, "plan.margin = 1.0: allowed is less than 1"),
        ({"margin": 0.9999}, "plan.deadline-seconds = 150.0: allowed is more: the fastest client needs"),
        ({"late_share": -0.1}, "plan.late-share = -0.1: allowed is greater than or equal to 0"),
        ({"theta": 1.5}, "plan.theta = 1.5: allowed is less than or equal to 1"),
        ({"solver": "best"}, "plan.solver = 'best': allowed is exact, sca, random, cheapest-at-full-power, fedcs"),
        (
            {"solver": "h-fedavg-ub"},
            "plan.solver = 'h-fedavg-ub': allowed is exact, sca, random, cheapest-at-full-power, fedcs",
        ),
        ({"participation": 0.5}, "participation = 0.5: allowed is 1.0: plans select the clients"),
        ({"edge_strategy": "Krum"}, "edge-strategy = 'Krum': allowed is 'FedAvg'"),
        ({"algorithm": "sl", "selection": "resource-aware", "label_policy": "labels"}, "selection = 'resource-aware'"),
        (
            {"algorithm": "hsfl", "label_policy": "indices"},
            "split.label-policy = 'indices': allowed is 'labels' for dataset = 'video-caching'",
        ),
        (
            {"algorithm": "h-fedavg", "selection": "resource-aware", "edge_strategy": "FedAvg(min_train_nodes=3)"},
            "plan.selected-per-edge = 2: allowed is at least 3: its FedAvg needs 3 clients",
        ),
        (
            # Flat: one group, of two cells.
            {"algorithm": "fedavg", "selection": "resource-aware", "cloud_strategy": "FedAvg(min_train_nodes=5)"},
            "plan.selected-per-edge = 2: allowed is at least 3: its FedAvg needs 5 clients",
        ),
        (
            {"algorithm": "h-fedavg", "selection": "resource-aware", "edge_strategy": "FedAvg(fraction_train=0.5)"},
            "edge-strategy = 'FedAvg(fraction_train=0.5)': allowed is fraction_train = 1.0: plans select the clients",
        ),
        (
            SPLIT | {"edge_strategy": "FedMedian(min_train_nodes=3)"},
            "plan.selected-per-edge = 2: allowed is at least 3: its FedMedian needs 3 clients",
        ),
        (
            # Flat: its clients' models are aggregated by edge-strategy.
            SPLIT | {"algorithm": "sfl-v1", "num_edges": 0, "edge_strategy": "FedAvg(fraction_train=0.5)"},
            "edge-strategy = 'FedAvg(fraction_train=0.5)': allowed is fraction_train = 1.0: plans select the clients",
        ),
        (
            SPLIT | {"solver": "sca"},
            "plan.solver = 'sca': allowed is 'exact', 'random', 'cheapest-at-full-power', 'fedcs', 'power-of-choice', "
            "'tifl', 'oort' for split training",
        ),
        ({"exploitation": "lots"}, "caching.exploitation = 'lots': allowed is a probability"),
        (
            {"energy_budget_joules": -1},
            "radio.energy-budget-joules = -1: allowed is a number from 1e-09 to 1e+09, or a",
        ),
        (
            {"max_frequency_hz": "2e9-1e9"},
            "radio.max-frequency-hz = '2e9-1e9': allowed is a number from 1 to 1e+12, or a",
        ),
        (
            {"max_power_dbm": "lots"},
            "radio.max-power-dbm = 'lots': allowed is a number from -100 to 100, or a range of them",
        ),
        (
            {"min_frequency_hz": 1.5e9},
            "plan.min-frequency-hz = 1500000000.0: allowed is 0 to 1.2e+09, "
            "the least that radio.max-frequency-hz = '1.2e9-2e9'",
        ),
        (
            {"resources": "measured", "cycles_per_bit": 30.0},
            "radio.cycles-per-bit = 30.0: allowed is '25-40' for plan.resources = 'measured': each node's config",
        ),
        ({"model": "cnn"}, "model = 'cnn': allowed is 'auto' for dataset = 'video-caching'"),
        ({"num_edges": 7}, "num-edges = 7: allowed is at most num-clients = 6"),
    ],
)
def test_bad_settings_stop_in_one_line(capsys, tmp_path, settings, message):
    values = CACHING | {"algorithm": "rawhfl", "output_dir": str(tmp_path / "run")} | settings
    assert main([f"{key_of(key)}={json.dumps(value)}" for key, value in values.items()]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("algorithm", ["hsfl", "h-fedavg", "rawhfl"])
def test_a_cut_chosen_by_plans_needs_plans_and_a_model_that_is_split(capsys, algorithm):
    assert main([f"algorithm={algorithm}", "cut-layer=best"]) == 2
    assert "cut-layer = 'best': allowed is a number" in capsys.readouterr().err


def test_the_pooled_test_examples_are_the_clients_own():
    config = config_of(**CACHING, device="cpu")
    task = build_task(config)
    clients, pool = task.clients, task.test_examples()
    features = task.normaliser()(pool.inputs)
    own = torch.cat([data.table[data.test.inputs] for data in clients])
    assert torch.equal(features, own)
    assert torch.equal(pool.labels, torch.cat([data.test.labels for data in clients]))
