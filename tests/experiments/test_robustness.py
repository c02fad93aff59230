"""The table of defences in the docs is that of the recorded runs, and liars lie as they are meant to."""

import re
from pathlib import Path
from statistics import fmean

import numpy as np
import pytest

from experiments import robustness

ROOT = Path(__file__).parents[2]


DOCS = ROOT / "docs/robustness.md"
KEPT = ("MultiKrum", "FedTrimmedAvg")


def recorded():
    """Return the accuracies of the recorded runs."""
    return robustness.by_seed(robustness.rows_of(ROOT / "docs/data/robustness.csv"))


def page():
    """Return the page's text, with single spaces."""
    return " ".join(DOCS.read_text().split())


def test_the_table_of_the_docs_is_that_of_the_recorded_runs_with_one_liar_at_most():
    rows = re.findall(r"^\| (both|h-fedavg|hsfl) \| ([a-z ,]+) \| (\d) \| (.+) \|$", DOCS.read_text(), re.M)
    table = {
        (algorithm, defence, lie, int(liars)): cell
        for of, lie, liars, cells in rows
        for algorithm in (robustness.ALGORITHMS if of == "both" else [of])
        for defence, cell in zip(robustness.DEFENCES, cells.split(" | "), strict=True)
    }
    shown = {what: own for what, own in recorded().items() if what[2] not in robustness.TURNS and what[3] < 2}
    assert table == {what: robustness.in_short([*own.values()]) for what, own in shown.items()}


def test_the_docs_say_of_every_lie_what_one_liar_costs():
    costs, text = robustness.costs(recorded(), ("none", 0)), page()
    cost = {what: f"{fmean(own):.3f} ({max(own):.3f})" for what, own in costs.items()}
    for what in (("h-fedavg", "noise"), ("h-fedavg", "scaled"), ("hsfl", "huge activations"), ("hsfl", "dead")):
        assert f"exactly what a dead client costs, {cost[what]}." in text
    turned, flipped = robustness.WORST_TURN, "sign flip"
    assert f'"Turned" costs {cost["h-fedavg", turned]} in `h-fedavg` and {cost["hsfl", turned]} in `hsfl`.' in text
    assert f"{cost['h-fedavg', flipped]} in `h-fedavg` and {cost['hsfl', flipped]} in `hsfl`; wrong labels" in text
    assert cost["h-fedavg", "label flip"] == cost["hsfl", "label flip"]
    assert f"wrong labels {cost['hsfl', 'label flip']} in both." in text


def test_the_docs_say_what_is_left_of_each_defence():
    found, text = recorded(), page()
    two = {name: f"{found['h-fedavg', name, 'sign flip', 2][0]:.2f}" for name in ("MultiKrum", "FedAvg", "Krum")}
    without = fmean(found["h-fedavg", "Krum", "none", 0].values())
    assert f"MultiKrum keeps {two['MultiKrum']}, FedAvg {two['FedAvg']}, and Krum {two['Krum']}, which has" in text
    assert f"which has {without:.2f} without a liar" in text
    one = [own for (_, name, lie, n), own in found.items() if n == 1 and lie not in robustness.TURNS and name in KEPT]
    assert f"they keep at least {min(round(fmean(own.values()), 2) for own in one)}" in text


def test_the_recorded_runs_are_those_of_the_experiment():
    runs = {what[:4] for what in robustness.runs(("h-fedavg", "hsfl"), (0,))}
    assert {what for what in recorded() if what[2] != robustness.WORST_TURN} == runs


def test_a_guarded_run_comes_to_the_same_accuracy_whatever_length_liars_lie_with():
    found = recorded()
    for (algorithm, defence, lie, count), own in found.items():
        if defence == robustness.GUARDED and lie in ("scaled", robustness.HUGE_ACTIVATIONS):
            assert own == found[algorithm, defence, "noise", count]


def test_a_liar_with_a_length_costs_in_every_recorded_run_what_his_absence_costs():
    more = robustness.costs(recorded(), (robustness.DEAD, 1))
    for algorithm, lies in (("h-fedavg", ("noise", "scaled")), ("hsfl", ("noise", "scaled", "huge activations"))):
        for lie in lies:
            assert more[algorithm, lie] == [0.0] * 3


