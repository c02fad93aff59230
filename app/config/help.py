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
    title = type(section).__doc__.splitlines()[0].partition(";")[0]  # type: ignore[union-attr]
    lines = [f"{title.rstrip('.')}:"]
    for field, key in section.keys().items():
        lines += [f"  {key} = {values[key]!r}", f"      {' '.join((fields[field].description or '').split())}"]
    return lines
