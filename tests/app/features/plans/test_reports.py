"""What is reported of planned rounds: figures by hand, pictures, and whole runs."""

import csv
import json

import numpy as np
import pytest
from PIL import Image

from espalier.app.command_line import main
from espalier.app.features.plans.plots import draw_resource_plots
from espalier.app.features.plans.reports import (
    cdf,
    client_totals,
    joules_of_cell_rounds,
    joules_of_client_rounds,
    joules_of_clients,
    planned_rounds,
    resource_summary,
)
from espalier.app.ground.errors import UserError
from espalier.app.reports.final import client_table, report_again, result_table
from espalier.app.reports.folder import ResultsFolder, RunTitle
from espalier.app.reports.metrics import summarise
from espalier.app.reports.plots import draw_plots
from espalier.strategies import Profile
from tests.app.assembling import config_of, make_world
from tests.app.runs import lines as lines_of
from tests.app.runs import run_app, summary

PLOTS = {"positions.png", "selections.png", "costs.png", "energy.png"}
SMALL = {
    "algorithm": "rawhfl",
    "dataset": "video-caching",
    "num_clients": 6,
    "num_edges": 2,
    "edge_rounds": 2,
    "selected_per_edge": 2,
    "max_local_rounds": 2,
    "batches_per_epoch": 2,
    "deadline_seconds": 20.0,
    "planning_error_db": 6.0,
    "report_evaluate_every": 0,
}
JOULES = ("compute_joules", "upload_joules")


# Two edges: clients 0 to 2 in one, 3 in the other. All joules are sums of powers of two, so that they add up exactly.


def plan(eligible, compute=None, upload=None, late=(), at_full_power=()):
    """A plan: joules by selected client."""
    compute, upload = compute or {}, upload or {}
    figures = {"compute_joules": list(compute.values()), "upload_joules": list(upload.values())}
    who = {"eligible": eligible, "eligible_at_full_power": at_full_power, "selected": compute, "late": late}
    return {key: list(clients) for key, clients in who.items()} | figures


def global_line(number, seconds, compute, upload, so_far):
    clients = {
        str(i): {"accuracy": share, "loss": 1.0, "top-1": share, "top-2": 2 * share, "top-10": 1.0}
        for i, share in enumerate((0.125, 0.25, 0.25, 0.375))
    }
    return {
        "round": number,
        "scope": "global",
        "accuracy": {"mean": 0.25, "std": 0.0, "min": 0.125, "max": 0.375},
        "loss": {"mean": 1.0, "std": 0.0, "min": 1.0, "max": 1.0},
        "clients": clients,
        "test": {"accuracy": 0.25, "loss": 1.0},
        "failures": 0,
        "bytes": {},
        "wall_seconds": 2.0,
        "energy_joules": {"compute": compute, "upload": upload, "so_far": so_far},
        "simulated_seconds": seconds,
    }


def edge_line(number, edge, plans):
    return {"round": number, "scope": "edge", "edge": edge, "participants": [], "failures": [], "plans": plans}


@pytest.fixture
def lines():
    return [
        edge_line(
            1, "edge-0", [plan([0, 1], {0: 1.0, 1: 2.0}, {0: 0.5, 1: 4.0}, late=[1]), plan([0], {0: 1.0}, {0: 0.5})]
        ),
        edge_line(1, "edge-1", [plan([3], {3: 8.0}, {3: 16.0}), plan([])]),
        global_line(1, 30.0, 12.0, 21.0, 33.0),
        edge_line(2, "edge-0", [plan([2]), plan([0, 1], {1: 2.0}, {1: 0.25}, at_full_power=[0])]),
        edge_line(2, "edge-1", [plan([3], {3: 0.0}, {3: 0.0}, late=[3], at_full_power=[3]), plan([])]),
        global_line(2, 50.0, 2.0, 0.25, 35.25),
    ]


def client(number, edge, cell):
    return {"client": number, "edge": edge, "cell": cell, "x_metres": 800.0 * cell + 50 * number, "y_metres": 0.0}


@pytest.fixture
def world():
    stations = [{"cell": cell, "x_metres": 800.0 * cell, "y_metres": 0.0} for cell in (0, 1)]
    clients = [client(0, "edge-0", 0), client(1, "edge-0", 0), client(2, "edge-0", 0), client(3, "edge-1", 1)]
    return {"radius_metres": 400.0, "base_stations": stations, "clients": clients}


