"""The study of fine-tuning measures what a run itself reports."""

import csv
import shutil
from pathlib import Path
from statistics import fmean, pstdev

import pytest

from espalier.app.config.parse import parse_config
from espalier.app.ground.errors import UserError
from espalier.app.reports.saved import saved_config
from espalier.strategies.split import FineTuning
from experiments import fine_tuning
from experiments.recorded_runs import read_lines
from tests.app.own_folders import OWN, own_folders
from tests.app.runs import run_app, summary

ROOT = Path(__file__).parents[2]
K, RATE = 3, 0.05
SHORT = {"algorithm": "phsfl", "num_clients": 4, "global_rounds": 1, "fine_tune_steps": K, "fine_tune_rate": RATE}
PLANNED = {"selection": "resource-aware", "selected_per_edge": 1, "max_local_rounds": 2, "cut_layer": "best"}


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"weighting": "equal", "algorithm": "sfl-v2", "num_edges": 2},
        PLANNED | {"batches_per_epoch": 2},
        PLANNED | {"weighting": "equal", "batches_per_epoch": 2},
        OWN,
    ],
    ids=["phsfl", "sfl-v2, equal weights", "best cut", "best cut, equal weights", "a client without test images"],
)
def test_it_gives_the_figures_of_the_run(tmp_path, monkeypatch, settings):
    if settings is OWN:
        data = own_folders(tmp_path / "data")
        shutil.rmtree(data / "2" / "test")
        settings = settings | {"data_dir": str(data)}
    folder = run_app(tmp_path / "run", **SHORT | settings)
    monkeypatch.setattr(fine_tuning, "SETTINGS", [None, FineTuning(K, RATE)])
    whole, tuned = fine_tuning.measure(folder, saved_config(folder))
    reported = summary(folder)
    for key in ("accuracy", "loss"):
        assert whole[key] == reported["global"][key]["mean"]
        assert tuned[key] == pytest.approx(reported["personalised"][key]["mean"], rel=1e-12)
    assert tuned["loss"] != whole["loss"]


def test_a_run_that_was_made_on_a_gpu_is_measured_where_there_is_none(tmp_path, monkeypatch):
    folder = run_app(tmp_path / "run", **SHORT)
    monkeypatch.setattr(fine_tuning, "SETTINGS", [FineTuning(K, RATE)])
    (tuned,) = fine_tuning.measure(folder, parse_config(saved_config(folder).as_dict() | {"device": "cuda"}))
    assert tuned["accuracy"] == pytest.approx(summary(folder)["personalised"]["accuracy"]["mean"], abs=0.02)


def test_it_reads_the_runs_of_a_sweep(tmp_path, monkeypatch, capsys):
    for algorithm in ("hsfl", "phsfl"):
        run_app(tmp_path / "sweep" / algorithm, **SHORT | {"algorithm": algorithm})
    monkeypatch.setattr(fine_tuning, "SETTINGS", [None, FineTuning(K, RATE)])
    capsys.readouterr()
    monkeypatch.setattr("sys.argv", ["fine_tuning.py", str(tmp_path / "sweep"), "--csv", str(tmp_path / "runs.csv")])
    fine_tuning.main()
    header, runs, whole, tuned = table = capsys.readouterr().out.splitlines()[-4:]
    assert header.split() == ["hsfl", "accuracy", "hsfl", "loss", "phsfl", "accuracy", "phsfl", "loss"]
    assert runs.split() == ["runs", "1", "1", "1", "1"]
    assert whole.startswith("global")
    assert tuned.startswith(f"K={K} {RATE}")
    with (tmp_path / "runs.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert [(line["algorithm"], line["steps"]) for line in lines] == [
        ("hsfl", "0"), ("hsfl", str(K)), ("phsfl", "0"), ("phsfl", str(K)),
    ]  # fmt: skip
    for line, name in ((lines[1], "hsfl"), (lines[3], "phsfl")):
        reported = summary(tmp_path / "sweep" / name)["personalised"]
        assert float(line["accuracy"]) == pytest.approx(reported["accuracy"]["mean"], rel=1e-12)
    # What has lines is not measured again, and can be printed and drawn without the runs.
    monkeypatch.setattr(fine_tuning, "measure", lambda *run: pytest.fail("measured again"))
    fine_tuning.main()
    assert capsys.readouterr().out.splitlines() == table
    drawn = tmp_path / "figures" / "drawn.png"
    monkeypatch.setattr("sys.argv", ["fine_tuning.py", "--csv", str(tmp_path / "runs.csv"), "--figure", str(drawn)])
    fine_tuning.main()
    assert capsys.readouterr().out.splitlines() == table
    assert drawn.read_bytes().startswith(b"\x89PNG")


