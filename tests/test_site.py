"""The site of the documentation: its navigation, its links into the tree, its reference and its glossary."""

import ast
import json
import pydoc
import re
import runpy
import subprocess
import sys
from pathlib import Path
from types import FunctionType, ModuleType

import pytest

from benchmarks.browser import CHROMIUM, DRIVER, browser

ROOT = Path(__file__).parent.parent
HOOKS = runpy.run_path(str(ROOT / "docs/site_hooks.py"))
FIRST_PAGE = (ROOT / "docs/README.md").read_text()
REFERENCE = sorted((ROOT / "docs/api").glob("*.md"))


def title_of(page):
    return page.read_text().splitlines()[0].removeprefix("# ")


def entries(content):
    """Return the titles and places of a part of the navigation."""
    for entry in content:
        for title, below in entry.items():
            yield from entries(below) if isinstance(below, list) else [(title, below)]


def test_the_navigation_has_four_groups_and_in_them_every_page_once_with_its_title():
    groups = HOOKS["navigation"](FIRST_PAGE)
    assert [title for group in groups for title in group] == ["Learn", "Do", "Look up", "Understand"]
    found = [*entries(groups)]
    pages = {str(page.relative_to(ROOT / "docs")): title_of(page) for page in (ROOT / "docs").rglob("*.md")}
    del pages["README.md"]
    pages["tree/CHANGELOG.md"] = title_of(ROOT / "CHANGELOG.md")
    for notebook in (ROOT / "examples/notebooks").glob("*.ipynb"):
        title, *_ = HOOKS["as_page"](str(notebook.relative_to(ROOT))).splitlines()
        pages[f"tree/examples/notebooks/{notebook.name}.md"] = title.removeprefix("# ")
    assert len(found) == len(pages)
    assert {place: title for title, place in found} == {place: t.replace("`", "") for place, t in pages.items()}


def test_the_first_page_shows_what_the_readme_does():
    said = r"accuracy is then (\S+), and (\S+) with fine-tuned heads"
    pages = [" ".join(text.split()) for text in (FIRST_PAGE, (ROOT / "README.md").read_text())]
    first, second = (re.findall(said, page) for page in pages)
    assert first == second != []
    assert "](data/demo-personalised.png)" in FIRST_PAGE


@pytest.mark.parametrize(
    ("source", "link", "leads_to"),
    [
        ("docs/plans.md", "radio.md#the-channel", "radio.md#the-channel"),
        ("docs/plans.md", "#late", "#late"),
        ("docs/plans.md", "https://flower.ai/docs", "https://flower.ai/docs"),
        ("docs/plans.md", "data/a.png", "data/a.png"),
        ("docs/plans.md", "../README.md#run-it", "tree/README.md#run-it"),
        ("docs/plans.md", "../examples/own-task", "tree/examples/own-task/README.md"),
        ("docs/plans.md", "../examples/own-task/own_task/text.py", "tree/examples/own-task/own_task/text.py.md"),
        ("docs/api/sim.md", "../radio.md", "../radio.md"),
        ("docs/api/sim.md", "../../README.md", "../tree/README.md"),
        ("README.md", "docs/plans.md#late", "../plans.md#late"),
        ("README.md", "docs/data/a.png", "../data/a.png"),
        ("README.md", "docs/README.md", "../README.md"),
        ("examples/own-task/README.md", "../../docs/own-task.md", "../../../own-task.md"),
        ("examples/own-task/README.md", "own_task/text.py", "own_task/text.py.md"),
    ],
)
def test_a_link_leads_to_its_place_on_the_site(source, link, leads_to):
    assert HOOKS["site_link"](source, link) == leads_to


def test_what_is_in_code_is_no_link():
    text = "[a](b.md) `[c](d.md)` ``[`e`](f.md)``\n\n```python\ng[h](i)\n```\n\n[j](k.md)\n\n[l]: m.md\n"
    changed = HOOKS["with_links"](text, lambda link: link.upper())
    assert changed == text.replace("(b.md)", "(B.MD)").replace("(k.md)", "(K.MD)").replace(" m.md", " M.MD")


def test_files_outside_of_docs_that_pages_link_to_are_on_the_site_and_those_that_these_link_to():
    files = HOOKS["linked_files"](["docs/own-client.md"])
    assert {"examples/own-algorithm/README.md", "examples/own-algorithm/own_algorithm/loyal.py"} <= set(files)
    assert "examples/own-algorithm/own_algorithm/slow_edges.py" in files  # of the README
    assert [file for file in files if file.startswith("docs/") or not (ROOT / file).is_file()] == []


