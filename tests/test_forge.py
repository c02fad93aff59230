"""What a public forge reads: how to cite the project, and which tests it runs."""

import re
import tomllib
from pathlib import Path

import yaml

from espalier.app.algorithms.registry import ALGORITHMS
from espalier.version import __version__

ROOT = Path(__file__).parent.parent


def test_the_citation_is_of_this_edition_and_of_the_papers_that_the_algorithms_name():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert (citation["cff-version"], citation["version"]) == ("1.2.0", __version__)
    assert citation["authors"] == [{"name": "The Espalier developers"}]
    assert len(citation["references"]) == 3
    for paper in citation["references"]:
        assert set(paper["notes"].split(", ")) <= set(ALGORITHMS)
    urls = {paper["notes"]: paper["url"] for paper in citation["references"]}
    for name in ("phsfl", "rawhfl"):
        (number,) = re.findall(r"arXiv:([\d.]+\d)", (ROOT / f"app/algorithms/{name}.py").read_text(encoding="utf-8"))
        assert urls[name] == f"https://arxiv.org/abs/{number}"


def test_the_workflow_runs_what_ci_runs_on_the_oldest_python():
    workflow = yaml.safe_load((ROOT / ".github/workflows/tests.yml").read_text(encoding="utf-8"))
    (job,) = workflow["jobs"].values()
    commands = [step["run"] for step in job["steps"] if "run" in step]
    script = (ROOT / ".ci/run").read_text(encoding="utf-8").splitlines()
    assert commands == [line for line in script if line and not line.startswith(("#", "set ", "cd "))]
    uses = {step["uses"].partition("@")[0]: step.get("with", {}) for step in job["steps"] if "uses" in step}
    assert set(uses) == {"actions/checkout", "actions/setup-python"}
    oldest = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["requires-python"]
    assert oldest == f">={uses['actions/setup-python']['python-version']}"


def test_a_release_is_started_by_a_person_and_publishes_what_make_dist_has_made():
    text = (ROOT / ".github/workflows/release.yml").read_text(encoding="utf-8")
    workflow = yaml.safe_load(text)
    assert workflow[True] == "workflow_dispatch"  # YAML 1.1 reads the key `on` as a truth value
    build, publish = workflow["jobs"]["build"], workflow["jobs"]["publish"]
    assert [step["run"] for step in build["steps"] if "run" in step] == ["make dist"]
    assert (publish["needs"], publish["permissions"]) == ("build", {"id-token": "write"})
    assert "secrets." not in text
    assert "pypa/gh-action-pypi-publish@release/v1" in [step["uses"] for step in publish["steps"]]
