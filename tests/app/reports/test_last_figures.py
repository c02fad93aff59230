"""Final figures are those of the last model; where it could not be evaluated, reports say so, and since when."""

import csv
import json
from io import StringIO
from pathlib import Path

import pytest
from flwr.app import MetricRecord
from rich.console import Console

from espalier.app.command_line import main
from espalier.app.comparison.runs import read_run
from espalier.app.reports import plots
from espalier.app.reports.final import result_table
from espalier.app.reports.metrics import summarise
from espalier.app.reports.progress import LogProgress
from espalier.app.run.run import run
from espalier.app.sweeps.grid import planned_runs, read_sweep
from espalier.app.sweeps.progress import SweepProgress
from espalier.app.wiring.clients import client_task
from espalier.clients.client_app import make_client_app
from tests.app.assembling import config_of, engine_of
from tests.app.runs import lines, run_app, summary

SETTINGS = {
    "report.plots": False,
    "num-clients": 2,
    "num-edges": 2,
    "global-rounds": 3,
    "local-epochs": 1,
    "batches-per-epoch": 1,
}
NOBODY = "no client was evaluated after round 3: figures over clients are none, the last ones are of round 1"
FIGURES = "accuracy", "loss"


def run_whose_evaluations_fail(folder: Path, *, after: int, **settings) -> Path:
    """Run the app; no client has a loss in evaluations of models of rounds after that one."""
    config = config_of(**SETTINGS | settings, engine="in-process", output_dir=str(folder))
    app = make_client_app(client_task, durable=False)

    def failing(message, context):
        reply = app(message, context)
        if message.metadata.message_type == "evaluate":
            server_round = next(iter(message.content.config_records.values()), {}).get("server-round", 0)
            if server_round > after * config.federation.edge_rounds:
                (name,) = reply.content.metric_records
                reply.content[name] = MetricRecord({**reply.content[name], "loss": float("nan")})
        return reply

    return run(config, engine_of(config, client_app=failing), LogProgress(), folder.parent)


@pytest.fixture(scope="module")
def failed(tmp_path_factory):
    return run_whose_evaluations_fail(tmp_path_factory.mktemp("runs") / "failed", after=1)


def test_there_are_none_where_the_last_model_was_evaluated_by_nobody(failed):
    first, _, last = lines(failed, "global")
    assert first["accuracy"]["mean"] is not None
    assert "clients" not in last
    final = summary(failed)
    assert final["global"] == {"accuracy": None, "loss": None}
    assert (final["rounds"], final["global_round"]) == (3, 1)
    assert final["test"] == last["test"]
    with (failed / "clients.csv").open(newline="") as file:
        assert [[row[name] for name in FIGURES] for row in csv.DictReader(file)] == [["", ""]] * 2


def test_the_table_says_so(failed):
    table = result_table(summary(failed))
    (row,) = [line for line in table.splitlines() if "accuracy of" in line]
    cells = [cell.strip() for cell in row.strip("│").split("│")]
    assert cells == ["accuracy of clients", "-", "-", "-", "-", f"{summary(failed)['test']['accuracy']:.4f}"]
    assert NOBODY in table.splitlines()


def test_compare_and_sweeps_say_so(failed, tmp_path, capsys):
    assert main(["compare", str(failed), "--output", str(tmp_path / "out")]) == 0
    said = capsys.readouterr().out.splitlines()
    assert f"failed: {NOBODY}" in said
    assert f"failed: {NOBODY}" in (tmp_path / "out/comparison.txt").read_text().splitlines()
    with (tmp_path / "out/runs.csv").open(newline="") as file:
        assert [[row[name] for name in FIGURES] for row in csv.DictReader(file)] == [["", ""]]
    text = StringIO()
    (planned,) = planned_runs(read_sweep(["seed=0", "global-rounds=3"]))
    with SweepProgress(Console(file=text, width=200), num_runs=1, already=0, rounds_left=3) as shown:
        shown.ended(planned, failed, "")
    assert NOBODY in text.getvalue()


@pytest.fixture(scope="module")
def pooled(tmp_path_factory):
    """Return a run whose model is evaluated on the whole test pool alone."""
    folder = tmp_path_factory.mktemp("runs") / "pooled"
    return run_app(folder, num_clients=2, report_evaluate_clients=0.0)


