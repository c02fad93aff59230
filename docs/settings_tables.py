"""Writes the tables of ``docs/configuration.md``, and the settings in ``pyproject.toml`` files, from those of the app.

``make docs-settings`` runs it.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from espalier.app.algorithms.registry import ALGORITHMS
from espalier.app.config.keys import SECTIONS
from espalier.app.config.project_table import config_tables
from espalier.app.config.run_config import RunConfig
from espalier.app.settings.section import Section

ROOT = Path(__file__).resolve().parent.parent
END = "<!-- end -->"
OF_ALGORITHMS = {algorithm.section for algorithm in ALGORITHMS.values() if algorithm.section}
PAGE, PROJECT = ROOT / "docs/configuration.md", ROOT / "pyproject.toml"
# What the apps for Flower Hub set: clients run in the ServerApp's process, so that Flower's two nodes are enough.
OF_HUB = {
    "hierarchical": {"engine": "in-process", "edge-strategy": "FedAdam(eta=0.01)", "edge-rounds": 2},
    "split": {"engine": "in-process", "algorithm": "phsfl", "alpha": 0.1, "global-rounds": 20},
    "resource-aware": {"engine": "in-process", "algorithm": "rawhfl", "dataset": "video-caching"},
}


def page_with_tables(page: str) -> str:
    """Return the page with a table for each section, between ``<!-- NAME -->`` and ``<!-- end -->``.

    Those of single algorithms have one together.
    """
    tables: dict[str, list[type[Section]]] = {}
    for kind in SECTIONS.values():
        tables.setdefault("algorithms" if kind in OF_ALGORITHMS else kind.name or "run", []).append(kind)
    for name, kinds in tables.items():
        begin = f"<!-- {name} -->\n"
        before, _, after = page.partition(begin)
        page = before + begin + table(kinds) + after[after.index(END) :]
    return page


def table(kinds: Sequence[type[Section]]) -> str:
    """Return the table of some sections."""
    values = RunConfig().as_dict()
    rows = [
        f"| `{key}` | `{json.dumps(values[key])}` | {' '.join(kind.meanings()[field].split())} |"
        for kind in kinds
        for field, key in kind.keys().items()
    ]
    return "\n".join(["| key | default | meaning |", "|---|---|---|", *rows, ""])


def project_with_settings(project: str, changed: Mapping[str, Any] | None = None) -> str:
    """Return a project's file with every key and its value, in a table for each section.

    Values are the defaults but for those in `changed`, by key.
    """
    table = r"^\[tool\.flwr\.app\.config\]\n.*?(?=^\[tool\.(?!flwr))"
    return re.sub(table, lambda _: f"{config_tables(changed)}\n", project, flags=re.M | re.S)


def made() -> Iterator[tuple[Path, str]]:
    """Yield each file that is made, and the text that it should have."""
    yield PAGE, page_with_tables(PAGE.read_text(encoding="utf-8"))
    yield PROJECT, project_with_settings(PROJECT.read_text(encoding="utf-8"))
    for name, changed in OF_HUB.items():
        path = ROOT / "hub" / name / "pyproject.toml"
        yield path, project_with_settings(path.read_text(encoding="utf-8"), changed)


def main() -> None:
    """Write the files that are not up to date."""
    for path, text in made():
        if path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