def without_plans(lines):
    new = ("plans", "energy_joules", "simulated_seconds")
    return [{key: value for key, value in line.items() if key not in new} for line in lines]


def without_tops(lines):
    return [
        line
        | {"clients": {i: {"accuracy": own["accuracy"], "loss": own["loss"]} for i, own in line["clients"].items()}}
        if "clients" in line
        else line
        for line in lines
    ]


# Figures.


def test_the_summary_by_hand(lines):
    assert resource_summary(lines) == {
        "energy_joules": {"total": 35.25, "compute": 14.0, "upload": 21.25, "per_client_round": 35.25 / 6},
        "simulated_seconds": 50.0,
        "late": 2,
        "edge_rounds_without_anybody": 3,
        "edge_rounds_short": 0,
        "edge_rounds_unconverged": 0,
    }


def test_plans_of_edges_at_work_count_once_where_a_run_went_on_for_longer():
    def edge(number, *plans):
        return {"round": number, "scope": "edge", "edge": "edge-0", "plans": plans}

    def cloud(number, **fields):
        return {"round": number, "scope": "global", **fields}

    first, second, third = (plan([client], {client: 1.0}, {client: 2.0}) for client in range(3))
    lines = [edge(1, first), cloud(1, plans_at_work={"edge-0": [second]})]
    assert list(planned_rounds(lines)) == [("edge-0", first), ("edge-0", second)]
    lines += [edge(2, second), cloud(2, plans_at_work={"edge-0": [third]})]
    assert list(planned_rounds(lines)) == [("edge-0", first), ("edge-0", second), ("edge-0", third)]
    assert list(planned_rounds([*lines[:3], cloud(2)])) == [("edge-0", first), ("edge-0", second)]


def test_a_run_in_which_nobody_could_take_part_has_no_joules_per_client():
    figures = resource_summary([edge_line(1, "edge-0", [plan([]), plan([])]), global_line(1, 0.0, 0.0, 0.0, 0.0)])
    assert figures["energy_joules"] == {"total": 0.0, "compute": 0.0, "upload": 0.0, "per_client_round": None}
    assert (figures["simulated_seconds"], figures["edge_rounds_without_anybody"]) == (0.0, 2)


def test_edge_rounds_with_nobody_to_plan_for_count_as_those_in_which_nobody_was_selected():
    walked = edge_line(1, "edge-0", [plan([0], {0: 1.0}, {0: 0.5}), plan([])]) | {"participants": [[0], [], [], []]}
    late = edge_line(1, "edge-1", [plan([3], {3: 8.0}, {3: 16.0}, late=[3])]) | {"participants": [[]]}
    figures = resource_summary([walked, late, global_line(1, 30.0, 9.0, 16.5, 25.5)])
    assert figures["edge_rounds_without_anybody"] == 1 + 2


def test_summary_json_has_the_figures_of_plans_and_of_the_last_evaluations_top_m(lines):
    final = summarise(lines)
    assert final["energy_joules"]["total"] == 35.25
    assert list(final["top_m"]) == ["1", "2", "10"]
    std = np.sqrt((2 * 0.125**2) / 4)
    assert final["top_m"]["1"] == {"mean": 0.25, "std": pytest.approx(std), "min": 0.125, "max": 0.375}
    assert final["top_m"]["2"] == {"mean": 0.5, "std": pytest.approx(2 * std), "min": 0.25, "max": 0.75}
    assert final["top_m"]["10"] == {"mean": 1.0, "std": 0.0, "min": 1.0, "max": 1.0}


def test_a_client_without_requests_leaves_no_top_m_figures(lines):
    lines[-1]["clients"]["2"] |= {"top-1": None}
    tops = summarise(lines)["top_m"]
    assert tops["1"] == {"mean": None, "std": None, "min": None, "max": None}
    assert tops["2"]["mean"] == 0.5


def test_other_runs_are_summed_up_as_before(lines):
    final = summarise(without_tops(without_plans(lines)))
    new = {"energy_joules", "simulated_seconds", "late", "edge_rounds_without_anybody", "edge_rounds_short", "top_m"}
    new.add("edge_rounds_unconverged")
    assert new & set(final) == set()
    assert set(summarise(lines)) - set(final) == new