def test_a_turned_update_of_the_worst_length_gets_under_a_bound_and_not_through_multikrum():
    found = recorded()
    for algorithm in robustness.ALGORITHMS:
        under = {d: fmean(found[algorithm, d, robustness.WORST_TURN, 1].values()) for d in robustness.DEFENCES}
        assert max(under["FedAvg"], under[robustness.GUARDED]) < 0.2
        assert min(under["MultiKrum"], under["FedTrimmedAvg"], under["FedMedian"]) > 0.6


def test_the_worst_length_is_that_of_the_lowest_mean():
    found = {("hsfl", "FedAvg", f"turned, {n} times", 1): {0: 0.1 * n, 1: 0.8} for n in (2, 4)}
    assert robustness.worst_turns(found) == {("hsfl", "FedAvg", robustness.WORST_TURN, 1): {0: 0.2, 1: 0.8}}


def test_a_cost_is_that_of_the_same_seed(capsys):
    honest, liar = ("h-fedavg", robustness.GUARDED, "none", 0), ("h-fedavg", robustness.GUARDED, "noise", 1)
    found = {honest: {0: 0.8, 1: 0.9}, liar: {1: 0.9, 2: 0.5}}
    assert robustness.costs(found, ("none", 0)) == {("h-fedavg", "noise"): [0.0]}
    robustness.print_costs(found)
    assert "| h-fedavg | noise | 0.000 (0.000) | - | 1 |" in capsys.readouterr().out


def test_a_run_that_has_a_row_is_not_made_again(tmp_path, monkeypatch, capsys):
    made = []

    def accuracy_of(settings, kind, liars):
        made.append(kind)
        if len(made) == 3:
            raise KeyboardInterrupt
        return 0.5

    monkeypatch.setattr(robustness, "accuracy_of", accuracy_of)
    command = ["--csv", str(tmp_path / "runs.csv"), "--algorithms", "h-fedavg", "--seeds", "4"]
    command += ["--defences", robustness.GUARDED, "--most-liars", "1"]
    with pytest.raises(KeyboardInterrupt):
        robustness.main(command)
    assert robustness.main(command) == 0
    assert made == ["none", "dead", "noise", "noise", "sign flip", "label flip", "scaled", *robustness.TURNS]
    assert "| h-fedavg | scaled | 0.000 (0.000) | 0.000 (0.000) | 1 |" in capsys.readouterr().out


@pytest.mark.parametrize(
    "given", [("--defences", "FedMedian,foo"), ("--algorithms", "fedavg"), ("--most-liars", "3"), ("--seeds", "x")]
)
def test_what_there_is_not_is_named_before_any_run(given, capsys):
    with pytest.raises(SystemExit) as ended:
        robustness.main(given)
    assert ended.value.code == 2
    assert f"error: argument {given[0]}: " in capsys.readouterr().err


def test_honest_runs_tell_how_far_they_went_beyond_the_median():
    small = {"algorithm": "sfl-v2", "global-rounds": 1, "edge-rounds": 1, "batches-per-epoch": 2}
    ratios = robustness.honest_ratios(small)
    assert set(ratios) >= {"update", "activations"}
    assert all(1 < ratio < 10 for ratio in ratios.values())


def test_lies():
    draw = np.random.default_rng(0)
    sent, trained = {"w": np.array([1.0, 2.0])}, {"w": np.array([1.5, 1.0])}
    np.testing.assert_array_equal(robustness.sign_flip(sent, trained, draw)["w"], [0.5, 3.0])
    np.testing.assert_array_equal(robustness.scaled(sent, trained, draw)["w"], [51.0, -98.0])


def test_under_a_tight_bound_a_huge_lie_costs_no_more_than_the_client():
    settings = {"algorithm": "hsfl", "global-rounds": 1, "edge-rounds": 1, "batches-per-epoch": 2}
    settings |= robustness.DEFENCES[robustness.GUARDED]
    lying, dead = (
        robustness.accuracy_of(settings, kind, (3,)) for kind in (robustness.HUGE_ACTIVATIONS, robustness.DEAD)
    )
    assert lying == dead
