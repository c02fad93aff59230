"""Runs with secure aggregation: the plain run to the error that is stated, wherever clients run."""

import pytest

from espalier.app.command_line import main
from tests.app.runs import lines, run_app, same_weights, summary, weights

SMALL = {
    "num-clients": 6,
    "num-edges": 2,
    "edge-rounds": 1,
    "global-rounds": 1,
    "local-epochs": 1,
    "batches-per-epoch": 2,
    "report.evaluate-every": 0,
}
SECURE = {"secure.aggregation": True}
TWICE = {**SMALL, **SECURE, "num-clients": 8, "edge-rounds": 2, "global-rounds": 2, "availability.drop-out": 0.25}


def off(one, other):
    """Return by how much a number of two runs' models differs at most."""
    one, other = weights(one), weights(other)
    return max(float((one[name].double() - other[name].double()).abs().max()) for name in one)


@pytest.fixture(scope="module")
def twice(tmp_path_factory):
    """Return the results of two rounds from which clients drop out."""
    return run_app(tmp_path_factory.mktemp("twice") / "run", **TWICE)


@pytest.mark.parametrize(
    "settings",
    [
        {"algorithm": "fedavg", "secure.neighbours": 4, "privacy.level": "client-at-client", "privacy.noise": 0.1},
        {"algorithm": "scaffold", "stack": 4},
        {"algorithm": "mtgc", "train.weighting": "equal", "edge-rounds": 3, "participation": 0.75, "num-clients": 8},
        {"algorithm": "phsfl", "tail-layer": "head", "fine-tune.steps": 1},
        {"algorithm": "hsfl-scaffold", "split.execution": "messages", "batches-per-epoch": 0, "alpha": 0.5},
        {"algorithm": "hsfl", "stack": 4, "edge-strategy": "FedAdam(eta=0.1, tau=0.1)"},
    ],
    ids=lambda settings: settings["algorithm"],
)
def test_a_run_is_the_plain_one_to_the_stated_error(settings, tmp_path):
    """Of whole models, SCAFFOLD's changes, client blocks (also of clients with fewer mini-batches) and heads."""
    settings = {**SMALL, **settings}
    plain = {key: value for key, value in settings.items() if not key.startswith("secure")}
    before, after = run_app(tmp_path / "before", **plain), run_app(tmp_path / "after", **settings, **SECURE)
    told = summary(after)["secure"]
    assert off(before, after) < 2 * told["largest_error"] + 2e-7  # float32's own
    assert (told["void"], told["clipped"], summary(after)["replies_left_out"]) == (0, 0, 0)


def test_streams_that_are_called_off_void_no_round(tmp_path):
    """Clients take turns in one process, and SFL-V2 needs all streams at once: the edge goes on by messages."""
    settings = {**SMALL, "algorithm": "sfl-v2", "workers": 1, "split.transport": "stream"}
    before, after = run_app(tmp_path / "before", **settings), run_app(tmp_path / "after", **settings, **SECURE)
    assert (summary(after)["secure"]["void"], summary(after)["replies_left_out"]) == (0, 0)
    assert off(before, after) < 2 * summary(after)["secure"]["largest_error"] + 2e-7


def test_lines_and_summary_say_what_each_average_is_like(twice):
    told = [own for line in lines(twice, "edge") for own in line["secure"]]
    made = [own for own in told if own]
    assert {own["clients"] for own in made} == {3, 4}
    every = [*lines(twice, "edge"), *lines(twice, "global")]
    assert {name for line in every for name in line if name.startswith("secure")} == {"secure"}
    assert summary(twice)["secure"] == {
        "edge_rounds": 8,
        "void": 8 - len(made),
        "largest_error": max(own["error"] for own in made),
        "clipped": 0,
    }
    failures = [failure for line in lines(twice, "edge") for failure in line["failures"]]
    assert {failure["reason"] for failure in failures if failure["client"] is not None} == {
        "it dropped out before it answered"
    }
    assert {failure["reason"] for failure in failures if failure["client"] is None} == {
        "secure aggregation: 2 of 4 clients are left, 3 needed: the edge round is void"
    }


def test_a_resumed_run_is_the_straight_one(twice, tmp_path):
    begun = run_app(tmp_path / "begun", **{**TWICE, "global-rounds": 1})
    assert main([f"resume={begun}", "global-rounds=2"]) == 0
    assert same_weights(twice, begun)


@pytest.mark.slow
@pytest.mark.deploy
@pytest.mark.usefixtures("ray_here")
def test_workers_of_ray_give_the_same_bits(twice, tmp_path):
    assert same_weights(twice, run_app(tmp_path / "ray", **TWICE, engine="ray", ray_workers=2))
