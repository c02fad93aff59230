"""`espalier page` writes one file of a run, or of several."""

import json
import re
import shutil
from pathlib import Path

import pytest

from espalier.app.command_line import main
from espalier.app.page.runs import Runs, labels
from tests.app.page.runs import write_large_run


@pytest.fixture(scope="module")
def sweep(tmp_path_factory):
    root = tmp_path_factory.mktemp("sweep")
    for name in ("seed10", "seed9"):
        folder = write_large_run(root / name, clients=6, rounds=2, edges=2)
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | {"seed": int(name.removeprefix("seed"))}))
    return root


def data_of(page):
    (text,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page.read_text())
    return json.loads(text)


def test_a_page_of_one_run_is_in_its_folder(sweep, capsys):
    assert main(["page", str(sweep / "seed9")]) == 0
    assert capsys.readouterr().out == f"page: {sweep / 'seed9/page.html'}\n"
    data = data_of(sweep / "seed9/page.html")
    assert data["live"] is None
    assert [run["label"] for run in data["runs"]] == ["seed9"]


def test_a_page_of_a_sweep_has_its_runs_in_their_order_and_what_differs(sweep):
    assert main(["page", str(sweep)]) == 0
    runs = data_of(sweep / "page.html")["runs"]
    assert [(run["label"], run["differs"]) for run in runs] == [
        ("seed9", [["seed", "9"]]),
        ("seed10", [["seed", "10"]]),
    ]


def test_a_page_of_several_runs_is_beside_them(sweep, tmp_path):
    shutil.copytree(sweep, tmp_path / "sweep")
    folders = [str(tmp_path / "sweep" / name) for name in ("seed10", "seed9", "seed10")]
    assert main(["page", *folders]) == 0
    assert [run["label"] for run in data_of(tmp_path / "sweep/page.html")["runs"]] == ["seed10", "seed9"]
    assert main(["page", *folders, "--output", str(tmp_path / "own.html")]) == 0
    assert data_of(tmp_path / "own.html")["runs"][0]["label"] == "seed10"


def test_mistakes_are_one_line(sweep, tmp_path, capsys):
    for arguments, line in (
        ([str(tmp_path)], "allowed is the results folder of a run, or one that holds such"),
        ([str(sweep), "--output", ""], "--output = '': allowed is a file"),
        ([str(sweep), "--output", str(tmp_path / "no" / "page.html")], "can't be written (No such file or directory)"),
    ):
        assert main(["page", *arguments]) == 2
        error = capsys.readouterr().err
        assert line in error
        assert error.count("\n") == 1


def test_a_damaged_run_among_several_is_left_out_and_alone_refused(sweep, tmp_path, capsys):
    several = shutil.copytree(sweep, tmp_path / "sweep")
    damaged = several / "seed9/config.json"
    damaged.write_text("{}")
    line = f"{damaged}: lacks 'algorithm'; allowed is the file that the run wrote\n"
    assert main(["page", str(several)]) == 0
    assert capsys.readouterr().err == f"left out: {line}"
    assert [run["label"] for run in data_of(several / "page.html")["runs"]] == ["seed10"]
    for named in ([several / "seed9"], [several / "seed10", several / "seed9"]):
        assert main(["page", *map(str, named)]) == 2
        assert capsys.readouterr().err == f"error: {line}"
    shutil.rmtree(several / "seed10")
    assert main(["page", str(several)]) == 2
    nothing = f"error: FOLDER = '{several}': allowed is the results folder of a run, or one that holds such\n"
    assert capsys.readouterr().err == f"left out: {line}{nothing}"


def test_a_run_that_was_left_out_is_shown_once_its_lines_are_whole(sweep, tmp_path, capsys):
    runs = Runs([Path(shutil.copytree(sweep, tmp_path / "sweep"))])
    metrics = tmp_path / "sweep/seed9/metrics.jsonl"
    whole = metrics.read_text()
    metrics.write_text('{"round": 1, "scope": "edge", "edge": "west", "failures": []}\n' + whole)
    assert runs.refresh()
    assert not runs.refresh()
    assert [run["label"] for run in runs.data()] == ["seed10"]
    assert capsys.readouterr().err.count("left out: ") == 1
    metrics.write_text(whole)
    assert runs.refresh()
    assert [run["label"] for run in runs.data()] == ["seed9", "seed10"]


def test_names_that_several_runs_have_get_their_paths(tmp_path):
    paths = [tmp_path / "a/run", tmp_path / "b/run", tmp_path / "c"]
    found = labels({path: path.name for path in paths})
    assert list(found.values()) == [f"run {tmp_path}/a/run", f"run {tmp_path}/b/run", "c"]
