"""Writes the tables of ``docs/configuration.md``, and the defaults in ``pyproject.toml``, from the settings.

``make docs-settings`` runs it.
"""

import json
import re
from pathlib import Path

from espalier.app.config.keys import SECTIONS
from espalier.app.config.project_table import config_tables
from espalier.app.config.run_config import RunConfig
from espalier.app.settings.section import Section

ROOT = Path(__file__).resolve().parent.parent
END = "<!-- end -->"
PAGE, PROJECT = ROOT / "docs/configuration.md", ROOT / "pyproject.toml"


def page_with_tables(page: str) -> str:
    """Return the page with a table for each section, between ``<!-- NAME -->`` and ``<!-- end -->``."""
    for kind in SECTIONS.values():
        begin = f"<!-- {kind.name or 'run'} -->\n"
        before, _, after = page.partition(begin)
        page = before + begin + table(kind) + after[after.index(END) :]
    return page


def table(kind: type[Section]) -> str:
    """Return a section's table."""
    values, fields = RunConfig().as_dict(), kind.model_fields
    rows = [
        f"| `{key}` | `{json.dumps(values[key])}` | {' '.join((fields[field].description or '').split())} |"
        for field, key in kind.keys().items()
    ]
    return "\n".join(["| key | default | meaning |", "|---|---|---|", *rows, ""])


def project_with_defaults(project: str) -> str:
    """Return the project's file with every key and its default, in a table for each section."""
    table = r"^\[tool\.flwr\.app\.config\]\n.*?(?=^\[tool\.(?!flwr))"
    return re.sub(table, f"{config_tables()}\n", project, flags=re.M | re.S)


def main() -> None:
    """Write both files where they are not up to date."""
    for path, made in ((PAGE, page_with_tables), (PROJECT, project_with_defaults)):
        text = path.read_text(encoding="utf-8")
        if made(text) != text:
            path.write_text(made(text), encoding="utf-8")


if __name__ == "__main__":
    main()