@pytest.mark.usefixtures("with_blank_pictures")
def test_where_clients_are_not_evaluated_at_all_compare_has_the_test_pool(pooled, tmp_path, capsys, figures):
    target = ["--target", "test_accuracy=0.0"]
    assert main(["compare", str(pooled), "--output", str(tmp_path / "out"), *target]) == 0
    header, row, *about = (tmp_path / "out/comparison.txt").read_text().splitlines()
    assert [" ".join(name.split()) for name in header.split("  ") if name][:3] == ["runs", "test loss", "test accuracy"]
    assert row.split()[2] == f"{summary(pooled)['test']['accuracy']:.4f}"
    assert NOBODY[:10] not in " ".join(about)
    names = {f"test_{name}-over-{axis}.png" for name in FIGURES for axis in ("rounds", "bytes")}
    assert {path.name for path in (tmp_path / "out").glob("*.png")} == names
    (ax,) = figures["test_accuracy-over-rounds.png"].axes
    tested = [line["test"]["accuracy"] for line in lines(pooled, "global")]
    initial = json.loads((pooled / "round-0.json").read_text())["test"]["accuracy"]
    assert ax.lines[0].get_ydata().tolist() == [initial, *tested]
    assert ax.get_ylabel() == "test accuracy, whole test pool"
    capsys.readouterr()
    assert main(["compare", str(pooled), "--target", "accuracy=0.1"]) == 2
    assert capsys.readouterr().err.endswith("allowed is figures of these runs: test_accuracy, test_loss\n")


def test_and_so_have_sweeps_and_plots(pooled, tmp_path):
    text = StringIO()
    (planned,) = planned_runs(read_sweep(["seed=0", "global-rounds=2"]))
    with SweepProgress(Console(file=text, width=200), num_runs=1, already=0, rounds_left=2) as shown:
        shown.ended(planned, pooled, "")
    test = summary(pooled)["test"]
    assert f": test_accuracy {test['accuracy']:.4f}, test_loss {test['loss']:.4f}, sweep" in text.getvalue()
    assert plots.draw_plots(tmp_path, "a run", lines(pooled, "global"))[0].name == "rounds.png"


def test_a_summary_with_figures_of_an_earlier_model_is_read_as_one_without(failed, tmp_path):
    for path in failed.iterdir():
        if path.is_file() and path.name != "lock":
            (tmp_path / path.name).write_bytes(path.read_bytes())
    earlier = {name: lines(failed, "global")[0][name] for name in FIGURES}
    (tmp_path / "summary.json").write_text(json.dumps(summary(failed) | {"global": earlier}))
    assert read_run(tmp_path).figures == read_run(failed).figures
    assert read_run(tmp_path).figures["accuracy"] is None


def test_nobody_may_ever_be_evaluated(tmp_path):
    folder = run_whose_evaluations_fail(tmp_path / "run", after=0)
    assert summary(folder)["global_round"] is None
    assert "no client was evaluated after any round: figures over clients are none" in result_table(summary(folder))


@pytest.mark.usefixtures("with_blank_pictures")
def test_heads_have_figures_of_their_own(tmp_path):
    heads = {"algorithm": "phsfl", "split.evaluate": "whole", "report.plots": True}
    folder = run_whose_evaluations_fail(tmp_path / "run", after=1, **heads)
    final = summary(folder)
    assert final["global"] == {"accuracy": None, "loss": None}
    assert final["personalised"]["accuracy"]["mean"] is not None
    assert (folder / "personalised.png").exists()


def test_plots_of_clients_say_of_which_model_they_are(failed, tmp_path):
    assert [path.name for path in plots.draw_plots(tmp_path, "a run", lines(failed, "global"))] == [
        "rounds.png",
        "clients.png",
        "bytes.png",
    ]
    assert plots.title_after("a run", lines(failed, "global")[0]) == "a run, after round 1"


def test_rounds_that_are_not_evaluated_are_no_failures():
    counted = {"scope": "global", "bytes": {}, "failures": 0, "wall_seconds": 1.0}
    own = {"accuracy": {"mean": 0.2}, "loss": {"mean": 1.0}, "clients": {}, "test": {"accuracy": 0.3, "loss": 1.1}}
    final = summarise([{"round": 1, **counted}, {"round": 2, **counted, **own}])
    assert (final["global_round"], final["global"]["accuracy"]) == (2, {"mean": 0.2})
