"""What a sweep that optimises tries next."""

import csv
import math

import pytest

from espalier.app.ground.errors import UserError
from espalier.app.sweeps.grid import planned_runs, read_sweep
from espalier.app.sweeps.optimise import optimised
from espalier.app.sweeps.search import Aim, Between, aim_of, as_sweep, best_of, ends_of, search, space_of

pytest.importorskip("optuna")


def test_an_aim_says_which_way_is_better():
    assert aim_of("accuracy") == Aim("accuracy", rises=True)
    assert aim_of("loss") == Aim("loss", rises=False)
    assert aim_of("min:uplink_bytes") == Aim("uplink_bytes", rises=False)
    with pytest.raises(UserError, match="--optimise = 'auc': allowed is accuracy, loss, or of any other column"):
        aim_of("auc")


def test_what_is_open_are_lists_and_ranges_but_no_seeds():
    sweep = read_sweep(["learning-rate=0.001..1:log", "cut-layer=1,2", "batch-size=8..64", "seed=3,4", "alpha=0.5"])
    space = space_of(sweep)
    assert space["learning-rate"] == Between(0.001, 1.0, log=True)
    assert space["batch-size"] == Between(8, 64, log=False)
    assert list(space) == ["cut-layer", "learning-rate", "batch-size"]
    assert list(ends_of(space)) == [
        {"cut-layer": 1, "learning-rate": 0.001, "batch-size": 8},
        {"cut-layer": 2, "learning-rate": 1.0, "batch-size": 64},
    ]
    assert [type(end) for end in vars(space_of(read_sweep(["alpha=1..10"]))["alpha"]).values()] == [float, float, bool]
    runs = planned_runs(as_sweep(sweep, space, {"learning-rate": 0.02, "cut-layer": 2, "batch-size": 9}))
    assert [(run.settings["seed"], run.settings["learning-rate"], run.settings["alpha"]) for run in runs] == [
        (3, 0.02, 0.5),
        (4, 0.02, 0.5),
    ]
    assert runs[0].chosen == {"learning-rate": 0.02, "cut-layer": 2, "batch-size": 9, "seed": 3}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["seed=0,1"], "--optimise: nothing to choose: allowed is alpha=0.1,0.5, or a range"),
        (["alpha=0.1,0.5", "seed=0..5"], "seed = '0..5': allowed is numbers with commas between them"),
        (["alpha=1..0.5"], "alpha = '1..0.5': allowed is LOW..HIGH with LOW < HIGH"),
        (["learning-rate=-1e400..1"], "learning-rate = '-1e400..1': allowed is LOW..HIGH"),
        (["alpha=0..1:log"], "alpha = '0..1:log': allowed is .* with :log behind it LOW > 0"),
    ],
)
def test_nothing_to_choose_is_one_line(given, said):
    with pytest.raises(UserError, match=said):
        space_of(read_sweep(given))


def test_a_range_that_holds_what_is_not_allowed_ends_before_any_run():
    def make(runs):
        raise AssertionError("nothing runs")

    given = ["batch-size=0..6", "learning-rate=0.1..0.2"]
    with pytest.raises(UserError, match="batch-size = 0: allowed is greater than 0"):
        optimised(read_sweep(given), aim_of("accuracy"), 8, make)


def test_cases_that_the_command_line_has_made_alike_are_one(tmp_path):
    file = tmp_path / "study.toml"
    file.write_text("[sweep.case.V1]\nlearning-rate = 0.1\n[sweep.case.V2]\nlearning-rate = 0.2\n")
    sweep = read_sweep([str(file), "learning-rate=0.1,0.3"])
    made = []

    def make(runs):
        made.extend(runs)
        return {tmp_path / f"{one.settings['learning-rate']}": one for one in runs}  # the last of those that are alike

    assert len(optimised(sweep, aim_of("accuracy"), 4, make)) == 4
    assert {run.name.partition("_")[0] for run in made} == {"V1", "V2"}


def trials(count, seed=0):
    space = {"rate": Between(1e-4, 1.0, log=True), "units": Between(1, 9, log=False), "kind": ["a", "b", "c"]}

    def figures_of(values):  # best at rate = 0.01, units = 5, kind "b"; too large a rate fails
        assert len(values) <= 4
        return [
            None
            if one["rate"] > 0.5
            else -((math.log10(one["rate"]) + 2) ** 2) - (one["units"] - 5) ** 2 / 10 - (one["kind"] != "b")
            for one in values
        ]

    return list(search(space, Aim("accuracy", rises=True), seed, count, figures_of))


def test_a_search_comes_near_the_best_and_is_the_same_again():
    found = trials(60)
    assert best_of(found, Aim("accuracy", rises=True)).figure > -0.2
    assert trials(30) == found[:30]  # so that a sweep goes on by typing the same again
    assert trials(6) == found[:6]
    assert trials(2, seed=-1) == trials(2, seed=2**32 - 1)  # any seed that a run may have
    assert [t.values for t in trials(8, seed=1)] != [t.values for t in found[:8]]


@pytest.mark.deploy
def test_a_sweep_optimises_and_goes_on(tmp_path, capsys):
    from espalier.app.sweeps.command import main

    given = ["algorithm=fedavg", "num-clients=2", "batches-per-epoch=1", "global-rounds=1", "report.plots=false"]
    given += ["learning-rate=0.01..1:log", "seed=0,1", f"output-dir={tmp_path}", "--workers", "2"]
    assert main([*given, "--optimise", "accuracy", "--trials", "1"]) == 0
    assert "2 of 2 runs are over, 2 of them made now" in capsys.readouterr().out
    assert main([*given, "--optimise", "accuracy", "--trials", "2"]) == 0
    out = capsys.readouterr().out
    assert "4 of 4 runs are over, 2 of them made now" in out
    with (tmp_path / "runs.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert sorted(row["seed"] for row in rows) == ["0", "0", "1", "1"]
    means = {}
    for row in rows:
        means.setdefault(row["learning-rate"], []).append(float(row["accuracy"]))
    best = max(means, key=lambda rate: sum(means[rate]))
    assert f"best of 2 trials: {[*means].index(best) + 1}, learning-rate = {best}: accuracy" in out
    assert main([*given, "--optimise", "max:no", "--trials", "1"]) == 2
    assert "error: --optimise = 'no': allowed is a figure of these runs: accuracy, " in capsys.readouterr().err
