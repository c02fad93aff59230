"""Data sets that a library has, as settings name them: ``hf:ORG/NAME(...)``, or a folder that it has written."""

import re
from pathlib import Path
from typing import Any

from espalier.app.ground.object_spec import HUB, ObjectSpec, parse_object
from espalier.app.ground.registered import FORM, parse_registered
from espalier.app.settings.values import path_of

KEY = "dataset"
_HUB = f"{HUB}:"
_PATH = re.compile(r"[/~]|\.\.?/|\.\.?$")
_NAME = re.compile(r"([\w.-]+(?:/[\w.-]+)?)(\(.*\))?", re.DOTALL)


def parse_dataset(given: Any) -> ObjectSpec:
    """Return what ``dataset`` names: a name, ``hf:ORG/NAME(...)``, a folder, or a function of a user's own.

    Raises
    ------
    ValueError
        If it is of no such form; the text says what is allowed.
    """
    if not isinstance(given, str) or not (_PATH.match(given) or given.startswith(_HUB)):
        return parse_registered(KEY, given)
    place = given.removeprefix(_HUB)
    if _PATH.match(place):
        return ObjectSpec(KEY, given, HUB, place, ())
    try:
        if not (found := _NAME.fullmatch(place)):
            raise ValueError
        return ObjectSpec(KEY, given, HUB, found[1], parse_object(f"set{found[2] or ''}")[2])
    except ValueError:
        allowed = "hf:ORG/NAME or hf:ORG/NAME(name='...', revision='...') on the Hugging Face hub, hf:/a/folder"
        raise ValueError(f"{allowed} that save_to_disk() wrote, or {FORM}") from None


def is_relative(spec: ObjectSpec) -> bool:
    """Return whether a set of a library's is read from a folder below the working directory."""
    return spec.module == HUB and spec.name.startswith(".")


def folder_of(spec: ObjectSpec) -> Path | None:
    """Return the folder that a set of a library's is read from, None for one of the hub; raises as `path_of`."""
    return path_of(spec.key, spec.name) if _PATH.match(spec.name) else None
