"""The radio as `docs/radio.md` has it: its formulas by hand, its traces, its commands, and limits that bind nobody."""

import csv
import json
import re
import shlex
import subprocess
from math import exp, log10, sqrt
from pathlib import Path

import numpy as np
import pytest

from espalier.app.command_line import main
from espalier.app.planning.limits import free_of_limits
from espalier.strategies.allocation import full_work_at_full_power
from tests.app.assembling import config_of, engine_of, federation_of
from tests.app.runs import run_app, summary, weights

PAGE = Path(__file__).parents[3] / "docs/radio.md"
BLOCKS = re.findall(r"^```bash\n(.*?)^```$", PAGE.read_text(), re.M | re.S)
SMALL = {"num_clients": 4, "num_edges": 2, "batches_per_epoch": 1, "local_epochs": 1}
BIND_NOBODY = "limits bind nobody"


def trace_of(folder):
    with (folder / "radio-trace.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def by_hand(d, z, draw, f_c=2.4, h_bs=25.0, h_ut=1.5, sigma_los=4.0, sigma_nlos=6.0):
    """The gain of a link by the formulas of the page, and whether it has a line of sight."""
    d3d = sqrt(d**2 + (h_bs - h_ut) ** 2)
    d_bp = 4 * (h_bs - 1) * (h_ut - 1) * f_c * 1e9 / 3e8
    p_los = 1 if d <= 18 else 18 / d + exp(-d / 63) * (1 - 18 / d)
    pl_1 = 28 + 22 * log10(d3d) + 20 * log10(f_c)
    pl_2 = 28 + 40 * log10(d3d) + 20 * log10(f_c) - 9 * log10(d_bp**2 + (h_bs - h_ut) ** 2)
    pl_los = pl_1 if d <= d_bp else pl_2
    pl_nlos = max(pl_los, 13.54 + 39.08 * log10(d3d) + 20 * log10(f_c) - 0.6 * (h_ut - 1.5))
    sees = draw < p_los
    loss = pl_los + sigma_los * z if sees else pl_nlos + sigma_nlos * z
    return 10 ** (-loss / 10), sees


@pytest.mark.parametrize(
    ("settings", "symbols"),
    [
        ({}, {}),
        (
            {
                "carrier_hz": 6e9,
                "station_height_metres": 30.0,
                "client_height_metres": 3.0,
                "shadowing_los_db": 2.0,
                "shadowing_nlos_db": 7.0,
                "fading": "static",
            },
            {"f_c": 6.0, "h_bs": 30.0, "h_ut": 3.0, "sigma_los": 2.0, "sigma_nlos": 7.0},
        ),
    ],
    ids=["defaults", "others"],
)
def test_three_places_by_hand(settings, symbols, tmp_path):
    places, found = [(10.0, 0.0), (-60.0, 80.0), (300.0, 400.0)], set()
    (path := tmp_path / "places.csv").write_text(
        "cell,client,x_metres,y_metres\n" + "".join(f"0,{c},{x},{y}\n" for c, (x, y) in enumerate(places))
    )
    whole = SMALL | {"num_clients": 3, "num_edges": 1, "algorithm": "rawhfl", "seed": 5, "global_rounds": 6}
    for row in trace_of(run_app(tmp_path / "run", **whole, **settings, radio_trace=str(path))):
        e, client = int(row["edge_round"]) * (not settings), int(row["client"])
        draws, z = (
            np.random.default_rng(np.random.SeedSequence(5, spawn_key=(*purpose, e)))
            for purpose in (b"line of sight", b"shadowing")
        )
        x, y = places[client]
        gain, sees = by_hand(sqrt(x**2 + y**2), z.standard_normal(3)[client], draws.random(3)[client], **symbols)
        assert float(row["gain"]) == pytest.approx(gain, rel=1e-9, abs=0)
        found.add((client, sees))
    assert found >= {(0, True), (2, False)}


def comparable(folder):
    clocks = {"seconds", "wall_seconds"}
    read = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key not in clocks} for line in read]


