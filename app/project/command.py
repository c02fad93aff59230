"""``espalier new``: a project with a task, a strategy and an algorithm of one's own, which runs at once."""

import keyword
import re
import sys
import unicodedata
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path, PurePath

from espalier.app.ground.errors import UserError, shown
from espalier.app.ground.free_folder import check_free
from espalier.app.project.files import project_files

RESULTS = "results"
HELP = """Make a project with a task, a strategy and an algorithm of your own. They are short files to change.

  espalier new my-study
  cd my-study
  flwr run . --stream

The folder's name is the project's, and with underscores that of its Python package.
"""
NAME = re.compile(r"[A-Za-z][A-Za-z0-9]*([-_][A-Za-z0-9]+)*")  # a package's, and one that pip takes


def main(arguments: Sequence[str]) -> int:
    """Make the project that a command line names and return the exit code."""
    parser = ArgumentParser("espalier new", description=HELP, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="the folder to make; there may be an empty one")
    given: Path = parser.parse_args(arguments).folder
    try:
        folder = given.expanduser()
        check_free(folder)
        package = package_of(folder)
        write_files(folder, project_files(package))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except (OSError, RuntimeError) as error:  # the latter of a home that there is not
        where = getattr(error, "filename", None) or given
        print(f"error: {where}: can't be made ({getattr(error, 'strerror', None) or error})", file=sys.stderr)
        return 2
    print(f"made: {folder}, with the package {package}; its README.md says what to run")
    return 0


def write_files(folder: Path, texts: dict[PurePath, str]) -> None:
    """Write files into a folder, empty or to be made; where not all can be, none stays."""
    try:
        for place, text in texts.items():
            (folder / place).parent.mkdir(parents=True, exist_ok=True)
            (folder / place).write_text(text, encoding="utf-8")
    except BaseException:
        for place in reversed(texts):
            with suppress(OSError):  # of a folder that is not empty yet, or the current one
                (folder / place).unlink(missing_ok=True)
                (folder / place).parent.rmdir()
        raise


def package_of(folder: Path) -> str:
    """Return the name of the package of a project in a folder.

    Raises
    ------
    UserError
        If it can't be a package's, or is that of a module that is there already; the line has one that is not.
    """
    name = folder.resolve().name
    package = name.replace("-", "_")
    if not NAME.fullmatch(name) or keyword.iskeyword(package):
        raise UserError(f"folder {shown(name)}: is no name of a Python package: take {_suggested(name)}")
    if package == RESULTS:
        raise UserError(f"folder {shown(name)}: runs write into one of this name: take my-{RESULTS}")
    if _is_taken(package):
        raise UserError(f"folder {shown(name)}: Python has a module {package} already: take {_suggested(name)}")
    return package


def _suggested(name: str) -> str:
    ascii_name = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode()
    words = "-".join(re.findall(r"[A-Za-z0-9]+", ascii_name))
    if not NAME.fullmatch(words) or keyword.iskeyword(words) or _is_taken(words.replace("-", "_")):
        words = f"my-{words or 'study'}"
    return words


def _is_taken(package: str) -> bool:
    """Return whether a module of this name would be imported; a folder without an ``__init__.py`` is none."""
    return (spec := find_spec(package)) is not None and spec.origin is not None
