"""The table of defences in the docs is that of the recorded runs, and liars lie as they are meant to."""

import csv
import re
from collections import defaultdict
from pathlib import Path
from statistics import fmean

import numpy as np
import pytest

from experiments import robustness

ROOT = Path(__file__).parents[2]


def recorded():
    """Return the mean accuracy of the recorded runs, by algorithm, lie, number of liars and defence."""
    found = defaultdict(list)
    with (ROOT / "docs/robustness.csv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            found[row["algorithm"], row["lie"], int(row["liars"]), row["defence"]].append(float(row["accuracy"]))
    return {key: fmean(values) for key, values in found.items()}


def test_the_table_of_the_docs_is_that_of_the_recorded_runs():
    rows = re.findall(
        r"^\| (h-fedavg|hsfl) \| ([a-z ]+) \| ([012]) \| (.+) \|$", (ROOT / "docs/threats.md").read_text(), re.M
    )
    table = {
        (algorithm, lie, int(liars), defence): float(figure)
        for algorithm, lie, liars, figures in rows
        for defence, figure in zip(robustness.DEFENCES, figures.split(" | "), strict=True)
    }
    assert table == {key: pytest.approx(value, abs=0.00501) for key, value in recorded().items()}


def test_the_recorded_runs_are_those_of_the_experiment():
    runs = {
        (algorithm, lie, count, defence)
        for algorithm, defence, lie, count, _ in robustness.runs(("h-fedavg", "hsfl"), (0,))
    }
    assert set(recorded()) == runs


@pytest.mark.parametrize("algorithm", ["h-fedavg", "hsfl"])
def test_a_guarded_run_keeps_its_accuracy_whatever_length_one_client_lies_with(algorithm):
    found = recorded()
    without = found[algorithm, "none", 0, "guarded FedAvg"]
    for lie in {lie for own, lie, _, _ in found if own == algorithm} - {"sign flip", "label flip"}:
        for count in (1, 2):
            if (key := (algorithm, lie, count, "guarded FedAvg")) in found:
                assert found[key] > without - 0.02 * count


def test_lies():
    draw = np.random.default_rng(0)
    sent, trained = {"w": np.array([1.0, 2.0])}, {"w": np.array([1.5, 1.0])}
    np.testing.assert_array_equal(robustness.sign_flip(sent, trained, draw)["w"], [0.5, 3.0])
    np.testing.assert_array_equal(robustness.scaled(sent, trained, draw)["w"], [51.0, -98.0])


def test_a_huge_lie_costs_no_more_than_the_client():
    settings = {"algorithm": "hsfl", "global-rounds": 1, "edge-rounds": 1, "batches-per-epoch": 2}
    lying, dead = (
        robustness.accuracy_of(settings, kind, (3,)) for kind in (robustness.HUGE_ACTIVATIONS, robustness.DEAD)
    )
    assert lying == dead