@pytest.mark.parametrize(
    "settings",
    [
        {"algorithm": "rawhfl", "planning_error_db": 2.0, "late_share": 0.2, "deadline_seconds": 2.0},
        {"algorithm": "h-fedavg-m2", "fading": "static", "carrier_hz": 3.5e9, "deadline_seconds": 0.1},
        {"algorithm": "fedavg", "selection": "resource-aware", "deadline_seconds": 0.2},
        {"algorithm": "rawhfl", "num_clients": 6, "availability_moves": "moves.csv", "selected_per_edge": 1},
        {"algorithm": "rawhfl", "num_clients": 6, "speed_metres_per_second": 2.0, "selected_per_edge": 1},
        {"algorithm": "h-fedavg", "selection": "resource-aware", "async_mode": "fedbuff", "buffer_size": 4},
    ],
    ids=["planning-error", "static", "flat", "moving", "walking", "asynchronous"],
)
def test_a_run_that_reads_the_trace_of_another_is_this_run(settings, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("moves.csv").write_text("client,from,edge\n0,2,edge-1\n")
    whole = SMALL | settings | {"seed": 2, "global_rounds": 3}
    first = run_app(tmp_path / "first", **whole)
    again = run_app(tmp_path / "again", **whole, radio_trace=str(first / "radio-trace.csv"))
    assert comparable(again) == comparable(first)
    for name in ("radio-trace.csv", "world.json"):
        assert (again / name).read_text() == (first / name).read_text()
    assert all((weights(again)[name] == tensor).all() for name, tensor in weights(first).items())
    by_round = {row["edge_round"] for row in trace_of(first)}
    in_all = 3 if settings["algorithm"] == "fedavg" else 6
    assert (len(by_round) > in_all) if "async_mode" in settings else (len(by_round) == in_all)
    assert len(trace_of(first)) == len(by_round) * whole["num_clients"]


def test_the_trace_decides_the_channels_whatever_the_seed(tmp_path):
    first = run_app(tmp_path / "first", **SMALL, algorithm="rawhfl", global_rounds=1)
    trace = str(first / "radio-trace.csv")
    other = run_app(tmp_path / "other", **SMALL, algorithm="h-fedavg-m2", global_rounds=1, seed=9, radio_trace=trace)
    assert trace_of(other) == trace_of(first)


def test_a_resumed_run_has_a_trace_of_all_its_rounds(tmp_path):
    whole = run_app(tmp_path / "whole", **SMALL, algorithm="rawhfl", global_rounds=2)
    part = run_app(tmp_path / "part", **SMALL, algorithm="rawhfl", global_rounds=1)
    assert len(trace_of(part)) == len(trace_of(whole)) // 2
    assert main([f"resume={part}", "global-rounds=2"]) == 0
    assert trace_of(part) == trace_of(whole)


def test_a_resumed_run_may_get_a_longer_trace_but_no_other_one(tmp_path, capsys):
    whole = SMALL | {"algorithm": "rawhfl"}
    told = (run_app(tmp_path / "whole", **whole, global_rounds=2) / "radio-trace.csv").read_text().splitlines()
    path = tmp_path / "trace.csv"
    path.write_text("\n".join(told[:9]))
    part = run_app(tmp_path / "part", **whole, global_rounds=1, radio_trace=str(path))
    path.write_text("\n".join([*told[:8], "2,1,3,1,1,1e-9", *told[9:]]))
    assert main([f"resume={part}", "global-rounds=2"]) == 2
    assert "radio.trace has changed in edge rounds 1 to 2, which are over" in capsys.readouterr().err
    path.write_text("\n".join(told))
    assert main([f"resume={part}", "global-rounds=2"]) == 0
    assert comparable(part) == comparable(tmp_path / "whole")


def one_line(capsys, tmp_path, *arguments):
    """What a run says that ends before it trains, and before it has a folder."""
    given = ["algorithm=rawhfl", "num-clients=4", "num-edges=2", "global-rounds=2", f"output-dir={tmp_path}/run"]
    assert main([*given, *arguments]) == 2
    assert not (tmp_path / "run").exists()
    *_, said = capsys.readouterr().err.splitlines()
    return said


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda rows: rows[:-1], "client 3 has no line in edge_round 4"),
        (lambda rows: [*rows[:4], "2,0,0,nan", *rows[5:]], "line 6: gain is 'nan': allowed is a finite number > 0"),
        (lambda rows: [*rows[:4], "2,0,0,-1e-9", *rows[5:]], "line 6: gain is '-1e-9': allowed is a finite number > 0"),
        (lambda rows: rows[:8], "its last edge_round is 2: the run has 4"),
        (lambda rows: [row.rpartition(",")[0] for row in rows], "line 2: 3 values: allowed are 4"),
        (lambda rows: ["1,1,0,1e-9", *rows[1:]], "line 2: cell is 1: allowed is 0, that of client 0"),
    ],
    ids=["missing-client", "nan", "negative-gain", "too-few-rounds", "too-few-columns", "another-cell"],
)
def test_a_bad_trace_ends_a_run_with_one_line_before_it_trains(change, message, tmp_path, capsys):
    rows = [f"{e},{c // 2},{c},1e-9" for e in range(1, 5) for c in range(4)]
    (path := tmp_path / "trace.csv").write_text("\n".join(["edge_round,cell,client,gain", *change(rows)]))
    said = one_line(capsys, tmp_path, f"radio.trace={path}")
    assert f"radio.trace = '{path}': allowed is a CSV file" in said
    assert f"{path}" in said.partition("CSV file")[2]
    assert message in said


