"""From keys and values, of whatever source, to a validated `RunConfig`."""

import difflib
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from espalier.app.algorithms.registry import algorithm_unimported
from espalier.app.config.defaults import with_defaults
from espalier.app.config.keys import FIELD_OF, SECTIONS
from espalier.app.config.run_config import RunConfig
from espalier.app.config.together import check_together
from espalier.app.ground.errors import UserError, bad_value, shown
from espalier.app.ground.object_spec import ObjectSpec
from espalier.app.settings.engine_kinds import ENGINES, engine_unimported
from espalier.app.settings.section import Section
from espalier.app.settings.tracker_kinds import Trackers
from espalier.app.settings.values import Channels, Words

Kind = TypeVar("Kind", bound=Section)

KEYS = tuple(FIELD_OF)


def _takes_text_alone(key: str) -> bool:
    section, field = FIELD_OF[key]
    wanted = SECTIONS[section].model_fields[field].annotation
    return isinstance(wanted, type) and issubclass(wanted, str | ObjectSpec | Trackers | Words | Channels)


BARE_POINT = re.compile(r"[+-]?([0-9]+\.|\.[0-9]+)(e[+-]?[0-9]+)?", re.IGNORECASE)  # .3 and 1., which TOML refuses
STRING_KEYS = tuple(key for key in KEYS if _takes_text_alone(key))


def parse_config(values: Mapping[str, Any]) -> RunConfig:
    """Return the validated config for `values`; keys that are not given take their defaults.

    Raises
    ------
    UserError
        For an unknown key, a value of the wrong type or out of range, or values that don't go together.
    """
    config = _resolved(values)
    check_together(config)
    return config


def parse_saved(values: Mapping[str, Any]) -> RunConfig:
    """Return the config that a run was made with, to read what the run left: nothing that it names is imported.

    An algorithm or engine of a user's own is a stand-in; what goes together was checked before the run.

    Raises
    ------
    UserError
        For an unknown key, or a value of the wrong type or out of range.
    """
    stand_ins = {"algorithm": algorithm_unimported, "engine": engine_unimported}
    named = {key: find(values[key]) for key, find in stand_ins.items() if isinstance(values.get(key), str)}
    return _resolved({**values, **named})


def _resolved(values: Mapping[str, Any]) -> RunConfig:
    fields: dict[str, dict[str, Any]] = {name: {} for name in SECTIONS}
    for key, value in values.items():
        if key not in FIELD_OF:
            raise unknown_key(key)
        section, field = FIELD_OF[key]
        fields[section][field] = value
    sections = {name: _validated(kind, fields[name]) for name, kind in RunConfig.sections().items()}
    own = {name: section for name, section in sections.items() if name in RunConfig.model_fields}
    features = {name: section for name, section in sections.items() if name not in own}
    return with_defaults(_validated(RunConfig, {**fields[""], **own, "features": features}))


