"""What trackers that come with the app make of the lines of metrics.jsonl."""

import pytest

from espalier.app.ground.errors import UserError
from espalier.app.reports.trackers.figures import edge_figures, failures_in, figures_of
from espalier.app.reports.trackers.kept import kept_id
from espalier.app.settings.tracker_kinds import TRACKERS, parse_trackers
from tests.app.reports.trackers.runs import SETTINGS, a_failure, expected
from tests.app.runs import lines, run_app


def test_every_figure_of_a_run_has_a_name_and_is_the_line_s(tmp_path):
    folder = run_app(tmp_path / "run", global_rounds=3, **SETTINGS)
    rounds, edges = lines(folder, "global"), lines(folder, "edge")
    of_round = {n: [edge for edge in edges if edge["round"] == n] for n in (1, 2, 3)}
    series = [figures_of(line) | edge_figures(of_round[line["round"]]) for line in rounds]
    for name, values in expected(folder).items():
        assert [one[name] for one in series] == pytest.approx(values, rel=1e-12), name
    assert all(type(value) is float for one in series for value in one.values())
    assert {"wall_seconds", "energy_joules/upload", "edges/edge-1/participants", "edges_left_out"} <= series[0].keys()
    assert [name for name in series[0] if name.split("/")[0] in ("round", "clients")] == []
    number, text = a_failure(folder)
    assert text in failures_in(of_round[number])
    assert sum(len(failures_in([*of_round[n], rounds[n - 1]])) for n in (1, 2, 3)) == sum(
        line["failures"] for line in rounds
    )


def test_figures_that_are_none_are_left_out_and_lists_count():
    line = {"round": 1, "loss": None, "trained": True, "participants": [[0, 1], [2]], "seconds": 2}
    assert figures_of(line) == {"trained": 1.0, "participants": 3.0, "seconds": 2.0}


def test_failures_of_the_cloud_and_of_evaluations_are_named():
    line = {
        "scope": "global",
        "failures": 3,
        "evaluation_failures": [{"edge": "west", "client": 3, "reason": "gone"}],
        "cloud_failures": ["no quorum"],
    }
    nobody = {"scope": "edge", "edge": "east", "failures": [{"edge_round": 2, "client": None, "reason": "all away"}]}
    assert failures_in([nobody, line]) == [
        "east, edge round 2: nobody: all away",
        "west, evaluation: client 3: gone",
        "cloud: no quorum",
    ]


def test_a_run_keeps_its_id_with_each_tracker(tmp_path):
    first = kept_id(tmp_path, "mlflow", lambda: "one")
    assert (first, kept_id(tmp_path, "mlflow", lambda: "two")) == ("one", "one")
    assert kept_id(tmp_path, "wandb") == kept_id(tmp_path, "wandb") != "one"
    assert kept_id(tmp_path, "mlflow") == "one"
    (tmp_path / "trackers.json").write_text("[")
    with pytest.raises(UserError, match=r"trackers.json: is damaged"):
        kept_id(tmp_path, "mlflow")


def test_several_are_named_with_commas_between_them_each_once():
    text = "tensorboard, mlflow(uri='file:a,b', experiment='x'),my.module:Mine(size=3)"
    trackers = parse_trackers(text)
    assert [(spec.module, spec.name, dict(spec.parameters)) for spec in trackers.specs] == [
        ("", "tensorboard", {}),
        ("", "mlflow", {"uri": "file:a,b", "experiment": "x"}),
        ("my.module", "Mine", {"size": 3}),
    ]
    assert (trackers.text, trackers.own) == (text, "my.module:Mine(size=3)")
    assert parse_trackers("").specs == ()
    with pytest.raises(ValueError, match="each tracker once"):
        parse_trackers("wandb,wandb(mode='offline')")
    with pytest.raises(UserError, match="did you mean 'tensorboard'"):
        parse_trackers("tensorbord")
    assert [kind.name for kind in TRACKERS.values()] == list(TRACKERS)
