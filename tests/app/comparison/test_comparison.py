"""Runs that are over are compared: what differs, what came of it, and how it came about."""

import csv
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from statistics import fmean, stdev

import numpy as np
import pytest
from matplotlib.text import Text

from espalier.app.command_line import main
from espalier.app.comparison.command import finished_runs, in_order_of_sweep, write_comparison
from espalier.app.comparison.curves import AXES, Curve, curves, points_of, together
from espalier.app.comparison.figures import draw_curves, first_steps, powers_of_ten, setting
from espalier.app.comparison.groups import Group, grouped, without_repeats
from espalier.app.comparison.looks import looks_of
from espalier.app.comparison.runs import FinishedRun, is_over, is_surely_over, read_run
from espalier.app.comparison.spread import CI95, STD, OverSeeds, half_width, over_seeds
from espalier.app.comparison.tables import (
    _latex,
    as_latex,
    as_text,
    cells,
    columns_of,
    count,
    heading,
    number,
    rounded,
    with_spread,
)
from espalier.app.config.parse import KEYS
from espalier.app.ground.fields import COLUMNS, FIELDS, OVER_CLIENTS, columns_beside
from espalier.app.reports.final import report_again
from espalier.app.reports.owner import disown, own
from espalier.app.sweeps.grid import planned_runs, read_sweep, run_by_folder
from tests.app.runs import lines, run_app, summary

