"""A folder that is costly to make, made once: whole or not at all, and never trusted when damaged."""

import hashlib
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

from espalier.app.ground.errors import UserError

T = TypeVar("T")

_log = logging.getLogger("espalier")

_SCRATCH = ".building-"
_STALE_SECONDS = 24 * 3600


def fingerprint(root: Path, files: Iterable[Path], *settings: object) -> str:
    """Return a short key that changes when a file or a setting changes.

    A file counts as changed when its path below `root`, its size or its time of modification differs:
    contents are not read, so that the key of 60,000 files costs a fraction of a second.

    Parameters
    ----------
    root : Path
        The folder the files are in. Its own path does not count, unless it is among the settings.
    files : Iterable[Path]
        Files below `root`, in any order.
    *settings : object
        Whatever else decides the result; told apart by ``repr``.

    Raises
    ------
    UserError
        A file is gone or out of reach.

    Returns
    -------
    str
        16 hexadecimal digits.
    """
    digest = hashlib.sha256(repr(settings).encode())
    for file in sorted(map(str, files)):
        try:
            status = os.stat(file)
        except OSError as error:
            raise UserError(f"{file}: cannot be read ({error.strerror})") from error
        name = file.removeprefix(str(root))
        digest.update(f"\0{name}\0{status.st_size}\0{status.st_mtime_ns}".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()[:16]


def load_or_build(folder: Path, *, build: Callable[[Path], None], load: Callable[[Path], T]) -> T:
    """Return what is in a cache folder; make the folder first where it is missing or damaged.

    The folder is built under another name beside its place and renamed at the end, so that it is whole
    whenever it exists. Processes that build at the same time do not disturb each other: the first one to
    end wins.

    Parameters
    ----------
    folder : Path
        The folder's final place. Its parent is the cache folder, created where missing.
    build : Callable[[Path], None]
        Fills the empty folder it is given.
    load : Callable[[Path], T]
        Reads a filled folder; raises ``ValueError`` where it is missing or damaged.

    Raises
    ------
    UserError
        The cache folder cannot be written.
    """
    try:
        return load(folder)
    except ValueError as error:
        if os.path.exists(folder):
            _log.warning("damaged cache, building it again: %s", error)
    cache_dir = folder.parent
    try:
        cache_dir.mkdir(parents=True, exist_ok=True)
        _remove_stale(cache_dir)
        with tempfile.TemporaryDirectory(prefix=_SCRATCH, dir=cache_dir, ignore_cleanup_errors=True) as name:
            scratch = Path(name)
            new = scratch / "new"
            new.mkdir()
            build(new)
            _publish(new, folder, scratch / "damaged", load)
    except OSError as error:
        reason = error.strerror or error
        raise UserError(
            f"{cache_dir}: cannot be written ({reason}): set data.cache-dir to a folder that can"
        ) from error
    return load(folder)


def _publish(new: Path, folder: Path, damaged: Path, load: Callable[[Path], object]) -> None:
    """Rename `new` to `folder`, unless a sound folder has come to stand there in the meantime."""
    try:
        load(folder)
    except ValueError:
        if folder.exists():
            os.rename(folder, damaged)
        try:
            os.rename(new, folder)
        except OSError:  # a folder that is not empty: another process has come first just now
            if not folder.is_dir():
                raise


def _remove_stale(cache_dir: Path) -> None:
    """Remove what builders that were killed have left behind, a day later at the earliest."""
    for scratch in cache_dir.glob(f"{_SCRATCH}*"):
        try:
            stale = time.time() - scratch.stat().st_mtime > _STALE_SECONDS
        except FileNotFoundError:  # its builder has just ended
            continue
        if stale:
            shutil.rmtree(scratch, ignore_errors=True)
