"""A client that is alone under its edge can lie as it likes: the run goes on, and its reports are of the others."""

import csv

import pytest
from flwr.app import MetricRecord

from espalier.app.reports.final import report_again, result_table
from espalier.app.reports.metrics import FIELDS, is_evaluation, nobody_could_train, summarise, top_m
from espalier.app.reports.progress import LogProgress
from espalier.app.run.run import run
from espalier.app.wiring.clients import client_task
from espalier.clients.client_app import make_client_app
from tests.app.assembling import config_of, engine_of
from tests.app.runs import lines, run_app, summary

SETTINGS = {"num-clients": 2, "num-edges": 2, "global-rounds": 1, "local-epochs": 1, "batches-per-epoch": 1}


def run_with_a_liar(folder, message_type, lie, **settings):
    """Run the app where client 1 replaces its metrics in its replies to one type of message."""
    config = config_of(**SETTINGS | settings, engine="in-process", output_dir=str(folder))
    app = make_client_app(client_task, durable=False)

    def lying(message, context):
        reply = app(message, context)
        if context.node_config["partition-id"] == 1 and message.metadata.message_type == message_type:
            (name,) = reply.content.metric_records
            metrics = reply.content.metric_records[name]
            reply.content.metric_records[name] = MetricRecord(
                {key: value for key, value in ({**metrics} | lie).items() if value is not None}
            )
        return reply

    return run(config, engine_of(config, client_app=lying), LogProgress(), folder.parent)


@pytest.mark.parametrize(
    "lie", [{"accuracy": [0.5, 0.5]}, {"accuracy": None}, {"loss": []}, {"top-x": 1.0}, {f"top-{'9' * 5000}": 1.0}]
)
def test_evaluations_of_another_kind_are_in_no_report(tmp_path, lie):
    results = run_with_a_liar(tmp_path / "results", "evaluate", lie, evaluate_every=1)
    (line,) = lines(results, "global")
    fits = "top-x" in lie and "top-x" not in line["clients"]["0"]
    assert list(line["clients"]) == (["0", "1"] if fits else ["0"])
    assert summary(results)["global"]["accuracy"] == line["accuracy"]
    assert "top_m" not in summary(results)


@pytest.mark.parametrize("num_clients", [2, 6])
@pytest.mark.parametrize(
    "lie",
    [
        {"loss": float(2**63)},
        {"loss": -1e38},
        {"validation-loss": -1e38},
        {"num-examples": -5},
        {"num-validation-examples": -3, "validation-accuracy": 1.0},
    ],
)
def test_an_absurd_loss_and_a_count_below_zero_leave_their_client_out_of_the_evaluation(tmp_path, lie, num_clients):
    settings = {"data.validation-share": 0.2, "num-clients": num_clients, "report.plots": False}
    results = run_with_a_liar(tmp_path / "results", "evaluate", lie, **settings)
    (line,) = lines(results, "global")
    honest = [str(i) for i in range(num_clients) if i != 1]
    assert list(line["clients"]) == honest
    assert line["validation"]["clients"] == num_clients - 1
    ((failure,),) = [edge["failures"] for edge in lines(results, "edge") if edge["failures"]]
    assert (failure["client"], failure["evaluation"]) == (1, True)
    assert f"metric {next(iter(lie))!r} is {next(iter(lie.values()))}, expected a" in failure["reason"]
    assert 2.0 < summary(results)["global"]["loss"]["mean"] < 3.0


def test_an_absurd_loss_of_training_leaves_its_client_out(tmp_path):
    results = run_with_a_liar(tmp_path / "results", "train", {"train_loss": -1e38}, **{"num-clients": 6})
    assert [edge["failures"][0]["client"] for edge in lines(results, "edge") if edge["failures"]] == [1]
    assert 2.0 < lines(results, "global")[0]["train_loss"] < 3.0


