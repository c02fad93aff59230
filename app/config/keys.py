"""Which settings there are, and what their tags say of them."""

from functools import cache
from typing import Any

from espalier.app.config.run_config import RunConfig
from espalier.app.settings.section import Before, Section, Tag

SECTIONS: dict[str, type[Section]] = {"": RunConfig, **RunConfig.sections()}
# The section and the field of every key.
FIELD_OF = {key: (section, field) for section, kind in SECTIONS.items() for field, key in kind.keys().items()}


@cache
def keys_tagged(*tags: Tag) -> frozenset[str]:
    """Return the keys of settings that have one of some tags."""
    return frozenset(key for kind in SECTIONS.values() for key in kind.keys_tagged(*tags))


def values_before() -> dict[str, Any]:
    """Return what runs did before a setting existed, where that is not its default, by key."""
    said = {key: SECTIONS[section].model_fields[field].metadata for key, (section, field) in FIELD_OF.items()}
    return {key: one.value for key, metadata in said.items() for one in metadata if isinstance(one, Before)}
