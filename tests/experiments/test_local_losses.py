"""Accuracy over bytes on FSL-SAGE's setting: each run recorded once, table and figure what is recorded."""

from pathlib import Path

import pytest

from espalier.app.command_line import main as app
from espalier.app.config.parse import read_toml
from espalier.app.sweeps.grid import planned_runs, read_sweep
from experiments import local_losses, recorded_rounds
from experiments.local_losses import PAPER, main
from experiments.recorded_rounds import RoundLine, by_run
from experiments.recorded_runs import read_lines
from tests.app.own_folders import noise_folder
from tests.app.runs import summary
from tests.experiments.tiny import TINY

ROOT = Path(__file__).parents[2]
RECORDED, PAGE = ROOT / "docs/data/local-losses.csv", ROOT / "docs/split-ledger.md"


def test_the_sweep_has_the_rows_of_the_table():
    files = [ROOT / "experiments/fsl-sage-cifar10.toml", ROOT / "experiments/sweeps/fsl-sage-rows.toml"]
    runs = planned_runs(read_sweep([*map(str, files), "data-dir=images"]))
    assert {run.chosen["case"]: run.settings["algorithm"] for run in runs} == {
        name: algorithm for algorithm, name in local_losses.NAMES.items()
    }


def test_a_run_is_recorded_once_with_its_own_bytes(tmp_path, monkeypatch, capsys):
    (tmp_path / "tiny.toml").write_text(TINY)
    monkeypatch.setattr(local_losses, "SETTINGS", tmp_path / "tiny.toml")
    images, csv = noise_folder(tmp_path / "images", train=8, test=4), tmp_path / "runs.csv"
    for name in ("cse-fsl", "sfl-v1"):
        own = [f"algorithm={name}", f"data-dir={images}", f"output-dir={tmp_path / 'sweep' / name}"]
        own.append("report.evaluate-clients=0")
        assert app([str(tmp_path / "tiny.toml"), *own]) == 0
    capsys.readouterr()
    main([str(tmp_path / "sweep"), "--csv", str(csv)])
    printed, lines = capsys.readouterr().out, read_lines(RoundLine, csv)
    assert [(*line.run, line.round) for line in lines] == [
        (name, 0, number) for name in ("CSE-FSL", "SFL-V1") for number in (1, 2)
    ]
    for line in lines[1::2]:
        own = summary(tmp_path / "sweep" / line.row.lower())
        assert line.bytes == sum(count for kinds in own["bytes"].values() for count in kinds.values())
        assert line.accuracy == round(own["test"]["accuracy"], 4)
    monkeypatch.setattr(recorded_rounds, "ResultsFolder", lambda folder: pytest.fail("recorded again"))
    main([str(tmp_path / "sweep"), "--csv", str(csv)])
    assert capsys.readouterr().out == printed


def test_a_run_of_another_setting_gets_one_line(tmp_path):
    settings = ["num-clients=2", "algorithm=cse-fsl", "global-rounds=1", "batches-per-epoch=1"]
    assert app([*settings, f"output-dir={tmp_path / 'run'}"]) == 0
    with pytest.raises(SystemExit, match=r"^error: .*: dataset = 'digits': allowed is 'image-folder', as in fsl-sage"):
        main([str(tmp_path / "run"), "--csv", str(tmp_path / "runs.csv")])


def test_the_page_shows_what_is_recorded(capsys):
    main(["--csv", str(RECORDED)])
    assert capsys.readouterr().out in PAGE.read_text()
    runs = by_run(read_lines(RoundLine, RECORDED), list(PAPER))
    rounds = read_toml(local_losses.SETTINGS)["global-rounds"]
    assert all([line.round for line in own] == list(range(1, rounds + 1)) for own in runs.values())
    assert {name for name, _ in runs} <= PAPER.keys()


@pytest.mark.usefixtures("with_png")
def test_a_figure_has_a_line_for_each_run(tmp_path):
    main(["--csv", str(RECORDED), "--figure", str(tmp_path / "losses.png")])
    assert (tmp_path / "losses.png").stat().st_size > 10_000