def test_a_training_metric_that_is_a_list_leaves_its_client_out(tmp_path):
    results = run_with_a_liar(tmp_path / "results", "train", {"train_loss": [1.0, 2.0]})
    (line,) = lines(results, "global")
    honest, lying = lines(results, "edge")
    assert line["train_loss"] == honest["train_loss"]
    assert "train_loss" not in lying
    assert lying["failures"][0]["reason"] == "metric 'train_loss' is [1.0, 2.0], expected a number"


@pytest.mark.parametrize("lie", [{"train_loss": None}, {"train_loss": [0.1, 0.2]}])
def test_an_accumulated_gradient_without_its_loss_is_left_out(tmp_path, lie):
    options = {"algorithm": "h-fedavg-ub", "dataset": "video-caching", "edge_rounds": 1, "evaluate_every": 0}
    results = run_with_a_liar(tmp_path / "results", "train.accumulated", lie, **options)
    honest, lying = lines(results, "edge")
    assert (honest["participants"], honest["failures"]) == ([[0]], [])
    assert lying["participants"] == [[]]
    assert lying["failures"][0]["client"] == 1
    assert "metric 'train_loss' is" in lying["failures"][0]["reason"]


@pytest.mark.parametrize("message_type", ["train", "evaluate"])
def test_metrics_named_like_a_field_of_the_lines_are_in_no_report(message_type, tmp_path):
    lie = dict.fromkeys(sorted(FIELDS), 7.0)
    lying = run_with_a_liar(tmp_path / "lying", message_type, lie, global_rounds=2)
    honest = run_with_a_liar(tmp_path / "honest", message_type, {}, global_rounds=2)
    for scope in ("edge", "global"):
        assert len(lines(lying, scope)) == len(lines(honest, scope)) == (4 if scope == "edge" else 2)
        for found, expected in zip(lines(lying, scope), lines(honest, scope), strict=True):
            assert found.keys() == expected.keys()
            own = found.keys() & FIELDS - {"clients", "test", "bytes", "seconds", "wall_seconds"}
            assert {key: found[key] for key in own} == {key: expected[key] for key in own}
    if message_type == "evaluate":
        assert summary(lying)["global"] == summary(honest)["global"]


BUDGET = {"privacy.level": "client-at-edge", "privacy.epsilon": 8.0}


def test_the_fields_of_lines_are_all_known(tmp_path):
    measured, seen = {"train_loss", "loss", "accuracy", "num-examples"}, set()
    unsure = {"plan.late-share": 0.1, "radio.planning-error-db": 1.0}
    for name, settings in {
        "split": {"algorithm": "hsfl", "validation_share": 0.2, **SETTINGS},
        "planned": {"algorithm": "rawhfl", "plan.selected-per-edge": 1, **unsure, **SETTINGS},
        "asynchronous": {"algorithm": "h-fedavg-ub", "async.mode": "fedbuff", "async.buffer-size": 1, **SETTINGS},
        "private": {"algorithm": "h-fedavg", "train.weighting": "equal", **BUDGET, **SETTINGS},
        "masked": {"algorithm": "h-fedavg", "secure.aggregation": True, **SETTINGS, "num-clients": 6},
        "coming and going": {"algorithm": "h-fedavg", "availability.drop-out": 0.1, **SETTINGS},
    }.items():
        folder = run_app(tmp_path / name, **settings)
        found = [key for scope in ("edge", "global", "personalised") for line in lines(folder, scope) for key in line]
        assert set(found) <= FIELDS | measured
        seen |= set(found)
        assert ("async" in found) == (name == "asynchronous")
    of_averages = {name for name in FIELDS if name.startswith(("privacy-", "secure-"))}  # in no line
    assert seen >= FIELDS - {"evaluation_failures", "cloud_failures", "made_no_model"} - of_averages