def without_runtime(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a run that needs no runtime of Flower's: its engine is ``in-process`` unless given.

    Raises
    ------
    UserError
        If another engine is given than those that need none.
    """
    if given.get("engine") in [kind.name for kind in ENGINES.values() if kind.is_flowers]:
        others = " or ".join(repr(kind.name) for kind in ENGINES.values() if not kind.is_flowers)
        allowed = f"{others} for python -m app; for Flower's runtime type: flwr run ."
        raise bad_value("engine", given["engine"], allowed)
    return {"engine": "in-process", **given}


def unknown_key(key: str) -> UserError:
    """Return the error for a key that does not exist; it names the one that is meant, where that is clear."""
    # Keys had no sections once: "stream-payload" and "theta" are "stream.payload" and "plan.theta".
    moved = [k for k in KEYS if "." in k and key in (k.partition(".")[2], k.replace(".", "-"))]
    if key.startswith("sweep."):
        return UserError(f"unknown key {shown(key)}: a [sweep] table is for many runs: espalier sweep FILE.toml")
    close = [repr(near) for near in moved or nearest_keys(key)]
    named = close[0] if len(close) == 1 else f"{', '.join(close[:-1])} or {close[-1]}"
    return UserError(f"unknown key {shown(key)}: did you mean {named}? all keys: espalier help")


def nearest_keys(key: str) -> list[str]:
    """Return the three keys that are most like a text, with or without the name of their section."""

    def likeness(known: str) -> tuple[bool, float]:
        own = known.partition(".")[2] or known
        initials = "".join(word[:1] for word in own.split("-"))  # "lr" is learning-rate
        ratios = (difflib.SequenceMatcher(None, key, name).ratio() for name in (known, own))
        return key in (known, initials) or key in known, max(ratios)

    key = key[:100]
    return sorted(KEYS, key=likeness, reverse=True)[:3]


def _validated(kind: type[Kind], values: Mapping[str, Any]) -> Kind:
    """Return a section; UserError for its first value that is not allowed."""
    try:
        return kind.model_validate(dict(values))
    except ValidationError as error:
        first, *others = error.errors()
        # Where a setting takes several types, each has an error of its own.
        messages = [first["msg"], *(other["msg"] for other in others if other["loc"][0] == first["loc"][0])]
        allowed = [
            message.removeprefix("Value error, ")
            .removeprefix("Input should be ")
            .replace("a valid integer", "an integer")
            .replace("a valid boolean", "true or false")
            .replace("a valid ", "a ")
            for message in messages
        ]
        key, given = kind.keys()[str(first["loc"][0])], first["input"]
        raise bad_value(key, given, " or ".join(allowed) + _as_sweep(kind, key, given)) from None
    except UserError as error:  # of a setting with a form of its own
        named = next((key for key in kind.keys().values() if str(error).startswith(f"{key} = ")), "")
        given = values.get(next((field for field, key in kind.keys().items() if key == named), ""))
        raise UserError(f"{error}{_as_sweep(kind, named, given)}") from None


def _as_sweep(kind: type[Section], key: str, given: Any) -> str:
    """Return what to type for several values with commas between them, if each of them is allowed."""
    parts = given.split(",") if isinstance(given, str) else []
    try:
        for part in parts:
            kind.model_validate({FIELD_OF[key][1]: read_value(key, part)})
    except (ValidationError, UserError):
        return ""
    return f"; for several runs type: espalier sweep {key}={given}" if len(parts) > 1 else ""


def read_arguments(arguments: Sequence[str]) -> dict[str, Any]:
    """Return the values that a command line gives: ``KEY=VALUE`` and ``FILE.toml``, later ones win.

    A value is read as TOML (``global-rounds=5``, ``alpha=0.1``); what is not TOML is a plain string
    (``algorithm=h-fedavg``), and so is what is for a key that takes strings alone (``output-dir=2026``).

    Raises
    ------
    UserError
        If an argument is neither, or a file can't be read.
    """
    values: dict[str, Any] = {}
    for argument in arguments:
        key, equals, text = argument.partition("=")
        if equals:
            values[key] = read_value(key, text)
        elif argument.endswith(".toml"):
            values |= read_toml(Path(argument))
        else:
            raise UserError(f"argument {shown(argument)}: allowed is KEY=VALUE or a FILE.toml")
    return values


def read_value(key: str, text: str) -> Any:
    """Return what a text on the command line stands for; it is TOML, or a plain string."""
    value = toml_value(text)
    return text if key in STRING_KEYS and not isinstance(value, str) else value


def read_toml(path: Path) -> dict[str, Any]:
    """Return the keys and values of a TOML file, a table's with its name in front; UserError if it can't be read."""
    return flat(toml_tables(path))


def toml_tables(path: Path) -> dict[str, Any]:
    """Return the content of a TOML file, of a ``pyproject.toml`` its run config; UserError if it can't be read."""
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(
            f"{path}: can't be read ({error.strerror}); allowed is a TOML file of run-config keys"
        ) from None
    except (ValueError, RecursionError) as error:  # tomllib's, or Python's of a number of 5,000 digits
        raise UserError(f"{path}: is not TOML ({error})") from None
    return _config_of_project(path, tables) if path.name == "pyproject.toml" else tables


def _config_of_project(path: Path, tables: Any) -> dict[str, Any]:
    for name in (place := "tool.flwr.app.config").split("."):
        tables = tables.get(name) if isinstance(tables, dict) else None
    if not isinstance(tables, dict):
        raise UserError(f"{path}: has no table [{place}]: expected is the project of a Flower app")
    return tables


def flat(tables: Mapping[str, Any]) -> dict[str, Any]:
    """Return nested tables as one, keys joined by dots, as Flower does with its run config."""
    values: dict[str, Any] = {}
    for name, value in tables.items():
        if isinstance(value, Mapping):
            values |= {f"{name}.{key}": inner for key, inner in flat(value).items()}
        else:
            values[name] = value
    return values


def toml_value(text: str) -> Any:
    """Return a TOML value; what is none is a plain string, but for numbers without a digit beside their point."""
    if BARE_POINT.fullmatch(text.strip()):
        return float(text)
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        return text