def test_the_clients_part_by_hand(lines):
    totals = client_totals(lines, [0, 1, 2, 3])
    assert [own.times_eligible for own in totals.values()] == [3, 2, 1, 2]
    assert [own.times_eligible_at_full_power for own in totals.values()] == [1, 0, 0, 1]
    assert [own.times_selected for own in totals.values()] == [2, 2, 0, 2]
    assert [own.times_late for own in totals.values()] == [0, 1, 0, 1]
    assert [own.compute_joules for own in totals.values()] == [2.0, 4.0, 0.0, 8.0]
    assert [own.upload_joules for own in totals.values()] == [1.0, 4.25, 0.0, 16.0]
    assert [own.joules for own in totals.values()] == [3.0, 8.25, 0.0, 24.0]


def test_client_table_has_new_columns_where_rounds_were_planned(lines):
    profiles = [Profile(10 + i, i, "", 5, 4, (1, 0)) for i in range(4)]
    topology = {"edge-0": [10, 11, 12], "edge-1": [13]}
    old, new = (list(client_table(told, profiles, topology)) for told in (without_plans(lines), lines))
    assert [row[:8] for row in new] == old
    assert [row[8:] for row in new] == [
        [*(f"times_{name}" for name in ("eligible", "eligible_at_full_power", "selected", "late")), *JOULES],
        [3, 1, 2, 0, 2.0, 1.0],
        [2, 0, 2, 1, 4.0, 4.25],
        [1, 0, 0, 0, 0.0, 0.0],
        [2, 1, 2, 1, 8.0, 16.0],
    ]


def test_joules_by_cell_by_hand(lines, world):
    assert joules_of_clients(lines, world) == {0: [3.0, 8.25, 0.0], 1: [24.0]}
    assert joules_of_client_rounds(lines, world) == {0: [1.5, 6.0, 1.5, 2.25], 1: [24.0, 0.0]}
    # An edge round in which nobody took part costs the cell nothing, and counts.
    assert joules_of_cell_rounds(lines, world) == {0: [7.5, 1.5, 0.0, 2.25], 1: [24.0, 0.0, 0.0, 0.0]}


def test_the_one_group_of_a_flat_run_is_split_into_its_cells(world):
    world["clients"] = [own | {"edge": "cloud"} for own in world["clients"]]
    lines = [edge_line(1, "cloud", [plan([0, 1, 3], {0: 1.0, 1: 2.0, 3: 4.0}, {0: 0.0, 1: 0.5, 3: 0.0}), plan([])])]
    assert joules_of_cell_rounds(lines, world) == {0: [3.5, 0.0], 1: [4.0, 0.0]}


def test_cdf_values():
    values, shares = cdf([3.0, 0.0, 1.0, 1.0])
    assert values.tolist() == [0.0, 1.0, 1.0, 3.0]
    assert shares.tolist() == [0.25, 0.75, 0.75, 1.0]
    assert [len(part) for part in cdf([])] == [0, 0]


def test_the_terminal_shows_energy_time_and_top_m_in_a_line_each(lines):
    title = vars(RunTitle("rawhfl", "video-caching", 0))
    new = result_table(title | summarise(lines)).splitlines()
    old = result_table(title | summarise(without_tops(without_plans(lines)))).splitlines()
    assert [line for line in new if line not in old] == [
        "top-M accuracy, mean over clients: M = 1: 0.2500, M = 2: 0.5000, M = 10: 1.0000",
        "energy: 35.25 J, 5.875 J per selected client and edge round",
        "simulated time: 50.0 s; 2 late, 3 edge rounds without anybody",
    ]
    summary = summarise(lines) | {"edge_rounds_short": 2}
    assert result_table(title | summary).splitlines()[-2].endswith("3 edge rounds without anybody, 2 short of clients")
    assert len(new) == len(old) + 3


# Pictures.


def is_picture(path):
    with Image.open(path) as image:
        return min(image.size) > 400 and len(image.convert("RGB").getcolors(1 << 24)) > 20


