"""How soon runs reach a target is what their lines say, round by round."""

import csv
import re

import pytest

from espalier.app.command_line import main
from espalier.app.comparison.command import finished_runs
from espalier.app.comparison.curves import AXES, points_of
from espalier.app.comparison.groups import grouped
from espalier.app.comparison.runs import read_run
from espalier.app.comparison.spread import STD, over_seeds
from espalier.app.comparison.tables import cells, columns_of
from espalier.app.comparison.targets import target_of, with_target
from tests.app.runs import lines, run_app

SETTINGS = {
    "num_clients": 4,
    "batches_per_epoch": 1,
    "local_epochs": 1,
    "algorithm": "h-fedavg",
    "selection": "resource-aware",
    "global_rounds": 4,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder of two runs of four rounds, of two seeds."""
    root = tmp_path_factory.mktemp("runs")
    for seed in (0, 1):
        run_app(root / str(seed), **SETTINGS, seed=seed)
    return root


def figures(run, text):
    (found,) = with_target([read_run(run)], target_of(text))
    return {name.removeprefix("target_"): value for name, value in found.figures.items() if name.startswith("target_")}


def test_it_is_the_first_round_at_the_target_or_beyond_and_what_was_spent_by_then(folder):
    run = folder / "0"
    losses = [line["loss"]["mean"] for line in lines(run, "global")]
    for number, loss in enumerate(losses, start=1):
        found = figures(run, f"loss={loss!r}")
        first = next(n for n, own in enumerate(losses, start=1) if own <= loss)
        assert (first, found["reached"]) == (found["rounds"], 1.0)
        assert min(losses[:number]) < loss or first == number
        (line,) = [line for line in lines(run, "global") if line["round"] == first]
        assert found["seconds"] == line["simulated_seconds"]
        assert found["joules"] == line["energy_joules"]["so_far"]
        assert found["bytes"] == points_of(read_run(run), AXES[1], "loss")[first, 1]


def test_accuracy_rises_and_one_that_was_there_before_training_cost_nothing(folder):
    run = folder / "0"
    initial, *_, last = points_of(read_run(run), AXES[0], "accuracy")[:, 2].tolist()
    assert figures(run, f"accuracy={initial!r}") == {"reached": 1, "rounds": 0, "bytes": 0, "seconds": 0, "joules": 0}
    assert figures(run, f"accuracy<={last!r}") == figures(run, f" accuracy <= {initial!r} ")
    assert figures(run, "accuracy=1.5") == dict.fromkeys(["rounds", "bytes", "seconds", "joules"]) | {"reached": 0}


def test_a_figure_on_the_test_pool_has_targets_too(folder):
    run = folder / "0"
    losses = [line["test"]["loss"] for line in lines(run, "global")]
    assert figures(run, f"test_loss={losses[1]!r}")["rounds"] == 2
    assert figures(run, "test_accuracy=1.5")["reached"] == 0


def test_a_setting_of_which_one_seed_never_gets_there_has_no_mean(folder):
    runs = finished_runs([folder])
    best = [min(line["loss"]["mean"] for line in run.lines) for run in runs]
    (group,) = grouped(with_target(runs, target_of(f"loss={sum(best) / 2!r}")))
    assert group.figure("target_reached") == over_seeds([0.0, 1.0])
    assert group.figure("target_rounds") is group.figure("target_joules") is None
    header, row = cells([group], columns_of(None, [group]), STD)
    shown = {name: value for name, value in zip(header, row, strict=True) if name.startswith("target")}
    assert shown.pop("target reached") == "0.50 +- 0.71"
    assert {*shown.values()} == {"-"}


def test_tables_have_what_it_took(folder, tmp_path, capsys):
    assert main(["compare", str(folder), "--output", str(tmp_path), "--target", "loss=1000"]) == 0
    printed = capsys.readouterr().out
    assert all(name in printed for name in ("target reached", "target rounds", "target (B)", "target energy (J)"))
    for table in ("runs.csv", "comparison.csv"):
        with (tmp_path / table).open(newline="") as file:
            row = next(csv.DictReader(file))
        assert {float(value) for name, value in row.items() if re.match("target_(?!reached|.*_std|.*_ci95)", name)} == {
            0
        }


@pytest.mark.parametrize(
    "text", ["accuracy", "accuracy=", "=0.5", "accuracy=high", "accuracy>0.5", "loss=nan", "f1=0.5"]
)
def test_what_is_no_target_gets_one_line(folder, capsys, text):
    assert main(["compare", str(folder), "--target", text]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: --target = {text!r}: allowed is accuracy=0.6, ")
    assert error.count("\n") == 1


@pytest.mark.parametrize("name", ["f1", "simulated_seconds", "round", "scope"])
def test_what_is_no_figure_over_clients_is_named_with_those_that_are(folder, capsys, name):
    assert main(["compare", str(folder), "--target", f"{name}>=0.5"]) == 2
    names = "accuracy, loss, test_accuracy, test_loss"
    assert capsys.readouterr().err == f"error: --target = {name!r}: allowed is figures of these runs: {names}\n"
