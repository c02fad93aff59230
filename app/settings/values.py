"""Settings that are written as text in a form of their own: ranges, lists of cuts, names and numbers."""

import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from errno import ENAMETOOLONG
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BeforeValidator

from espalier.app.ground.errors import bad_value

T = TypeVar("T")
NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
BEST_CUT = "best"
NO_TAIL = "none"
BRACKETS = {"(": ")", "[": "]", "{": "}"}


@dataclass(frozen=True)
class Range:
    """A range like ``"0.1-0.8"``, or one number.

    Parameters
    ----------
    lowest, highest : float
        Its ends; equal for one number.
    text : float | str
        As it was written.
    """

    lowest: float
    highest: float
    text: float | str

    @property
    def ends(self) -> tuple[float, float]:
        """Both ends."""
        return self.lowest, self.highest


@dataclass(frozen=True)
class Cuts:
    """The cuts of the clients in turn, like ``"1,2,4"``.

    Parameters
    ----------
    items : tuple[int | str, ...]
        Client i has the i-th, from the start again after the last; empty where plans choose. Each is the number of
        blocks on the client, or the name of the last of them.
    text : int | str
        As it was written.
    """

    items: tuple[int | str, ...]
    text: int | str

    def numbers(self, names: Sequence[str]) -> tuple[int | None, ...]:
        """Return each cut as a number of blocks, by the names of all; None for a name that no block has."""
        known: dict[int | str, int] = {name: number for number, name in enumerate(names, start=1)}
        return tuple(item if isinstance(item, int) else known.get(item) for item in self.items)

    @property
    def is_best(self) -> bool:
        """True where every plan chooses the cuts of its clients."""
        return self.text == BEST_CUT


@dataclass(frozen=True)
class Tail:
    """Where the clients' last blocks begin, as it was written: a block's name, or the number of blocks in front."""

    text: int | str

    @property
    def is_none(self) -> bool:
        """True where the last blocks are the edge's."""
        return self.text == NO_TAIL

    def begins_at(self, names: Sequence[str]) -> int | None:
        """Return the number of blocks in front of the tail, by the names of all; None for what is no block of these."""
        if self.text in names:
            return list(names).index(str(self.text))
        number = int(self.text) if str(self.text).isdecimal() else -1
        return number if 0 <= number < len(names) else None


@dataclass(frozen=True)
class Words:
    """A list of different names like ``"cat,dog"``; empty for ``""``."""

    items: tuple[str, ...]
    text: str


@dataclass(frozen=True)
class Channels:
    """A number for red, green and blue each, like ``"0.5,0.5,0.5"``; none for ``""``."""

    numbers: tuple[float, ...]
    text: str


def range_within(lowest: float, highest: float, allowed: str) -> BeforeValidator:
    """Return the validator of a `Range` whose ends are in these bounds."""

    def parse(given: Any) -> Range:
        if isinstance(given, Range):
            return given
        match = re.fullmatch(f"({NUMBER})(?:-({NUMBER}))?", str(given))
        is_number = isinstance(given, int | float | str) and not isinstance(given, bool)
        ends = (float(match[1]), float(match[2] or match[1])) if match and is_number else None
        if ends is None or not lowest <= ends[0] <= ends[1] <= highest:
            raise ValueError(allowed)
        return Range(*ends, given)

    return BeforeValidator(parse)


def numbers_within(lowest: float, highest: float, example: str) -> BeforeValidator:
    """Return the validator of a `Range` of such numbers."""
    return range_within(
        lowest, highest, f"a number from {lowest:g} to {highest:g}, or a range of them like {example!r}"
    )


def _parse_cuts(given: Any) -> Cuts:
    if isinstance(given, Cuts):
        return given
    if isinstance(given, bool) or not isinstance(given, int | str):
        raise ValueError("an integer or a string")
    try:
        return Cuts(() if given == BEST_CUT else tuple(_cut(part.strip()) for part in str(given).split(",")), given)
    except ValueError:
        allowed = "a number of blocks or a block's name, a list for the clients in turn, like '1,2,4', or 'best'"
        raise ValueError(allowed) from None


def _cut(part: str) -> int | str:
    return part if re.fullmatch(r"[^\W\d]\w*", part) and part != BEST_CUT else int(part)


def _parse_tail(given: Any) -> Tail:
    if isinstance(given, Tail):
        return given
    if isinstance(given, bool) or not isinstance(given, int | str) or given == "":
        raise ValueError(f"the name of a block, a number of blocks, or {NO_TAIL!r}")
    return Tail(given)


