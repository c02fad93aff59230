"""A results folder: what its files may hold."""

import json

import pytest

from espalier.app.reports.folder import BAD_LINE, line_of

GLOBAL = {"scope": "global", "bytes": {"edge": {"uplink": {"model": 8}}}, "failures": 0, "wall_seconds": 1.0}
EDGE = {"scope": "edge", "failures": [{"client": 1, "reason": "gone", "edge_round": 1}]}
CLIENTS = {"clients": {"0": {"loss": 1.0, "accuracy": None, "own": [1, 2.5]}}}
PERSONALISED = {"scope": "personalised", "failures": [], "bytes": {}, **CLIENTS}


def written(line):
    return json.dumps({"round": 1, **line}).encode()


@pytest.mark.parametrize("line", [GLOBAL, EDGE, GLOBAL | {"test": {"loss": 1.0}}, GLOBAL | CLIENTS, PERSONALISED])
def test_a_line_that_a_run_writes_is_read(line):
    assert line_of(written(line)) == {"round": 1, **line}


@pytest.mark.parametrize(
    "line",
    [
        {"scope": 3},
        GLOBAL | {"round": "1"},
        GLOBAL | {"bytes": "x"},
        GLOBAL | {"bytes": {"edge": 3}},
        GLOBAL | {"bytes": {"edge": {"uplink": {"model": "x"}}}},
        GLOBAL | {"wall_seconds": None},
        GLOBAL | {"failures": None},
        GLOBAL | {"test": 3},
        EDGE | {"failures": [3]},
        EDGE | {"failures": 3},
        {"scope": "edge"},
        GLOBAL | {"clients": [1]},
        GLOBAL | {"clients": {"0": {"loss": "x"}}},
        PERSONALISED | {"clients": {"x": {}}},
        PERSONALISED | {"clients": {"0": 3}},
        PERSONALISED | {"failures": [3]},
        {"scope": "personalised"},
    ],
)
def test_one_that_could_not_be_counted_later_is_damaged(line):
    with pytest.raises(BAD_LINE):
        line_of(written(line))
