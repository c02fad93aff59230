"""Docstrings as the site shows them: reStructuredText's ``::`` in front of code, which Markdown does without."""

import re
from typing import Any

from griffe import Extension, Object


class Docstrings(Extension):
    """Griffe asks it about every object that has been read."""

    def on_object(self, *, obj: Object, **arguments: Any) -> None:
        """Take the ``::`` out of an object's docstring."""
        if obj.docstring:
            obj.docstring.value = without_double_colons(obj.docstring.value)


def without_double_colons(text: str) -> str:
    """Return a text where ``::`` at the end of a line is a colon, and a line of its own is none."""
    return re.sub(r"(?<=\S)::$", ":", re.sub(r"^ *::\n\n?", "", text, flags=re.M), flags=re.M)