def _words(allowed: str, is_word: Callable[[str], bool]) -> Callable[[Any], Words]:
    """Return what reads different words with commas between them, or none; ValueError with what is allowed."""

    def parse(given: Any) -> Words:
        if isinstance(given, Words):
            return given
        if not isinstance(given, str):
            raise ValueError("a string")
        names = tuple(name.strip() for name in given.split(",")) if given else ()
        if len(set(names)) < len(names) or not all(map(is_word, names)):
            raise ValueError(allowed)
        return Words(names, given)

    return parse


CLASSES_ALLOWED = "the names of the class folders, each once, like 'cat,dog', for partition = 'own'"
AUGMENTATIONS = ("crop", "flip", "vertical-flip", "rotation")
# Folders with other names are nobody's classes: hidden ones are passed over.
_parse_classes = _words(CLASSES_ALLOWED, lambda name: bool(name) and not name.startswith(".") and "/" not in name)
_parse_columns = _words("names of columns, each once, like 'age,height', or '' to find them", bool)
_parse_edge_names = _words(
    "different printable names, like 'west,east', or '' for any", lambda name: bool(name) and name.isprintable()
)
_parse_augmentation = _words(
    f"some of {', '.join(AUGMENTATIONS)}, each once, like 'crop,flip', or '' for none", AUGMENTATIONS.__contains__
)


def channels_allowed(least: float) -> str:
    """Return what a setting of `Channels` allows, in words."""
    return f"red, green and blue, each {least:g} to 1, like '0.5,0.5,0.5', for partition = 'own'"


def channels_from(least: float) -> BeforeValidator:
    """Return the validator of `Channels` whose numbers are from `least` to 1."""

    def parse(given: Any) -> Channels:
        if isinstance(given, Channels):
            return given
        if not isinstance(given, str):
            raise ValueError("a string")
        try:
            numbers = tuple(float(part) for part in given.split(",")) if given else ()
        except ValueError:
            numbers = (-1.0,)
        if given and not (len(numbers) == 3 and all(least <= number <= 1 for number in numbers)):
            raise ValueError(channels_allowed(least))
        return Channels(numbers, given)

    return BeforeValidator(parse)


CutsSetting = Annotated[Cuts, BeforeValidator(_parse_cuts)]
TailSetting = Annotated[Tail, BeforeValidator(_parse_tail)]
AugmentationSetting = Annotated[Words, BeforeValidator(_parse_augmentation)]
ClassesSetting = Annotated[Words, BeforeValidator(_parse_classes)]
ColumnsSetting = Annotated[Words, BeforeValidator(_parse_columns)]
EdgeNamesSetting = Annotated[Words, BeforeValidator(_parse_edge_names)]


def between_commas(text: str) -> Iterator[str]:
    """Yield what is between the commas that are in no quotes or brackets."""
    part, closing = "", ""
    for character in text:
        if closing and character == closing[-1]:
            closing = closing[:-1]
        elif character in "'\"" and not closing.endswith(("'", '"')):
            closing += character
        elif character in BRACKETS and not closing.endswith(("'", '"')):
            closing += BRACKETS[character]
        elif character == "," and not closing:
            yield part.strip()
            part = ""
            continue
        part += character
    yield part.strip()


def path_of(key: str, text: str) -> Path:
    """Return the absolute path that a setting of `Tag.PATH` holds, whether it is there or not.

    Raises
    ------
    UserError
        If there can be no such path.
    """
    path = Path(text)
    try:
        path = path.expanduser().absolute()
        os.stat(path)
    except RuntimeError:
        raise bad_value(key, text, "a path; there is no home folder of that user") from None
    except ValueError:
        raise bad_value(key, text, "a path, of characters that a file's name can have") from None
    except OSError as error:
        if error.errno == ENAMETOOLONG:
            raise bad_value(key, text, "a shorter path") from None
    return path


def read_csv(key: str, given: str, columns: str, read: Callable[..., T], *arguments: Any, **options: Any) -> T:
    """Return what a function makes of the CSV file that a setting of `Tag.PATH` names.

    Parameters
    ----------
    key, given : str
        The setting, and its value.
    columns : str
        What errors say behind "a CSV file", such as its columns.
    read : Callable[..., T]
        Gets the path; it raises OSError for a file that can't be read, and ValueError for one of another content.
    *arguments, **options : Any
        More that it gets.

    Raises
    ------
    UserError
        If there is no such file, or it holds something else.
    """
    path = path_of(key, given)
    try:
        return read(path, *arguments, **options)
    except OSError as error:
        reason = error.strerror or "it can't be read"
        raise bad_value(key, given, f"a CSV file that can be read: {reason}") from None
    except ValueError as error:
        raise bad_value(key, given, f"a CSV file {columns}: {error}") from None
