"""Files that survive a power cut: new ones are on the disk when these functions return, changed ones are old or new."""

import os
from collections.abc import Callable
from contextlib import suppress
from errno import EACCES, EINVAL, ENOTSUP
from pathlib import Path
from typing import BinaryIO

from espalier.app.ground.regular_files import open_to_append

PART = ".part"  # ends the name of a file that is being written


def make_folder(path: Path) -> None:
    """Make a folder, and those that it is in, where they are missing."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for folder in missing:
        sync_folder(folder.parent)


def replace_file(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Write a file as a whole: an interruption or an error leaves the one that was there.

    So may a power cut, until `sync_folder`: a flush for every round that ends would be dear.

    Parameters
    ----------
    path : Path
        The file, in a folder that exists.
    write : Callable[[BinaryIO], object]
        Writes the content to an open file.
    """
    part = path.with_name(path.name + PART)
    is_new = not path.exists()
    part.unlink(missing_ok=True)  # what an interruption left; or a link, which must not be followed
    try:
        with part.open("xb") as file:
            write(file)
            _sync(file)
        part.replace(path)
    except BaseException:
        with suppress(OSError):
            part.unlink(missing_ok=True)
        raise
    if is_new:
        sync_folder(path.parent)


def replace_text(path: Path, text: str) -> None:
    """Write a text file as `replace_file` does."""
    replace_file(path, lambda file: file.write(as_bytes(text)))


def as_bytes(text: str) -> bytes:
    """Return a text in UTF-8; what is none, as a byte in a path can be, is written as in a Python string."""
    return text.encode(errors="backslashreplace")


def append_text(path: Path, text: str) -> None:
    """Append to a regular file, made where it is missing; an interruption can leave a part of `text`, an error none."""
    is_new = not path.exists()
    with open_to_append(path) as file:
        size, rest = file.seek(0, os.SEEK_END), memoryview(as_bytes(text))
        try:
            while rest:
                rest = rest[file.write(rest) :]
            _sync(file)
        except OSError:
            with suppress(OSError):
                file.truncate(size)
            raise
    if is_new:
        sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    """Bring to the disk which files are in a folder, and under which names, where the file system can."""
    try:
        folder = os.open(path, os.O_RDONLY)
    except (PermissionError, FileNotFoundError):  # we may write there and not look; somebody has removed it
        return
    try:
        os.fsync(folder)
    except OSError as error:
        if error.errno not in (EACCES, EINVAL, ENOTSUP):  # some file systems can't do it for folders
            raise
    finally:
        os.close(folder)


def _sync(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())