def test_a_notebook_is_a_page_with_its_text_its_code_and_what_that_printed_and_drew():
    first, second = (f"examples/notebooks/{name}.ipynb" for name in ("library", "radio-cell"))
    cells, page = json.loads((ROOT / second).read_text())["cells"], HOOKS["as_page"](second)
    outputs = [output for cell in cells for output in cell.get("outputs", [])]
    printed = ["".join(output["text"]).rstrip() for output in outputs if "text" in output]
    assert len(printed) > 3
    assert [text for text in printed if text not in page] == []
    assert [cell["id"] for cell in cells if "".join(cell["source"]) not in page] == []
    assert page.count("](data:image/png;base64,") == len(outputs) - len(printed) == 4
    assert HOOKS["linked_files"]([first]) == [second]


@pytest.mark.parametrize(
    ("text", "wide"),
    [
        (
            "- a\n  b\n\n  ```sh\n  if\n    c\n  ```\n- d\n",
            "- a\n    b\n\n    ```sh\n    if\n      c\n    ```\n\n- d\n",
        ),
        ("1. a\n\n   b\n2. c\n", "1. a\n\n    b\n\n2. c\n"),
        ("- a\n  - b\n    c\n- d\n", "- a\n    - b\n        c\n- d\n"),
        ("a\n\n    code\n\n- b\n\nc\n\n  d\n", "a\n\n    code\n\n- b\n\nc\n\n  d\n"),
        ("```\n- a\n  b\n```\n", "```\n- a\n  b\n```\n"),
    ],
)
def test_lists_are_indented_by_four_a_level(text, wide):
    assert HOOKS["with_wide_lists"](text) == wide


def objects(name):
    """Return what a line of the reference shows: one object, or those that a module exports or defines."""
    thing = pydoc.locate(name)
    assert thing is not None, name
    if not isinstance(thing, ModuleType):
        return [thing]
    if exported := getattr(thing, "__all__", None):
        return [getattr(thing, each) for each in exported]
    return [
        each for each in vars(thing).values() if not isinstance(each, type | FunctionType) or each.__module__ == name
    ]


def test_what_the_pages_import_is_in_the_reference():
    listed = [name for page in REFERENCE for name in re.findall(r"^::: (\S+)$", page.read_text(), re.M)]
    shown = [each for name in listed for each in objects(name)]
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]
    code = [line for page in pages for line in re.findall(r"^from espalier\S* import [\w, ]+$", page.read_text(), re.M)]
    code += [file.read_text() for file in (ROOT / "examples").rglob("*.py")]
    imports = [node for text in code for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ImportFrom)]
    used = {(node.module, name.name) for node in imports for name in node.names if node.module.startswith("espalier.")}
    assert len(used) > 40
    assert [f"{m}.{name}" for m, name in used if not any(each is pydoc.locate(f"{m}.{name}") for each in shown)] == []


def test_each_word_of_the_glossary_has_a_page_that_says_more_of_it():
    rows = re.findall(r"^\| \[([^|]+)\]\(([^|]+)\) \| [^|]+ \|$", (ROOT / "docs/glossary.md").read_text(), re.M)
    assert len(rows) > 30
    assert [word for word, _ in rows] == sorted((word for word, _ in rows), key=str.lower)
    for word, page in rows:
        text = (ROOT / "docs" / page).read_text()
        assert any(part.lower() in text.lower() for part in word.split(", ")), (word, page)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", folder]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    return folder


@pytest.mark.deploy
def test_the_site_is_built_without_a_warning_and_has_a_page_for_each(site):
    for page in (ROOT / "docs").rglob("*.md"):
        place = page.relative_to(ROOT / "docs").with_suffix(".html")
        assert (site / place.parent / place.name.replace("README", "index")).is_file()
    text = (site / "api/strategies.html").read_text()
    assert 'id="espalier.strategies.Hierarchical"' in text
    assert 'id="espalier.strategies.Hierarchical.rounds"' in text
    assert "data:image/png;base64," in (site / "tree/examples/notebooks/library.ipynb.html").read_text()


@pytest.mark.deploy
@pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="apt-get install chromium chromium-driver")
def test_no_page_is_wider_than_a_phone(site):
    pages = [page for folder in (".", "api", "tree/examples/notebooks") for page in (site / folder).glob("*.html")]
    widths = {}
    with browser() as chromium:
        chromium.resize(360, 740)
        for page in pages:
            if page.name != "404.html":  # MkDocs' own
                chromium.open(page.as_uri())
                widths[page.name] = chromium.run("return document.documentElement.scrollWidth")
    assert len(widths) > 60
    assert {name: width for name, width in widths.items() if width > 360} == {}
