"""Who has a folder, of results or of an edge's socket: one process at a time."""

import os
import socket
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from filelock import FileLock, Timeout, lock_descriptor

from espalier.app.ground.errors import bad_value
from espalier.app.ground.regular_files import open_to_append, open_to_read

LOCK = "lock"
PATIENCE_SECONDS = 0.5  # with those who look whether a folder has an owner, and hold its lock for an instant


@dataclass(frozen=True)
class Ownership:
    """That a folder is this process's.

    Parameters
    ----------
    lock : FileLock
        Held.
    identity : tuple[int, int]
        Of the file that it locks: device and inode.
    """

    lock: FileLock
    identity: tuple[int, int]

    @property
    def path(self) -> Path:
        """The file."""
        return Path(self.lock.lock_file)


def own(folder: Path, key: str) -> Ownership:
    """Become the one process that writes to a folder, until `disown` or the process's end, however it ends.

    Parameters
    ----------
    folder : Path
        A folder that exists; its file ``lock`` says which process it is.
    key : str
        The run-config key that named the folder, for the error.

    Raises
    ------
    UserError
        If another process has it.
    OSError
        If the folder can't be written, or its file system has no locks.
    """
    path = folder / LOCK
    # A lock that is just a file, which the library falls back to, would outlive a process that is killed.
    lock = FileLock(path, timeout=PATIENCE_SECONDS, thread_local=False, fallback_to_soft=False)
    try:
        lock.acquire()
    except Timeout:
        allowed = f"a folder that nobody else writes to: {_holder(path)} has it"
        raise bad_value(key, str(folder), allowed) from None
    since = datetime.now().astimezone().isoformat(sep=" ", timespec="seconds")
    try:
        with open_to_append(path) as file:
            file.truncate(0)
            file.write(f"process {os.getpid()} on {socket.gethostname()} since {since}\n".encode())
            return Ownership(lock, _identity(os.fstat(file.fileno())))
    except BaseException:
        lock.release()
        raise


def why_lost(ownership: Ownership) -> str:
    """Return why a folder is no longer this process's: somebody has removed its file; an empty text while it is."""
    try:
        if _identity(os.lstat(ownership.path)) == ownership.identity:
            return ""
    except FileNotFoundError:
        return f"its file {LOCK} was removed"
    return f"its file {LOCK} was removed, and {_holder(ownership.path)} has it now"


def disown(ownership: Ownership) -> None:
    """Let others have the folder, and remove the file while it is known to be this process's."""
    with suppress(OSError):
        if not why_lost(ownership):
            os.unlink(ownership.path)
    ownership.lock.release()


def is_owned(folder: Path) -> bool:
    """Return whether a process writes to a folder."""
    try:
        file = os.open(folder / LOCK, os.O_RDWR)  # which makes none
    except FileNotFoundError:
        return False
    try:
        return not lock_descriptor(file, blocking=False)
    finally:
        os.close(file)


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _holder(path: Path) -> str:
    try:
        with open_to_read(path) as file:
            text = file.read(200).decode(errors="replace").strip()
    except OSError:
        text = ""
    return text or "another process"  # which has not written its name yet