def test_by_how_much_hsfl_is_ahead_seed_by_seed_follows_from_the_record():
    page = " ".join((ROOT / "docs/fine-tuning.md").read_text().split())
    found = fine_tuning.by_algorithm(read_lines(fine_tuning.Line, ROOT / "docs/data/fine-tuning.csv"))
    for steps in (10, 50):
        rates = {
            name: max((r for k, r in own if k == steps), key=lambda r: fmean(x.accuracy for x in own[steps, r]))
            for name, own in found.items()
        }
        hsfl, phsfl = (found[name][steps, rates[name]] for name in ("hsfl", "phsfl"))
        assert [x.seed for x in hsfl] == [x.seed for x in phsfl] == [0, 1, 2]
        ahead = [one.accuracy - other.accuracy for one, other in zip(hsfl, phsfl, strict=True)]
        assert min(ahead) > 0
        first, second, third = (f"{difference:.4f}" for difference in ahead)
        best = f"with K = {steps} (HSFL at {rates['hsfl']:g}, PHSFL at {rates['phsfl']:g})"
        assert f"{best} by {first}, {second} and {third}" in page


def test_the_page_shows_what_is_recorded(monkeypatch, capsys):
    page, record = (ROOT / "docs/fine-tuning.md").read_text(), ROOT / "docs/data/fine-tuning.csv"
    monkeypatch.setattr("sys.argv", ["fine_tuning.py", "--csv", str(record)])
    fine_tuning.main()
    assert "\n".join(line.rstrip() for line in capsys.readouterr().out.splitlines()) in page
    found = fine_tuning.by_algorithm(read_lines(fine_tuning.Line, record))
    assert set(found) == {"hsfl", "phsfl"}
    runs = {(name, s): [x._asdict() for x in lines] for name, own in found.items() for s, lines in own.items()}
    assert all([x["seed"] for x in lines] == [0, 1, 2] for lines in runs.values())

    def mean(name, steps, rate, key):
        return fmean(x[key] for x in runs[name, (steps, rate)])

    # What every seed says, as the page does.
    for seed in range(3):
        whole = {name: runs[name, (0, 0.0)][seed] for name in found}
        tuned = {name: runs[name, (10, 0.01)][seed] for name in found}
        assert whole["hsfl"]["accuracy"] > whole["phsfl"]["accuracy"]
        assert tuned["phsfl"]["accuracy"] > tuned["hsfl"]["accuracy"]
    for key, sign in (("accuracy", 1), ("loss", -1)):
        for label, steps, rate in (("global", 0, 0.0), ("fine-tuned heads", 10, 0.01)):
            for name in found:
                values = [x[key] for x in runs[name, (steps, rate)]]
                cell = f"{fmean(values):.3f} +- {pstdev(values):.3f}"
                (row,) = (line for line in page.splitlines() if line.startswith(f"| {name.upper()}, {label} |"))
                assert f"| {cell} |" in row
        for (name, setting), lines in runs.items():
            better = all(sign * x[key] > sign * runs[name, (0, 0.0)][x["seed"]][key] for x in lines)
            assert better == (setting[0] > 0 and (key, name, setting[1]) != ("loss", "phsfl", 0.1)), (name, setting)
    ours, theirs = (mean(name, 10, 0.01, "accuracy") for name in ("phsfl", "hsfl"))
    text = " ".join(page.split())
    assert f"gain in accuracy is {100 * (ours / theirs - 1):.1f}%; the paper's is 9.43%" in text
    ours, theirs = (mean(name, 10, 0.01, "loss") for name in ("phsfl", "hsfl"))
    assert f"as in the paper, it is {100 * (theirs / ours - 1):.0f}%; the paper's is 42.68%" in text


def test_a_folder_of_another_run_gets_one_line(tmp_path, monkeypatch):
    folder = run_app(tmp_path / "run", num_clients=4, global_rounds=1)
    with pytest.raises(UserError, match="allowed is the results folder of a split run"):
        fine_tuning.measure(folder, saved_config(folder))
    for folders in ([str(tmp_path / "none")], []):
        monkeypatch.setattr("sys.argv", ["fine_tuning.py", *folders, "--csv", str(tmp_path / "runs.csv")])
        with pytest.raises(SystemExit, match=r"^error: "):
            fine_tuning.main()
