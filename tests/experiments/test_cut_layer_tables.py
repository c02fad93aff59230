"""The cut-layer paper's tables: rows of the runs that are meant, each run recorded once, the page what is recorded."""

import sys
from itertools import product
from pathlib import Path

import pytest

from espalier.app.command_line import main as app
from espalier.app.config.parse import parse_config, read_toml
from espalier.app.ground.errors import UserError
from espalier.app.sweeps.grid import planned_runs, read_sweep
from espalier.clients.task import batches_of_a_pass
from experiments import cut_layer_tables
from experiments.cut_layer_tables import PAPER, Line, check_row, main, row_of, setting_of
from experiments.recorded_runs import read_lines, write_lines
from tests.app.own_folders import noise_folder
from tests.app.runs import summary
from tests.experiments.tiny import TINY

ROOT = Path(__file__).parents[2]
EXPERIMENTS = ROOT / "experiments"
A = Line("reduced", "iid", "SFL-V2 L1", 0, 0.5, 0.1, 1.5, 0.6, 3_000_000, 2_000_000, "abc", "a machine, 2 cores")


def tables(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["cut_layer_tables.py", *map(str, arguments)])
    main()


@pytest.mark.parametrize(
    ("file", "rows", "setting", "partitions"),
    [
        ("cut-layer-cifar10-small", ["cut-layer-rows"], "reduced", ["dirichlet", "iid"]),
        ("cut-layer-cifar10", ["cut-layer-rows"], "paper text", ["dirichlet", "iid"]),
        ("cut-layer-cifar10-authors", ["cut-layer-authors-rows"], "authors' settings", ["iid"]),
        (
            "cut-layer-cifar10-authors",
            ["cut-layer-authors-rows", "cut-layer-authors-non-iid"],
            "authors' settings",
            ["dirichlet-per-class"],
        ),
    ],
)
def test_a_sweep_has_all_rows_and_is_known_by_its_settings(file, rows, setting, partitions):
    files = [f"{EXPERIMENTS}/{name}.toml" for name in (file, *(f"sweeps/{name}" for name in rows))]
    runs = planned_runs(read_sweep([*files, "data-dir=images"]))
    assert len(runs) == len(PAPER) * len(partitions) * 3
    assert sorted({run.settings["partition"] for run in runs}) == partitions
    authors = setting == "authors' settings"
    for run in runs:
        own, case = run.settings, run.chosen["case"]
        assert setting_of(own) == setting
        assert row_of(own) == case
        assert own["alpha"] == 0.1 or own["partition"] == "iid"
        # All have Adam at 0.001, but FedAvg, and SFL-V1 as the authors ran it with data that are not IID.
        plain = case == "FedAvg" or (case == "SFL-V1" and partitions == ["dirichlet-per-class"])
        assert own["optimizer"] == ("sgd" if plain else "adam")
        assert own["learning-rate"] == (0.01 if case == "FedAvg" else 0.001)
        assert own["train.momentum"] == (0.9 if plain and authors else 0.0)
        if case == "SFL-V1":  # it is FedAvg: its server has the optimizer of the clients
            assert own["split.server-optimizer"] == own["optimizer"]
            assert own["split.server-learning-rate"] in (0.0, own["learning-rate"])
            assert own["split.server-weight-decay"] == own["train.weight-decay"]
            assert own["split.server-momentum"] == own["train.momentum"] or own["optimizer"] == "adam"


