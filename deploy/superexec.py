"""Flower's program that starts apps, a child of a SuperLink's or a SuperNode's process, which does not look after it.

Where it ends, as when the SuperLink's database was locked for a moment, the other one stays, answers everybody, and
starts nothing more: whoever waits for a run, or for a client's answer, waits for long.
"""

import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from threading import Thread

PROGRAM = b"flower-superexec"
LOOK_SECONDS = 3.0


def end_without_it(name: str) -> None:
    """End this process, called `name`, with status 1 when the program that it has started to start apps is gone.

    It has to be missing twice, since a process that ends in order ends it first.
    """
    Thread(target=_look, args=(name,), daemon=True).start()


def _look(name: str) -> None:
    found, pause = list[int](), 0.1
    while not found:  # soon at first: it may end as soon as it has begun
        time.sleep(pause)
        pause = min(1.05 * pause, LOOK_SECONDS)
        found = [pid for pid in descendants(os.getpid()) if PROGRAM in _command_line(pid)]
    missing = 0
    while missing < 2:
        time.sleep(LOOK_SECONDS)
        missing = 0 if PROGRAM in _command_line(found[0]) else missing + 1
    print(f"{name} ends: {PROGRAM.decode()}, which starts apps for it, is gone", file=sys.stderr, flush=True)
    end_children()
    os._exit(1)


def _command_line(pid: int) -> bytes:
    """Return what a process was started by; nothing for one that is gone, or is a zombie."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def end_children() -> None:
    """Kill what this process has started, and what that has, and wait: zombies would be taken for alive by Flower's."""
    for pid in descendants(os.getpid()):
        with suppress(OSError):  # it is gone, or not a child of this process's own
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def descendants(pid: int) -> list[int]:
    """Return the processes that a process has started, and those that these have; from /proc, since devices lack ps."""
    found = []
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):  # the thread is gone
            for child in map(int, children.read_text(encoding="utf-8").split()):
                found += [child, *descendants(child)]
    return found
