"""The keys of the run config for ``--help``: by section, a line each."""

from espalier.app.config.run_config import RunConfig
from espalier.app.config.section import Section


def help_text() -> str:
    """Return every key with its default and what it means."""
    whole = RunConfig()
    sections = [whole, *(getattr(whole, name) for name in whole.sections())]
    return "\n\n".join("\n".join(_lines(section)) for section in sections)


def _lines(section: Section) -> list[str]:
    values, fields = section.as_dict(), type(section).model_fields
    title = "The run" if not section.name else (type(section).__doc__ or "").splitlines()[0].rstrip(".")
    lines = [f"{title}:"]
    for field, key in section.keys().items():
        meaning = " ".join((fields[field].description or "").split())
        lines += [f"  {key} = {values[key]!r}", f"      {meaning}"]
    return lines