def test_how_many_mini_batches_a_run_at_the_papers_size_has():
    config = parse_config({**read_toml(EXPERIMENTS / "cut-layer-cifar10.toml"), "partition": "iid"}).as_dict()
    each = batches_of_a_pass(50_000 // config["num-clients"], config["batch-size"], drop_last=False)
    number = config["global-rounds"] * config["local-epochs"] * config["num-clients"] * each
    page = " ".join((ROOT / "docs/reproduction.md").read_text().split())
    assert f"100 clients x {each} mini-batches of 64" in page
    assert f"(the last one of a client has {500 - 64 * (each - 1)} of its 500 images) = {number:,} mini-batches" in page


def test_a_run_is_recorded_once_with_its_own_figures(tmp_path, monkeypatch, capsys):
    (tmp_path / "tiny.toml").write_text(TINY)
    monkeypatch.setitem(cut_layer_tables.SETTINGS, "reduced", tmp_path / "tiny.toml")
    images, places = noise_folder(tmp_path / "images", train=8, test=4), {}
    for name, given in {
        "a": ["algorithm=fedavg", "learning-rate=0.01"],
        "b": ["cut-layer=2"],
        "c": ["algorithm=sfl-v1"],
    }.items():
        places[name] = tmp_path / "sweep" / name
        assert app([str(tmp_path / "tiny.toml"), *given, f"data-dir={images}", f"output-dir={places[name]}"]) == 0
    capsys.readouterr()
    tables(monkeypatch, tmp_path / "sweep", "--csv", tmp_path / "runs.csv")
    lines, printed = read_lines(Line, tmp_path / "runs.csv"), capsys.readouterr().out
    assert [line.run for line in lines] == [("reduced", "iid", r, 0) for r in ("FedAvg", "SFL-V1", "SFL-V2 L2")]
    for line, name in zip(lines, "acb", strict=True):
        own = summary(places[name])
        assert (line.accuracy, line.over_clients) == tuple(own["global"]["accuracy"][key] for key in ("mean", "std"))
        assert line.uplink_bytes == sum(own["bytes"]["uplink"].values())
        assert line.best_accuracy >= line.accuracy
        assert f"{line.loss:.4f}" in printed
    monkeypatch.setattr(cut_layer_tables, "line_of", lambda run: pytest.fail("recorded again"))
    tables(monkeypatch, tmp_path / "sweep", "--csv", tmp_path / "runs.csv")
    assert capsys.readouterr().out == printed


@pytest.mark.parametrize(
    ("setting", "row", "changed", "line"),
    [
        ("paper text", "SFL-V2 L1", {"alpha": 0.5}, "alpha = 0.5: allowed is 0.1 for SFL-V2 L1 of 'paper text'"),
        ("paper text", "SFL-V2 L1", {"learning-rate": 0.1}, "learning-rate = 0.1: allowed is 0.001 for"),
        (
            "paper text",
            "FedAvg",
            {"partition": "dirichlet-per-class"},
            "partition = 'dirichlet-per-class': allowed for",
        ),
        ("authors' settings", "SFL-V2 L1", {"split.server-order": "interleaved"}, "split.server-order = 'interleaved'"),
        (
            "authors' settings",
            "SFL-V2 L4",
            {"split.server-momentum": 0.0},
            "split.server-momentum = 0.0: allowed is 0.9",
        ),
        (
            "authors' settings",
            "SFL-V1",
            {"split.server-optimizer": "sgd"},
            "split.server-optimizer = 'sgd': allowed is",
        ),
        ("authors' settings", "FedAvg", {"train.momentum": 0.0}, "train.momentum = 0.0: allowed is 0.9 for FedAvg of"),
        ("paper text", "FedAvg", {"cut-layer": 3, "split.server-optimizer": "sgd", "report.evaluate-every": 7}, ""),
        ("paper text", "SFL-V1", {"partition": "iid", "alpha": 0.5, "cut-layer": 4}, ""),
    ],
)
def test_a_run_with_other_values_is_of_no_row(setting, row, changed, line):
    names = cut_layer_tables.SWEEPS[setting][0]
    files = [str(cut_layer_tables.SETTINGS[setting]), *(f"{EXPERIMENTS}/sweeps/{name}.toml" for name in names)]
    own = next(
        run.settings
        for run in planned_runs(read_sweep([*files, "data-dir=images"]))
        if run.chosen["case"] == row and run.settings["partition"] != ("iid" if setting == "paper text" else "")
    )
    check_row(own, setting, row)
    if not line:
        check_row(own | changed, setting, row)
        return
    with pytest.raises(UserError) as refused:
        check_row(own | changed, setting, row)
    assert str(refused.value).startswith(line)


def test_mean_and_spread_are_over_seeds_beside_the_paper(tmp_path, monkeypatch, capsys):
    apart = A._replace(partition="dirichlet", row="SFL-V1")
    write_lines(Line, tmp_path / "runs.csv", [A, A._replace(seed=1, accuracy=0.7), apart])
    tables(monkeypatch, "--csv", tmp_path / "runs.csv")
    printed = [line.split() for line in capsys.readouterr().out.splitlines()]
    best, loss = ["0.6000", "+-", "0.0000"], ["1.5000", "+-", "0.0000"]
    assert ["SFL-V2", "L1", "2", "0.6000", "+-", "0.1000", *best, "0.9230", *loss, "3", "/", "2"] in printed
    assert ["SFL-V1", "1", "0.5000", "0.6000", "0.6451-0.6638", "1.5000", "3", "/", "2"] in printed
    assert ["reduced,", "IID"] in printed


def test_runs_of_no_table_and_no_runs_get_one_line(tmp_path, monkeypatch):
    with pytest.raises(SystemExit, match=r"^error: "):
        tables(monkeypatch, "--csv", tmp_path / "runs.csv")
    settings = ["num-clients=2", "algorithm=fedavg", "global-rounds=1", "batches-per-epoch=1"]
    assert app([*settings, f"output-dir={tmp_path / 'run'}"]) == 0
    with pytest.raises(SystemExit, match=r"^error: .*: its settings are none of cut-layer-cifar10-small\.toml, "):
        tables(monkeypatch, tmp_path / "run", "--csv", tmp_path / "runs.csv")


def test_the_page_says_that_the_best_round_is_the_last_where_no_other_was_evaluated():
    runs = read_lines(Line, ROOT / "docs/data/cut-layers.csv")
    assert len(runs) == 36
    assert all(line.best_accuracy == line.accuracy for line in runs if line.setting == "reduced")
    assert read_toml(EXPERIMENTS / "cut-layer-cifar10-small.toml")["report.evaluate-every"] == 0
    page = " ".join((ROOT / "docs/cut-layers.md").read_text().split())
    assert "These runs evaluate the last round only, so `best round` is that one." in page


def test_the_page_shows_what_is_recorded(monkeypatch, capsys):
    page, record = ROOT / "docs/cut-layers.md", ROOT / "docs/data/cut-layers.csv"
    tables(monkeypatch, "--csv", record)
    printed = "\n".join(line.rstrip() for line in capsys.readouterr().out.strip("\n").splitlines())
    assert printed in page.read_text()
    own = {line.run: line for line in read_lines(Line, record)}
    assert all(setting == "reduced" for setting, *_ in own)
    ahead = []
    for partition, seed in product(("iid", "dirichlet"), range(3)):
        v1, first, second, third, last, whole = (
            own["reduced", partition, row, seed].accuracy
            for row in ("SFL-V1", "SFL-V2 L1", "SFL-V2 L2", "SFL-V2 L3", "SFL-V2 L4", "FedAvg")
        )
        if partition == "iid":
            assert min(first, second) > v1 > last > whole
            ahead.append(second > first)
        else:
            assert last < min(v1, first, second, third)
            ahead.append(whole > last)
    assert ahead == [True, True, False] * 2
    by_row = {line.row: line for line in own.values() if line.seed == 0}
    assert min(by_row, key=lambda row: by_row[row].uplink_bytes) == "SFL-V2 L2"
    for line in own.values():
        assert line.downlink_bytes == by_row[line.row].downlink_bytes
        labels_again = 201_550 if (line.row, line.seed) == ("SFL-V2 L1", 2) else 0
        assert line.uplink_bytes == by_row[line.row].uplink_bytes + labels_again
