"""A page is one file, asks for nothing, and runs nothing of what a run says."""

import json
import re
from base64 import b64encode
from hashlib import sha256
from html.parser import HTMLParser

import pytest

from espalier.app.page.html import PROGRAM, STYLE, data_json, page_html, policy, text_of
from tests.app.page.runs import HOSTILE, run_data, with_hostile_names

UPLOT = "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f"  # of version 1.6.32 in the npm registry


class Reader(HTMLParser):
    """Collects what scripts and styles hold, and all attributes."""

    def __init__(self, page):
        super().__init__()
        self.blocks, self.attributes, self._tag = [], [], ""
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        self._tag = tag
        self.attributes += attributes
        if tag in ("script", "style"):
            self.blocks.append((tag, dict(attributes), ""))

    def handle_data(self, text):
        if self._tag in ("script", "style") and self.blocks:
            tag, attributes, before = self.blocks[-1]
            self.blocks[-1] = (tag, attributes, before + text)

    def handle_endtag(self, tag):
        self._tag = ""


@pytest.fixture(scope="module")
def hostile(planned, tmp_path_factory):
    return run_data(with_hostile_names(planned, tmp_path_factory.mktemp("runs") / "hostile"), HOSTILE)


def test_hostile_names_are_data_and_end_no_block(hostile):
    data = data_json([hostile])
    page = Reader(page_html(data))
    kinds = [(tag, attributes.get("type")) for tag, attributes, _ in page.blocks]
    assert kinds == [("style", None), ("script", "application/json"), ("script", None)]
    text = page.blocks[1][2]
    assert not set(text) & set("<>&\u2028\u2029")
    assert json.loads(text) == json.loads(data)
    (run,) = json.loads(text)["runs"]
    assert run["label"] == HOSTILE
    assert HOSTILE in [edge["name"] for edge in run["edges"]]
    assert HOSTILE in [reason for *_, reason in run["reasons"]]
    assert HOSTILE in run["partition"]["edges"]
    assert {HOSTILE, "__proto__"} <= {name for name, _ in run["series"]}


@pytest.mark.parametrize("is_live", [False, True])
def test_the_policy_allows_this_program_and_style_alone(is_live):
    page = Reader(page_html(data_json([]), is_live=is_live))
    (given,) = [value for name, value in page.attributes if name == "content" and "default-src" in value]
    rules = dict(rule.split(" ", 1) for rule in given.split("; "))
    style, _, program = (b64encode(sha256(text.encode()).digest()).decode() for _, _, text in page.blocks)
    assert rules == {
        "default-src": "'none'",
        "script-src": f"'sha256-{program}'",
        "style-src": f"'sha256-{style}'",
        "connect-src": "'self'" if is_live else "'none'",
        "base-uri": "'none'",
        "form-action": "'none'",
        "require-trusted-types-for": "'script'",
        "trusted-types": "'none'",
    }
    assert given == policy(is_live=is_live)


def test_a_page_asks_for_no_other_file():
    page = Reader(page_html(data_json([])))
    assert [name for name, _ in page.attributes if name in ("src", "href", "style") or name.startswith("on")] == []
    ours = "".join(text_of(name) for name in PROGRAM[1:])
    assert set(re.findall(r"https?://[^\s\"']+", ours)) == {"http://www.w3.org/2000/svg"}  # a name, not an address
    assert re.findall(r"innerHTML|outerHTML|insertAdjacent|document\.write|\beval\b|new Function", ours) == []
    assert "url(" not in "".join(map(text_of, STYLE))


def test_what_is_no_number_is_none():
    data = {"a": [1.5, float("nan"), {"b": float("-inf")}]}
    assert json.loads(data_json([data]))["runs"] == [{"a": [1.5, None, {"b": None}]}]


def test_the_library_is_the_one_that_was_published():
    assert sha256(text_of(PROGRAM[0]).encode()).hexdigest() == UPLOT
    assert "MIT License" in text_of("uplot/LICENSE")


def test_the_file_without_data_is_small():
    assert len(page_html(data_json([]))) < 110_000
