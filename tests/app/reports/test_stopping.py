"""A run that ends before its last global round is a run of so many rounds."""

import json

import pytest
import torch

from espalier.app.command_line import main
from espalier.app.comparison.runs import is_over
from espalier.app.config.parse import parse_config
from espalier.app.config.unused import unused_keys
from espalier.app.reports.final import report_again
from espalier.app.reports.stopping import SoFar
from espalier.app.settings.sections import Stop
from tests.app.run.test_resume import STATEFUL, without_times
from tests.app.runs import lines, run_app, same_weights, summary

SMALL = {"num_clients": 4, "batches_per_epoch": 2, "batch_size": 8, "local_epochs": 1}


def line(number, accuracy=None, bytes_=10, seconds=1.0, joules=0.5):
    test = {} if accuracy is None else {"test": {"accuracy": accuracy, "loss": 1.0}}
    own = {"bytes": {"edge": {"uplink": {"model": bytes_}}}, "energy_joules": {"so_far": number * joules}}
    return {"round": number, "scope": "global", "wall_seconds": number * seconds, **test, **own}


def ends_after(accuracies=(), rounds=6, **stop):
    """Return the first round that ends a run, and why; None for a run that nothing ends."""
    accuracies = [*accuracies, *[None] * (rounds - len(accuracies))]
    made = [line(number, accuracy) for number, accuracy in enumerate(accuracies, start=1)]
    for number in range(1, rounds + 1):
        if reason := SoFar.of(made[:number]).reason(Stop(**stop)):
            return number, reason
    return None


@pytest.mark.parametrize(
    ("stop", "accuracies", "expected"),
    [
        ({}, [1.0, 1.0, 1.0], None),
        ({"accuracy": 0.5}, [0.1, 0.5], (2, "stop.accuracy = 0.5: test accuracy 0.5000")),
        ({"accuracy": 0.5}, [0.1, None, 0.7], (3, "stop.accuracy = 0.5: test accuracy 0.7000")),
        ({"accuracy": 0.5}, [0.1, 0.4], None),
        # The third is no progress, the round without evaluation does not count.
        (
            {"patience": 2},
            [0.1, 0.3, 0.3, None, 0.2],
            (5, "stop.patience = 2: no test accuracy above 0.3000 in 2 evaluated rounds"),
        ),
        ({"patience": 2}, [0.1, 0.3, 0.3, 0.4, 0.4], None),
        ({"seconds": 2.5}, [], (3, "stop.seconds = 2.5: 3.0 s")),
        ({"bytes": 40}, [], (4, "stop.bytes = 40: 40 bytes")),
        ({"joules": 1.2}, [], (3, "stop.joules = 1.2: 1.5 J")),
        ({"joules": 1.2, "bytes": 20}, [], (2, "stop.bytes = 20: 20 bytes")),
    ],
)
def test_the_first_round_that_reaches_a_limit_ends_the_run(stop, accuracies, expected):
    assert ends_after(accuracies, **stop) == expected


def test_a_figure_that_is_no_number_is_no_progress():
    made = [line(1, 0.2), line(2) | {"test": {"accuracy": None, "loss": None}}]
    assert SoFar.of(made).reason(Stop(patience=1))
    assert not SoFar.of(made).reason(Stop(accuracy=0.1))


def assert_same_but_for_the_reason(stopped, whole):
    assert same_weights(stopped, whole)
    for scope in ("edge", "global", "personalised"):
        assert list(map(without_times, lines(stopped, scope))) == list(map(without_times, lines(whole, scope)))
    of_stopped = without_times(summary(stopped))
    del of_stopped["stopped"]
    assert of_stopped == without_times(summary(whole))
    assert sorted(p.name for p in stopped.iterdir()) == sorted(p.name for p in whole.iterdir())
    heads = [folder / "heads.pt" for folder in (stopped, whole)]
    if heads[1].exists():
        left, right = (torch.load(file, weights_only=True) for file in heads)
        assert left.keys() == right.keys()
        assert all(torch.equal(left[i][name], right[i][name]) for i in right for name in right[i])


@pytest.mark.parametrize("every", [0, 1, 3])
@pytest.mark.parametrize(
    "settings",
    [
        STATEFUL,
        {"algorithm": "phsfl", "fine_tune_steps": 2},
        {"algorithm": "fedavg"},
        {"async_mode": "fedbuff", "num_edges": 3, "selection": "resource-aware"},
    ],
    ids=["two-tiers", "split", "flat", "asynchronous-planned"],
)
def test_stopped_after_a_round_it_is_a_run_of_so_many_rounds_to_the_bit(tmp_path, settings, every):
    settings = SMALL | settings | {"report_evaluate_every": every}
    whole = run_app(tmp_path / "whole", global_rounds=2, **settings)
    limit = bytes_of(lines(whole, "global")[0]) + 1
    stopped = run_app(tmp_path / "stopped", global_rounds=4, stop_bytes=limit, **settings)
    assert summary(stopped)["rounds"] == 2
    assert summary(stopped)["stopped"] == f"stop.bytes = {limit}: {all_bytes(whole)} bytes"
    assert_same_but_for_the_reason(stopped, whole)


