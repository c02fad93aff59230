"""The table that ends a run fits a terminal of 80 columns, and has names as they are."""

import pytest

from espalier.app.reports.final import result_table


@pytest.mark.parametrize("loss", [2.3456, 99.99994, 12345.678, 1.0061832901354428e24])
def test_the_table_is_80_columns_wide_at_most(loss):
    spread = dict.fromkeys(("mean", "std", "min", "max"), loss)
    accuracy = dict.fromkeys(spread, 0.1234)
    summary = {
        "algorithm": "phsfl",
        "dataset": "digits",
        "rounds": 20,
        "global": {"accuracy": accuracy, "loss": spread},
        "personalised": {"accuracy": accuracy, "loss": spread},
        "personal": {"accuracy": accuracy, "loss": spread},
        "test": {"accuracy": 0.5, "loss": loss},
        "bytes": {"uplink": {"cloud": 1e6, "edge": 1e9}},
        "failures": 2,
        "replies_left_out": 1,
        "wall_seconds": 12.0,
    }
    lines = result_table(summary).splitlines()
    for name in ("fine-tuned heads", "own models"):
        assert sum(name in line for line in lines) == 2
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize("name", ["f1[macro]", "hit[/10]", "iou:star:", "x" * 90])
def test_names_of_figures_are_as_a_task_has_them(name):
    spread = dict.fromkeys(("mean", "std", "min", "max"), 0.5)
    summary = {
        "algorithm": "fedavg",
        "dataset": "m:Task(of=[a])",
        "rounds": 1,
        "global": {name: spread, "loss": spread},
        "test": {name: 0.25, "loss": 0.5},
        "bytes": {"uplink": {"cloud": 1e6}},
        "failures": 0,
        "replies_left_out": 0,
        "wall_seconds": 1.0,
    }
    table = result_table(summary)
    cells = "".join(line.split("│")[1].strip() for line in table.splitlines() if "│" in line)
    assert cells.replace(" ", "") == f"{name}ofclientslossofclients"
    assert "fedavg on m:Task(of=[a]), 1 global rounds" in table
