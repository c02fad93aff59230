"""The page that compares frameworks has a source for each claim, and its figures of our own code are right."""

import ast
import io
import re
import tokenize
from pathlib import Path

import pytest

from espalier.version import __version__

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs/compared.md"
BODY, SOURCES = PAGE.read_text(encoding="utf-8").split("## Sources\n")
LETTERS = {
    "Flower": "F",
    "NVFlare": "N",
    "FedML": "M",
    "pfl-research": "P",
    "fluke": "K",
    "BlazeFL": "B",
    "FedScale": "S",
    "Espalier": "E",
}
ADDRESSES = dict(re.findall(r"^\[([A-Z]\d+)\]: (\S+)$", SOURCES, re.MULTILINE))
NOT_FOUND = "–"
CITED = re.compile(r"\[([A-Z]\d+)\]")


def cells_of(line):
    """Return a table's row without its bars."""
    return [cell.strip() for cell in line.strip("| ").split(" | ")]


TABLES = [table for table in re.findall(r"(?:^\|.*\n)+", BODY, re.MULTILINE) if "NVFlare | FedML" in table]
ROWS = [cells_of(line) for table in TABLES for line in table.splitlines()[2:]]


def test_every_table_has_all_frameworks_and_ours_last():
    assert len(TABLES) == 3
    assert {table.splitlines()[0] for table in TABLES} == {f"| | {' | '.join(LETTERS)} |"}
    assert len(ROWS) > 25


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0].replace(" ", "-"))
def test_each_cell_that_claims_something_has_a_source_of_its_framework(row):
    point, *cells = row
    assert len(cells) == len(LETTERS)
    for framework, cell in zip(LETTERS, cells, strict=True):
        cited = CITED.findall(cell)
        assert bool(cited) != (cell == NOT_FOUND), f"{point}, {framework}: {cell}"
        assert {label[0] for label in cited} <= {LETTERS[framework]}
        assert len(re.findall(r"[.;] ", cell)) <= 1  # two sentences at most


def test_every_source_is_used_and_ours_exist():
    assert ADDRESSES.keys() == set(CITED.findall(BODY))
    ours = {label: address for label, address in ADDRESSES.items() if label.startswith("E")}
    assert [address for address in ours.values() if not (PAGE.parent / address).exists()] == []
    others = [address for label, address in ADDRESSES.items() if label not in ours]
    assert [address for address in others if not address.startswith("https://")] == []
    assert len(set(ADDRESSES.values())) == len(ADDRESSES)


def code_lines(path):
    """Count a module's lines without comments, docstrings and blank lines."""
    text = path.read_text(encoding="utf-8")
    kinds = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    lines = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in kinds:
            lines |= {*range(token.start[0], token.end[0] + 1)}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            lines -= {*range(node.lineno, (node.end_lineno or node.lineno) + 1)}
    return len(lines)


def test_the_lines_of_our_own_code_are_counted():
    stated = {
        label: int(number)
        for row in ROWS
        if row[0] in {"SCAFFOLD, both halves", "the example for one's own strategy", "the example for one's own client"}
        for number, label in re.findall(r"(\d+)[^\d\[]*\[(E\d+)\]", row[-1])
    }
    assert len(stated) == 4
    assert {label: code_lines(PAGE.parent / ADDRESSES[label]) for label in stated} == stated


def test_our_last_release_is_this_edition():
    (row,) = [row for row in ROWS if row[0].startswith("last release")]
    assert row[-1].startswith(__version__)


def test_the_first_ten_lines_of_the_readme_say_what_it_is_for_and_lead_here():
    first = "".join((ROOT / "README.md").read_text(encoding="utf-8").splitlines(keepends=True)[:10])
    assert "(docs/compared.md)" in first
    assert "instead of Flower alone" in first
    assert [other for other in LETTERS if other != "FedScale" and other not in first] == []