def test_a_late_share_is_refused_with_gains_of_which_no_place_is_known(tmp_path, capsys):
    rows = [f"{c // 2},{c},1e-9" for c in range(4)]
    (path := tmp_path / "trace.csv").write_text("\n".join(["cell,client,gain", *rows]))
    arguments = [f"radio.trace={path}", "plan.late-share=0.05", "radio.planning-error-db=3"]
    said = one_line(capsys, tmp_path, *arguments)
    assert (
        "plan.late-share = 0.05: allowed is 0.0, or radio.planning-error-db = 0.0, with a radio.trace without places"
        in said
    )
    places = [f"{row},{10 * (c + 1)},0" for c, row in enumerate(rows)]
    path.write_text("\n".join(["cell,client,gain,x_metres,y_metres", *places]))
    whole = SMALL | {"num_clients": 4, "algorithm": "rawhfl", "global_rounds": 1}
    run = run_app(tmp_path / "run", **whole, late_share=0.05, planning_error_db=3.0, radio_trace=str(path))
    assert {float(row["gain"]) for row in trace_of(run)} == {1e-9}


def test_wrong_columns_and_no_file_are_one_line_each(tmp_path, capsys):
    (path := tmp_path / "trace.csv").write_text("client,x,y\n0,1,1\n")
    assert "line 1: its columns are 'client,x,y': allowed are cell,client, with x_metres,y_metres or gain" in one_line(
        capsys, tmp_path, f"radio.trace={path}"
    )
    assert "a CSV file that can be read: No such file" in one_line(capsys, tmp_path, "radio.trace=/no/such.csv")


def test_a_sweep_refuses_a_bad_trace_before_its_first_run(tmp_path, capsys):
    (path := tmp_path / "trace.csv").write_text("client,x,y\n")
    arguments = ["sweep", "algorithm=rawhfl", "seed=0,1", f"radio.trace={path}", f"output-dir={tmp_path}/sweep"]
    assert main(arguments) == 2
    assert "radio.trace = " in capsys.readouterr().err
    assert not list(tmp_path.glob("sweep/*/metrics.jsonl"))


