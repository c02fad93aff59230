"""The table that ends a run fits a terminal of 80 columns."""

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
        "test": {"accuracy": 0.5, "loss": loss},
        "bytes": {"uplink": {"cloud": 1e6, "edge": 1e9}},
        "failures": 2,
        "replies_left_out": 1,
        "wall_seconds": 12.0,
    }
    lines = result_table(summary).splitlines()
    assert any("fine-tuned heads" in line for line in lines)
    assert max(map(len, lines)) <= 80