@pytest.mark.usefixtures("with_png")
def test_plots_are_written_and_show_the_figures(tmp_path, lines, world, figures):
    paths = draw_resource_plots(tmp_path, "a run", lines, world)
    assert {path.name for path in paths} == PLOTS
    assert all(is_picture(path) for path in paths)
    along = [ax.lines[0].get_xdata().tolist() for ax in figures["costs.png"].axes]
    assert along == [[1, 2], [30.0, 50.0], [33.0, 35.25]]
    bars = figures["selections.png"].axes[0].containers
    shown = {group.get_label(): [bar.get_height() for bar in group] for group in bars}
    assert shown == {
        "could take part at full power": [1, 0, 0, 1],
        "selected, mean 1.5; 1 of 4 clients never": [2, 2, 0, 2],
        "could by the solver": [3, 2, 1, 2],
    }
    colours = [c.get_array() for c in figures["positions.png"].axes[0].collections if c.get_array() is not None]
    assert [shown.tolist() for shown in colours] == [[2, 2, 2]]
    cells = figures["energy.png"].axes[2].lines
    assert [line.get_label() for line in cells] == ["cell 0", "cell 1", "all cells"]
    np.testing.assert_allclose(cells[0].get_xdata(), [0.0, 0.0, 3.0, 8.25])
    np.testing.assert_allclose(cells[0].get_ydata(), [0.0, 1 / 3, 2 / 3, 1.0])
    np.testing.assert_allclose(cells[2].get_ydata(), [0.0, 0.25, 0.5, 0.75, 1.0])


@pytest.mark.usefixtures("with_png")
def test_joules_of_all_magnitudes_are_told_apart(tmp_path, lines, world, figures):
    lines[0]["plans"][0]["compute_joules"][1] = lines[0]["plans"][0]["upload_joules"][1] = 1e-6
    draw_resource_plots(tmp_path, "a run", lines, world)
    axes = figures["energy.png"].axes
    assert [ax.get_xscale() for ax in axes] == ["linear", "log", "linear", "linear"]
    assert [label.get_text() for label in axes[1].get_xticklabels()][:2] == ["100 nJ", "1 µJ"]


@pytest.mark.usefixtures("with_png")
def test_top_m_is_drawn_where_there_are_figures(tmp_path, lines, figures):
    assert "top-m.png" in {path.name for path in draw_plots(tmp_path, "a run", without_plans(lines))}
    assert is_picture(tmp_path / "top-m.png")
    (mean,) = figures["top-m.png"].axes[0].lines
    assert (mean.get_xdata().tolist(), mean.get_ydata().tolist()) == ([1, 2, 10], [0.25, 0.5, 1.0])
    assert "top-m.png" not in {path.name for path in draw_plots(tmp_path, "a run", without_tops(lines))}


def test_plots_only_where_data_are_there(tmp_path, lines, world):
    assert draw_resource_plots(tmp_path, "a run", without_plans(lines), world) == []
    assert [path.name for path in draw_resource_plots(tmp_path, "a run", lines, None)] == ["costs.png"]


def test_a_run_in_which_nobody_took_part_and_one_of_many_cells_can_be_drawn(tmp_path, world):
    lines = [edge_line(1, "edge-0", [plan([])]), edge_line(1, "edge-1", [plan([])]), global_line(1, 0.0, 0.0, 0.0, 0.0)]
    assert {path.name for path in draw_resource_plots(tmp_path, "a run", lines, world)} == PLOTS
    world["clients"] = [client(i, "cloud", i) for i in range(200)]
    world["base_stations"] = [{"cell": i, "x_metres": 800.0 * i, "y_metres": 0.0} for i in range(200)]
    lines = [edge_line(1, "cloud", [plan([7], {7: 1.0}, {7: 1.0})]), global_line(1, 1.0, 1.0, 1.0, 2.0)]
    assert {path.name for path in draw_resource_plots(tmp_path, "a run", lines, world)} == PLOTS


# Whole runs.