def bytes_of(line):
    return sum(sum(kinds.values()) for tier in line["bytes"].values() for kinds in tier.values())


def all_bytes(folder):
    return sum(map(bytes_of, lines(folder, "global")))


def test_joules_of_plans_end_a_run(tmp_path):
    settings = SMALL | {"selection": "resource-aware"}
    whole = run_app(tmp_path / "whole", global_rounds=2, **settings)
    joules = summary(whole)["energy_joules"]["total"]
    stopped = run_app(tmp_path / "stopped", global_rounds=4, stop_joules=0.999 * joules, **settings)
    assert_same_but_for_the_reason(stopped, whole)


def test_a_run_that_gets_no_better_ends_and_says_so(tmp_path, capsys):
    folder = run_app(tmp_path / "run", global_rounds=6, learning_rate=1e-30, stop_patience=2, **SMALL)
    # All rounds are the first, to float32.
    assert summary(folder)["rounds"] == 3
    said = f"stopped after round 3 by {summary(folder)['stopped']}"
    assert said in capsys.readouterr().out
    assert said.startswith("stopped after round 3 by stop.patience = 2: no test accuracy above 0.")
    before = summary(folder)
    report_again(folder)
    assert summary(folder) == before


def test_a_limit_that_the_last_planned_round_reaches_stops_nothing(tmp_path, capsys):
    folder = run_app(tmp_path / "run", global_rounds=2, stop_patience=1, learning_rate=1e-30, **SMALL)
    assert summary(folder)["rounds"] == 2
    assert "stopped" not in summary(folder)
    assert "stopped" not in capsys.readouterr().out
    assert main([f"resume={folder}", "global-rounds=3"]) == 0
    assert summary(folder)["rounds"] == 2
    assert summary(folder)["stopped"].startswith("stop.patience = 1: no test accuracy above 0.")


def test_a_stopped_run_is_over_until_its_limit_is_changed(tmp_path, caplog):
    whole = run_app(tmp_path / "whole", global_rounds=4, **SMALL | STATEFUL)
    limit = all_bytes(run_app(tmp_path / "one", global_rounds=1, **SMALL | STATEFUL))
    folder = run_app(tmp_path / "run", global_rounds=4, stop_bytes=2 * limit, **SMALL | STATEFUL)
    assert len(lines(folder, "global")) == 2
    assert is_over(folder)
    before = {name: (folder / name).read_bytes() for name in ("metrics.jsonl", "summary.json", "state.npz")}
    caplog.set_level("INFO", "espalier")
    assert main([f"resume={folder}"]) == 0
    assert f"the run is over since round 2 by stop.bytes = {2 * limit}: {2 * limit} bytes; to go on, change that" in (
        record.getMessage() for record in caplog.records
    )
    assert {name: (folder / name).read_bytes() for name in before} == before

    assert main([f"resume={folder}", f"stop.bytes={3 * limit}"]) == 0
    assert len(lines(folder, "global")) == 3
    assert main([f"resume={folder}", "stop.bytes=0"]) == 0
    assert same_weights(folder, whole)
    for scope in ("edge", "global"):
        assert list(map(without_times, lines(folder, scope))) == list(map(without_times, lines(whole, scope)))
    assert without_times(summary(folder)) == without_times(summary(whole))


def test_a_stopped_run_whose_limit_was_changed_is_not_over(tmp_path):
    folder = run_app(tmp_path / "run", global_rounds=4, stop_bytes=1, **SMALL)
    assert is_over(folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"stop.bytes": 0}))
    assert not is_over(folder)


@pytest.mark.parametrize(
    ("given", "key", "reason"),
    [
        ({"stop.joules": 1.0}, "stop.joules", "no round is planned: see selection"),
        ({"stop.accuracy": 0.5, "report.evaluate-every": 0}, "stop.accuracy", "only the last model is tested"),
        (
            {"algorithm": "top-popular", "dataset": "video-caching", "stop.patience": 2},
            "stop.patience",
            "algorithm = 'top-popular' has no model to test",
        ),
    ],
)
def test_a_limit_without_use_is_named(given, key, reason):
    unused = unused_keys(parse_config(given))
    assert list(unused) == [key]
    assert reason in unused[key]


def test_an_accuracy_that_the_task_does_not_tell_is_refused(tmp_path, capsys):
    settings = ["task=tests.app.own_tasks:Values", "stop.accuracy=0.5", f"output-dir={tmp_path / 'run'}"]
    assert main(settings) == 2
    error = capsys.readouterr().err
    assert "stop.accuracy = 0.5: allowed is 0: the task's figures are loss, without accuracy" in error
    assert not (tmp_path / "run/state.npz").exists()
