"""The apps for Flower Hub: within its limits, and with the commands that their pages show."""

import re
import shlex
import tomllib
from pathlib import Path

import pytest

from espalier.app.command_line import main

ROOT = Path(__file__).parent.parent
APPS = sorted(path.parent for path in ROOT.glob("hub/*/pyproject.toml"))
TAKEN = {".py", ".toml", ".md", ".yaml", ".yml", ".json", ".jsonl"}
SHORT = ["global-rounds=1", "edge-rounds=1", "report.plots=false"]


def settings_of(app):
    return tomllib.loads((app / "pyproject.toml").read_text(encoding="utf-8"))


def test_there_is_one_of_each_kind():
    assert [app.name for app in APPS] == ["hierarchical", "resource-aware", "split"]


@pytest.mark.parametrize("app", APPS, ids=lambda app: app.name)
def test_an_app_is_within_the_limits_of_the_hub(app):
    files = [file for file in app.rglob("*") if file.is_file()]
    assert len(files) <= 1_000
    assert max(file.stat().st_size for file in files) <= 1e6
    assert sum(file.stat().st_size for file in files) <= 1e7
    assert {file.suffix for file in files} - TAKEN == {""}
    assert (app / "LICENSE").read_text(encoding="utf-8") == (ROOT / "LICENSE").read_text(encoding="utf-8")
    project, whole = settings_of(app), tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert project["project"]["name"] == app.name
    assert project["project"]["version"] == whole["project"]["version"]
    assert project["tool"]["flwr"]["app"]["publisher"] == whole["tool"]["flwr"]["app"]["publisher"]


@pytest.mark.parametrize("app", APPS, ids=lambda app: app.name)
def test_the_other_settings_on_its_page_run(app, tmp_path, monkeypatch):
    monkeypatch.chdir(app)
    page = (app / "README.md").read_text(encoding="utf-8")
    (other,) = re.findall(r"--run-config '(.*)'$", page, re.M)
    assert main(["pyproject.toml", *shlex.split(other.replace('"', "'\"'")), *SHORT, f"output-dir={tmp_path}/run"]) == 0
