"""Who has a folder, of results or of an edge's socket: one process at a time."""

import os
import socket
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from filelock import FileLock, Timeout, lock_descriptor

from espalier.app.errors import bad_value

LOCK = "lock"
PATIENCE_SECONDS = 0.5  # with those who look whether a folder has an owner, and hold its lock for an instant


def own(folder: Path, key: str) -> FileLock:
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
    path.write_text(f"process {os.getpid()} on {socket.gethostname()} since {since}\n", encoding="utf-8")
    return lock


def disown(lock: FileLock) -> None:
    """Let others have the folder, and remove the file while it is known to be this process's."""
    with suppress(OSError):
        os.unlink(lock.lock_file)
    lock.release()


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


def _holder(path: Path) -> str:
    try:
        text = path.read_text(encoding="utf-8", errors="replace")[:200].strip()
    except OSError:
        text = ""
    return text or "another process"  # which has not written its name yet
