"""What the site needs beside `mkdocs.yml`: its navigation, the files outside of `docs/` that pages link to, and lists.

A page of `docs/` has its own place on the site, and any other file of the tree has its path in `tree/`.
"""

import json
import re
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from posixpath import normpath, relpath
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
FIRST_PAGE, NOTEBOOK = "docs/README.md", ".ipynb"
# Code comes first, so that what looks like a link there is none.
LINK = re.compile(
    r"^ *(?P<fence>`{3,}).*?^ *(?P=fence)$|``.+?``|`[^`]*`"
    r"|(?P<before>\]\(|^\[[^]\n]+\]: +)(?P<to>[^)\s]+)",  # in the text, and below it by a name
    re.M | re.S,
)


def on_config(config: "MkDocsConfig") -> None:
    """Set the navigation."""
    config.nav = ["README.md", *navigation((ROOT / FIRST_PAGE).read_text(encoding="utf-8"))]


def on_files(files: "Files", config: "MkDocsConfig") -> None:
    """Add the files outside of `docs/` that pages link to, and those that these link to."""
    from mkdocs.structure.files import File

    pages = [f"docs/{file.src_uri}" for file in files.documentation_pages()]
    for path in linked_files(pages):
        files.append(File.generated(config, place(path), content=as_page(path)))


def on_page_markdown(markdown: str, page: "Page", config: "MkDocsConfig", files: "Files") -> str:
    """Return a page's text with the site's links, and with lists as Python-Markdown reads them."""
    uri = page.file.src_uri
    source = uri.removeprefix("tree/") if uri.startswith("tree/") else f"docs/{uri}"
    return with_wide_lists(with_links(markdown, lambda link: site_link(source, link)))


def navigation(text: str) -> list[Any]:
    """Return MkDocs' navigation: groups (``##``) and parts of groups (``###``) of the pages in a text's lists."""
    groups: dict[str, list[Any]] = {}
    pages: list[Any] = []
    for line in text.splitlines():
        if group := re.fullmatch(r"## (.+)", line):
            pages = groups[group[1]] = []
        elif part := re.fullmatch(r"### (.+)", line):
            pages = []
            [*groups.values()][-1].append({part[1]: pages})
        elif entry := re.fullmatch(r"- \[(.+)\]\((.+)\)", line):
            pages.append({entry[1].replace("`", ""): site_link(FIRST_PAGE, entry[2])})
    return [{title: content} for title, content in groups.items() if content]


def linked_files(pages: list[str]) -> list[str]:
    """Return the paths outside of `docs/` that pages link to, and those that these link to, and so on."""
    found: set[str] = set()
    ahead = list(pages)
    while ahead:
        source = ahead.pop()
        if source.endswith((".md", NOTEBOOK)):
            links: list[str] = []
            with_links(as_page(source), lambda link, to=links: to.append(link) or link)
            new = {path_of(source, link) for link in links if is_local(link)} - found
            new = {path for path in new if not path.startswith("docs/") and (ROOT / path).is_file()}
            found |= new
            ahead += new
    return sorted(found)


def as_page(path: str) -> str:
    """Return a file's text as a page."""
    text = (ROOT / path).read_text(encoding="utf-8")
    if path.endswith(".md"):
        return text
    if path.endswith(NOTEBOOK):
        return "\n\n".join(part for cell in json.loads(text)["cells"] for part in parts_of(cell)) + "\n"
    language = PurePosixPath(path).suffix.removeprefix(".")
    return f"# `{path}`\n\n````{language}\n{text.rstrip()}\n````\n"


def parts_of(cell: dict[str, Any]) -> list[str]:
    """Return what a page has of a notebook's cell: its text, or its code, what that prints and its pictures."""
    source = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        return [source]
    parts = [f"````python\n{source}\n````"]
    for output in cell["outputs"]:
        if output["output_type"] == "stream":
            parts.append(f"````text\n{''.join(output['text']).rstrip()}\n````")
        else:
            data = output["data"]
            parts.append(f"![{data['text/plain']}](data:image/png;base64,{data['image/png']})")
    return parts


def site_link(source: str, link: str) -> str:
    """Return what a link in a file leads to on the site, from the place of the file's page."""
    if not is_local(link):
        return link
    anchor = "".join(link.partition("#")[1:])
    return relpath(place(path_of(source, link)), PurePosixPath(place(source)).parent) + anchor


def place(path: str) -> str:
    """Return the place of a file on the site, as MkDocs names sources."""
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    return f"tree/{path}" if path.endswith(".md") else f"tree/{path}.md"


def path_of(source: str, link: str) -> str:
    """Return the path in the tree that a link in a file leads to; of a folder it is that of its README."""
    path = normpath(PurePosixPath(source).parent / link.partition("#")[0])
    return f"{path}/README.md" if (ROOT / path).is_dir() else path


def is_local(link: str) -> bool:
    """Return whether a link leads to another file of the tree."""
    return not re.match(r"#|[a-z]+:", link)


def with_links(text: str, change: Callable[[str], str]) -> str:
    """Return a text with its links changed; what stands in code is none."""
    return LINK.sub(lambda found: found["before"] + change(found["to"]) if found["to"] else found[0], text)


def with_wide_lists(text: str) -> str:
    """Return a text whose lists' insides are indented by four spaces a level, as Python-Markdown asks for.

    GitHub asks for as many as the bullet takes, two or three. An empty line follows an item of several paragraphs.
    """
    lines: list[str] = []
    in_list = in_fence = has_paragraphs = False
    added = 0
    for line in text.splitlines():
        indent = len(line) - len(line.lstrip())
        if line.strip() and not indent and not in_fence:
            starts_item = bool(re.match(r"([-*]|\d+\.) ", line))
            if in_list and starts_item and has_paragraphs and lines[-1]:
                lines.append("")
            in_list, has_paragraphs = starts_item, False
        if not in_fence:
            added = 4 * (indent // 2 if indent > 3 else 1) - indent if in_list and indent > 1 else 0
            has_paragraphs |= not line.strip()
        if line.lstrip().startswith("```"):
            in_fence = not in_fence
        lines.append(" " * added + line if line.strip() else "")
    return "\n".join(lines) + "\n"
