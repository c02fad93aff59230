"""A client that is alone under its edge can lie as it likes: the run goes on, and its reports are of the others."""

import pytest
from flwr.app import MetricRecord

from app.config import parse_config
from app.reports.metrics import is_evaluation, top_m
from app.reports.progress import LogProgress
from app.run import run
from app.tasks.clients import client_task
from clients.client_app import make_client_app
from sim.in_process_grid import InProcessGrid
from tests.app.runs import lines, summary

SETTINGS = {"num-clients": 2, "num-edges": 2, "global-rounds": 1, "local-epochs": 1, "batches-per-epoch": 1}


def run_with_a_liar(folder, message_type, lie, **settings):
    """Run the app where client 1 replaces its metrics in its replies to one type of message."""
    values = SETTINGS | {key.replace("_", "-"): value for key, value in settings.items()}
    config = parse_config(values | {"engine": "in-process", "output-dir": str(folder)})
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

    grid = InProcessGrid(lying, config.num_clients, run_config=config.as_dict(), seed=config.seed)
    return run(config, grid, LogProgress(), folder.parent)


@pytest.mark.parametrize(
    "lie", [{"accuracy": [0.5, 0.5]}, {"accuracy": None}, {"loss": []}, {"top-x": 1.0}, {f"top-{'9' * 5000}": 1.0}]
)
def test_evaluations_of_another_kind_are_in_no_report(tmp_path, lie):
    results = run_with_a_liar(tmp_path / "results", "evaluate", lie, evaluate_every=1)
    (line,) = lines(results, "global")
    is_a_number = lie.keys().isdisjoint(("accuracy", "loss"))
    assert list(line["clients"]) == (["0", "1"] if is_a_number else ["0"])
    assert summary(results)["global"]["accuracy"] == line["accuracy"]
    assert "top_m" not in summary(results)


@pytest.mark.parametrize("lie", [{"train_loss": None}, {"train_loss": [0.1, 0.2]}])
def test_an_accumulated_gradient_without_its_loss_is_left_out(tmp_path, lie):
    options = {"algorithm": "h-fedavg-ub", "dataset": "video-caching", "edge_rounds": 1, "evaluate_every": 0}
    results = run_with_a_liar(tmp_path / "results", "train.accumulated", lie, **options)
    honest, lying = lines(results, "edge")
    assert (honest["participants"], honest["failures"]) == ([[0]], [])
    assert lying["participants"] == [[]]
    assert lying["failures"][0]["client"] == 1
    assert "metric 'train_loss' is" in lying["failures"][0]["reason"]


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
