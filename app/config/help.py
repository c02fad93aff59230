"""The keys of the run config, and the algorithms, for ``--help``."""

import re

from espalier.app.algorithms.registry import ALGORITHMS
from espalier.app.config.run_config import RunConfig
from espalier.app.settings.section import Section


def help_text() -> str:
    """Return every key with its default and what it means, and what every algorithm is."""
    whole = RunConfig()
    sections = [whole, *whole.held]
    width = max(map(len, ALGORITHMS))
    algorithms = [f"  {name:<{width}}  {algorithm.summary}" for name, algorithm in ALGORITHMS.items()]
    return "\n\n".join("\n".join(lines) for lines in (*map(_lines, sections), ["Algorithms:", *algorithms]))


def _lines(section: Section) -> list[str]:
    values, fields = section.as_dict(), type(section).model_fields
    title = "The run" if not section.name else (type(section).__doc__ or "").splitlines()[0].rstrip(".")
    lines = [f"{title}:"]
    for field, key in section.keys().items():
        text = re.sub(r"\s\(\[[^]]*\]\([^)]*\)\)", "", fields[field].description or "")  # links by themselves
        meaning = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", text).replace("`", "")
        lines += [f"  {key} = {values[key]!r}", f"      {' '.join(meaning.split())}"]
    return lines
