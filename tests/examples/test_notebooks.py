"""The notebooks: their cells run, print what they printed when they were written, and their text says it."""

import logging
import re
import runpy
from pathlib import Path

import matplotlib
import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = runpy.run_path(str(ROOT / "docs/notebooks.py"))
PATHS = sorted(PROGRAM["NOTEBOOKS"].glob("*.ipynb"))
NUMBER = re.compile(r"\d+\.?\d*(?:e-?\d+)?")


def printed(notebook):
    """Return what all cells print."""
    outputs = [output for cell in notebook["cells"] for output in cell.get("outputs", [])]
    return "".join("".join(output["text"]) for output in outputs if output["output_type"] == "stream")


def pictures(notebook):
    """Return the size of each picture, in letters, by the name of its cell."""
    drawn = [
        (cell["id"], output["data"])
        for cell in notebook["cells"]
        for output in cell.get("outputs", [])
        if "data" in output
    ]
    return {name: len(data["image/png"]) for name, data in drawn}


def text_of(notebook):
    return "\n".join("".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "markdown")


@pytest.fixture(scope="module", params=PATHS, ids=lambda path: path.stem)
def notebooks(request):
    """Return a notebook as it is in the tree, and as it is when it is run."""
    written = PROGRAM["read"](request.param)
    logger, backend = logging.getLogger("flwr"), matplotlib.get_backend()
    level = logger.level
    matplotlib.use("Agg")
    yield written, PROGRAM["executed"](written)
    matplotlib.use(backend)
    logger.setLevel(level)


def test_there_are_two():
    assert [path.stem for path in PATHS] == ["library", "radio-cell"]


def test_it_prints_what_it_printed(notebooks):
    before, now = map(printed, notebooks)
    assert NUMBER.sub("", now) == NUMBER.sub("", before)
    # Sums round differently on another kind of CPU.
    assert [*map(float, NUMBER.findall(now))] == pytest.approx(
        [*map(float, NUMBER.findall(before))], rel=0.01, abs=0.01
    )


def test_it_draws_the_pictures_that_it_drew_and_they_are_small(notebooks):
    before, now = map(pictures, notebooks)
    assert before.keys() == now.keys()
    assert 0 < len(before) < 5
    assert max(before.values()) < 60_000


def test_the_figures_in_its_text_are_printed(notebooks):
    written, _ = notebooks
    claimed = re.findall(r"\*\*([\d.]+)\*\*", text_of(written))
    assert len(claimed) > 1
    assert set(claimed) <= set(NUMBER.findall(printed(written)))


def test_its_links_lead_somewhere(notebooks):
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", text_of(notebooks[0]))
    assert len(links) > 2
    assert [link for link in links if not (PROGRAM["NOTEBOOKS"] / link).is_file()] == []


def test_the_library_takes_twenty_lines():
    cells = {cell["id"]: cell["source"] for cell in PROGRAM["read"](PATHS[0])["cells"]}
    code = [line for name in ("model-code", "device-code", "tiers-code") for line in cells[name] if line.strip()]
    assert len(code) == 20