@pytest.mark.parametrize(
    ("setting", "allowed"),
    [
        ("radio.carrier-hz=1e8", "500000000"),
        ("radio.station-height-metres=13", "13"),
        ("radio.client-height-metres=1", "1.5"),
        ("radio.shadowing-los-db=-1", "0"),
    ],
)
def test_values_that_the_model_is_not_made_for_are_refused(setting, allowed, tmp_path, capsys):
    said = one_line(capsys, tmp_path, setting)
    assert setting.partition("=")[0] in said
    assert allowed in said


def test_limits_that_bind_nobody_are_told_once_as_the_page_says(tmp_path, caplog):
    config = config_of(algorithm="h-fedavg-m1", engine="in-process")
    world = federation_of(config, engine_of(config).grid).world
    assert free_of_limits(world, 0.0, config.edge_rounds_in_all) in PAGE.read_text().splitlines()
    assert free_of_limits(world, 1e-3, config.edge_rounds_in_all) == ""  # of an empty battery nobody takes part
    caplog.set_level("INFO", "espalier")
    run_app(tmp_path / "m1", **SMALL, algorithm="h-fedavg-m1", engine="in-process")
    assert caplog.text.count(BIND_NOBODY) == 1
    caplog.clear()
    run_app(tmp_path / "ub", **SMALL, algorithm="h-fedavg-ub", global_rounds=1)  # keeps none
    run_app(tmp_path / "late", **SMALL, algorithm="h-fedavg-m2", global_rounds=1, deadline_seconds=0.05)
    run_app(tmp_path / "dear", **SMALL, algorithm="h-fedavg-m2", global_rounds=1, energy_budget_joules="0.02")
    assert BIND_NOBODY not in caplog.text


def test_the_work_of_the_paper_is_bound_by_energy_and_that_of_digits_by_nothing():
    paper = config_of(
        algorithm="rawhfl", dataset="video-caching", engine="in-process", max_local_rounds=50, batches_per_epoch=10
    )
    for config, in_budget, bits in ((paper, False, 7_248_384), (config_of(algorithm="rawhfl"), True, 452_298)):
        world = federation_of(config, engine_of(config).grid).world
        problem = world.problem(2, world.everybody, None, 0)
        seconds, joules = full_work_at_full_power(problem)
        assert (seconds <= problem.deadline_seconds).all()
        assert (joules.ravel() <= problem.energy_budget_joules).all() == in_budget
        assert (problem.payload_bits == bits).all()


def test_the_commands_of_the_page_run_as_printed_and_give_its_figures(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for command in "".join(BLOCKS).splitlines():
        if command.startswith("python -m app "):
            # No pictures, which take most of the time.
            assert main([*shlex.split(command.removeprefix("python -m app ")), "report.plots=false"]) == 0, command
        else:
            subprocess.run(["bash", "-c", command], check=True)
    placed = {row["client"]: (row["x_metres"], row["y_metres"]) for row in trace_of(Path("placed"))}
    assert placed == {"0": ("10.0", "0.0"), "1": ("-60.0", "80.0"), "2": ("300.0", "400.0"), "3": ("0.0", "150.0")}
    rows = re.findall(r"^\| `(h-fedavg-\w+)` \| (\d+) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \|$", PAGE.read_text(), re.M)
    assert len(rows) == 3
    for algorithm, nobody, joules, seconds, accuracy in rows:
        found = summary(Path(algorithm.rpartition("-")[2]))
        assert found["edge_rounds_without_anybody"] == int(nobody)
        assert found["energy_joules"]["total"] == pytest.approx(float(joules), abs=5e-4)
        assert found["simulated_seconds"] == pytest.approx(float(seconds), abs=0.05)
        assert found["global"]["accuracy"]["mean"] == pytest.approx(float(accuracy), abs=0.02)
    assert json.loads(Path("drawn/config.json").read_text())["radio.trace"] == ""
