"""What a public forge reads: how to cite the project, and which tests it runs."""

import re
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
