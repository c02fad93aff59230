"""Objects that a run config names: ``NAME``, ``NAME(argument=value, ...)`` or ``package.module:NAME(...)``."""

import ast
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from traceback import FrameSummary, extract_tb
from typing import Any

from espalier.app.ground.errors import FAULTS, UserError, bad_value

# Words in front of a colon that are libraries the app knows by name, and no modules of a user's own.
HUB = "hf"  # Hugging Face's ``datasets``
FLOWER = "flwr"  # Flower Datasets' partitioners
MODULE_AND_CALL = re.compile(r"(?:([A-Za-z_][\w.]*):)?(.*)", re.DOTALL)


@dataclass(frozen=True)
class ObjectSpec:
    """An object and the arguments it was given.

    Parameters
    ----------
    key : str
        The run-config key it stands in, for error messages.
    text : str
        As the user wrote it; two specs of the same text are equal.
    module : str
        Where it is; empty where the key says that.
    name : str
        Its name there.
    parameters : tuple[tuple[str, Any], ...]
        Names and values of the arguments.
    """

    key: str
    text: str
    module: str
    name: str
    parameters: tuple[tuple[str, Any], ...] = field(compare=False)

    @property
    def is_own(self) -> bool:
        """Whether it is a user's own."""
        return bool(self.module) and self.module not in (HUB, FLOWER)

    def load(self) -> Any:
        """Return what stands under the name; UserError if it can't be imported."""
        try:
            return getattr(import_module(self.module), self.name)
        except FAULTS as error:  # importing runs foreign code, which can fail in any way
            raise bad_value(self.key, self.text, f"what can be imported ({error_line(error)})") from None

    def call(self, found: Any, **defaults: Any) -> Any:
        """Return what `found` returns for the arguments, and defaults for others; UserError if it fails."""
        try:
            return found(**{**defaults, **dict(self.parameters)})
        except FAULTS as error:  # it may be foreign code
            raise bad_value(self.key, self.text, f"what {self.name} takes ({error_line(error)})") from None


def parse_object(text: str) -> tuple[str, str, tuple[tuple[str, Any], ...]]:
    """Return module, name and arguments; nothing is imported.

    Raises
    ------
    ValueError
        If the text is not of the form.
    """
    module, call_text = MODULE_AND_CALL.fullmatch(text.strip()).groups(default="")  # type: ignore[union-attr]
    try:
        node = ast.parse(call_text, mode="eval").body
        call = node if isinstance(node, ast.Call) else ast.Call(node, [], [])
        names = [k.arg for k in call.keywords]
        if not isinstance(call.func, ast.Name) or call.args or len({*names}) < len(names):
            raise ValueError
        parameters = tuple((str(k.arg), ast.literal_eval(k.value)) for k in call.keywords)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise ValueError("it is not NAME or NAME(argument=value, ...)") from None
    return module, call.func.id, parameters


def last_line_in(files: Collection[str], frames: Iterable[FrameSummary]) -> str:
    """Return where the last of some frames is that is in one of the files, as ``name.py:12``; or an empty string."""
    lines = [f"{Path(frame.filename).name}:{frame.lineno}" for frame in frames if frame.filename in files]
    return lines[-1] if lines else ""


def error_and_place(error: BaseException, files: Collection[str]) -> str:
    """Return `error_line`, and behind it the last line of some files that the error came through, if it did."""
    place = last_line_in(files, extract_tb(error.__traceback__))
    return ", ".join(filter(None, [error_line(error), place]))


def error_line(error: BaseException) -> str:
    """Return kind and text of an error in one line; its kind alone where it has no text that can be had.

    Of a `UserError` it is the text, which is for its reader already.
    """
    if isinstance(error, UserError):
        return " ".join(str(error).split())
    try:
        return " ".join(f"{type(error).__name__}: {error}".split())
    except Exception:  # of a class of the user's
        return type(error).__name__
