"""What pyproject.toml says about the package is what is in the tree."""

import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import espalier
from tests.app.runs import app_folder

ROOT = Path(__file__).parent.parent
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
FOLDERS = ("app", "clients", "sim", "strategies")


def name_of(requirement: str) -> str:
    return Requirement(requirement).name


def requirements(*extras: str) -> set[str]:
    """Return the names of what is installed with some extras, and without any."""
    project = PYPROJECT["project"]
    listed = [Requirement(one) for one in project["dependencies"]]
    names = {one.name for one in listed if not one.marker or any(one.marker.evaluate({"extra": e}) for e in extras)}
    return names | {name_of(one) for extra in extras for one in project["optional-dependencies"][extra]}


def test_the_version_is_the_projects():
    assert espalier.__version__ == PYPROJECT["project"]["version"]


def test_a_folder_of_the_packages_name_in_the_current_one_hides_nothing(tmp_path):
    (tmp_path / "espalier").mkdir()
    settings = ["algorithm=fedavg", "num-clients=2", "global-rounds=1", "batches-per-epoch=1", "report.plots=false"]
    command = [sys.executable, "-m", "espalier", *settings, "output-dir=run"]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert f'"version": "{espalier.__version__}"' in (tmp_path / "run/made-by.json").read_text(encoding="utf-8")


def test_every_package_of_the_tree_is_listed():
    files = [file for folder in FOLDERS for file in (ROOT / folder).rglob("*.py")]
    packages = {".".join(("espalier", *file.relative_to(ROOT).parent.parts)) for file in files}
    listed = PYPROJECT["tool"]["setuptools"]["packages"]
    assert sorted(listed) == sorted({"espalier"} | packages)
    for folder in {file.parent for file in files}:
        assert (folder / "__init__.py").is_file(), folder


def test_the_checkers_links_lead_to_the_packages():
    links = {link.name: link for link in (ROOT / "typings/espalier").iterdir() if not link.name.startswith("__pyc")}
    assert sorted(links) == sorted(("__init__.py", "__main__.py", "version.py", *FOLDERS))
    for name, link in links.items():
        assert link.is_symlink()
        assert link.resolve() == (ROOT / name if name in FOLDERS else ROOT / "espalier" / name)


def test_plans_are_all_that_the_base_install_is_for():
    assert requirements() == {"numpy", "cvxpy"}


@pytest.mark.parametrize("app", [".", "examples/own-strategy", "examples/own-split-model"])
def test_flower_installs_no_dependency_again(app):
    project = tomllib.loads((ROOT / app / "pyproject.toml").read_text(encoding="utf-8"))
    declared = project["project"]
    listed = sum(declared.get("optional-dependencies", {}).values(), declared["dependencies"])
    needed = {name_of(requirement) for requirement in listed} - {declared["name"]}
    assert set(project["tool"]["uv"]["exclude-dependencies"]) == needed


def test_constraints_pin_all_that_is_required():
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = {name_of(line): line.partition("==")[2] for line in lines if not line.startswith("#")}
    assert all(re.fullmatch(r"[\d.]+(post\d+)?", version) for version in pinned.values())
    assert requirements("flower", "app", "dev") - {"espalier-fl", "setuptools"} <= set(pinned)


def test_flowers_bundle_has_the_packages_and_no_links(tmp_path):
    command = [Path(sys.executable).with_name("flwr"), "build", "--app", app_folder()]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    (bundle,) = tmp_path.glob("*.fab")
    names = {Path(name) for name in zipfile.ZipFile(bundle).namelist()}
    packages = ("espalier", *FOLDERS)
    expected = {file.relative_to(ROOT) for folder in packages for file in (ROOT / folder).rglob("*.py")}
    assert {name for name in names if name.suffix == ".py" and name.parts[0] in packages} == expected
    assert [name for name in names if name.parts[0] == "typings"] == []
