"""The settings as a project's ``pyproject.toml`` lists them: ``flwr run`` refuses keys that it does not find there."""

import json
from collections.abc import Mapping
from typing import Any

from espalier.app.config.keys import SECTIONS
from espalier.app.config.run_config import RunConfig


def config_tables(changed: Mapping[str, Any] | None = None) -> str:
    """Return ``[tool.flwr.app.config]`` in TOML: every key with its default, in a table for each section.

    Parameters
    ----------
    changed : Mapping[str, Any], optional (default: None)
        Values that are not the default, by key.
    """
    values, lines = {**RunConfig().as_dict(), **(changed or {})}, list[str]()
    tables: dict[str, list[str]] = {"": []}
    for kind in SECTIONS.values():
        for key in kind.keys().values():
            name, _, own = key.rpartition(".")
            tables.setdefault(name, []).append(f"{own} = {json.dumps(values[key])}")
    for name, settings in tables.items():
        lines += [f"[tool.flwr.app.config{'.' * bool(name)}{name}]", *settings, ""]
    return "\n".join(lines)