SHORT = {"num_clients": 4, "batches_per_epoch": 1, "local_epochs": 1, "fine_tune_steps": 1}
PLANNED = SHORT | {"algorithm": "h-fedavg", "selection": "resource-aware"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder of runs: two settings of two seeds each."""
    root = tmp_path_factory.mktemp("runs")
    for seed in (0, 1):
        for alpha in (0.1, 0.5):
            run_app(root / f"{alpha}-{seed}", **PLANNED, alpha=alpha, seed=seed)
    return root


def test_settings_are_told_apart_by_what_differs_and_seeds_are_not(folder):
    groups = grouped(finished_runs([folder]))
    assert [group.chosen for group in groups] == [{"alpha": 0.1}, {"alpha": 0.5}]
    assert [group.label for group in groups] == ["alpha 0.1", "alpha 0.5"]
    assert [run.settings["seed"] for run in groups[0].runs] == [0, 1]
    values = [summary(folder / f"0.1-{seed}")["global"]["accuracy"]["mean"] for seed in (0, 1)]
    assert groups[0].figure("accuracy") == over_seeds(values)
    assert groups[0].figure("joy") is None
    assert setting(groups, STD) == "h-fedavg, digits, 4 clients, 2 seeds (band: 1 std)"
    assert setting(groups[:1], CI95) == "h-fedavg, digits, 4 clients, Dir(0.1), 2 seeds (band: 95 % interval)"


DIGITS = {"algorithm": "fedavg", "task": "", "dataset": "digits", "model": "auto", "num-clients": 8}
DIGITS |= {"partition": "dirichlet", "alpha": 0.5}


@pytest.mark.parametrize(
    ("first", "second", "title"),
    [
        ({}, {"algorithm": "hsfl"}, "digits, 8 clients, Dir(0.5), 1 seed"),
        ({"task": "m:T(alpha=0.1)"}, {"task": "m:T(alpha=1.0)"}, "fedavg, 8 clients, 1 seed"),
        ({"task": "m:T"}, {}, "fedavg, 8 clients, 1 seed"),
        ({"task": "m:T"}, {"task": "m:T", "alpha": 0.1}, "fedavg, m:T, 8 clients, 1 seed"),
        ({"dataset": "video-caching"}, {}, "fedavg, 8 clients, 1 seed"),
        ({"dataset": "cifar10"}, {}, "fedavg, 8 clients, Dir(0.5), 1 seed"),
    ],
)
def test_a_title_says_of_data_what_all_runs_have(first, second, title):
    runs = [FinishedRun(Path("run"), DIGITS | own, {}, {}) for own in (first, second)]
    assert setting([Group({}, [run]) for run in runs], STD) == title


def test_what_follows_from_another_setting_is_no_difference(tmp_path):
    few, many = (run_app(tmp_path / str(n), **PLANNED | {"num_clients": n}, global_rounds=1) for n in (4, 8))
    assert json.loads((many / "config.json").read_text())["plan.selected-per-edge"] == 2
    assert json.loads((few / "config.json").read_text())["plan.selected-per-edge"] == 1
    assert [group.chosen for group in grouped(finished_runs([few, many]))] == [{"num-clients": 4}, {"num-clients": 8}]


def test_compare_writes_tables_curves_and_figures_and_prints_where(folder, tmp_path, capsys, with_pdf):
    assert main(["compare", str(folder), "--output", str(tmp_path / "out")]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[-1] == f"comparison: {tmp_path / 'out'}"
    assert printed[0].split()[:4] == ["alpha", "runs", "accuracy", "over"]
    with (tmp_path / "out/comparison.csv").open(newline="") as file:
        first = next(csv.DictReader(file))
    own = [summary(folder / f"0.1-{seed}") for seed in (0, 1)]
    assert float(first["loss_mean"]) == fmean(one["global"]["loss"]["mean"] for one in own)
    assert float(first["loss_std_over_clients"]) == fmean(one["global"]["loss"]["std"] for one in own)
    assert float(first["energy_joules_std"]) == stdev(one["energy_joules"]["total"] for one in own)
    with (tmp_path / "out/runs.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["alpha"], row["seed"]) for row in rows] == [("0.1", "0"), ("0.1", "1"), ("0.5", "0"), ("0.5", "1")]
    assert rows[0]["version"]
    assert rows[0]["machine"]
    page = (tmp_path / "out/page.html").read_text()
    (data,) = re.findall(r'id="data">(.*?)</script>', page)
    labels = ["alpha 0.1, seed 0", "alpha 0.1, seed 1", "alpha 0.5, seed 0", "alpha 0.5, seed 1"]
    assert [own["label"] for own in json.loads(data)["runs"]] == labels
    names = [f"{figure}-over-{axis.name}" for figure in ("accuracy", "loss") for axis in AXES]
    for name in names:
        assert (tmp_path / f"out/{name}.png").read_bytes().startswith(b"\x89PNG")
        assert (tmp_path / f"out/{name}.pdf").read_bytes().startswith(b"%PDF")
    assert (
        (tmp_path / "out/curves.csv")
        .read_text()
        .startswith("alpha,figure,over,x,mean,std,ci95,runs\n0.1,accuracy,rounds,0,")
    )


def test_the_columns_of_tables_are_all_known(folder, tmp_path):
    assert {key for key in KEYS if "." not in key} <= COLUMNS
    split = SHORT | {"algorithm": "phsfl", "validation_share": 0.2, "global_rounds": 1}
    other, own = run_app(tmp_path / "runs/1", **split), run_app(tmp_path / "runs/2", **SHORT, algorithm="ditto")
    measured, seen = {"accuracy", "loss"}, set()
    for runs in (folder, tmp_path / "runs"):
        assert main(["compare", str(runs), "--output", str(tmp_path / "out"), "--target", "loss=1.0"]) == 0
        seen |= set((tmp_path / "out/runs.csv").read_text().splitlines()[0].split(","))
    for run in (folder / "0.1-0", other, own):
        seen |= set((run / "clients.csv").read_text().splitlines()[0].split(","))
    assert seen <= measured | columns_beside(measured) | COLUMNS | FIELDS | set(KEYS)
    assert seen >= COLUMNS - set(KEYS) - {"case", "spare"}


def test_a_run_that_was_made_twice_counts_once(folder, tmp_path):
    copy = tmp_path / "runs" / "copy"
    shutil.copytree(folder / "0.1-0", copy)
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps(config | {"engine": "flower"}))
    kept, repeated = without_repeats(finished_runs([folder, copy]))
    assert repeated == {copy: folder / "0.1-0"}
    assert [len(group.runs) for group in grouped(kept)] == [2, 2]


def test_a_run_that_a_case_and_another_have_made_counts_once(folder, tmp_path):
    cases = tmp_path / "cases"
    for name in ("0.1-0", "0.5-0"):
        shutil.copytree(folder / name, cases / name)
    table = "case,seed,folder\n" + "".join(f"{name},0,{cases / name}\n" for name in ("0.1-0", "0.5-0"))
    (cases / "runs.csv").write_text(table)
    assert [group.chosen for group in grouped(finished_runs([cases]))] == [{"case": "0.1-0"}, {"case": "0.5-0"}]
    kept, repeated = without_repeats(finished_runs([cases, folder]))
    assert repeated == {folder / name: cases / name for name in ("0.1-0", "0.5-0")}
    assert [(group.chosen, len(group.runs)) for group in grouped(kept)] == [({"alpha": 0.1}, 2), ({"alpha": 0.5}, 2)]


def test_runs_come_in_the_order_of_their_sweep_or_of_the_numbers_in_their_names(folder, tmp_path):
    names = ["n-16", "n-2", "n-4"]
    for name in names:
        shutil.copytree(folder / "0.1-0", tmp_path / name)
    assert [path.name for path in in_order_of_sweep(tmp_path)] == ["n-2", "n-4", "n-16"]
    (tmp_path / "runs.csv").write_text("seed,folder\n" + "".join(f"0,{tmp_path / name}\n" for name in names[:2]))
    assert [path.name for path in in_order_of_sweep(tmp_path)] == names


def test_tables_have_what_was_reached_on_examples_held_back(tmp_path):
    split = SHORT | {"algorithm": "hsfl", "validation_share": 0.2, "global_rounds": 1}
    folder = run_app(tmp_path / "run", **split)
    figures = read_run(folder).figures
    best = summary(folder)["best"]["validation"]
    assert figures["best_validation_accuracy"] == best["accuracy"]["mean"]
    held_back = summary(folder)["personalised_validation"]
    assert figures["personalised_validation_loss"] == held_back["loss"]["mean"]
    groups = grouped([read_run(folder)])
    header, _ = cells(groups, columns_of(None, groups), STD)
    assert {"best validation accuracy", "personalised validation accuracy"} <= set(header)
    assert "best test accuracy" not in header
    *tables, _about = as_text(groups, columns_of(None, groups), STD).split("\n\n")
    assert len(tables) > 1
    assert max(len(line) for table in tables for line in table.splitlines()) <= 100


def test_an_axis_is_logarithmic_where_one_curve_would_hide_another():
    group = Group({}, [])
    short, long, longest = (
        Curve(0, group, np.array([0.0, end / 2, end]), [over_seeds([0.0])] * 3) for end in (4.0, 60.0, 200.0)
    )
    assert first_steps([short, long]) == []
    assert first_steps([long, short, longest]) == [30.0, 2.0, 100.0]
    assert powers_of_ten(2.0, 200.0) == [10.0, 100.0]
    assert powers_of_ten(1e-7, 1e3) == [1e-7, 1e-4, 0.1, 100.0]
    assert powers_of_ten(2.0, 9.0) == []


def test_no_two_of_thirteen_curves_share_colour_and_marker():
    groups = [Group({"alpha": number}, []) for number in range(13)]
    assert len({(look.color, look.marker) for look in looks_of(groups)}) == 13


def test_colour_says_the_algorithm_and_line_and_marker_say_the_rest():
    chosen = [{"algorithm": a, "alpha": alpha} for a in ("hsfl", "phsfl") for alpha in (0.1, 0.5, 1.0)]
    looks = looks_of([Group(own, []) for own in chosen])
    by_look = {(look.color, look.style, look.marker): own.values() for look, own in zip(looks, chosen, strict=True)}
    assert len(by_look) == 6
    assert len({look.color for look in looks[:3]}) == len({look.color for look in looks[3:]}) == 1
    assert looks[0].color != looks[3].color
    for one, other in zip(looks[:3], looks[3:], strict=True):
        assert (one.style, one.marker) == (other.style, other.marker)
    assert len({look.style for look in looks}) == len({look.marker for look in looks}) == 3


def test_algorithms_alone_differ_in_print_without_colours_too():
    looks = looks_of([Group({"algorithm": name}, []) for name in ("fedavg", "hsfl", "phsfl")])
    assert len({look.color for look in looks}) == len({look.style for look in looks}) == 3


@pytest.mark.usefixtures("with_png")
def test_what_clients_end_with_is_a_marker_within_the_figure(tmp_path, figures):
    def curve(place, algorithm, end):
        runs = [FinishedRun(Path("a"), {}, {"accuracy": 0.2, "personalised_accuracy": y}, {}) for y in end]
        y = [over_seeds([0.1, 0.2])] * 2
        group = Group({"algorithm": algorithm}, runs)
        return Curve(place, group, np.array([0.0, 3.0]), y, {"fine-tuned heads": group.figure("personalised_accuracy")})

    drawn = [curve(0, "hsfl", (0.5, 0.7)), curve(1, "phsfl", (0.9, 0.9))]
    looks = looks_of([one.group for one in drawn])
    for spread, wide in ((STD, 0.1 * 2**0.5), (CI95, 0.1 * 12.7062)):
        draw_curves(tmp_path, drawn, looks, AXES[0], "accuracy", "a title", spread)
        figure = figures["accuracy-over-rounds.png"]
        (ax,), (legend,) = figure.axes, figure.legends
        assert [text.get_text() for text in legend.get_texts()] == ["hsfl", "phsfl", "fine-tuned heads"]
        stars = [bars.lines[0] for bars in ax.containers]
        assert [star.get_ydata().tolist() for star in stars] == [[pytest.approx(0.6)], [0.9]]
        assert [star.get_color() for star in stars] == [look.color for look in looks]
        (segment,) = ax.containers[0].lines[2][0].get_segments()
        assert segment[:, 1] == pytest.approx([0.6 - wide, 0.6 + wide], abs=1e-5)
        low, high = ax.get_ylim()
        assert low <= 0.6 - wide
        assert high >= max(0.9, 0.6 + wide)
        ends = [star.get_window_extent().x0 for star in stars]
        assert ax.bbox.x0 < ends[0] < ends[1] < figure.bbox.x1


@pytest.mark.parametrize(
    "words", ["h-fedavg, femnist, 100 clients, Dir(0.1) by classes, 10 seeds (band: 1 std)", "W" * 200, "short"]
)
def test_a_title_is_within_its_figure_whatever_it_says(tmp_path, figures, words, with_pdf):
    curve = Curve(0, Group({}, []), np.arange(3.0), [over_seeds([y]) for y in (0.0, 1.0, 2.0)])
    draw_curves(tmp_path, [curve], looks_of([curve.group]), AXES[1], "loss", words, STD)
    figure = figures["loss-over-bytes.png"]
    (ax,) = figure.axes
    (title,) = ax.findobj(lambda one: isinstance(one, Text) and one.get_text() == ax.get_title("left"))
    assert "".join(title.get_text().split()) == "".join(words.split())
    box = title.get_window_extent()
    assert 0 <= box.x0 <= box.x1 <= figure.bbox.x1
    assert ax.bbox.y1 <= box.y0 <= box.y1 <= figure.bbox.y1
    assert ax.bbox.x1 == pytest.approx(figure.bbox.x1, rel=0.05)
    assert ax.bbox.height > 0.5 * 2.3 * figure.dpi


@pytest.mark.usefixtures("with_png")
def test_a_case_of_any_name_is_in_the_legend(tmp_path, figures):
    names = [r"$\no^^formula$", "_hidden", "a_b $1 to $2"]
    drawn = [
        Curve(place, Group({"case": name}, []), np.arange(2.0), [over_seeds([0.5])] * 2)
        for place, name in enumerate(names)
    ]
    draw_curves(tmp_path, drawn, looks_of([one.group for one in drawn]), AXES[0], "$x$", "of $y$", STD)
    (legend,) = figures["-x--over-rounds.png"].legends
    assert [text.get_text().strip() for text in legend.get_texts()] == names


def test_curves_begin_with_the_model_before_training(folder):
    run = folder / "0.1-0"
    rounds, every_byte, seconds, joules = (points_of(read_run(run), axis, "accuracy").T for axis in AXES)
    assert rounds[0].tolist() == rounds[1].tolist() == [0, 1, 2]
    initial = json.loads((run / "round-0.json").read_text())["accuracy"]["mean"]
    means = [line["accuracy"]["mean"] for line in lines(run, "global")]
    assert rounds[2].tolist() == [initial, *means]
    sent = summary(run)["bytes"]
    assert every_byte[1].tolist()[::2] == [0, sum(sum(tiers.values()) for tiers in sent.values())]
    assert seconds[1][-1] == summary(run)["simulated_seconds"]
    assert joules[1][-1] == pytest.approx(summary(run)["energy_joules"]["total"])
    (curve, _) = curves(grouped(finished_runs([folder])), AXES[0], "accuracy")
    assert curve.y[0].mean == pytest.approx(
        fmean([initial, points_of(read_run(folder / "0.1-1"), AXES[0], "accuracy")[0, 2]])
    )


def test_a_setting_is_the_mean_of_its_runs_in_each_round_that_all_have():
    x, y = together(
        [
            np.array([(0, 0.0, 1.0), (1, 2.0, 3.0), (2, 5.0, 4.0), (4, 8.0, 6.0)]),
            np.array([(0, 0.0, 3.0), (2, 9.0, 8.0), (3, 10.0, 8.0), (4, 12.0, 8.0)]),
        ]
    )
    assert x.tolist() == [0, 7, 10]
    assert [own.mean for own in y] == [2, 6, 7]
    assert [own.std for own in y] == pytest.approx([2**0.5, 8**0.5, 2**0.5])


def test_a_curve_over_joules_ends_where_the_table_says(folder):
    for axis in AXES[1:]:
        name = {"bytes": None, "seconds": "simulated_seconds", "joules": "energy_joules"}[axis.name]
        for group, curve in zip(
            groups := grouped(finished_runs([folder])), curves(groups, axis, "accuracy"), strict=True
        ):
            ways = [group.figure(f"{way}_bytes") for way in ("uplink", "downlink")]
            end = group.figure(name).mean if name else sum(way.mean for way in ways)
            assert curve.x[-1] == pytest.approx(end)
            assert vars(curve.y[-1]) == pytest.approx(vars(group.figure("accuracy")))


def test_a_setting_looks_the_same_in_all_figures_and_what_lacks_it_is_said(folder, tmp_path, capsys):
    runs = [*finished_runs([folder])]
    runs[0] = replace(
        runs[0],
        settings=runs[0].settings | {"alpha": 0.9},
        lines=[{**line, "simulated_seconds": 0.0} for line in runs[0].lines],
    )
    groups = grouped(runs)
    assert [group.chosen["alpha"] for group in groups] == [0.9, 0.1, 0.5]
    assert [curve.place for curve in curves(groups, AXES[2], "accuracy")] == [1, 2]
    write_comparison(tmp_path, groups, ["accuracy"], STD)
    line = "accuracy-over-seconds lacks alpha 0.9: not two evaluated rounds with simulated time\n"
    assert line in capsys.readouterr().err


def test_a_figure_that_one_seed_lacks_is_not_the_others(folder):
    groups = grouped(finished_runs([folder]))
    runs = groups[0].runs
    lacking = replace(runs[1], figures=runs[1].figures | {"loss": None})
    header, row = cells(
        [Group(groups[0].chosen, [runs[0], lacking])], columns_of(None, [Group({}, [runs[0], lacking])]), STD
    )
    assert row[header.index("loss")] == "-"


def test_tables_say_mean_and_deviation(folder):
    groups = grouped(finished_runs([folder]))
    loss, columns = groups[0].figure("loss"), columns_of(None, groups)
    for spread, wide in ((STD, loss.std), (CI95, loss.ci95)):
        written = with_spread("loss", loss.mean, wide)
        assert f"  {written}  " in as_text(groups, columns, spread)
        assert rf"${written}$".replace("+-", r"\pm") in as_latex(groups, columns, spread)
        assert spread.about in as_text(groups, columns, spread)
        of_clients = "standard deviation (n) over those of each run's clients that were evaluated"
        assert of_clients in as_text(groups, columns, spread)
    single = grouped([groups[0].runs[0], groups[1].runs[0]])
    assert " & 1 & $" not in as_latex(single, columns, STD)  # no deviation of one run


def test_what_was_chosen_is_no_figure_in_latex_whatever_it_is_called():
    chosen = {"case": "base_1 +- 5%", "a+- b": 1e-05}
    group = Group(chosen, [FinishedRun(Path(name), {}, {"q+- r_": y}, {}) for name, y in (("a", 0.1), ("b", 0.3))])
    header, row = (line for line in as_latex([group], ["q+- r_"], STD).splitlines() if "&" in line)
    assert header == r"case & a+- b & runs & q+- r  \\"
    assert row == r"base\_1 +- 5\% & $1 \cdot 10^{-5}$ & 2 & $0.20 \pm 0.14$ \\"


def test_intervals_of_the_mean_are_those_of_students_t(folder, tmp_path):
    from scipy import stats

    for values in ([0.1, 0.4], [0.3, 0.32, 0.37], list(np.random.default_rng(0).normal(size=30))):
        own = over_seeds(values)
        low, high = stats.t.interval(0.95, len(values) - 1, np.mean(values), stats.sem(values))
        assert (own.mean - own.ci95, own.mean + own.ci95) == pytest.approx((low, high), rel=1e-12)
        assert own.std == pytest.approx(np.std(values, ddof=1), rel=1e-12)
    assert half_width(3) == pytest.approx(4.302653 / 3**0.5, rel=1e-6)  # as printed in tables
    assert over_seeds([0.5]) == OverSeeds(0.5, None, None)
    assert main(["compare", str(folder / "0.1-0"), str(folder / "0.1-1"), "--output", str(tmp_path)]) == 0
    (row,) = csv.DictReader((tmp_path / "comparison.csv").read_text().splitlines())
    expected = over_seeds([summary(folder / f"0.1-{seed}")["global"]["loss"]["mean"] for seed in (0, 1)])
    assert (float(row["loss_std"]), float(row["loss_ci95"])) == (expected.std, expected.ci95)


def test_an_unknown_spread_is_refused(folder, capsys):
    assert main(["compare", str(folder), "--spread", "sem"]) == 2
    assert capsys.readouterr().err == "error: --spread = 'sem': allowed is std, ci95\n"


@pytest.mark.parametrize(
    ("name", "mean", "wide", "written"),
    [
        ("accuracy", 0.45178, 0.00691, "0.4518 +- 0.0069"),
        ("accuracy", 0.45178, 0.0996, "0.45 +- 0.10"),
        ("accuracy", 0.45178, 0.0994, "0.452 +- 0.099"),
        ("accuracy", 0.45178, 0.15, "0.45 +- 0.15"),
        ("accuracy", 0.5, 1e-17, "0.5000 +- 0"),
        ("accuracy", 0.5, None, "0.5000"),
        ("energy_joules", 15738.31, 1488.51, "15,700 +- 1,500"),
        ("energy_joules", 5.3541e-06, 2.04e-07, "5.35e-06 +- 2.0e-07"),
        ("energy_joules", 1e-06, 2.04e-04, "1e-06 +- 2.0e-04"),
        ("uplink_bytes", 6862784.0, 0.0, "6,862,784 +- 0"),
        ("uplink_bytes", 6862784.0, 35.4, "6,862,784 +- 35"),
        ("rounds", 12.5, 2.12, "12.5 +- 2.1"),
    ],
)
def test_a_mean_has_the_digits_that_its_spread_allows(name, mean, wide, written):
    assert with_spread(name, mean, wide) == written


def test_columns_are_chosen_by_name(folder, tmp_path, capsys):
    command = ["compare", str(folder), "--output", str(tmp_path / "out"), "--columns"]
    assert main([*command, "energy_joules, uplink_bytes,best_round"]) == 2
    allowed = "accuracy, loss, test_loss, test_accuracy, rounds, uplink_bytes, downlink_bytes, energy_joules"
    refused = capsys.readouterr().err
    assert refused.startswith(f"error: --columns = 'best_round': allowed is {allowed}")
    assert refused.count("\n") == 1
    assert not (tmp_path / "out").exists()
    assert main([*command, "energy_joules, uplink_bytes"]) == 0
    header, first, *_ = (tmp_path / "out/comparison.txt").read_text().splitlines()
    assert re.split("  +", header) == ["alpha", "runs", "energy (J)", "uplink (B)"]
    bytes_of = [sum(summary(folder / f"0.1-{seed}")["bytes"]["uplink"].values()) for seed in (0, 1)]
    assert first.endswith(f"  {with_spread('uplink_bytes', fmean(bytes_of), stdev(bytes_of))}")
    assert main([*command, "accuracy,loss,loss_std_over_clients,accuracy_std_over_clients"]) == 0
    header, first, *_ = (tmp_path / "out/comparison.txt").read_text().splitlines()
    assert re.split("  +", header) == ["alpha", "runs", "accuracy", "loss", "over clients", "accuracy over clients"]
    stds = [summary(folder / f"0.1-{seed}")["global"]["accuracy"]["std"] for seed in (0, 1)]
    assert first.endswith(f"  +- {fmean(stds):#.2g}")
    assert main([*command, "energy_joules, uplink_bytes"]) == 0
    assert r"alpha & runs & energy (J) & uplink (B) \\" in (tmp_path / "out/comparison.tex").read_text()


def test_columns_without_room_in_a_line_follow_below_with_their_settings():
    figures = {f"a_somewhat_longer_figure_{i}": 0.5 for i in range(4)} | {
        "a_somewhat_longer_figure_2" + OVER_CLIENTS: 0.25
    }
    runs = [FinishedRun(Path(name), {}, figures, {}) for name in "ab"]
    groups = [Group({"alpha": alpha}, [run]) for alpha, run in zip((0.1, 0.5), runs, strict=True)]
    *tables, _about = as_text(groups, columns_of(None, groups), STD).split("\n\n")
    assert [[cell.strip() for cell in table.splitlines()[0].split("  ") if cell] for table in tables] == [
        ["alpha", "runs", "a somewhat longer figure 0", "a somewhat longer figure 1"],
        ["alpha", "runs", "a somewhat longer figure 2", "over clients", "a somewhat longer figure 3"],
    ]
    assert [table.splitlines()[1].split()[:2] for table in tables] == [["0.1", "1"]] * 2


def test_a_table_without_figures_has_the_settings():
    text = as_text([Group({"alpha": 0.1}, [FinishedRun(Path("a"), {}, {}, {})])], [], STD)
    assert text.splitlines()[:2] == ["alpha  runs", "0.1       1"]


def test_headings_are_words_with_units():
    names = ["energy_joules", "per_client_round_joules", "simulated_seconds", "uplink_bytes", "best_round"]
    words = ["energy (J)", "per client round energy (J)", "simulated time (s)", "uplink (B)", "best round"]
    assert [heading(name) for name in names] == words


def test_counts_are_whole_and_means_of_counts_are_not():
    assert [count(value) for value in (5.0, 4.5, 45250000.0)] == ["5", "4.5", "45,250,000"]


def test_folders_without_a_run_that_is_over_get_one_line(folder, tmp_path, capsys):
    begun = tmp_path / "some/begun"
    begun.mkdir(parents=True)
    (begun / "config.json").write_text((folder / "0.1-0/config.json").read_text())
    for given, says in (
        (tmp_path / "some", "holds no run"),
        (begun, "its run is not over"),
        (tmp_path, "holds no run"),
    ):
        assert main(["compare", str(given)]) == 2
        assert says in capsys.readouterr().err.splitlines()[-1]
    assert not list(tmp_path.rglob("comparison"))
    assert main(["compare", str(folder), "--output", ""]) == 2
    assert capsys.readouterr().err == "error: --output = '': allowed is a folder\n"


def test_a_sweep_within_the_folder_is_named(folder, tmp_path, capsys):
    shutil.copytree(folder / "0.1-0", tmp_path / "run")
    shutil.copytree(folder, tmp_path / "study")
    runs = finished_runs([tmp_path])
    assert [run.folder for run in runs] == [tmp_path / "run"]
    line = f"left out: {tmp_path / 'study'}: holds runs of its own; name it to compare them\n"
    assert capsys.readouterr().err == line
    assert len(finished_runs([tmp_path, tmp_path / "study"])) == 5
    assert capsys.readouterr().err == ""


LINE = {"round": 1, "scope": "global", "bytes": {}, "failures": 0, "wall_seconds": 1.0, "trained": True}
LINE |= {"simulated_seconds": 1.0, "energy_joules": {"so_far": 1.0}, "accuracy": {"mean": 0.5}, "loss": {"mean": 0.5}}


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("config.json", ""),
        ("config.json", "[]"),
        ("summary.json", "{"),
        ("summary.json", '{"rounds": 2}'),
        ("made-by.json", "[1, 2]"),
        ("made-by.json", '{"version": "1"}'),
        ("made-by.json", '[{"version": "1", "commit": 2, "machine": "a"}]'),
        ("round-0.json", '{"accuracy": 3}'),
        ("metrics.jsonl", LINE | {"accuracy": 0.5}),
        ("metrics.jsonl", LINE | {"accuracy": {"mean": "x"}}),
        ("metrics.jsonl", LINE | {"energy_joules": 3}),
        ("metrics.jsonl", LINE | {"bytes": 3}),
        ("round-0.json", '{"accuracy": {"mean": "x"}}'),
        ("round-0.json", '{"accuracy": {"mean": NaN}}'),
        ("round-0.json", '{"accuracy": {"mean": true}}'),
        ("metrics.jsonl", ""),
    ],
)
def test_a_damaged_run_is_named_and_the_others_are_compared(folder, tmp_path, capsys, name, content):
    runs = shutil.copytree(folder, tmp_path / "runs")
    damaged = runs / "0.5-1" / name
    damaged.write_text(content if isinstance(content, str) else json.dumps(content) + "\n")
    assert [run.folder.name for run in finished_runs([runs])] == ["0.1-0", "0.1-1", "0.5-0"]
    said = capsys.readouterr().err
    assert said == f"left out: {damaged}: is damaged; allowed is the file that the run wrote\n"


NO_FIGURES = ["NaN", "Infinity", "-Infinity", "1e999", "1e308", "true", '"0.5"', "9" * 400, "9" * 5000, "[]", "-1e151"]


@pytest.mark.parametrize("written", NO_FIGURES)
@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("summary.json", r'(?<="mean": )[-.e\d]+'),
        ("summary.json", r'(?<="rounds": )\d+'),
        ("summary.json", r'(?<="failures": )\d+'),
        ("summary.json", r'(?<="total": )[-.e\d]+'),
        ("metrics.jsonl", r'(?<="mean": )[-.e\d]+'),
        ("metrics.jsonl", r'(?<="round": )1(?=, "scope": "global")'),
        ("metrics.jsonl", r'(?<="so_far": )[-.e\d]+'),
        ("metrics.jsonl", r'(?<="simulated_seconds": )[-.e\d]+'),
        ("metrics.jsonl", r'(?<="scope": "global")(.*"model": )\d+'),
    ],
)
def test_a_run_with_what_is_no_figure_is_left_out(folder, tmp_path, capsys, name, place, written):
    runs = tmp_path / "runs"
    for run in ("0.1-0", "0.1-1"):
        shutil.copytree(folder / run, runs / run)
    file = runs / "0.1-1" / name
    text, count = re.subn(
        place, lambda found: (found[1] if found.re.groups else "") + written, file.read_text(), count=1
    )
    assert count
    file.write_text(text)
    assert [run.folder.name for run in finished_runs([runs])] == ["0.1-0"]
    said = capsys.readouterr().err
    assert re.fullmatch(rf"left out: {file}: (line \d+ )?is damaged; allowed is the file that the run wrote\n", said)


@pytest.mark.parametrize("change", [lambda texts: texts * 2, lambda texts: texts[:-1], lambda texts: texts[::-1]])
def test_a_run_without_a_line_of_each_round_is_left_out(folder, tmp_path, capsys, change):
    runs = tmp_path / "runs"
    for run in ("0.1-0", "0.1-1"):
        shutil.copytree(folder / run, runs / run)
    metrics = runs / "0.1-1" / "metrics.jsonl"
    metrics.write_text("".join(change(metrics.read_text().splitlines(keepends=True))))
    assert [run.folder.name for run in finished_runs([runs])] == ["0.1-0"]
    assert capsys.readouterr().err == f"left out: {metrics}: is damaged; allowed is the file that the run wrote\n"
    assert not is_surely_over(metrics.parent)


def test_time_that_runs_backwards_is_damaged(folder, tmp_path, capsys):
    run = shutil.copytree(folder / "0.1-0", tmp_path / "run")
    metrics = run / "metrics.jsonl"
    metrics.write_text(re.sub(r'(?<="simulated_seconds": )', "-", metrics.read_text()))
    assert main(["compare", str(run)]) == 2
    assert capsys.readouterr().err == f"error: {metrics}: is damaged; allowed is the file that the run wrote\n"


def test_who_only_reads_folders_imports_nothing_that_they_name(folder, tmp_path, monkeypatch, capsys):
    runs = shutil.copytree(folder, tmp_path / "sweep")
    (tmp_path / "imports_itself.py").write_text(
        f"from pathlib import Path\nPath({str(tmp_path / 'imported')!r}).touch()\n"
        "from espalier.app.algorithms.h_fedavg import H_FEDAVG as X\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    for run in runs.iterdir():
        values = json.loads((run / "config.json").read_text())
        values |= {"edge-strategy": "imports_itself:Strategy", "report.tracker": "imports_itself:Tracker"}
        (run / "config.json").write_text(json.dumps(values | {"algorithm": "imports_itself:X"}))
    assert main(["compare", str(runs), "--output", str(tmp_path / "out")]) == 0
    assert [group.chosen for group in grouped(finished_runs([runs]))] == [{"alpha": 0.1}, {"alpha": 0.5}]
    report_again(runs / "0.1-0")
    run_by_folder(planned_runs(read_sweep(["num-clients=4"])), runs)
    assert not (tmp_path / "imported").exists()

    capsys.readouterr()
    assert main([f"resume={runs / '0.1-0'}", "edge-strategy=FedAvg"]) == 2
    said, error = capsys.readouterr()
    assert said.splitlines()[0] == (
        f"code is imported that {runs / '0.1-0' / 'config.json'} names: "
        "algorithm = 'imports_itself:X', report.tracker = 'imports_itself:Tracker'"
    )
    assert error.startswith("error: edge-strategy = 'FedAvg': allowed is 'imports_itself:Strategy'")
    assert (tmp_path / "imported").exists()


def test_a_run_in_which_nobody_trained_is_left_out_as_such(folder, tmp_path, capsys):
    run = shutil.copytree(folder / "0.1-0", tmp_path / "runs" / "run")
    metrics = run / "metrics.jsonl"
    metrics.write_text(metrics.read_text().replace('"trained": true', '"trained": false'))
    config = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps(config | {"selection": "everybody", "algorithm": "h-fedavg"}))
    (run / "world.json").unlink()
    assert main(["compare", str(tmp_path / "runs")]) == 2
    said = capsys.readouterr().err.splitlines()[0]
    assert said.startswith(f"left out: {run}: no client trained in any round of its run; allowed are")


def test_a_path_of_nobodys_home_gets_one_line(folder, capsys):
    for given in (["~nobodyx/y"], [str(folder), "--output", "~nobodyx/y"]):
        assert main(["compare", *given]) == 2
        assert "~nobodyx/y': allowed is a path; there is no home folder of that user" in capsys.readouterr().err


def test_small_figures_have_four_digits_too():
    assert [number(v) for v in (0.0, 0.5, 5.3541e-06, 1234.5)] == ["0.0000", "0.5000", "5.354e-06", "1,234"]
    assert [number(v) for v in (9.99994, 9.99996, 999.994, 999.996)] == ["9.9999", "10.00", "999.99", "1,000"]
    assert [rounded(v) for v in (0.0, 0.00042, 2e-7, 0.4, 12.5, 2512.0)] == [
        "0",
        "4.2e-04",
        "2.0e-07",
        "0.40",
        "12",
        "2,500",
    ]
    assert _latex("5.354e-06") == r"$5.354 \cdot 10^{-6}$"
    assert _latex("5.354e-06 +- 2e-07") == r"$5.354 \cdot 10^{-6} \pm 2 \cdot 10^{-7}$"


def test_so_have_those_of_a_run_that_diverged():
    assert [number(v) for v in (249_419_000.0, 7.03151e29)] == ["249,419,000", "7.032e+29"]
    assert [rounded(v) for v in (2.5e11, 7.03151e29)] == ["250,000,000,000", "7.0e+29"]
    spread = [with_spread("loss", *both) for both in ((7.03151e29, 2e28), (2.5, 7e29), (7e29, None), (7e29, 0.0))]
    assert spread == ["7.03e+29 +- 2.0e+28", "2e+00 +- 7.0e+29", "7e+29", "7e+29 +- 0"]
    assert with_spread("uplink_bytes", 1_234_567_890_123.0, 2.3e6) == "1,234,567,900,000 +- 2,300,000"
    assert _latex("7.03e+29 +- 2.0e+28") == r"$7.03 \cdot 10^{29} \pm 2.0 \cdot 10^{28}$"


def test_a_lock_that_is_left_over_does_no_harm(folder, tmp_path):
    run = shutil.copytree(folder / "0.1-0", tmp_path / "run")
    (run / "lock").touch()
    assert is_over(run)
    lock = own(run, "resume")
    assert not is_over(run)
    disown(lock)
    assert is_over(run)


def test_a_figure_of_any_name_has_files(tmp_path, with_pdf):
    curve = Curve(0, Group({}, []), np.arange(3.0), [over_seeds([y]) for y in (0.0, 1.0, 2.0)])
    made = draw_curves(tmp_path, [curve], looks_of([curve.group]), AXES[0], "error/mae, mean", "a title", STD)
    assert made.name == "error-mae--mean-over-rounds.png"
    assert all(path.stat().st_size > 1000 for path in (made, made.with_suffix(".pdf")))
