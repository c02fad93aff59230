"""A run whose model diverges says so once, and what to try; others say nothing."""

import pytest
from flwr.app import ArrayRecord

from espalier.app.command_line import main
from espalier.app.reports.divergence import DivergenceWarning
from espalier.app.reports.observers import RoundReport
from espalier.strategies import EdgeOutcome, Failure, Round, Update
from tests.app.runs import key_of, run_app

TINY = {"num_clients": 4, "edge_rounds": 1, "local_epochs": 1, "batches_per_epoch": 3}
TRY = "try a smaller learning-rate (now "


def said(caplog):
    return [message for record in caplog.records if "diverged" in (message := record.getMessage())]


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"algorithm": "fedavg", "learning_rate": 100.0}, "its loss is"),
        ({"algorithm": "sfl-v2", "learning_rate": 100.0}, "its loss is"),
        ({"algorithm": "h-fedavg", "cloud_strategy": "FedAdam(eta=100)"}, "its loss is"),
    ],
)
def test_a_model_that_diverges_is_named_once_with_what_to_try(tmp_path, caplog, settings, why):
    with caplog.at_level("INFO", "espalier"):
        run_app(tmp_path / "run", **TINY, **settings)
    check_is_named_once(caplog, settings, why)


def test_so_is_one_for_which_all_replies_are_left_out(tmp_path, caplog):
    short = [f"{key_of(key)}={value}" for key, value in TINY.items()]
    with caplog.at_level("INFO", "espalier"):
        assert main(["algorithm=h-fedavg-ub", "learning-rate=1e6", *short, f"output-dir={tmp_path / 'run'}"]) == 2
    check_is_named_once(caplog, {"learning_rate": 1e6}, "of 4 replies are left out")


def check_is_named_once(caplog, settings, why):
    (line,) = said(caplog)
    rate = settings.get("learning_rate", 0.1)
    assert line.startswith("round 1: the model diverged: ")
    assert why in line
    assert f"{TRY}{rate:g})" in line
    assert ("cloud-strategy = 'FedAdam(eta=100)'" in line) == ("cloud_strategy" in settings)
    assert "inf long" not in caplog.text
    assert "where inf" not in caplog.text


def test_a_run_as_it_should_be_says_nothing(tmp_path, caplog):
    with caplog.at_level("INFO", "espalier"):
        run_app(tmp_path / "run", **TINY)
    assert said(caplog) == []


def report(*reasons, trained, test=None):
    update = Update(participants=range(trained), failures=[Failure(9, reason) for reason in reasons])
    outcome = Round(3, ArrayRecord(), None, None, {"edge-0": EdgeOutcome(None, [update], 1.0)})
    return RoundReport(outcome, 10, lambda: 0.0, test)


ABSURD = [
    "array 'head.weight' holds NaN or Inf",
    "metric 'train_loss' is nan, expected a number",
    "metric 'train_loss' is 1.2e+29, expected a loss of less than 1e+18",
    "its update is 3.63e+16 long, where 6.46e+09 is allowed (guard.mode)",
    "its update is too long to be measured, where a finite length is allowed (guard.mode)",
    "its activations make the loss, or a gradient, NaN or too large",
    "a sample's activations are 4e+16 long, where 3.72e+15 is allowed (guard.mode)",
]
OTHER = ["no reply within 5 seconds", "array 'head.weight' has shape (3,), expected (4,)", "ValueError: no such column"]


@pytest.mark.parametrize(
    ("reasons", "trained", "expected"),
    [
        *(([reason], 1, 1) for reason in ABSURD),
        (ABSURD, len(ABSURD) + 1, 0),  # a minority may be hostile
        *(([reason], 0, 0) for reason in OTHER),
    ],
)
def test_half_of_the_replies_left_out_for_their_numbers_is_divergence(caplog, reasons, trained, expected):
    watch = DivergenceWarning(2.3, "try less")
    for _ in range(2):
        watch.round_over(report(*reasons, trained=trained))
    assert len(said(caplog)) == expected


@pytest.mark.parametrize(
    ("untrained", "loss", "expected"),
    [(2.0, 9.99, 0), (2.0, 10.0, 1), (2.0, float("nan"), 1), (None, 1e9, 0), (None, float("inf"), 1), (0.0, 1.0, 0)],
)
def test_a_loss_of_five_times_the_untrained_one_is_divergence(caplog, untrained, loss, expected):
    DivergenceWarning(untrained, "try less").round_over(report(trained=4, test={"loss": loss}))
    assert len(said(caplog)) == expected
