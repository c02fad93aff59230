"""`espalier new` makes a project that runs at once, with code of one's own that computes what its lines say."""

import os
import re
import shlex
import sys
import tomllib
from errno import ENOSPC
from pathlib import Path

import pytest
import torch
from packaging.requirements import Requirement

from espalier.app.command_line import main
from espalier.app.config.parse import flat, read_toml
from espalier.app.config.run_config import RunConfig
from espalier.app.entry_point import entry
from espalier.app.project.files import FLOWER, project_files
from tests.app.runs import same_weights, summary, weights

ROOT = Path(__file__).parents[3]
OWN = {"algorithm": "my_study.algorithm:NEAR", "engine": "in-process"}
OWN |= {"task": "my_study.task:Tumours", "edge-strategy": "my_study.strategy:RootFedAvg"}
SHORT = ("global-rounds=2", "report.plots=false")


@pytest.fixture
def project(tmp_path, monkeypatch):
    """Make the project, go into its folder, and let its modules be found there."""
    monkeypatch.chdir(tmp_path)
    assert main(["new", "my-study"]) == 0
    monkeypatch.chdir("my-study")
    monkeypatch.syspath_prepend(tmp_path / "my-study")
    yield tmp_path / "my-study"
    forget()


def forget():
    """Let the project's modules be imported anew, as by another process."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "my_study"]:
        del sys.modules[name]


def run(folder, *given):
    assert main(["pyproject.toml", *SHORT, *given, f"output-dir={folder}"]) == 0
    return folder


def change(file, old, new):
    """Change one line of a file, as an editor does; Python compares times in seconds."""
    text = Path(file).read_text()
    assert text.count(old) == 1
    Path(file).write_text(text.replace(old, new))
    os.utime(file, (0, len(new)))
    forget()


def quick(words):
    """Return what a command does without pictures, which take seconds."""
    return [*words, "report.plots=false"] if words[0] == "pyproject.toml" else words


def commands(page):
    """Return the commands that a page prints."""
    blocks = re.findall(r"^```bash\n(.*?)^```$", Path(page).read_text(), re.M | re.S)
    return [shlex.split(line, comments=True) for block in blocks for line in block.splitlines()]


def test_it_lists_every_setting_with_its_default_but_for_its_own(project):
    listed = read_toml(project / "pyproject.toml")
    assert listed == RunConfig().as_dict() | OWN
    assert [*listed] == [*flat(tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"])]


def test_it_asks_for_the_flower_that_the_package_asks_for_and_has_nothing_installed_again(project):
    declared = tomllib.loads((project / "pyproject.toml").read_text())
    package = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert FLOWER in package["project"]["optional-dependencies"]["app"]
    needed = {Requirement(one).name for one in declared["project"]["dependencies"]}
    assert needed == set(declared["tool"]["uv"]["exclude-dependencies"]) == {"espalier-fl", "flwr"}
    assert declared["tool"]["flwr"]["app"]["components"] == package["tool"]["flwr"]["app"]["components"]


def test_its_modules_are_short():
    texts = {str(place): text for place, text in project_files("mine").items()}
    assert max(len(texts[f"mine/{name}.py"].splitlines()) for name in ("task", "strategy", "algorithm")) <= 30
    assert 5 <= len(texts["README.md"].splitlines()) <= 20


def test_the_commands_of_its_readme_run(project, capsys):
    own = [words[1:] for words in commands("README.md") if words[0] == "espalier"]
    assert [words[0] for words in own] == ["pyproject.toml", "pyproject.toml", "check"]
    for words in own:
        assert main(quick(words)) == 0
    printed = capsys.readouterr().out
    assert "near on Tumours, 10 global rounds" in printed
    assert "h-fedavg on Tumours, 5 global rounds" in printed
    assert printed.count("all laws hold") == 3


def test_the_commands_of_the_page_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for words in commands(ROOT / "docs/own-project.md"):
        if words[0] == "cd":
            monkeypatch.chdir(words[1])
            monkeypatch.syspath_prepend(Path.cwd())
        elif words[0] == "espalier":
            assert main(quick(words[1:])) == 0
        else:
            assert words[:3] == ["flwr", "run", "."]  # tests/test_wheel.py runs it
    forget()
    assert capsys.readouterr().out.count("all laws hold") == 3


def test_it_learns(project, tmp_path):
    assert summary(run(tmp_path / "run", "global-rounds=10"))["test"]["accuracy"] > 0.95  # 63 % are of one class


def test_the_algorithm_is_fedprox_and_without_its_pull_fedavg(project, tmp_path):
    prox = "edge-strategy=FedProx(proximal_mu=0.1)"
    near = run(tmp_path / "near", "edge-strategy=FedAvg")
    plain = run(tmp_path / "plain", "algorithm=h-fedavg", "edge-strategy=FedAvg")
    torch.testing.assert_close(weights(near), weights(run(tmp_path / "prox", "algorithm=h-fedavg", prox)))
    assert not same_weights(near, plain)
    change("my_study/algorithm.py", "PULL = 0.1", "PULL = 0.0")
    assert same_weights(run(tmp_path / "free", "edge-strategy=FedAvg"), plain)


@pytest.mark.parametrize(("power", "same"), [("1", "edge-strategy=FedAvg"), ("0", "train.weighting=equal")])
def test_the_strategy_with_the_power_1_is_fedavg_and_with_0_weighs_all_alike(project, tmp_path, power, same):
    settings = ("algorithm=h-fedavg", "num-edges=1")
    change("my_study/strategy.py", "POWER = 0.5", f"POWER = {power}")
    own = weights(run(tmp_path / "own", *settings))
    torch.testing.assert_close(own, weights(run(tmp_path / "same", *settings, "edge-strategy=FedAvg", same)))


def test_the_task_can_be_cut(project, tmp_path):
    split = run(tmp_path / "split", "algorithm=sfl-v1", "edge-strategy=FedAvg")
    whole = run(tmp_path / "whole", "algorithm=fedavg", "edge-strategy=FedAvg")
    torch.testing.assert_close(weights(split), weights(whole))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_command_finds_the_projects_modules_behind_all_others(project, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [folder for folder in sys.path if folder not in ("", str(project))])
    monkeypatch.setattr(sys, "argv", ["espalier", "pyproject.toml", *SHORT, f"output-dir={tmp_path / 'run'}"])
    assert entry() == 0
    assert sys.path[-1] == str(project)


@pytest.mark.parametrize(
    ("folder", "says"),
    [
        ("2026-study", "folder '2026-study': is no name of a Python package: take my-2026-study"),
        ("étude finale", "folder 'étude finale': is no name of a Python package: take etude-finale"),
        ("été.", "folder 'été.': is no name of a Python package: take ete"),
        ("学", "folder '学': is no name of a Python package: take my-study"),
        ("class", "folder 'class': is no name of a Python package: take my-class"),
        ("json", "folder 'json': Python has a module json already: take my-json"),
        ("torch", "folder 'torch': Python has a module torch already: take my-torch"),
        ("full", "full: is not empty: expected is a new folder"),
        ("full/file", "full/file: is no folder: expected is a new one"),
        ("full/file/study", "full/file/study: can't be made (Not a directory)"),
        ("/proc/study", "/proc/study: can't be made (No such file or directory)"),
    ],
)
def test_a_folder_that_cannot_be_a_project_gets_one_line_and_no_file(tmp_path, monkeypatch, capsys, folder, says):
    monkeypatch.chdir(tmp_path)
    Path("full").mkdir()
    Path("full/file").touch()
    assert main(["new", folder]) == 2
    assert capsys.readouterr().err == f"error: {says}\n"
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["file", "full"]


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is forbidden to root")
def test_a_folder_that_is_closed_gets_one_line(tmp_path, capsys):
    (tmp_path / "closed").mkdir(mode=0o500)
    assert main(["new", str(tmp_path / "closed/study")]) == 2
    assert capsys.readouterr().err == f"error: {tmp_path}/closed/study: can't be made (Permission denied)\n"


def test_an_empty_folder_may_be_there_and_be_the_current_one(tmp_path, monkeypatch):
    (tmp_path / "my_study").mkdir()
    monkeypatch.chdir(tmp_path / "my_study")
    assert main(["new", "."]) == 0
    assert (tmp_path / "my_study/my_study/task.py").is_file()
    assert 'name = "my-study"' in (tmp_path / "my_study/pyproject.toml").read_text()


@pytest.mark.parametrize("name", ["README.md", "__init__.py", "task.py"])
def test_on_a_full_disk_nothing_stays_and_the_next_attempt_works(tmp_path, monkeypatch, capsys, name):
    def write(path, text, **options):
        if path.name == name:
            raise OSError(ENOSPC, "No space left on device")
        return whole(path, text, **options)

    whole = Path.write_text
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", write)
        for folder in (".", "small/proj"):
            assert main(["new", folder]) == 2
            assert capsys.readouterr().err == f"error: {folder}: can't be made (No space left on device)\n"
    assert [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")] == ["here", "here/small"]
    assert main(["new", "small/proj"]) == 0


def test_help_says_what_to_type(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["new", "--help"])
    assert ended.value.code == 0
    assert "espalier new my-study\n  cd my-study\n  flwr run . --stream" in capsys.readouterr().out
    main(["--help"])
    assert "python -m espalier new my-study " in capsys.readouterr().out


def test_a_project_without_settings_gets_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("pyproject.toml").write_text("[tool]\nflwr = 1\n")
    assert main(["pyproject.toml"]) == 2
    says = "pyproject.toml: has no table [tool.flwr.app.config]: expected is the project of a Flower app"
    assert capsys.readouterr().err == f"error: {says}\n"