def test_the_description_of_the_world_is_in_the_clients_order():
    config = config_of(
        dataset="video-caching", algorithm="rawhfl", num_clients=6, selected_per_edge=2, batches_per_epoch=1
    )
    ids = {10: 0, 11: 1, 12: 2, 13: 3, 14: 4, 15: 5}
    mixed = make_world(config, {"a": [10, 12, 14], "b": [11, 13, 15]}, ids, [100] * 6)
    told = json.loads(json.dumps(mixed.describe()))
    assert [(own["client"], own["edge"], own["cell"]) for own in told["clients"]] == [
        (i, "ab"[i % 2], i % 2) for i in range(6)
    ]
    problem = mixed.problem(1, np.arange(6), None, 0)
    assert [own["max_frequency_hz"] for own in told["clients"]] == problem.max_frequency_hz.tolist()
    assert [own["energy_budget_joules"] for own in told["clients"]] == problem.energy_budget_joules.tolist()
    assert [own["max_power_watts"] for own in told["clients"]] == problem.max_power_watts.tolist()
    per_bit = [own["cycles_per_bit"] for own in told["clients"]]
    np.testing.assert_allclose(
        problem.cycles_per_local_round[:, 0] / per_bit, problem.cycles_per_local_round[0, 0] / per_bit[0]
    )
    for own in told["clients"]:
        station = told["base_stations"][own["cell"]]
        distance = np.hypot(own["x_metres"] - station["x_metres"], own["y_metres"] - station["y_metres"])
        assert 10 <= own["distance_metres"] <= told["radius_metres"] == 400
        assert own["distance_metres"] == pytest.approx(distance)
    flat = make_world(config_of(algorithm="fedavg-ub", num_clients=6, num_edges=2), {"cloud": list(ids)}, ids, [9] * 6)
    assert [(own["edge"], own["cell"]) for own in flat.describe()["clients"]] == [("cloud", i // 3) for i in range(6)]


@pytest.mark.usefixtures("with_blank_pictures")
def test_a_planned_run_reports_on_all_of_its_rounds_when_resumed_and_again_later(tmp_path):
    folder = run_app(tmp_path / "run", **SMALL | {"global_rounds": 1})
    told, first = (folder / "world.json").read_text(), summary(folder)
    (folder / "world.json").unlink()
    assert main([f"resume={folder}", "global-rounds=2", "report.plots=true"]) == 0
    assert (folder / "world.json").read_text() == told

    final, (one, two) = summary(folder), lines_of(folder, "global")
    assert first["energy_joules"]["total"] == pytest.approx(one["energy_joules"]["so_far"])
    assert final["energy_joules"]["total"] == pytest.approx(two["energy_joules"]["so_far"])
    parts = [one["energy_joules"][part] + two["energy_joules"][part] for part in ("compute", "upload")]
    assert [final["energy_joules"][part] for part in ("compute", "upload")] == pytest.approx(parts)
    # 2 of each edge's clients in each of 2 x 2 edge rounds.
    assert final["energy_joules"]["per_client_round"] == pytest.approx(sum(parts) / (2 * 2 * 2 * 2))
    assert final["simulated_seconds"] == two["simulated_seconds"] > first["simulated_seconds"]
    assert (final["late"], final["edge_rounds_without_anybody"]) == (final["failures"], 0)
    assert final["late"] > 0
    assert final["top_m"]["1"] == final["global"]["accuracy"]
    with (folder / "clients.csv").open() as file:
        rows = list(csv.DictReader(file))
    joules = sum(float(row["compute_joules"]) + float(row["upload_joules"]) for row in rows)
    assert joules == pytest.approx(final["energy_joules"]["total"])
    assert sum(int(row["times_selected"]) for row in rows) == 2 * 2 * 2 * 2
    assert [row["times_late"] for row in rows] == [row["times_left_out"] for row in rows]

    names = PLOTS | {"top-m.png", "rounds.png", "clients.png", "bytes.png", "summary.json"}
    for name in names:
        (folder / name).unlink()
    report_again(folder)
    assert names <= {path.name for path in folder.iterdir()}
    assert summary(folder) == final


@pytest.mark.usefixtures("with_blank_pictures")
def test_later_reports_need_no_world_and_refuse_a_damaged_one(tmp_path, lines):
    folder = ResultsFolder.create(tmp_path / "run", config_of().as_dict())
    folder.append_metrics(without_tops(lines))
    report_again(folder.path)
    assert summary(folder.path)["energy_joules"]["total"] == 35.25
    assert PLOTS & {path.name for path in folder.path.iterdir()} == {"costs.png"}
    (folder.path / "world.json").write_text("{")
    with pytest.raises(UserError, match=r"world.json: is damaged; allowed is the file that the run wrote"):
        report_again(folder.path)
