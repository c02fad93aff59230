"""What all sections of the run config have in common."""

import ast
import inspect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from functools import cache
from itertools import pairwise
from textwrap import dedent
from types import MappingProxyType
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict


class Tag(Enum):
    """What is said of a setting beside its type: ``setting: Annotated[str, Tag.PATH] = ""``."""

    COMMON = auto()
    """Many command lines name it: its key has no section's name in front."""
    FIRST = auto()
    """Every edition saved it: a run whose config has lost it does not go on by its default."""
    PATH = auto()
    """A file or folder."""
    CONTENT = auto()
    """A file, and a resumed run must not differ in what it holds."""
    LEFT_OPEN = auto()
    """Its default depends on other settings, see `espalier.app.config.defaults`."""
    OPTIMIZER = auto()
    """Of no use beside an optimizer of the task's own."""
    TRAINING = auto()
    """Of no use where nothing is trained."""
    TRAINS_CLIENTS = auto()
    """Of no use where no clients train."""
    CUTS = auto()
    """Of no use where no model is cut."""
    TUNES = auto()
    """Of no use where no model is fine-tuned."""
    SELECTS = auto()
    """Of no use where plans do not select a number of clients."""
    READS_DATA = auto()
    """Of no use for data that are simulated."""
    WITH_OWN_TASK = auto()
    """Of the data, and for a task of one's own too."""
    OF_OWN_FOLDERS = auto()
    """For clients that have folders of their own."""
    OF_COLUMNS = auto()
    """For a set whose columns can be told."""
    OF_EDGE_HOST = auto()
    """For an edge that has a host of its own."""
    DEVICE = auto()
    """A range that simulated devices draw from."""
    OWN_AT_EDGES = auto()
    """An edge that has a host of its own may have another value than the cloud."""
    MAY_CHANGE = auto()
    """A resumed run may differ in it. The data are compared by what they hold, wherever they lie."""
    ENDS = auto()
    """Likewise, as it says where a run ends."""
    HOW = auto()
    """Likewise, as it says where and how fast a run goes, and not what it gives."""
    BESIDE = auto()
    """Runs that differ in it are of one setting."""
    SPEAKS = auto()
    """Its values say what they are, without its name."""


@dataclass(frozen=True)
class Before:
    """What runs did before there was a setting, where that is not its default."""

    value: Any


class Section(BaseModel):
    """Settings that belong together, with a docstring for each: ``--help`` and ``docs/configuration.md`` have it.

    A setting's key is ``name.the-setting``, or without the name of the section where it is `Tag.COMMON`. Settings that
    are text in a special form hold what was parsed, with the `text` as typed.

    Attributes
    ----------
    name : str
        Of the section.
    tags : tuple[Tag, ...]
        Of all of its settings.
    """

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        allow_inf_nan=False,
        arbitrary_types_allowed=True,
    )
    name: ClassVar[str]
    tags: ClassVar[tuple[Tag, ...]] = ()

    @classmethod
    def keys(cls) -> Mapping[str, str]:
        """Return the key of every field, as a user types it."""
        return _keys_of(cls)

    @classmethod
    def tagged(cls, *tags: Tag) -> list[str]:
        """Return the fields that have one of some tags."""
        own = {field: (*cls.tags, *info.metadata) for field, info in cls.model_fields.items()}
        return [field for field, said in own.items() if any(tag in said for tag in tags)]

    @classmethod
    def keys_tagged(cls, *tags: Tag) -> list[str]:
        """Return the keys of the fields that have one of some tags."""
        keys = cls.keys()
        return [keys[field] for field in cls.tagged(*tags)]

    @classmethod
    def own_keys(cls) -> list[str]:
        """Return the keys that have the section's name in front."""
        return [key for key in cls.keys().values() if "." in key]

    @classmethod
    def meanings(cls) -> Mapping[str, str]:
        """Return what is said of the fields: their docstrings.

        The source is read here and not by pydantic's `use_attribute_docstrings`, which would read it at every start.
        """
        kinds = [kind for kind in reversed(cls.__mro__) if is_section(kind)]
        return {field: said for kind in kinds for field, said in _said_in(kind).items()}

    def given(self, tag: Tag) -> list[tuple[str, Any]]:
        """Return the key and the value of those settings with a tag that are not empty, or 0."""
        values = self.as_dict()
        return [(key, values[key]) for key in self.keys_tagged(tag) if values[key]]

    def without_use(self, given: Mapping[str, Any]) -> Iterable[tuple[Iterable[str], str]]:
        """Return keys that a run has no use for by what else is given, and why; of an algorithm's own section.

        ``given`` has all settings by key, as a user types them.
        """
        return ()

    def as_dict(self) -> dict[str, Any]:
        """Return the settings by key, as a user types them."""
        values = {key: getattr(self, field) for field, key in self.keys().items()}
        return {key: getattr(value, "text", value) for key, value in values.items()}


def is_section(kind: Any) -> bool:
    """Return whether the type of a field is a section."""
    return isinstance(kind, type) and issubclass(kind, Section)


@cache
def _said_in(kind: type[Section]) -> Mapping[str, str]:
    """Return the docstrings of the fields of one class; none where its source is not installed."""
    try:
        (body,) = ast.parse(dedent(inspect.getsource(kind))).body
    except OSError:
        return {}
    assert isinstance(body, ast.ClassDef)
    found = {}
    for field, text in pairwise(body.body):
        match field, text:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(said))):
                found[name] = inspect.cleandoc(said)
    return found


@cache
def _keys_of(kind: type[Section]) -> Mapping[str, str]:
    """Return the keys of a section, which every look at all settings asks for."""
    common, prefix = kind.tagged(Tag.COMMON), f"{kind.name}." if kind.name else ""
    return MappingProxyType(
        {
            field: ("" if field in common else prefix) + field.replace("_", "-")
            for field, info in kind.model_fields.items()
            if not is_section(info.annotation)
        }
    )
