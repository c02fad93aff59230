"""The keys of the run config, and the algorithms, for ``--help`` and ``espalier help``."""

import difflib
import re
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from espalier.app.algorithms.registry import ALGORITHMS
from espalier.app.config.run_config import RunConfig
from espalier.app.ground.registered import OWN
from espalier.app.settings.engine_kinds import ENGINES, EngineKind
from espalier.app.settings.section import Section

# What a setting may name that is a value of a table.
TABLES: dict[Any, list[str]] = {EngineKind: [*ENGINES, OWN]}


def help_text(word: str = "") -> str:
    """Return keys with their defaults, what they mean and which values a choice allows, and what algorithms are.

    Parameters
    ----------
    word : str (default: everything)
        A section, a key, a part of keys, or an algorithm. Where there is none of that name, whatever is explained with
        the word.

    Returns
    -------
    str
        Empty where nothing has to do with the word.
    """
    word = word.lower().strip(".")
    for is_meant in (_is_named, _is_in_name, _is_explained_with):
        titled = [(_title(section), _lines(section, word, is_meant)) for section in _sections()]
        algorithms = [
            (name, algorithm.summary)
            for name, algorithm in ALGORITHMS.items()
            if is_meant(word, name, "algorithms", algorithm.summary)
        ]
        width = max((len(name) for name, _ in algorithms), default=0)
        titled.append(("Algorithms", [f"  {name:<{width}}  {summary}" for name, summary in algorithms]))
        if found := ["\n".join([f"{title}:", *lines]) for title, lines in titled if lines]:
            return "\n\n".join(found)
    return ""


def nearest(word: str) -> list[str]:
    """Return the three sections, keys and algorithms whose names are most like a word."""
    names = [*(section.name for section in _sections() if section.name), *ALGORITHMS]
    return difflib.get_close_matches(word[:100], [*names, *RunConfig().as_dict()], n=3, cutoff=0.0)


def _sections() -> list[Section]:
    whole = RunConfig()
    return [whole, *whole.held]


def _is_named(word: str, name: str, section: str, meaning: str) -> bool:
    return word in ("", name, section)


def _is_in_name(word: str, name: str, section: str, meaning: str) -> bool:
    return word in name


def _is_explained_with(word: str, name: str, section: str, meaning: str) -> bool:
    return word in meaning.lower()


def _title(section: Section) -> str:
    return "The run" if not section.name else (type(section).__doc__ or "").splitlines()[0].rstrip(".")


def _lines(section: Section, word: str, is_meant: Any) -> list[str]:
    values, fields, lines = section.as_dict(), type(section).model_fields, list[str]()
    meanings = section.meanings()
    for field, key in section.keys().items():
        text = re.sub(r"\s\(\[[^]]*\]\([^)]*\)\)", "", meanings.get(field, ""))  # links by themselves
        meaning = " ".join(re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", text).replace("`", "").split())
        allowed = choices(fields[field].annotation)
        if is_meant(word, key, section.name or "run", f"{meaning} {' '.join(allowed)}"):
            lines += [f"  {key} = {values[key]!r}", f"      {meaning}"]
            lines += [f"      Allowed: {', '.join(allowed)}."] if allowed else []
    return lines


def choices(annotation: Any) -> list[str]:
    """Return the values of a setting that is a choice, as they are typed; none for numbers and texts of all kinds."""
    if annotation is bool:
        return ["true", "false"]
    if get_origin(annotation) is Literal:
        return [str(value) for value in get_args(annotation)]
    if get_origin(annotation) is Annotated:
        return choices(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        parts = get_args(annotation)
        found = [value for part in parts for value in choices(part)]
        return [*found, "or a number"] if found and any(not choices(part) for part in parts) else found
    return TABLES.get(annotation, [])