def test_failed_evaluations_at_edges_without_a_line_are_named_in_the_global_one(tmp_path):
    settings = {"cloud-strategy": "FedAvg(fraction_train=0.5)", "global-rounds": 4}
    folder = run_with_a_liar(tmp_path / "run", "evaluate", {"accuracy": None}, **settings)
    with_line = {line["round"] for line in lines(folder, "edge") if line["edge"] == "edge-1"}
    assert 0 < len(with_line) < 4
    for line in lines(folder, "global"):
        assert line["failures"] == 1
        named = line.get("evaluation_failures", [])
        assert [(one["edge"], one["client"]) for one in named] == [("edge-1", 1)] * (line["round"] not in with_line)
    with (folder / "clients.csv").open(newline="") as file:
        assert [row["times_left_out"] for row in csv.DictReader(file)] == ["0", "4"]


def test_failures_of_fine_tuning_are_counted_with_the_others(tmp_path):
    settings = {"algorithm": "fedbabu", "task": "tests.app.own_tasks:Unmeasured", "num-clients": 4, "num-edges": 2}
    folder = run_app(tmp_path / "run", **settings)
    (tuned,) = lines(folder, "personalised")
    assert [one["client"] for one in tuned["failures"]] == [2]
    final = summary(folder)
    assert (final["failures"], final["replies_left_out"]) == (3, 3)
    assert "left out: 3 replies;" in result_table(final)
    with (folder / "clients.csv").open(newline="") as file:
        assert [row["times_left_out"] for row in csv.DictReader(file)] == ["0", "0", "3", "0"]
    report_again(folder)
    assert summary(folder) == final


def test_figures_are_of_the_last_model_and_none_where_clients_could_not_be_evaluated_then():
    first = {"scope": "global", "round": 1, "test": {"accuracy": 0.3}, "clients": {"0": {"accuracy": 0.2}}}
    counted = {"bytes": {}, "failures": 0, "wall_seconds": 1.0}
    first |= counted | {"accuracy": {"mean": 0.2}}
    last = {"scope": "global", "round": 2, "test": {"accuracy": 0.85}, **counted}
    summary = summarise([first, last])
    assert (summary["rounds"], summary["test"]) == (2, {"accuracy": 0.85})
    assert (summary["global_round"], summary["global"]["accuracy"]) == (1, None)


def test_a_client_is_in_the_reports_by_what_it_measured():
    good = {"num-examples": 3, "accuracy": 0.5, "loss": 1.0}
    assert is_evaluation(good)
    assert not is_evaluation(good | {"num-examples": 0})
    assert not is_evaluation(good | {"loss": [1.0]})
    tops = {"top-1": 0.25, "top-2": [0.5]}
    assert top_m({"0": tops, "1": tops}) == {
        "1": {"mean": 0.25, "std": 0.0, "min": 0.25, "max": 0.25},
        "2": dict.fromkeys(("mean", "std", "min", "max")),
    }


def test_training_metrics_do_not_pass_for_those_of_the_evaluation(tmp_path):
    lie = {"accuracy": 1.0, "loss": 0.0}
    results = run_with_a_liar(tmp_path / "results", "train", lie, global_rounds=2, evaluate_every=2)
    first, second = lines(results, "global")
    assert first.keys().isdisjoint(lie)
    assert summary(results)["global"] == {key: second[key] for key in ("accuracy", "loss")}
    lying = lines(results, "edge")[1]
    assert "train_accuracy" not in lying
    assert lying["train_loss"] > 0


@pytest.mark.parametrize(
    ("reason", "is_nobodys"),
    [
        ("it dropped out before it answered", True),
        ("its result arrived after the deadline", True),
        ("no result within the deadline of 5 s", True),
        ("RuntimeError: no such column", False),
    ],
)
def test_nobody_could_train_where_who_was_asked_was_late_or_away(reason, is_nobodys):
    failure = {"edge_round": 1, "client": 0, "reason": reason}
    of_evaluation = {"evaluation": True, "client": 0, "reason": "RuntimeError: no such column"}
    line = {"scope": "edge", "trained": False, "failures": [failure, of_evaluation]}
    assert nobody_could_train([line]) == is_nobodys
    assert not nobody_could_train([line, {**line, "trained": True}])
