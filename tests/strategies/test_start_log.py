"""What `start` logs: Flower's lines in Flower's order, with names."""

import logging

import pytest
from flwr.app import MetricRecord
from flwr.serverapp.strategy import FedAvg

from espalier.strategies import Hierarchical
from tests.strategies.toys import initial, to_record, toy_grid, toy_topology

ANY = {"min_train_nodes": 1, "min_evaluate_nodes": 1, "min_available_nodes": 1}


class LossOfNobody(FedAvg):
    """Its evaluations are NaN from round 3 on, its training metrics with them."""

    def aggregate_train(self, server_round, replies):
        arrays, metrics = super().aggregate_train(server_round, replies)
        return arrays, MetricRecord({"train_loss": float("nan")}) if server_round >= 3 else metrics

    def aggregate_evaluate(self, server_round, replies):
        return MetricRecord({"loss": float("nan") if server_round >= 3 else 1.0})


@pytest.fixture
def lines(caplog):
    """Return a function that starts two edges and gives the lines of a logger."""

    def start(name, **options):
        caplog.clear()
        caplog.set_level(logging.INFO, name)
        grid = toy_grid(5)
        make_edge = options.pop("make_edge", lambda name, size: FedAvg(**ANY))
        cloud, every = options.pop("cloud", FedAvg(**ANY)), options.pop("evaluate_every", 1)
        strategy = Hierarchical(cloud, make_edge, toy_topology(grid, 2), edge_rounds=2, evaluate_every=every)
        strategy.start(grid, to_record(initial()), **{"num_rounds": 2, **options})
        return [record.getMessage() for record in caplog.records if record.name == name]

    return start


def test_a_round_begins_with_its_header_and_every_line_of_a_strategy_has_a_name(lines):
    logged = lines("flwr", evaluate_fn=lambda number, arrays: MetricRecord({"mine": number}))
    assert logged[:4] == [
        "Starting Hierarchical strategy:",
        "\t├── Number of rounds: 2",
        "\t├── ArrayRecord (0.00 MB)",
        "\t├──> cloud: 2 edges (edge-0: 3, edge-1: 2), 2 edge rounds per round",
    ]
    first, second = (logged.index(f"[ROUND {number}/2]") for number in (1, 2))
    assert logged[first - 2 : first] == ["Initial global evaluation results: {'mine': 0}", ""]
    assert logged[first + 1 : second - 1] == [
        "cloud: configure_train: Sampled 2 nodes (out of 2)",
        "edge-0: configure_train: Sampled 3 nodes (out of 3)",
        "edge-1: configure_train: Sampled 2 nodes (out of 2)",
        "edge-0: aggregate_train: Received 3 results and 0 failures",
        "edge-0: configure_train: Sampled 3 nodes (out of 3)",
        "edge-1: aggregate_train: Received 2 results and 0 failures",
        "edge-1: configure_train: Sampled 2 nodes (out of 2)",
        "edge-0: aggregate_train: Received 3 results and 0 failures",
        "edge-1: aggregate_train: Received 2 results and 0 failures",
        "cloud: aggregate_train: Received 2 results and 0 failures",
        "cloud: configure_evaluate: Sampled 2 nodes (out of 2)",
        "edge-0: configure_evaluate: Sampled 3 nodes (out of 3)",
        "edge-1: configure_evaluate: Sampled 2 nodes (out of 2)",
        "edge-0: aggregate_evaluate: Received 3 results and 0 failures",
        "edge-1: aggregate_evaluate: Received 2 results and 0 failures",
        "cloud: aggregate_evaluate: Received 2 results and 0 failures",
        *logged[second - 4 : second - 1],
    ]
    assert [line.split(": {")[0] for line in logged[second - 4 : second - 1]] == [
        "\t└──> Aggregated MetricRecord (train)",
        "\t└──> Aggregated MetricRecord (evaluate)",
        "\t└──> MetricRecord (global evaluation)",
    ]
    assert logged.index("Final results:") > second


def test_a_run_that_stops_says_so_as_flower_does_and_evaluates_what_it_has_not(lines):
    logged = lines("flwr", num_rounds=3, evaluate_every=0, should_stop=lambda number, result: number == 2)
    assert "[ROUND 3/3]" not in logged
    stop = logged.index("Stopping early after round 2")
    assert logged[stop - 1].startswith("\t└──> Aggregated MetricRecord (train)")
    assert logged[stop + 1] == "cloud: configure_evaluate: Sampled 2 nodes (out of 2)"
    end = logged.index("Final results:") - 2
    assert logged[end - 1].startswith("\t└──> Aggregated MetricRecord (evaluate)")
    assert sum("Aggregated MetricRecord (train)" in line for line in logged) == 2


def test_the_name_is_gone_after_the_run(lines, caplog):
    lines("flwr")
    logging.getLogger("flwr").info("%d of %d", 1, 2)
    assert caplog.records[-1].getMessage() == "1 of 2"


def test_a_metric_that_becomes_nan_is_warned_of_once(lines):
    kinds = {"edge-0": FedAvg, "edge-1": LossOfNobody}
    logged = [
        line for line in lines("espalier", make_edge=lambda n, s: kinds[n](**ANY), num_rounds=4) if "metric" in line
    ]
    assert [line for line in logged if "left out" not in line] == [
        "round 2: metric 'train_loss' of edge-1 is nan",
        "round 2: metric 'loss' of edge-1 is nan",
    ]
    logged = lines("espalier", cloud=LossOfNobody(**ANY), num_rounds=4)
    assert logged == [
        "round 3: metric 'train_loss' of the cloud is nan",
        "round 3: metric 'loss' of the cloud is nan",
    ]
