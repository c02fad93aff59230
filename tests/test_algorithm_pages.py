"""Every algorithm has a section on a page: what it computes, where its lines are, its settings and its source."""

import re
from pathlib import Path

import pytest

from espalier.app.algorithms.registry import ALGORITHMS
from espalier.app.config.run_config import RunConfig

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / f"docs/{name}.md" for name in ("plain-algorithms", "algorithms", "personal")]
SECTIONS = [section for page in PAGES for section in re.split(r"^#{2,3} ", page.read_text(), flags=re.M)[1:]]
FACTS = re.compile(r"Code: (?P<code>.+)\. Settings: (?P<settings>.+)\. Source: (?P<source>.+)")
FILES = {
    name: file
    for file in sorted((ROOT / "app/algorithms").glob("*.py"))
    for name in re.findall(r'^    name="([\w-]+)",$', file.read_text(), re.M)
}


def test_every_algorithm_has_a_file():
    assert FILES.keys() == ALGORITHMS.keys()


@pytest.mark.parametrize("name", ALGORITHMS)
def test_an_algorithm_has_one_section_that_says_where_its_lines_are_its_settings_and_its_source(name):
    file = FILES[name]
    path = f"`{file.relative_to(ROOT)}`"
    (section,) = [section for section in SECTIONS if path in section]
    (facts,) = filter(None, (FACTS.fullmatch(" ".join(part.split())) for part in section.split("\n\n")))
    assert path in facts["code"]
    assert f"`{name}`" in section
    settings = re.findall(r"`([\w.-]+)`", facts["settings"])
    assert settings
    assert set(settings) <= RunConfig().as_dict().keys()
    numbers = re.findall(r"arXiv:(\d+\.\d+)", file.read_text().partition('"""\n')[0])
    assert [number for number in numbers if f"https://arxiv.org/abs/{number}" not in facts["source"]] == []
