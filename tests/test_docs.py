"""What the docs say about the code is complete, and their links lead somewhere."""

import re
from pathlib import Path

import pytest

from espalier.clients import gateway, split, stream
from espalier.clients.messages import edge, frames, profile, train
from espalier.clients.messages import split as split_messages

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "examples").rglob("*.md"))]


def test_every_message_type_and_key_is_in_the_table_of_messages():
    modules = (edge, frames, gateway, profile, split, split_messages, stream, train)
    spelled = [(name, value) for module in modules for name, value in vars(module).items()]
    names = {value for name, value in spelled if name.isupper() and isinstance(value, str)} - {split.STATE}
    names |= {profile.key_of(field) for field in profile.DeviceProfile.__dataclass_fields__}
    assert names >= {"query.profile", "cpu-count", "train.split_end", "link", "edge-folder", "stream-token"}
    text = (ROOT / "docs/messages.md").read_text()
    assert [name for name in sorted(names) if f"`{name}`" not in text] == []


def test_the_list_of_pages_has_every_page_with_its_title():
    pages = {page.name: page.read_text().splitlines()[0][2:] for page in (ROOT / "docs").glob("*.md")}
    del pages["README.md"]
    listed = dict(re.findall(r"^- \[(.+)\]\((.+)\)$", (ROOT / "docs/README.md").read_text(), re.MULTILINE))
    assert {name: title for title, name in listed.items()} == pages


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text())
    assert [link for link in links if "://" not in link and not (page.parent / link).exists()] == []
