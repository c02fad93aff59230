"""Values that a setting names: one of a table, or a user's own as ``package.module:NAME(...)``."""

import difflib
import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from importlib import import_module
from typing import Any, ClassVar, Protocol, TypeVar

from espalier.app.ground.errors import FAULTS, UserError, bad_value
from espalier.app.ground.object_spec import ObjectSpec, error_and_place, parse_object

Value = TypeVar("Value")
OWN = "package.module:NAME of your own"
FORM = "package.module:NAME(argument=value, ...) of your own"
NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")


class _HasText(Protocol):
    """A dataclass that says how a run config names it."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def written(self) -> str:
        """As a run config names a user's own; empty for one of a table."""


Written = TypeVar("Written", bound=_HasText)


def parse_registered(key: str, given: Any) -> ObjectSpec:
    """Return what a setting names: ``a-name``, whether there is such a value or not, or ``package.module:NAME(...)``.

    Raises
    ------
    ValueError
        If it is of neither form; the text says what is allowed.
    """
    if isinstance(given, ObjectSpec):
        return given
    if not isinstance(given, str):
        raise ValueError("a string")
    if NAME.fullmatch(given):
        return ObjectSpec(key, given, "", given, ())
    try:
        module, name, parameters = parse_object(given)
    except ValueError:
        module = ""
    if not module:
        raise ValueError(f"a name, or {FORM}")
    return ObjectSpec(key, given, module, name, parameters)


def built_in(spec: ObjectSpec, table: Mapping[str, Value]) -> Value | None:
    """Return the value of a name in a table, None for one of a user's own; UserError for another name."""
    if spec.module:
        return None
    if spec.name not in table:
        raise unknown_name(spec, table)
    return table[spec.name]


def value_named(key: str, text: str, table: Mapping[str, Written], kind: type[Written]) -> Written:
    """Return the value of a name in a table, or a user's own of the same kind, given as ``package.module:NAME``.

    Of a user's own the field `written` says how.

    Raises
    ------
    UserError
        If there is none.
    """
    if text in table:
        return table[text]
    found = own_spec(key, text, table).load()
    if not isinstance(found, kind):
        raise bad_value(key, text, f"an {kind.__module__}.{kind.__name__}, not a {type(found).__name__}")
    return replace(found, written=text)


def own_spec(key: str, text: str, names: Iterable[str]) -> ObjectSpec:
    """Return where a user's own value is, ``package.module:NAME``; UserError if the text names none."""
    module, _, name = text.partition(":")
    spec = ObjectSpec(key, text, module, name, ())
    if not (module and name.isidentifier()):
        raise unknown_name(replace(spec, name=text), names, OWN)
    return spec


def unknown_name(spec: ObjectSpec, names: Iterable[str], form: str = FORM) -> UserError:
    """Return the error for a name that is none of these, nor of the form of a user's own."""
    known = list(names)
    allowed = f"{', '.join(map(repr, known))}, or {form}"
    close = difflib.get_close_matches(spec.name, known, n=1)
    return bad_value(spec.key, spec.text, f"{allowed}: did you mean {close[0]!r}?" if close else allowed)


def load_built_in(place: str, key: str, text: object, package: str, install: str) -> Any:
    """Return what stands at a ``module:NAME`` of the app's, which runs without it do not import.

    Parameters
    ----------
    place : str
        The module and the name.
    key, text : str, object
        The setting that asks for it, for the error.
    package : str
        The one that it needs; empty for none.
    install : str
        What pip is told to install it by.

    Raises
    ------
    UserError
        If the package is not installed.
    """
    module, _, name = place.partition(":")
    try:
        return getattr(import_module(module), name)
    except ModuleNotFoundError as error:
        if not package or (error.name or "").partition(".")[0] != package:
            raise
        raise bad_value(key, text, f"another one: it is not installed (pip install {install})") from None


def call_with(spec: ObjectSpec, offered: Mapping[str, Any], *, to_any: Iterable[str] = ()) -> Any:
    """Return what a function of a user's own returns for its arguments, and for those of `offered` that it takes.

    Parameters
    ----------
    spec : ObjectSpec
        Names the function, with the arguments that the user wrote, which win.
    offered : Mapping[str, Any]
        Values by name; the function gets those that are names of its parameters.
    to_any : Iterable[str] (default: none)
        Of these names, those that it gets also if it takes any by ``**``.

    Raises
    ------
    UserError
        If it can't be imported or called, or fails; in one line, with the place in its file.
    """
    function = spec.load()
    known, takes_any = parameters_of(spec, function)
    given = {name: value for name, value in offered.items() if name in known or (takes_any and name in to_any)}
    arguments = {**given, **dict(spec.parameters)}
    try:
        return function(**arguments)
    except UserError:
        raise
    except FAULTS as error:  # it is foreign code
        reason = error_and_place(error, files_of(function))
        allowed = f"what takes {', '.join(arguments) or 'no arguments'} and does not fail ({reason})"
        if offered and not _is_callable_with(function, arguments):
            allowed = f"{allowed}; parameters of these names are given: {', '.join(offered)}"
        raise bad_value(spec.key, spec.text, allowed) from None


def _is_callable_with(function: Callable[..., Any], arguments: Mapping[str, Any]) -> bool:
    try:
        inspect.signature(function).bind(**arguments)
    except TypeError:
        return False
    return True


def parameters_of(spec: ObjectSpec, function: Callable[..., Any]) -> tuple[set[str], bool]:
    """Return the names of a function's parameters, and whether it takes any others; UserError for no function."""
    try:
        every = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        allowed = f"a function or a class, not a {type(function).__name__}"
        raise bad_value(spec.key, spec.text, allowed) from None
    named = {p.name for p in every if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    return named, any(p.kind == p.VAR_KEYWORD for p in every)


def files_of(*objects: Any) -> set[str]:
    """Return the files where functions, classes, or the classes of other objects, were written."""
    files = set()
    for one in objects:
        one = inspect.unwrap(one) if inspect.isroutine(one) else one if inspect.isclass(one) else type(one)
        try:
            files.add(inspect.getsourcefile(one) or "")
        except (TypeError, OSError):  # there is none
            continue
    return files - {""}
